#include "image/page_reads.h"

#include <sched.h>

#include "base/check.h"
#include "base/log.h"

namespace farpage::image {
namespace {

// After all replicas have failed, or none could be reached.
constexpr Nanoseconds kRetryPause = std::chrono::microseconds(500);
constexpr Nanoseconds kWait = std::chrono::microseconds(100);
constexpr uint64_t kMaxLogged = 64;  // of each PageReads: a node may have lost all

}  // namespace

PageReads::PageReads(ImageLinks& links, pager::LinkPort& port, const ReadOptions& options,
                     ReadCounts& counts)
    : links_(links), port_(port), options_(options), counts_(counts) {}

void PageReads::add(const Read& read) {
  FARPAGE_CHECK(has_room(), "%zu READs are outstanding", busy_);
  for (Read& free : reads_) {
    if (free.step != Step::kFree) continue;
    free = read;
    free.step = Step::kQueued;
    ++busy_;
    ++queued_;
    return;
  }
}

void PageReads::start(const Image& image, uint64_t page, const StoredRun& run,
                      std::span<std::byte> landing, uint64_t token, Instant since) {
  Read read;
  read.since = since;
  read.image = &image;
  read.page = page;
  read.run = run;
  read.landing = landing;
  read.token = token;
  add(read);
}

void PageReads::start_raw(const Image& image, uint32_t region_page, uint32_t pages,
                          uint32_t replica, std::span<std::byte> landing, uint64_t token) {
  Read read;
  read.since = SteadyClock::read();
  read.image = &image;
  read.run = {.generation = 0, .slot = region_page, .pages = pages};
  read.landing = landing;
  read.token = token;
  read.preferred = static_cast<uint8_t>(replica);
  add(read);
}

std::optional<pager::Route> PageReads::choose_replica(Read& read, const pager::SlabLease& lease) {
  const bool only = only_ && read.page != kUnchecked;
  // Neighbours go to the same replica, whole slabs to different ones.
  const uint32_t first = only                      ? *only_
                         : read.page == kUnchecked ? read.preferred
                                                   : read.run.slot >> 14;
  uint32_t alive = 0;
  uint32_t not_wrong = 0;
  for (uint32_t i = 0; i < lease.replica_count; ++i) {
    const uint32_t place = (first + i) % lease.replica_count;
    if (only && i > 0) break;
    const pager::ReplicaLease& replica = *lease.replicas[place];
    if (!replica.is_read()) continue;
    ++alive;
    if ((read.wrong & (1U << place)) != 0) continue;
    ++not_wrong;
    if ((read.tried & (1U << place)) != 0) continue;
    const auto route = posting_.route(replica, [this] { post_gathered(); });
    if (!route) continue;
    read.replica = &replica;
    read.place = static_cast<uint8_t>(place);
    return route;
  }
  if (alive == 0) {
    // Another one may have taken the place of the last since the lease was looked up.
    if (leases_of(read).find(PageIndex{read.run.slot}) != &lease) {
      read.wrong = 0;
    } else {
      await_leases(read);
    }
  } else if (not_wrong == 0) {
    lose(read, "every replica of it has wrong bytes");
  } else {
    read.tried = 0;
    read.not_before = SteadyClock::read() + kRetryPause;
  }
  return std::nullopt;
}

// It may have moved, and this process has not heard of it.
void PageReads::await_leases(Read& read) {
  if (!read.image->ask_for_leases()) return lose(read, "every replica of it is lost");
  read.not_before = SteadyClock::read() + kRetryPause;
}

bool PageReads::gather(size_t index) {
  Read& read = reads_[index];
  const pager::LeaseMap& leases = leases_of(read);
  const PageIndex slot{read.run.slot};
  const pager::SlabLease* lease = leases.find(slot);
  if (lease == nullptr) {
    lose(read, "no node has its slab");
    return false;
  }
  const std::optional<pager::Route> route = choose_replica(read, *lease);
  if (!route) return false;
  posting_.add(route->operation(rdma::OperationKind::kRead, read.landing,
                                leases.address_of(route->replica, slot), index));
  return true;
}

void PageReads::post_gathered() {
  for (const rdma::Operation& operation : posting_.post().accepted) {
    Read& read = reads_[operation.token];
    read.step = Step::kOnWire;
    read.not_before = Instant{0};
    --queued_;
  }
}

void PageReads::post_queued() {
  if (queued_ == 0) return;
  const Instant now = SteadyClock::read();
  for (size_t i = 0; i < kReads; ++i) {
    Read& read = reads_[i];
    if (read.step != Step::kQueued || read.not_before > now) continue;
    if (!gather(i) && read.step == Step::kQueued && now - read.since > options_.deadline)
      lose(read, "no replica answered before the deadline");
  }
  post_gathered();
}

void PageReads::lose(Read& read, const char* why) {
  if (++logged_ <= kMaxLogged) {
    const bool is_page = read.page != kUnchecked;
    log::error("image: read_failed image={} {}={} pages={} after_ms={} reason=\"{}\"",
               read.image->name(), is_page ? "page" : "map_page",
               is_page ? read.page : read.run.slot, read.run.pages,
               (SteadyClock::read() - read.since).count() / 1'000'000, why);
  }
  read.step = Step::kLost;
  --queued_;
  ++ended_;
}

void PageReads::check(Read& read) {
  if (read.page == kUnchecked) {
    read.step = Step::kArrived;
    ++ended_;
    return;
  }
  for (uint32_t i = 0; i < read.run.pages; ++i) {
    const auto page = read.landing.subspan(size_t{i} << kPageShift, kPageBytes);
    if (checksum_of(page) == read.image->map()[read.page + i].checksum) [[likely]]
      continue;
    counts_.wrong_pages.fetch_add(1, std::memory_order_relaxed);
    if (++logged_ <= kMaxLogged)
      log::error(
          "image: wrong_page image={} page={} node={} slab={} replica={}: its bytes do not "
          "have their checksum",
          read.image->name(), read.page + i, links_.nodes().name_of(read.replica->node),
          leases_of(read).slab_of(PageIndex{read.run.slot}).value, read.place);
    read.wrong = static_cast<uint8_t>(read.wrong | (1U << read.place));
    read.step = Step::kQueued;
    ++queued_;
    counts_.retries.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  read.step = Step::kArrived;
  ++ended_;
}

void PageReads::complete(const rdma::Completion& completion) {
  Read& read = reads_[completion.token];
  FARPAGE_CHECK(read.step == Step::kOnWire, "completion for READ %llu, which waits for none",
                static_cast<unsigned long long>(completion.token));
  if (completion.status == rdma::CompletionStatus::kOk) [[likely]] {
    counts_.reads.fetch_add(1, std::memory_order_relaxed);
    counts_.read_bytes.fetch_add(read.landing.size(), std::memory_order_relaxed);
    return check(read);
  }
  counts_.retries.fetch_add(1, std::memory_order_relaxed);
  read.step = Step::kQueued;
  ++queued_;
  if (completion.status == rdma::CompletionStatus::kRemoteAccess) {
    (void)pager::mark_lost(leases_of(read), links_.nodes(), PageIndex{read.run.slot}, *read.replica,
                           "the node refused the READ");
  } else if (completion.status != rdma::CompletionStatus::kFlushed) {
    // Flushed: the operation itself did not fail, so the same replica may be retried.
    read.tried = static_cast<uint8_t>(read.tried | (1U << read.place));
  }
  if (SteadyClock::read() - read.since > options_.deadline)
    lose(read, "no replica answered before the deadline");
}

bool PageReads::progress(const OnDone& done) {
  if (busy_ == 0) {
    gap_.rest();
    return false;
  }
  // Time in which this process was stopped does not count.
  if (const Nanoseconds gap = gap_.turn(SteadyClock::read()); gap.count() != 0)
    for (Read& read : reads_) read.since = gap_.without(gap, read.since);
  const size_t taken =
      port_.take_completions([this](const rdma::Completion& completion) { complete(completion); });
  post_queued();
  const bool ended = ended_ > 0;
  for (size_t i = 0; i < kReads && ended_ > 0; ++i) {
    Read& read = reads_[i];
    if (read.step != Step::kArrived && read.step != Step::kLost) continue;
    const Done end{read.token, read.step == Step::kArrived ? ReadOutcome::kOk : ReadOutcome::kLost,
                   read.landing};
    read.step = Step::kFree;
    --ended_;
    --busy_;
    done(end);
  }
  return taken > 0 || ended;
}

bool PageReads::wait_a_little() {
  rdma::Channel* only = nullptr;
  pager::NodeIndex only_node;
  size_t busy_channels = 0;
  port_.for_each_busy_channel([&](pager::NodeIndex node, rdma::Channel& channel) {
    ++busy_channels;
    only = &channel;
    only_node = node;
  });
  if (busy_channels != 1 || queued_ > 0 || ended_ > 0) return false;
  std::array<rdma::Completion, kReads> completions;
  const size_t got = only->wait(completions, kWait);
  port_.completed(only_node, static_cast<uint32_t>(got));
  for (const rdma::Completion& completion : std::span(completions).first(got)) complete(completion);
  return true;
}

void PageReads::finish(const OnDone& done) {
  while (busy_ > 0)
    if (!progress(done) && !wait_a_little()) ::sched_yield();
}

}  // namespace farpage::image
