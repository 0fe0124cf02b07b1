#include "cli/guest_agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/maps_line.h"
#include "inject/agent_code.h"
#include "inject/injected_agent.h"
#include "inject/process_files.h"
#include "inject/target_checks.h"

namespace farpage::cli {
namespace {

using snapshot::GuestRegion;

// Of VmFlags: what the kernel does not move between mappings (UFFDIO_MOVE), or not to memory of
// other flags: devices, huge pages, mlock, shadow stacks, droppable and shared memory.
constexpr std::array<std::string_view, 10> kUnfit{" sh ", " io ", " pf ", " ht ", " lo ",
                                                  " ss ", " dp ", " wf ", " mm ", " ex "};

bool is_fit(const MapsLine& mapping, std::string_view flags) {
  return mapping.access == "rw-p" && mapping.inode == 0 &&
         std::ranges::none_of(kUnfit, [&](std::string_view unfit) {
           return flags.find(unfit) != std::string_view::npos;
         });
}

// The bytes of the region that lie in mappings that are fit.
uint64_t fit_bytes(std::string_view smaps, const GuestRegion& region) {
  uint64_t fit = 0;
  MapsLine mapping;
  for_each_line(smaps, [&](std::string_view line) {
    if (const auto next = parse_maps_line(line)) mapping = *next;
    if (!line.starts_with("VmFlags:")) return;
    const std::string flags = std::string(line) + " ";  // each is between two blanks
    const uint64_t begin = std::max(mapping.begin, region.address);
    const uint64_t end = std::min(mapping.end, region.address + region.bytes);
    if (begin < end && is_fit(mapping, flags)) fit += end - begin;
  });
  return fit;
}

Status check_memory(const inject::ProcessFiles& process, const std::vector<GuestRegion>& regions) {
  FARPAGE_TRY(smaps, process.read("smaps"));
  for (const GuestRegion& region : regions)
    if (fit_bytes(smaps, region) != region.bytes)
      return fail(ErrorCode::kInvalid,
                  fmt::format("{}: its region at {:#x} is not private anonymous memory, or is "
                              "locked (mlock) or of huge pages: with --local it cannot be served",
                              process.described(), region.address));
  return {};
}

}  // namespace

uint64_t guest_staging_pages() {
  return inject::kStagingPages;
}

Result<snapshot::GuestAgent> give_agent(pid_t pid, int userfaultfd, uint64_t features,
                                        const std::vector<GuestRegion>& regions) {
  FARPAGE_TRY_VOID(inject::check_kernel());
  FARPAGE_TRY(process, inject::ProcessFiles::open(pid));
  if (inject::has_seccomp(process))
    return fail(ErrorCode::kConflict,
                fmt::format("{} restricts its system calls (seccomp), which an agent of its memory "
                            "needs: start it without that (firecracker --no-seccomp), or serve it "
                            "without --local",
                            process.described()));
  FARPAGE_TRY_VOID(check_memory(process, regions));
  inject::InjectOptions options;
  options.inherited.push_back({userfaultfd, features});
  FARPAGE_TRY(agent, inject::inject(pid, options));
  return snapshot::GuestAgent{.ring = std::move(agent.ring),
                              .staging_address = agent.staging_address,
                              .lifeline = std::move(agent.lifeline)};
}

}  // namespace farpage::cli
