// The only process of a small guest (its /init): reads a disk into memory past the guest's page
// cache, inverts every bit, and writes it back. So the virtual machine monitor reads and writes the
// guest's pages for its disk. Loads the modules in /modules by the order of their names, prints how
// many bytes it has written, and powers the guest off.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kRequestBytes = 256 << 10;

void fail(const char* what) {
  std::perror(what);
  ::reboot(RB_POWER_OFF);
}

void load_modules() {
  std::vector<std::string> names;
  DIR* folder = ::opendir("/modules");
  if (folder == nullptr) return fail("guest: /modules");
  while (const dirent* entry = ::readdir(folder))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const int fd = ::open(("/modules/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::syscall(SYS_finit_module, fd, "", 0) != 0) return fail(name.c_str());
    ::close(fd);
  }
}

void work() {
  const int disk = ::open("/dev/vda", O_RDWR | O_DIRECT | O_CLOEXEC);
  uint64_t bytes = 0;
  if (disk < 0 || ::ioctl(disk, BLKGETSIZE64, &bytes) != 0) return fail("guest: /dev/vda");
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail("guest: mmap");
  auto* words = static_cast<uint64_t*>(memory);
  auto* const content = static_cast<char*>(memory);
  for (uint64_t at = 0; at < bytes; at += kRequestBytes)
    if (::pread(disk, content + at, kRequestBytes, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(kRequestBytes))
      return fail("guest: read");
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) words[i] = ~words[i];
  for (uint64_t at = 0; at < bytes; at += kRequestBytes)
    if (::pwrite(disk, content + at, kRequestBytes, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(kRequestBytes))
      return fail("guest: write");
  if (::fsync(disk) != 0) return fail("guest: fsync");
  std::printf("guest: %llu bytes written\n", static_cast<unsigned long long>(bytes));
}

}  // namespace

int main() {
  if (::getpid() != 1) return 2;
  if (::mount("dev", "/dev", "devtmpfs", 0, nullptr) != 0) fail("guest: mount");
  load_modules();
  work();
  std::fflush(stdout);
  ::reboot(RB_POWER_OFF);
  return 1;
}
