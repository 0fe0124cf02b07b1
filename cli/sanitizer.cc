#include "cli/sanitizer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cli/elf_file.h"

namespace farpage::cli {
namespace {

struct Sanitizer {
  std::string_view name;
  std::string_view start;          // the first function that instrumented programs call
  std::string_view gcc_library;    // the beginning of its name
  std::string_view clang_library;  // likewise
};

constexpr std::array kSanitizers{
    Sanitizer{"AddressSanitizer", "__asan_init", "libasan.so", "libclang_rt.asan"},
    Sanitizer{"HWAddressSanitizer", "__hwasan_init", "libhwasan.so", "libclang_rt.hwasan"},
    Sanitizer{"ThreadSanitizer", "__tsan_init", "libtsan.so", "libclang_rt.tsan"},
    Sanitizer{"MemorySanitizer", "__msan_init", "libmsan.so", "libclang_rt.msan"}};

template <typename Matches>
std::string_view name_of(Matches matches) {
  const auto* found = std::find_if(kSanitizers.begin(), kSanitizers.end(), matches);
  return found == kSanitizers.end() ? std::string_view() : found->name;
}

}  // namespace

std::string_view sanitizer_of_library(std::string_view library) {
  const std::string_view file = library.substr(library.rfind('/') + 1);
  return name_of([file](const Sanitizer& sanitizer) {
    return file.starts_with(sanitizer.gcc_library) || file.starts_with(sanitizer.clang_library);
  });
}

std::string_view sanitizer_of(const std::string& elf_path) {
  const std::optional<ElfFile> file = ElfFile::open(elf_path);
  if (!file) return {};
  std::string_view found;
  // At most one: compilers refuse combinations of these.
  const auto note = [&found](std::string_view name) {
    found = name;
    return !name.empty();
  };
  if (file->any_library(
          [&](std::string_view library) { return note(sanitizer_of_library(library)); }))
    return found;
  // Instrumented code calls it, so it is a symbol of the program, defined or undefined. Only GCC
  // omits the one of a static runtime from the dynamic table.
  file->any_symbol(ElfFile::Table::kAll, [&](const ElfFile::Symbol& symbol) {
    return note(
        name_of([&](const Sanitizer& sanitizer) { return symbol.name == sanitizer.start; }));
  });
  return found;
}

}  // namespace farpage::cli
