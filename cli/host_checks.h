// The checks of `farpage doctor`: can this host borrow and lend, and over which transports?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flush_cost.h"

namespace farpage::uffd {
struct KernelReport;
}

namespace farpage::cli {

enum class Verdict : uint8_t {
  kOk,
  kOptional,  // missing, but farpage runs without it; `cure` says how to get it
  kMissing,   // missing, and farpage cannot run
};
std::string_view to_string(Verdict verdict);

struct Check {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string detail;  // what was found
  std::string cure;    // empty when kOk
};

// The root of /proc and /sys: "" on a host, a directory in tests.
class HostFiles {
 public:
  explicit HostFiles(std::string root = "") : root_(std::move(root)) {}
  // The whole file without the last newline; nullopt if it cannot be read.
  std::optional<std::string> read(const std::string& path) const;

 private:
  std::string root_;
};

// `release` as from uname(2), "6.1.0-25-amd64". At least 5.14 is required.
Check check_kernel_version(const std::string& release);
// Whether this process may create a userfaultfd that also handles faults in kernel mode, and one
// line for each feature that the pager uses.
std::vector<Check> check_userfaultfd(const uffd::KernelReport& kernel);
Check check_io_uring();
// The allocator that `farpage run` preloads next to the shim.
Check check_allocator();
Check check_memlock_limit(uint64_t soft_limit_bytes, bool has_ipc_lock);
Check check_huge_pages(const HostFiles& files);
// The memory limit of this process' control group, v1 or v2.
Check check_cgroup_limit(const HostFiles& files);
// `cost`: empty where this process may use only one CPU.
Check check_flush_cost(const Result<std::optional<FlushCost>>& cost);
// One line for each port of each device, or one line with the reason why there is no device.
std::vector<Check> check_rdma_devices();

// Bit `number` of CapEff in /proc/self/status.
bool has_capability(const HostFiles& files, unsigned number);

// All of the above on this host.
std::vector<Check> check_host();
// Nothing is kMissing.
bool can_run(const std::vector<Check>& checks);

}  // namespace farpage::cli
