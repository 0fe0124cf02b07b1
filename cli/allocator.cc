#include "cli/allocator.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>

#include "base/fd.h"
#include "base/mapping.h"

namespace farpage::cli {
namespace {

bool is_known_allocator(std::string_view library) {
  constexpr std::array kNames{"jemalloc", "tcmalloc", "mimalloc", "hoard",    "snmalloc",
                              "rpmalloc", "scalloc",  "scudo",    "tbbmalloc"};
  const std::string_view name = library.substr(library.rfind('/') + 1);
  return std::any_of(kNames.begin(), kNames.end(),
                     [name](const char* known) { return name.find(known) != name.npos; });
}

// An ELF file as it lies on disk. What a bound check finds outside of it is empty.
class ElfFile {
 public:
  explicit ElfFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  std::span<const T> array(uint64_t offset, uint64_t count) const {
    if (offset > bytes_.size() || count > (bytes_.size() - offset) / sizeof(T)) return {};
    if (offset % alignof(T) != 0) return {};
    return {reinterpret_cast<const T*>(bytes_.data() + offset), count};
  }
  std::string_view text(const Elf64_Shdr& strings, uint64_t at) const {
    const auto letters = array<char>(strings.sh_offset, strings.sh_size);
    if (at >= letters.size()) return {};
    return {letters.data() + at, strnlen(letters.data() + at, letters.size() - at)};
  }
  std::span<const Elf64_Shdr> sections() const {
    const auto header = array<Elf64_Ehdr>(0, 1);
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return {};
    return array<Elf64_Shdr>(header[0].e_shoff, header[0].e_shnum);
  }
  // Calls each(entry, section of its strings) for every entry of the sections of that type.
  template <typename Entry, typename Each>
  void for_each(uint32_t section_type, Each each) const {
    const auto all = sections();
    for (const Elf64_Shdr& section : all) {
      if (section.sh_type != section_type || section.sh_link >= all.size()) continue;
      for (const Entry& entry : array<Entry>(section.sh_offset, section.sh_size / sizeof(Entry)))
        each(entry, all[section.sh_link]);
    }
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

bool brings_allocator(const std::string& elf_path) {
  const Fd fd(::open(elf_path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0) return false;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return false;
  const Mapping mapping = Mapping::adopt(address, bytes);
  const ElfFile file(mapping.bytes());
  bool found = false;
  file.for_each<Elf64_Sym>(SHT_DYNSYM, [&](const Elf64_Sym& symbol, const Elf64_Shdr& strings) {
    found = found || (symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
                      file.text(strings, symbol.st_name) == "malloc");
  });
  file.for_each<Elf64_Dyn>(SHT_DYNAMIC, [&](const Elf64_Dyn& entry, const Elf64_Shdr& strings) {
    found = found ||
            (entry.d_tag == DT_NEEDED && is_known_allocator(file.text(strings, entry.d_un.d_val)));
  });
  return found;
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
