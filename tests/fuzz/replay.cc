// Calls a fuzz target with each file of the folders that are named: where there is no libFuzzer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

int main(int count, char** folders) {
  size_t files = 0;
  for (int i = 1; i < count; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(folders[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
      // Each beginning of it, too.
      const size_t step = std::max<size_t>(bytes.size() / 64, 1);
      for (size_t size = 0; size < bytes.size(); size += step) LLVMFuzzerTestOneInput(data, size);
      LLVMFuzzerTestOneInput(data, bytes.size());
      ++files;
    }
  }
  std::printf("%zu seeds\n", files);
  return files > 0 ? 0 : 1;
}
