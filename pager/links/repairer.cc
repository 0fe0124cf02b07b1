#include "pager/links/repairer.h"

#include <pthread.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace farpage::pager {
namespace {

// As the evictor's: a replica that misses a page for so long is given up.
constexpr Nanoseconds kFillPatience = Seconds(1);
constexpr Nanoseconds kRangeRetry =
    Milliseconds(20);  // at least, after a range that was not copied
constexpr Nanoseconds kShortFor = Seconds(600);
constexpr int64_t kRetryShare = 2;  // else after half as long as nothing was copied
constexpr int64_t kRestsOfAQuarter = 3;
constexpr Instant kNever{INT64_MAX};

}  // namespace

Repairer::Repairer(const Options& options, CopyGate& gate, const NodeDirectory& nodes,
                   const NodeTable<PeerState>& peers, LinkPort& port)
    : options_(options),
      gate_(gate),
      nodes_(nodes),
      peers_(peers),
      port_(port),
      scrubber_(options.checksums ? options.scrub_bytes_per_second : 0, transfer_),
      thread_([this] { run(); }) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
}

Repairer::~Repairer() {
  stop();
}

void Repairer::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Repairer::add(std::shared_ptr<Fill> fill) {
  {
    const MutexLock lock(mutex_);
    fills_.push_back(std::move(fill));
  }
  changed_.notify_all();
}

void Repairer::scrub(const LeaseMap& leases) {
  {
    const MutexLock lock(mutex_);
    if (!scrubber_.enabled()) return;
    scrubber_.add(leases);
  }
  changed_.notify_all();
}

void Repairer::report(const WrongPage& wrong) {
  if (!wrong.leases->is_stored()) {  // of others, and only read here
    const MutexLock lock(mutex_);
    if (wrong_.size() == kMaxWrong || std::ranges::find(wrong_, wrong) != wrong_.end()) return;
    wrong_.push_back(wrong);
    changed_.notify_all();
  }
  log::warn("pager: wrong_page page={} slab={} node={}", wrong.page.value,
            wrong.leases->slab_of(wrong.page).value, nodes_.name_of(wrong.replica->node));
}

void Repairer::remove(const LeaseMap& leases) {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Fill>& fill : fills_)
    if (&fill->leases == &leases) (void)fill->replica.end(ReplicaState::kWithdrawn);
  std::erase_if(fills_, [&](const auto& fill) { return &fill->leases == &leases; });
  scrubber_.remove(leases);
  changed_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) { return used_ != &leases; });
  // The thread may have reported some until now.
  std::erase_if(wrong_, [&](const WrongPage& wrong) { return wrong.leases == &leases; });
}

bool Repairer::is_unreachable(NodeIndex node) const {
  return peers_[node].unreachable_for() > kFillPatience;
}

std::shared_ptr<Fill> Repairer::next(Instant now) {
  const auto need = [now](const std::shared_ptr<Fill>& fill) {
    return std::pair(fill->not_before > now, fill->leases.find(fill->slab)->live());
  };
  const auto least = std::ranges::min_element(fills_, {}, need);
  if (least == fills_.end() || (*least)->not_before > now) return nullptr;
  // Those of the same need in turn.
  std::rotate(least, least + 1, fills_.end());
  return fills_.back();
}

void Repairer::run() {
  (void)pthread_setname_np(pthread_self(), "fp-repair");
  MutexLock lock(mutex_);
  while (!stopping_.load(std::memory_order_relaxed)) {
    const std::optional<Instant> due = serve();
    if (!due) continue;
    const bool fills = !fills_.empty();
    const bool scrubs = scrubber_.has_regions();
    const auto has_more = [&]() FARPAGE_REQUIRES(mutex_) {
      return stopping_.load(std::memory_order_relaxed) || !wrong_.empty() ||
             (!fills && !fills_.empty()) || (!scrubs && scrubber_.has_regions());
    };
    if (*due == kNever) {
      changed_.wait(lock, has_more);
    } else {
      (void)changed_.wait_for(lock, *due - SteadyClock::read(), has_more);
    }
  }
}

template <typename Work>
void Repairer::use(const LeaseMap& leases, Work work) {
  used_ = &leases;
  mutex_.unlock();
  work();
  mutex_.lock();
  used_ = nullptr;
  changed_.notify_all();
}

std::optional<Instant> Repairer::serve() {
  if (!wrong_.empty()) {
    const WrongPage wrong = wrong_.front();
    use(*wrong.leases, [&] { (void)mender_.mend(wrong); });
    // It stays until now, so that it is not reported again meanwhile.
    if (!wrong_.empty() && wrong_.front() == wrong) wrong_.pop_front();
    return std::nullopt;
  }
  const Instant now = SteadyClock::read();
  if (!fills_.empty()) return serve_fills(now);
  if (scrubber_.has_regions()) return serve_scrubber(now);
  return kNever;
}

