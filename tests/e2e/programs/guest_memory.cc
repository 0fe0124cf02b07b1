// The only process of a small guest (its /init): fills memory with a pattern, reads it twice,
// prints a checksum to the console, and powers the guest off. MIB is the kernel argument
// guest_mib=. Started as another process, on the host, it does the same work for the MIB of its
// argument, and ends: so a test knows what the guest must print.
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr uint64_t kWordsOfAPage = 4096 / sizeof(uint64_t);

uint64_t word_of(uint64_t place, uint64_t version) {
  const uint64_t word = (place + version) * 0x9e3779b97f4a7c15U;
  return word ^ word >> 31;
}

// Counts wrong words, and adds up all words.
uint64_t wrong_words(const uint64_t* words, uint64_t count, uint64_t version, uint64_t& sum) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; ++i) {
    sum = sum * 31 + words[i];
    if (words[i] != word_of(i, i / kWordsOfAPage % 4 == 0 ? version : 1)) ++wrong;
  }
  return wrong;
}

void work(uint64_t mib) {
  const uint64_t count = (mib << 20) / sizeof(uint64_t);
  void* memory =
      ::mmap(nullptr, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("guest: mmap");
    return;
  }
  auto* words = static_cast<uint64_t*>(memory);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) words[i] = word_of(i, 1);
  uint64_t wrong = wrong_words(words, count, 1, sum);
  for (uint64_t page = 0; page < count / kWordsOfAPage; page += 4)
    for (uint64_t i = page * kWordsOfAPage; i < (page + 1) * kWordsOfAPage; ++i)
      words[i] = word_of(i, 2);
  wrong += wrong_words(words, count, 2, sum);
  std::printf("guest: %llu MiB, %llu wrong words, checksum %016llx\n",
              static_cast<unsigned long long>(mib), static_cast<unsigned long long>(wrong),
              static_cast<unsigned long long>(sum));
}

uint64_t mib_of_kernel_argument() {
  uint64_t mib = 0;
  ::mkdir("/proc", 0755);
  if (::mount("proc", "/proc", "proc", 0, nullptr) == 0) {
    if (std::FILE* file = std::fopen("/proc/cmdline", "r"); file != nullptr) {
      char word[256];
      while (std::fscanf(file, "%255s", word) == 1) std::sscanf(word, "guest_mib=%lu", &mib);
      std::fclose(file);
    }
  }
  return mib;
}

}  // namespace

int main(int count, char** arguments) {
  if (::getpid() != 1) {
    if (count != 2) return 2;
    work(std::strtoull(arguments[1], nullptr, 10));
    return 0;
  }
  work(mib_of_kernel_argument());
  std::fflush(stdout);
  ::sync();
  ::reboot(RB_POWER_OFF);
  return 1;
}
