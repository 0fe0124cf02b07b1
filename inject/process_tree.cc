#include "inject/process_tree.h"

#include <dirent.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/maps_line.h"

namespace farpage::inject {
namespace {

// Fields of /proc/PID/stat, as proc_pid_stat(5) counts them: from 1 on.
constexpr size_t kParent = 4;
constexpr size_t kStartTime = 22;
constexpr size_t kStartOfCode = 26;
constexpr size_t kStartOfStack = 28;
constexpr size_t kStartOfHeap = 47;

Nanoseconds time_since_boot() {
  timespec now{};
  (void)::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + Nanoseconds(now.tv_nsec);
}

// False: it is no number.
bool parse(std::string_view text, uint64_t& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

}  // namespace

// The name, in parentheses, may contain anything.
std::optional<ProcessFacts> parse_process(std::string_view stat, Nanoseconds uptime) {
  const size_t name_begin = stat.find(" (");
  const size_t name_end = stat.rfind(") ");
  uint64_t pid = 0;
  if (name_begin == std::string_view::npos || name_end == std::string_view::npos ||
      name_end < name_begin || !parse(stat.substr(0, name_begin), pid))
    return std::nullopt;
  std::array<std::string_view, kStartOfHeap + 1> fields;
  std::string_view rest = stat.substr(name_end + 2);
  for (size_t field = 3; field < fields.size() && !rest.empty(); ++field) {
    const size_t end = std::min(rest.find_first_of(" \n"), rest.size());
    fields[field] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  uint64_t parent = 0;
  uint64_t start_ticks = 0;
  MemoryLayout layout;
  if (!parse(fields[kParent], parent) || !parse(fields[kStartTime], start_ticks) ||
      !parse(fields[kStartOfCode], layout.code) || !parse(fields[kStartOfStack], layout.stack) ||
      !parse(fields[kStartOfHeap], layout.heap))
    return std::nullopt;
  if (layout.stack == 0) layout = {};
  const auto ticks_per_second = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  const Nanoseconds start(
      static_cast<int64_t>(start_ticks * (uint64_t{1'000'000'000} / ticks_per_second)));
  return ProcessFacts{.pid = static_cast<pid_t>(pid),
                      .parent = static_cast<pid_t>(parent),
                      .age = uptime - start,
                      .layout = layout};
}

std::optional<ProcessFacts> facts_of(const ProcessFiles& process) {
  const Result<std::string> stat = process.read("stat");
  return stat ? parse_process(*stat, time_since_boot()) : std::nullopt;
}

std::vector<ProcessFacts> all_processes() {
  std::vector<ProcessFacts> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc"), ::closedir);
  if (!all) return processes;
  const Nanoseconds uptime = time_since_boot();
  while (const dirent* entry = ::readdir(all.get())) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    std::ifstream file(fmt::format("/proc/{}/stat", static_cast<const char*>(entry->d_name)));
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    if (const auto process = parse_process(stat, uptime)) processes.push_back(*process);
  }
  return processes;
}

std::vector<pid_t> descendants_of(pid_t pid, std::span<const ProcessFacts> processes,
                                  pid_t except) {
  std::vector<pid_t> found{pid};
  for (size_t i = 0; i < found.size(); ++i)
    for (const ProcessFacts& process : processes)
      if (process.parent == found[i] && process.pid != except &&
          std::ranges::find(found, process.pid) == found.end())
        found.push_back(process.pid);
  found.erase(found.begin());
  return found;
}

bool share_memory(pid_t one, pid_t other) {
  return ::syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0;
}

bool has_registered_memory(const ProcessFiles& process) {
  const Result<std::string> smaps = process.read("smaps");
  bool any = false;
  if (smaps)
    for_each_line(*smaps, [&](std::string_view line) {
      any = any || (line.starts_with("VmFlags:") && line.find(" um") != std::string_view::npos);
    });
  return any;
}

}  // namespace farpage::inject
