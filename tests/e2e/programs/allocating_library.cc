// A library whose constructor allocates: loaded by the scenario `library` of memory_calls.
#include <cstddef>
#include <vector>

namespace {
struct Table {
  Table() : words(1 << 20) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * 31 + 7;
  }
  std::vector<unsigned long> words;
} table;
}  // namespace

extern "C" int bytes_are_right() {
  for (std::size_t i = 0; i < table.words.size(); ++i)
    if (table.words[i] != i * 31 + 7) return 0;
  return 1;
}
