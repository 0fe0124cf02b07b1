#include "cli/host_checks.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/fd.h"
#include "base/size.h"
#include "cli/allocator.h"
#include "rdma/verbs/verbs.h"
#include "uffd/probe.h"

namespace farpage::cli {

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kOptional:
      return "optional";
    case Verdict::kMissing:
      return "missing";
  }
  return "unknown";
}

std::optional<std::string> HostFiles::read(const std::string& path) const {
  std::ifstream file(root_ + path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool has_capability(const HostFiles& files, unsigned number) {
  const std::string status = files.read("/proc/self/status").value_or("");
  const size_t at = status.find("CapEff:");
  if (at == std::string::npos) return false;
  const uint64_t effective =
      std::strtoull(status.c_str() + at + std::strlen("CapEff:"), nullptr, 16);
  return (effective >> number & 1) != 0;
}

Check check_kernel_version(const std::string& release) {
  int major = 0;
  int minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2)
    return {"kernel", Verdict::kMissing, release, "run Linux 6.1 or newer"};
  if (major < 5 || (major == 5 && minor < 14))
    return {"kernel", Verdict::kMissing, release + ": too old", "run Linux 6.1 or newer"};
  if (major == 5)
    return {"kernel", Verdict::kOptional, release + ": may work, but is not tested",
            "run Linux 6.1 or newer"};
  return {"kernel", Verdict::kOk, release, ""};
}

std::vector<Check> check_userfaultfd(const uffd::KernelReport& kernel) {
  std::vector<Check> checks;
  if (kernel.device_works || kernel.system_call_works)
    checks.push_back({"userfaultfd", Verdict::kOk,
                      kernel.device_works ? "through /dev/userfaultfd" : "through the system call",
                      ""});
  else
    checks.push_back(
        {"userfaultfd", Verdict::kMissing,
         kernel.reason +
             (kernel.user_mode_works ? ": works only for faults outside system calls" : ""),
         "run as root, or let the user open /dev/userfaultfd (setfacl -m u:USER:rw, Linux 6.1), or "
         "set sysctl vm.unprivileged_userfaultfd=1; in a container: --cap-add SYS_PTRACE and a "
         "seccomp profile that allows userfaultfd"});
  for (const uffd::FeatureReport& feature : kernel.features) {
    const Verdict verdict = feature.present    ? Verdict::kOk
                            : feature.required ? Verdict::kMissing
                                               : Verdict::kOptional;
    checks.push_back(
        {"userfaultfd " + feature.name, verdict, feature.purpose,
         feature.present ? "" : "run the kernel version in parentheses, or a newer one"});
  }
  return checks;
}

Check check_io_uring() {
  io_uring_params params{};
  const Fd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 2, &params)));
  if (ring.valid()) return {"io_uring", Verdict::kOk, "rings can be created", ""};
  const std::string reason = ::strerrordesc_np(errno);
  return {
      "io_uring", Verdict::kOptional, reason + ": this host cannot lend over TCP",
      "sysctl kernel.io_uring_disabled=0, and allow io_uring in the container's seccomp profile"};
}

Check check_allocator() {
  // The dynamic linker searches the same way when `farpage run` preloads it.
  const Result<std::string> library =
      allocator_library(kAutomaticAllocator, LibraryPlaces::of_this_host());
  if (library && !library->empty()) return {"allocator", Verdict::kOk, *library, ""};
  return {"allocator", Verdict::kOptional,
          "none is installed: only large anonymous mappings of programs become far memory",
          "apt install " + allocator_package()};
}

Check check_memlock_limit(uint64_t soft_limit_bytes, bool has_ipc_lock) {
  constexpr char kName[] = "memlock limit";
  if (has_ipc_lock) return {kName, Verdict::kOk, "no limit (CAP_IPC_LOCK)", ""};
  if (soft_limit_bytes == RLIM_INFINITY) return {kName, Verdict::kOk, "unlimited", ""};
  return {kName, Verdict::kOptional,
          fmt::format("{}: a node cannot lend more than this over verbs",
                      format_size(soft_limit_bytes)),
          "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or "
          "/etc/security/limits.conf"};
}

Check check_huge_pages(const HostFiles& files) {
  const std::string directory = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::string free = files.read(directory + "free_hugepages").value_or("");
  const std::string total = files.read(directory + "nr_hugepages").value_or("");
  if (!total.empty() && total != "0")
    return {"huge pages", Verdict::kOk, fmt::format("{} of {} of 2 MiB free", free, total), ""};
  return {"huge pages", Verdict::kOptional, "none of 2 MiB reserved",
          "sysctl vm.nr_hugepages=512 reserves 1G, for `farpage node --hugepages`"};
}