std::optional<Instant> Repairer::serve_fills(Instant now) {
  if (fill_due_ > now) return fill_due_;
  const std::shared_ptr<Fill> fill = next(now);
  if (!fill) return fill_due_ = now + kRangeRetry;
  const uint64_t before = copied_bytes();
  const auto has_ended = [&] {
    return fill->end.load(std::memory_order_relaxed) != Fill::End::kNone;
  };
  bool copied = false;
  use(fill->leases, [&] {
    copied = advance(*fill);
    if (has_ended()) fill->on_end();
  });
  if (has_ended()) std::erase(fills_, fill);
  const Instant ended = SteadyClock::read();
  fill_due_ = ended + (copied ? rest_after(ended - now, copied_bytes() - before) : Nanoseconds(0));
  return std::nullopt;
}

std::optional<Instant> Repairer::serve_scrubber(Instant now) {
  if (scrub_due_ > now) return scrub_due_;
  const auto piece = scrubber_.next();
  if (!piece) {
    scrub_due_ = now + Scrubber::kBetweenRounds;
    return scrub_due_;
  }
  uint64_t bytes = 0;
  use(*piece->leases, [&] {
    bytes = scrubber_.check(
        *piece, [this](const ReplicaLease& replica) { return !is_unreachable(replica.node); },
        [this](const WrongPage& wrong) { report(wrong); });
  });
  const Instant ended = SteadyClock::read();
  scrub_due_ = ended + scrubber_.rest_after(ended - now, bytes);
  return std::nullopt;
}

bool Repairer::advance(Fill& fill) {
  const Instant start = SteadyClock::read();
  if (fill.moved_at.count() == 0) fill.moved_at = start;
  const Piece first{.first = fill.first_page()};
  const bool has_source = source_of(fill, first) != nullptr;
  const bool copied = has_source && copy_range(fill);
  const Instant now = SteadyClock::read();
  if (copied) fill.moved_at = now;
  // Of what is wrong: it is mended next.
  const bool is_to_mend = has_source && !copied && is_any(Step::kWrong);
  fill.mending_tried = is_to_mend;
  // Nothing that has every page can be reached: others have their turn, and this one may be
  // tried again from another node.
  const bool hopeless =
      fill.leases.find(fill.slab)->live() == 0 || now - fill.moved_at > options_.give_up;
  if (!copied && !is_to_mend)
    fill.not_before = now + std::max(kRangeRetry, (now - fill.moved_at) / kRetryShare);
  if (!copied && hopeless) (void)fill.replica.end(ReplicaState::kLost);
  if (fill.end.load(std::memory_order_relaxed) == Fill::End::kNone && !fill.replica.is_written())
    fill.end.store(Fill::End::kLost, std::memory_order_release);
  return copied;
}

Nanoseconds Repairer::rest_after(Nanoseconds took, uint64_t bytes) const {
  if (!options_.rate.bytes_per_second) return took * kRestsOfAQuarter;
  return rest_at_rate(bytes, *options_.rate.bytes_per_second, took);
}

bool Repairer::is_over(const Fill& fill) const {
  return stopping_.load(std::memory_order_acquire) || !fill.replica.is_written();
}

bool Repairer::copy_range(Fill& fill) {
  const uint32_t done = fill.copied.load(std::memory_order_relaxed);
  const uint32_t pages = std::min(fill.leases.pages_per_slab() - done, kPieces * piece_pages_);
  const PageIndex first{fill.first_page().value + done};
  for (uint32_t i = 0; i < kPieces; ++i) {
    const uint32_t at = std::min(i * piece_pages_, pages);
    const uint32_t of_piece = std::min(pages - at, piece_pages_);
    pieces_[i] = {.step = of_piece > 0 ? Step::kToRead : Step::kDone,
                  .first = PageIndex{first.value + at},
                  .pages = of_piece,
                  .source = i};
  }
  const uint64_t closed_at = gate_.close(fill.leases, first, pages);
  const auto ends = [&] { return is_over(fill); };
  const bool is_quiet = gate_.await_quiet(closed_at, ends);
  const bool copied = is_quiet && copy_pieces(fill);
  gate_.open();
  if (is_quiet) adapt_pieces(copied);
  if (copied) {
    fill.copied.store(done + pages, std::memory_order_relaxed);
    copied_bytes_.fetch_add(uint64_t{pages} << kPageShift, std::memory_order_relaxed);
  }
  const bool complete = copied && done + pages == fill.leases.pages_per_slab();
  if (complete && fill.replica.filled())
    fill.end.store(Fill::End::kFilled, std::memory_order_release);
  return copied;
}

// As the evictor's WRITEs (WriteLimit): on a slow or lossy link long operations never end in time.
// A WRITE that has failed costs a replica, so a length that has failed is not tried again soon. One
// failure alone says nothing about the length: a node has died.
void Repairer::adapt_pieces(bool copied) {
  const Instant now = SteadyClock::read();
  if (copied) {
    failed_ranges_ = 0;
    if (now >= short_until_) piece_pages_ = kPiecePages;
  } else if (!is_any(Step::kWrong) && ++failed_ranges_ > 1) {
    piece_pages_ = std::max(piece_pages_ / 2, uint32_t{1});
    short_until_ = now + kShortFor;
  }
}

