#include "cli/allocator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "cli/elf_file.h"

namespace farpage::cli {
namespace {

bool is_known_allocator(std::string_view library) {
  constexpr std::array kNames{"jemalloc", "tcmalloc", "mimalloc", "hoard",    "snmalloc",
                              "rpmalloc", "scalloc",  "scudo",    "tbbmalloc"};
  const std::string_view name = library.substr(library.rfind('/') + 1);
  return std::any_of(kNames.begin(), kNames.end(),
                     [name](const char* known) { return name.find(known) != name.npos; });
}

}  // namespace

bool brings_allocator(const std::string& elf_path) {
  const std::optional<ElfFile> file = ElfFile::open(elf_path);
  return file && (file->any_symbol(ElfFile::Table::kDynamic, [](const ElfFile::Symbol& symbol) {
           return symbol.defined_function && symbol.name == "malloc";
         }) || file->any_library(is_known_allocator));
}

std::vector<std::string> preload_entries(const std::string& list) {
  std::vector<std::string> entries;
  size_t at = 0;
  while ((at = list.find_first_not_of(": ", at)) != std::string::npos) {
    const size_t end = std::min(list.find_first_of(": ", at), list.size());
    entries.push_back(list.substr(at, end - at));
    at = end;
  }
  return entries;
}

std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator) {
  bool brought = program_brings_allocator;
  std::string list = shim;
  for (const std::string& entry : preload_entries(already)) {
    brought = brought || is_known_allocator(entry);
    list += ":" + entry;
  }
  return brought ? list : list + ":" + allocator;
}

}  // namespace farpage::cli
