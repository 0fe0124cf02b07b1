#include "cli/elf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/fd.h"

namespace farpage::cli {

std::optional<ElfFile> ElfFile::open(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0) return std::nullopt;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return std::nullopt;
  return ElfFile(Mapping::adopt(address, bytes));
}

template <typename T>
std::span<const T> ElfFile::array(uint64_t offset, uint64_t count) const {
  const std::span<const std::byte> bytes = mapping_.bytes();
  if (offset > bytes.size() || count > (bytes.size() - offset) / sizeof(T)) return {};
  if (offset % alignof(T) != 0) return {};
  return {reinterpret_cast<const T*>(bytes.data() + offset), count};
}

std::string_view ElfFile::text(const Elf64_Shdr& strings, uint64_t at) const {
  const auto letters = array<char>(strings.sh_offset, strings.sh_size);
  if (at >= letters.size()) return {};
  return {letters.data() + at, strnlen(letters.data() + at, letters.size() - at)};
}

std::span<const Elf64_Shdr> ElfFile::sections() const {
  const auto header = array<Elf64_Ehdr>(0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return {};
  return array<Elf64_Shdr>(header[0].e_shoff, header[0].e_shnum);
}

// Calls each(entry, string section) for every entry of the sections of that type.
template <typename Entry, typename Each>
void ElfFile::for_each(uint32_t section_type, Each each) const {
  const auto all = sections();
  for (const Elf64_Shdr& section : all) {
    if (section.sh_type != section_type || section.sh_link >= all.size()) continue;
    for (const Entry& entry : array<Entry>(section.sh_offset, section.sh_size / sizeof(Entry)))
      each(entry, all[section.sh_link]);
  }
}

bool ElfFile::any_symbol(Table table, const std::function<bool(const Symbol&)>& matches) const {
  bool found = false;
  const auto look = [&](const Elf64_Sym& symbol, const Elf64_Shdr& strings) {
    const bool defined_function =
        symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC;
    found = found || matches({text(strings, symbol.st_name), defined_function});
  };
  for_each<Elf64_Sym>(SHT_DYNSYM, look);
  if (table == Table::kAll && !found) for_each<Elf64_Sym>(SHT_SYMTAB, look);
  return found;
}

bool ElfFile::any_library(const std::function<bool(std::string_view)>& matches) const {
  bool found = false;
  for_each<Elf64_Dyn>(SHT_DYNAMIC, [&](const Elf64_Dyn& entry, const Elf64_Shdr& strings) {
    found = found || (entry.d_tag == DT_NEEDED && matches(text(strings, entry.d_un.d_val)));
  });
  return found;
}

}  // namespace farpage::cli
