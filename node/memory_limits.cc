#include "node/memory_limits.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/size.h"

namespace farpage::node {
namespace {

// Checks the calling thread.
bool has_ipc_lock() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

}  // namespace

Status check_memlock(uint64_t pinned_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return fail_errno("getrlimit(RLIMIT_MEMLOCK)");
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= pinned_bytes || has_ipc_lock())
    return {};
  return fail(
      ErrorCode::kExhausted,
      fmt::format("verbs pins {} but the memlock limit is {}: raise it (ulimit -l "
                  "unlimited, LimitMEMLOCK=infinity in the systemd unit), give CAP_IPC_LOCK, "
                  "or use --transports tcp,shm",
                  format_size(pinned_bytes), format_size(limit.rlim_cur)));
}

Result<uint64_t> meminfo_field(const std::string& text, const std::string& field) {
  const std::string key = field + ":";
  size_t at = text.rfind(key, 0) == 0 ? 0 : text.find("\n" + key);
  if (at == std::string::npos)
    return fail(ErrorCode::kNotFound, fmt::format("no {} in /proc/meminfo", field));
  at = text.find_first_of("0123456789\n", text.find(':', at));
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  if (at == std::string::npos) at = text.size();
  const auto [rest, problem] = std::from_chars(text.data() + at, end, value);
  if (problem != std::errc())
    return fail(ErrorCode::kInvalid, fmt::format("{} of /proc/meminfo is not a number", field));
  const bool kibibytes = std::string_view(rest, static_cast<size_t>(end - rest)).starts_with(" kB");
  return kibibytes ? value << 10 : value;
}

Status check_available(uint64_t lend_bytes, bool hugepages) {
  std::ifstream file("/proc/meminfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (hugepages) {
    constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
    FARPAGE_TRY(pages, meminfo_field(text, "HugePages_Free"));
    if (pages * kHugePageBytes >= lend_bytes) return {};
    return fail(ErrorCode::kExhausted,
                fmt::format("lending {} of huge pages needs {} free ones and there are {}: sysctl "
                            "vm.nr_hugepages={}, or omit --hugepages",
                            format_size(lend_bytes), lend_bytes / kHugePageBytes, pages,
                            lend_bytes / kHugePageBytes));
  }
  FARPAGE_TRY(available, meminfo_field(text, "MemAvailable"));
  if (available >= lend_bytes) return {};
  return fail(ErrorCode::kExhausted,
              fmt::format("cannot lend {}: this host has {} available; lower --lend",
                          format_size(lend_bytes), format_size(available)));
}

}  // namespace farpage::node