// The pages are copied when it returns true. Else a replica that has missed some is lost: a WRITE
// without an answer may still take effect, also after these pages were written back again.
//
// Only what succeeds is progress: an operation that fails at once, as a READ of a bad sector does,
// would else be repeated for ever.
bool Repairer::copy_pieces(const Fill& fill) {
  const auto all_are = [this](Step one, Step other) {
    return std::ranges::all_of(
        pieces_, [&](const Piece& piece) { return piece.step == one || piece.step == other; });
  };
  Instant moved_at = SteadyClock::read();
  bool goes_on = true;
  while (in_flight_ > 0 || (goes_on && !all_are(Step::kDone, Step::kWrong))) {
    for (size_t i = 0; goes_on && i < kPieces; ++i) post(fill, i);
    bool moved = false;
    (void)port_.take_completions([&](const rdma::Completion& completion) {
      complete(fill, completion);
      moved = moved || completion.status == rdma::CompletionStatus::kOk;
    });
    const Instant now = SteadyClock::read();
    if (moved) moved_at = now;
    goes_on = !is_over(fill) && now - moved_at < kFillPatience;
    if (!moved) pause_between_looks(now - moved_at);
  }
  if (is_any(Step::kToWrite) && !stopping_.load(std::memory_order_acquire))
    (void)mark_lost(fill.leases, nodes_, pieces_[0].first, fill.replica,
                    "it could not be reached while it was filling");
  return all_are(Step::kDone, Step::kDone);
}

bool Repairer::is_any(Step step) const {
  return std::ranges::any_of(pieces_, [&](const Piece& piece) { return piece.step == step; });
}

const ReplicaLease* Repairer::source_of(const Fill& fill, const Piece& piece) const {
  const SlabLease* lease = fill.leases.find(piece.first);
  for (uint32_t i = 0; i < lease->replica_count; ++i) {
    const ReplicaLease* replica = lease->replicas[(piece.source + i) % lease->replica_count];
    if (replica->is_read() && !is_unreachable(replica->node)) return replica;
  }
  return nullptr;
}

void Repairer::post(const Fill& fill, size_t index) {
  Piece& piece = pieces_[index];
  const bool reads = piece.step == Step::kToRead;
  if (!reads && piece.step != Step::kToWrite) return;
  const ReplicaLease* replica = reads ? source_of(fill, piece) : &fill.replica;
  if (replica == nullptr) return;
  const std::optional<Route> route = posting_.route(*replica, [] {});
  if (!route) {
    if (reads) ++piece.source;
    return;
  }
  posting_.add(route->operation(
      reads ? rdma::OperationKind::kRead : rdma::OperationKind::kWrite,
      port_.buffer().subspan(index * kPiecePages * kPageBytes, size_t{piece.pages} << kPageShift),
      fill.leases.address_of(*replica, piece.first), index));
  if (posting_.post().accepted.empty()) return;
  piece.replica = replica;
  piece.step = reads ? Step::kReading : Step::kWriting;
  ++in_flight_;
}

void Repairer::complete(const Fill& fill, const rdma::Completion& completion) {
  Piece& piece = pieces_[completion.token];
  --in_flight_;
  const bool reads = piece.step == Step::kReading;
  if (completion.status == rdma::CompletionStatus::kOk) {
    piece.step = reads ? step_after_read(fill, piece) : Step::kDone;
    return;
  }
  piece.step = reads ? Step::kToRead : Step::kToWrite;
  if (reads) ++piece.source;
  if (completion.status == rdma::CompletionStatus::kRemoteAccess)
    (void)mark_lost(fill.leases, nodes_, piece.first, *piece.replica,
                    reads ? "the node refused a READ" : "the node refused a WRITE");
}

Repairer::Step Repairer::step_after_read(const Fill& fill, Piece& piece) {
  if (!options_.checksums || !has_wrong_pages(fill, piece)) return Step::kToWrite;
  if (++piece.wrong < fill.leases.find(fill.slab)->replica_count) {
    ++piece.source;
    return Step::kToRead;
  }
  return fill.mending_tried ? Step::kToWrite : Step::kWrong;
}

bool Repairer::has_wrong_pages(const Fill& fill, const Piece& piece) {
  bool any = false;
  const auto buffer = port_.buffer().subspan(static_cast<size_t>(&piece - pieces_.data()) *
                                             kPiecePages * kPageBytes);
  for (uint32_t i = 0; i < piece.pages; ++i) {
    const PageIndex page{piece.first.value + i};
    if (fill.leases.checksums().match(page, buffer.subspan(i * kPageBytes, kPageBytes))) continue;
    any = true;
    report({&fill.leases, page, piece.replica});
  }
  return any;
}

}  // namespace farpage::pager
