// The options of a pager. Every field is a flag of `farpage run` (docs/operations.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "coordinator/api.h"
#include "rdma/transport.h"

namespace farpage::pager {

// What fork() of a target does while pages of it are away.
enum class ForkMode : uint8_t {
  kRefuse,  // fails
  kPullIn,  // fetches all of them first, beyond the budget if necessary
  kShare,   // the child gets its own pager, and shares remote pages until one side modifies them
};

// "refuse", "pull-in", "share"
std::string_view to_string(ForkMode mode);
std::optional<ForkMode> fork_mode_from(std::string_view name);

// Compressed copies of remote pages here (compress/compressed_pages.h).
struct CompressedOption {
  bool enabled = false;
  // They may have less, or be off, where they are not worth it (compress/compression_policy.h).
  bool adaptive = false;
  // Of what the low-water mark leaves beside pinned pages.
  uint32_t percent = 30;
};
// "30%", "30", "off", "auto" (adaptive, at most 30%). kInvalid: the text names what is allowed.
Result<CompressedOption> parse_compressed(const std::string& text);

// What a fault does for which there is no room, and no node lends a slab.
enum class OnFull : uint8_t {
  kSigbus,  // waits as long as that may pass (evict/eviction_progress.h), then ends in SIGBUS
  kWait,    // waits until there is room
};

// How fast slabs are copied. All slabs of an engine share the rate.
struct RepairRate {
  // 0: no slab is repaired. nullopt: a quarter of what the link gives: after each range the thread
  // rests three times as long as it took.
  std::optional<uint64_t> bytes_per_second;
  bool enabled() const { return !bytes_per_second || *bytes_per_second > 0; }
};
// "auto", "max", "off", or a size a second ("200M"). kInvalid: the text names what is allowed.
Result<RepairRate> parse_repair_rate(const std::string& text);
// "off" (0), or a size a second ("4M"). kInvalid: the text names what is allowed.
Result<uint64_t> parse_scrub_rate(const std::string& text);

struct PagerOptions {
  std::string name;  // of the region, for people
  // The initial limit of resident pages of the window. Pager::set_local() changes it.
  uint64_t local_bytes = 64U << 20;
  uint32_t replicas = 1;  // copies of each page on distinct nodes
  std::string spread_by;  // coordinator::RegionCreate
  std::string borrower;   // coordinator::RegionCreate
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  uint32_t workers = 0;  // fault workers; 0: one for each CPU
  // No fault threads: the faulting thread calls Pager::resolve(). As many faults are resolved at
  // once as there are workers; further threads wait.
  bool resolve_in_thread = false;
  bool pin_workers = true;       // worker i on the i-th CPU this process may use
  uint32_t prefetch_depth = 64;  // pages of a batch ahead of a trend; 0: off
  // Of local_bytes: eviction starts above it. Where threads resolve their own faults they evict
  // above it while they wait, and the evictor's thread starts half-way between it and 100.
  uint32_t high_water_percent = 97;
  uint32_t low_water_percent = 94;  // and continues down to it
  // Those are the lowest marks: they are nearer to the budget while no fault finds it used up.
  bool adaptive_water_marks = true;
  // Nor is a mark further from the budget than so many pages.
  uint64_t most_room_pages = UINT64_MAX;
  CompressedOption compressed;
  RepairRate repair_rate;
  bool checksums = true;  // of each page that is written back; each READ is checked
  // Of what is read of replicas only to check it (links/scrubber.h). 0: nothing.
  uint64_t scrub_bytes_per_second = 0;
  OnFull on_full = OnFull::kSigbus;
  Milliseconds fault_deadline{5000};  // then a fault fails on purpose
  ForkMode fork = ForkMode::kRefuse;
  // Every target has a TouchRecorder. Nothing is fetched or zero-filled ahead then.
  bool record_touches = false;
  // The same for all pagers of one process (rdma/session_fences.h). 0: a random one.
  uint32_t session_group = 0;
  // The transports, in the order in which they are tried for each node. The engine sets those that
  // it was given.
  std::vector<rdma::TransportKind> transports = {
      rdma::TransportKind::kVerbs, rdma::TransportKind::kShm, rdma::TransportKind::kTcp};
  rdma::ChannelOptions channel;  // the template of each channel; the buffer is the pager's
};

inline constexpr uint64_t kMinLocalBytes = uint64_t{1} << 20;
inline constexpr uint32_t kPinPercent = 85;  // of the budget may be pinned: faults need the rest
inline constexpr uint32_t kMaxCompressedPercent = 50;
inline constexpr uint32_t kMaxWorkers = 64;
// Most forked children call exec, or end, before they have used more. No page of them is evicted.
// They get fewer where the budget is small, or children are many.
inline constexpr uint64_t kFreePages = 64;
inline constexpr uint32_t kMaxPrefetchDepth = 120;
// Memory nodes that lend, or have lent, to one process and its forked descendants.
inline constexpr uint32_t kMaxNodes = coordinator::kMaxNodes;

// The evictor's thread starts above this percentage of the widest marks. A thread that waits for
// the READ of its own fault evicts meanwhile: then the evictor's thread runs when that is not
// enough, or when no thread waits.
uint32_t pressing_percent(const PagerOptions& options);

// For a machine on which a TLB flush stops every running CPU. One worker, and eviction when a fault
// finds no room, a full batch at a time: what flushes then runs while the program waits, on one
// CPU, and seldom. Beside a second busy CPU a flush takes seven times as long there
// (docs/experiments/emulated-page-tables.md).
void spare_flushes(PagerOptions& options);

Status validate(const PagerOptions& options);
// The part of it that holds for Pager::set_local().
Status validate_local(uint64_t local_bytes);

}  // namespace farpage::pager
