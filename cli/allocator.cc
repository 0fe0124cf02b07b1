#include "cli/allocator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "cli/elf_file.h"

namespace farpage::cli {
namespace {

struct KnownAllocator {
  const char* name;
  std::vector<const char*> libraries;  // the first that is installed is used
  const char* package;                 // of Debian and Ubuntu
};

// In the order in which kAutomaticAllocator tries them.
const std::vector<KnownAllocator>& known_allocators() {
  static const std::vector<KnownAllocator> kKnown{
      {"mimalloc", {"libmimalloc.so.2", "libmimalloc.so.3"}, "libmimalloc2.0"},
      {"jemalloc", {"libjemalloc.so.2"}, "libjemalloc2"},
      {"tcmalloc", {"libtcmalloc_minimal.so.4"}, "libtcmalloc-minimal4"}};
  return kKnown;
}

// The paths of this library in the linker's cache, which contains them as strings that end in a 0.
std::vector<std::string> paths_in_cache(const std::string& cache, const std::string& library) {
  std::ifstream file(cache, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string end = "/" + library + '\0';
  std::vector<std::string> paths;
  for (size_t at = bytes.find(end); at != bytes.npos; at = bytes.find(end, at + 1)) {
    const size_t before = bytes.rfind('\0', at);
    const size_t begin = before == bytes.npos ? 0 : before + 1;
    paths.push_back(bytes.substr(begin, at + end.size() - 1 - begin));
  }
  return paths;
}

bool is_installed(const std::string& library, const LibraryPlaces& places) {
  std::vector<std::string> paths = paths_in_cache(places.cache, library);
  for (const std::string& directory : places.directories)
    paths.push_back(fmt::format("{}/{}", directory, library));
  return std::ranges::any_of(paths, brings_allocator);
}

std::string installed_library(const KnownAllocator& allocator, const LibraryPlaces& places) {
  for (const char* library : allocator.libraries)
    if (is_installed(library, places)) return library;
  return {};
}

Result<std::string> allocator_at(const std::string& path) {
  if (path.find_first_of(": ") != path.npos)
    return fail(ErrorCode::kInvalid,
                fmt::format("--allocator={}: LD_PRELOAD has no way to name a path with a space or "
                            "a colon; link to it from another place",
                            path));
  if (::access(path.c_str(), R_OK) != 0) {
    const int sys_errno = errno;
    return fail_errno(fmt::format("--allocator={}", path), sys_errno);
  }
  if (!brings_allocator(path))
    return fail(ErrorCode::kInvalid,
                fmt::format("--allocator={}: it is no 64-bit library that defines malloc", path));
  // The program may start others in other directories.
  return std::filesystem::absolute(path).lexically_normal().string();
}

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

LibraryPlaces LibraryPlaces::of_this_host() {
  LibraryPlaces places;
  void* const program = ::dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo sizes{};
  if (program == nullptr || ::dlinfo(program, RTLD_DI_SERINFOSIZE, &sizes) != 0) return places;
  // The directories follow the structure.
  std::vector<Dl_serinfo> memory(sizes.dls_size / sizeof(Dl_serinfo) + 1);
  Dl_serinfo& list = memory.front();
  if (::dlinfo(program, RTLD_DI_SERINFOSIZE, &list) == 0 &&
      ::dlinfo(program, RTLD_DI_SERINFO, &list) == 0)
    for (const Dl_serpath* at = list.dls_serpath; at != list.dls_serpath + list.dls_cnt; ++at)
      places.directories.emplace_back(at->dls_name);
  return places;
}

Result<std::string> allocator_library(const std::string& choice, const LibraryPlaces& places) {
  if (choice == kNoAllocator) return std::string();
  if (choice.find('/') != choice.npos) return allocator_at(choice);
  std::string names;
  for (const KnownAllocator& allocator : known_allocators()) {
    names += fmt::format("{}, ", allocator.name);
    if (choice != allocator.name && choice != kAutomaticAllocator) continue;
    const std::string library = installed_library(allocator, places);
    if (!library.empty()) return library;
    if (choice == allocator.name)
      return fail(ErrorCode::kNotFound,
                  fmt::format("--allocator={}: {} is not installed: apt-get install {}", choice,
                              allocator.libraries.front(), allocator.package));
  }
  if (choice == kAutomaticAllocator) return std::string();
  return fail(ErrorCode::kInvalid,
              fmt::format("--allocator={}: one of {}, {}{}, or a path with a slash to a library",
                          choice, kAutomaticAllocator, names, kNoAllocator));
}

std::string allocator_package() {
  return known_allocators().front().package;
}

std::string preload_list(const std::string& shim, const std::string& allocator,
                         const std::string& already, bool program_brings_allocator) {
  bool brought = program_brings_allocator;
  std::string list = shim;
  for (const std::string& entry : preload_entries(already)) {
    brought = brought || is_known_allocator(entry);
    list += ":" + entry;
  }
  return brought || allocator.empty() ? list : list + ":" + allocator;
}

}  // namespace farpage::cli
