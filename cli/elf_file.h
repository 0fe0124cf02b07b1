// ElfFile: reads the needed libraries and the symbols of a 64-bit ELF file.
#pragma once

#include <elf.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/mapping.h"

namespace farpage::cli {

// Threads: any; immutable after open(). The file may be truncated or corrupt: parts outside of it
// count as empty. If the file is written to at the same time, the results are arbitrary.
class ElfFile {
 public:
  // nullopt: the file is unreadable or empty.
  static std::optional<ElfFile> open(const std::string& path);

  struct Symbol {
    std::string_view name;
    bool defined_function = false;
  };
  // Whether `matches` is true for a symbol of the dynamic table or, with kAll, of either table.
  enum class Table : bool { kDynamic, kAll };
  bool any_symbol(Table table, const std::function<bool(const Symbol&)>& matches) const;
  // The same for the libraries in its DT_NEEDED entries.
  bool any_library(const std::function<bool(std::string_view)>& matches) const;

 private:
  explicit ElfFile(Mapping mapping) : mapping_(std::move(mapping)) {}

  template <typename T>
  std::span<const T> array(uint64_t offset, uint64_t count) const;
  std::string_view text(const Elf64_Shdr& strings, uint64_t at) const;
  std::span<const Elf64_Shdr> sections() const;
  template <typename Entry, typename Each>
  void for_each(uint32_t section_type, Each each) const;

  Mapping mapping_;
};

}  // namespace farpage::cli