namespace {

// The directory of this process' memory control group, and the file with its limit.
std::optional<std::string> cgroup_limit_file(const HostFiles& files) {
  const std::string groups = files.read("/proc/self/cgroup").value_or("") + "\n";
  std::optional<std::string> unified;
  for (size_t at = 0; at < groups.size();) {
    const size_t end = groups.find('\n', at);
    const std::string line = groups.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers.find(",memory,") != std::string::npos)
      return "/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes";
    if (controllers == ",,") unified = "/sys/fs/cgroup" + group + "/memory.max";
  }
  return unified;
}

}  // namespace

Check check_cgroup_limit(const HostFiles& files) {
  const std::optional<std::string> file = cgroup_limit_file(files);
  const std::string limit = file ? files.read(*file).value_or("max") : "max";
  // v1 writes "no limit" as a number near 2^63.
  const uint64_t bytes = std::strtoull(limit.c_str(), nullptr, 10);
  if (limit == "max" || bytes >= uint64_t{1} << 60)
    return {"cgroup memory", Verdict::kOk, "no limit", ""};
  return {"cgroup memory", Verdict::kOk, fmt::format("limit {} ({})", format_size(bytes), *file),
          ""};
}

Check check_flush_cost(const Result<std::optional<FlushCost>>& cost) {
  if (!cost) return {"TLB flush", Verdict::kOk, "not measured: " + cost.error().message(), ""};
  if (!*cost) return {"TLB flush", Verdict::kOk, "not measured: one CPU, or more than 1,024", ""};
  const FlushCost& flush = **cost;
  const auto microseconds = [](Nanoseconds time) {
    return static_cast<double>(time.count()) / 1e3;
  };
  const std::string detail =
      fmt::format("{:.1f} us, beside a busy CPU {:.1f} us", microseconds(flush.alone),
                  microseconds(flush.beside_busy_cpu));
  if (!flush.stops_other_cpus()) return {"TLB flush", Verdict::kOk, detail, ""};
  return {
      "TLB flush", Verdict::kOptional,
      detail + ": the hypervisor emulates page tables, and stops all CPUs for it",
      "run programs that fault much on one CPU (taskset -c 0 farpage run ...), or use a machine "
      "with nested paging: docs/experiments/emulated-page-tables.md"};
}

namespace {

Check check_port(const rdma::DeviceReport& port) {
  std::string gids;
  for (const rdma::GidReport& gid : port.gids)
    gids += fmt::format(" gid[{}]={} ({})", gid.index, gid.gid, gid.type);
  const std::string detail =
      fmt::format("{} port {}: {} {} mtu={} reads_in_flight={}{}", port.device, port.port,
                  port.state, port.link_layer, port.active_mtu_bytes, port.max_rd_atomic, gids);
  if (port.unusable_because.empty()) return {"RDMA device", Verdict::kOk, detail, ""};
  return {"RDMA device", Verdict::kOptional, detail + ": " + port.unusable_because,
          "see docs/rdma-setup.md; without RDMA farpage uses TCP"};
}

}  // namespace

std::vector<Check> check_rdma_devices() {
  const char* cure =
      "see docs/rdma-setup.md (SoftRoCE: rdma link add rxe0 type rxe netdev eth0); without RDMA "
      "farpage uses TCP";
  const Result<std::vector<rdma::DeviceReport>> ports = rdma::list_devices();
  if (!ports) return {{"RDMA device", Verdict::kOptional, ports.error().message(), cure}};
  if (ports->empty()) return {{"RDMA device", Verdict::kOptional, "none", cure}};
  std::vector<Check> checks;
  for (const rdma::DeviceReport& port : *ports) checks.push_back(check_port(port));
  return checks;
}

std::vector<Check> check_host() {
  const HostFiles files;
  utsname name{};
  ::uname(&name);
  rlimit memlock{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);
  std::vector<Check> checks = {check_kernel_version(name.release)};
  for (Check& check : check_userfaultfd(uffd::probe_kernel())) checks.push_back(std::move(check));
  for (Check& check : std::vector<Check>{
           check_allocator(),
           check_io_uring(),
           check_memlock_limit(memlock.rlim_cur, has_capability(files, CAP_IPC_LOCK)),
           check_huge_pages(files),
           check_cgroup_limit(files),
           check_flush_cost(measure_flush_cost()),
       })
    checks.push_back(std::move(check));
  for (Check& check : check_rdma_devices()) checks.push_back(std::move(check));
  return checks;
}

bool can_run(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.verdict == Verdict::kMissing; });
}

}  // namespace farpage::cli
