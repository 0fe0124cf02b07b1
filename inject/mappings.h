// The memory of a program that can become far: private, anonymous, readable and writable mappings,
// of its heap and of its allocator.
//
// Not:
//  - memory of files, also private: their first pages are the file's;
//  - shared memory: another process would see pages that are away;
//  - rwx: a page moves only between mappings of equal access (UFFDIO_MOVE), and so does a mlocked
//    one;
//  - stacks of threads: at the end of a thread the kernel clears its id there
//  (CLONE_CHILD_CLEARTID)
//    and wakes who waits for that, but takes no fault for it: who joins the thread would wait
//    forever;
//  - [stack]: it grows downwards by itself, with no event of that, and is small;
//  - what the kernel treats specially (VmFlags: io, pf, ht, ss, dp, wf: devices, huge pages, shadow
//    stacks, droppable memory, memory that a forked child finds wiped).
//
// Memory that is registered with another userfaultfd is not known as such: registering it fails
// (EBUSY).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inject/process_files.h"

namespace farpage::inject {

// [begin, end), whole pages.
struct AddressRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
  bool operator==(const AddressRange&) const = default;
};

struct MappingOptions {
  uint64_t min_bytes = 0;  // smaller mappings are not eligible
  // Reading smaps takes at most this share of the time; until then a new mapping is not eligible.
  double max_share = 0.05;
};

// Looks at one process again and again. A look reads /proc/PID/maps, and /proc/PID/smaps, which
// walks the page tables and takes many times as long, only if there is a candidate that it has not
// seen before, or the amount of locked memory has changed. A mapping that has grown is known: the
// kernel joins only what has equal flags. Another change of flags (VM_WIPEONFORK) is seen with the
// next unknown mapping.
//
// Threads: one at a time.
class EligibleMappings {
 public:
  // `process` must outlive this. Ranges that overlap `own` (the agent's) are never eligible.
  EligibleMappings(const ProcessFiles& process, std::span<const AddressRange> own,
                   const MappingOptions& options = {});

  // Sorted by address. Each is one mapping of the kernel's. kNotFound: the process has ended.
  Result<std::vector<AddressRange>> look();
  // Smaller mappings that the last look has found, not judged.
  std::span<const AddressRange> small() const { return small_; }
  // When the next look can judge a mapping that the last one could not; nullopt: it judged all.
  std::optional<Instant> unjudged_until() const { return unjudged_until_; }

 private:
  bool is_own(const AddressRange& range) const;
  // nullopt: unknown.
  std::optional<bool> verdict_of(const AddressRange& range) const;
  std::optional<bool> is_fit(const AddressRange& range) const;
  Status read_flags(const std::string& locked);

  const ProcessFiles& process_;
  const std::vector<AddressRange> own_;
  const MappingOptions options_;
  // Of the last smaps: begin of each private anonymous mapping, its end, and whether its flags are
  // right.
  struct Verdict {
    uint64_t end = 0;
    bool eligible = false;
  };
  std::map<uint64_t, Verdict> verdicts_;
  std::vector<AddressRange> small_;
  std::string locked_;  // VmLck
  Instant next_read_{};
  std::optional<Instant> unjudged_until_;
};

}  // namespace farpage::inject
