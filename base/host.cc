#include "base/host.h"

#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/check.h"

namespace farpage {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

uint64_t random_u64() {
  uint64_t value = 0;
  const ssize_t got = ::getrandom(&value, sizeof value, 0);
  FARPAGE_CHECK(got == sizeof value, "getrandom returned %zd", got);
  return value;
}

uint32_t random_u32() {
  return static_cast<uint32_t>(random_u64());
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace farpage
