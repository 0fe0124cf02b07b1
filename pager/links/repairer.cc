#include "pager/links/repairer.h"

#include <pthread.h>

#include <algorithm>

#include "base/check.h"

namespace farpage::pager {
namespace {

// As the evictor's: a replica that misses a page for so long is given up.
constexpr Nanoseconds kFillPatience = Seconds(1);
constexpr Milliseconds kRangeRetry{20};       // after a range that could not be copied
constexpr Nanoseconds kGiveUp = Seconds(10);  // after the last one that could
constexpr std::chrono::microseconds kPollPause{50};
constexpr Nanoseconds kYields = std::chrono::microseconds(100);  // then it sleeps between looks
constexpr int64_t kRestsOfAQuarter = 3;

}  // namespace

Repairer::Repairer(RepairRate rate, CopyGate& gate, const NodeDirectory& nodes,
                   const NodeTable<PeerState>& peers, LinkPort& port)
    : rate_(rate), gate_(gate), nodes_(nodes), peers_(peers), port_(port), thread_([this] {
        run();
      }) {
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

void Repairer::remove(const LeaseMap& leases) {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Fill>& fill : fills_)
    if (&fill->leases == &leases) (void)fill->replica.end(ReplicaState::kWithdrawn);
  std::erase_if(fills_, [&](const auto& fill) { return &fill->leases == &leases; });
  changed_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) {
    return served_ == nullptr || &served_->leases != &leases;
  });
}

bool Repairer::is_unreachable(NodeIndex node) const {
  const int64_t since = peers_[node].unreachable_since_ns.load(std::memory_order_relaxed);
  return since != 0 && SteadyClock::read() - Nanoseconds(since) > kFillPatience;
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
  Nanoseconds rest{0};
  MutexLock lock(mutex_);
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (rest.count() != 0) (void)changed_.wait_for(lock, rest, [this] { return stopping_.load(); });
    rest = Nanoseconds(0);
    changed_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) {
      return stopping_.load(std::memory_order_relaxed) || !fills_.empty();
    });
    if (stopping_.load(std::memory_order_relaxed)) return;
    const Instant start = SteadyClock::read();
    served_ = next(start);
    if (!served_) {
      rest = kRangeRetry;
      continue;
    }
    lock.unlock();
    const uint64_t before = copied_bytes();
    if (advance(*served_)) rest = rest_after(SteadyClock::read() - start, copied_bytes() - before);
    const bool ended = served_->end.load(std::memory_order_relaxed) != Fill::End::kNone;
    if (ended) served_->on_end();
    lock.lock();
    if (ended) std::erase(fills_, served_);
    served_.reset();
    changed_.notify_all();
  }
}

bool Repairer::advance(Fill& fill) {
  const Instant start = SteadyClock::read();
  if (fill.moved_at.count() == 0) fill.moved_at = start;
  const Piece first{.first = fill.first_page()};
  const bool copied = source_of(fill, first) != nullptr && copy_range(fill);
  const Instant now = SteadyClock::read();
  if (copied) fill.moved_at = now;
  // Nothing that has every page can be reached: others have their turn, and this one may be
  // tried again from another node.
  const bool hopeless = fill.leases.find(fill.slab)->live() == 0 || now - fill.moved_at > kGiveUp;
  if (!copied) fill.not_before = now + kRangeRetry;
  if (!copied && hopeless) (void)fill.replica.end(ReplicaState::kLost);
  if (fill.end.load(std::memory_order_relaxed) == Fill::End::kNone && !fill.replica.is_written())
    fill.end.store(Fill::End::kLost, std::memory_order_release);
  return copied;
}

Nanoseconds Repairer::rest_after(Nanoseconds took, uint64_t bytes) const {
  if (!rate_.bytes_per_second) return took * kRestsOfAQuarter;
  const auto due = static_cast<double>(bytes) * 1e9 / static_cast<double>(*rate_.bytes_per_second);
  return std::max(Nanoseconds(static_cast<int64_t>(due)) - took, Nanoseconds(0));
}

bool Repairer::is_over(const Fill& fill) const {
  return stopping_.load(std::memory_order_acquire) || !fill.replica.is_written();
}

bool Repairer::await_quiet(const Fill& fill, uint64_t closed_at) const {
  while (!gate_.is_quiet(closed_at)) {
    if (is_over(fill)) return false;
    std::this_thread::sleep_for(kPollPause);
  }
  return true;
}

bool Repairer::copy_range(Fill& fill) {
  const uint32_t done = fill.copied.load(std::memory_order_relaxed);
  const uint32_t pages = std::min(fill.leases.pages_per_slab() - done, kPieces * kPiecePages);
  const PageIndex first{fill.first_page().value + done};
  for (uint32_t i = 0; i < kPieces; ++i) {
    const uint32_t at = std::min(i * kPiecePages, pages);
    const uint32_t of_piece = std::min(pages - at, kPiecePages);
    pieces_[i] = {.step = of_piece > 0 ? Step::kToRead : Step::kDone,
                  .first = PageIndex{first.value + at},
                  .pages = of_piece,
                  .source = i};
  }
  const bool copied =
      await_quiet(fill, gate_.close(fill.leases, first, pages)) && copy_pieces(fill);
  gate_.open();
  if (copied) {
    fill.copied.store(done + pages, std::memory_order_relaxed);
    copied_bytes_.fetch_add(uint64_t{pages} << kPageShift, std::memory_order_relaxed);
  }
  const bool complete = copied && done + pages == fill.leases.pages_per_slab();
  if (complete && fill.replica.filled())
    fill.end.store(Fill::End::kFilled, std::memory_order_release);
  return copied;
}

// The pages are copied when it returns true. Else a replica that has missed some is lost: a WRITE
// without an answer may still take effect, also after these pages were written back again.
bool Repairer::copy_pieces(const Fill& fill) {
  const auto any_is = [this](Step step) {
    return std::ranges::any_of(pieces_, [&](const Piece& piece) { return piece.step == step; });
  };
  const auto all_done = [this] {
    return std::ranges::all_of(pieces_,
                               [](const Piece& piece) { return piece.step == Step::kDone; });
  };
  Instant moved_at = SteadyClock::read();
  bool goes_on = true;
  while (in_flight_ > 0 || (goes_on && !all_done())) {
    bool moved = false;
    for (size_t i = 0; goes_on && i < kPieces; ++i) moved = post(fill, i) || moved;
    const size_t taken = port_.take_completions(
        [&](const rdma::Completion& completion) { complete(fill, completion); });
    const Instant now = SteadyClock::read();
    if (moved || taken > 0) moved_at = now;
    goes_on = goes_on && !is_over(fill) && now - moved_at < kFillPatience;
    if (moved_at == now) continue;
    if (now - moved_at < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollPause);
    }
  }
  if (!all_done() && any_is(Step::kToWrite) && !stopping_.load(std::memory_order_acquire))
    (void)mark_lost(fill.leases, nodes_, pieces_[0].first, fill.replica,
                    "it could not be reached while it was filling");
  return all_done();
}

const ReplicaLease* Repairer::source_of(const Fill& fill, const Piece& piece) const {
  const SlabLease* lease = fill.leases.find(piece.first);
  for (uint32_t i = 0; i < lease->replica_count; ++i) {
    const ReplicaLease* replica = lease->replicas[(piece.source + i) % lease->replica_count];
    if (replica->is_read() && !is_unreachable(replica->node)) return replica;
  }
  return nullptr;
}

bool Repairer::post(const Fill& fill, size_t index) {
  Piece& piece = pieces_[index];
  const bool reads = piece.step == Step::kToRead;
  if (!reads && piece.step != Step::kToWrite) return false;
  const ReplicaLease* replica = reads ? source_of(fill, piece) : &fill.replica;
  if (replica == nullptr) return false;
  const std::optional<Route> route = posting_.route(*replica, [] {});
  if (!route) {
    if (reads) ++piece.source;
    return false;
  }
  posting_.add(route->operation(
      reads ? rdma::OperationKind::kRead : rdma::OperationKind::kWrite,
      port_.buffer().subspan(index * kPiecePages * kPageBytes, size_t{piece.pages} << kPageShift),
      fill.leases.address_of(*replica, piece.first), index));
  if (posting_.post().accepted.empty()) return false;
  piece.replica = replica;
  piece.step = reads ? Step::kReading : Step::kWriting;
  ++in_flight_;
  return true;
}

void Repairer::complete(const Fill& fill, const rdma::Completion& completion) {
  Piece& piece = pieces_[completion.token];
  --in_flight_;
  const bool reads = piece.step == Step::kReading;
  if (completion.status == rdma::CompletionStatus::kOk) {
    piece.step = reads ? Step::kToWrite : Step::kDone;
    return;
  }
  piece.step = reads ? Step::kToRead : Step::kToWrite;
  if (reads) ++piece.source;
  if (completion.status == rdma::CompletionStatus::kRemoteAccess)
    (void)mark_lost(fill.leases, nodes_, piece.first, *piece.replica,
                    reads ? "the node refused a READ" : "the node refused a WRITE");
}

}  // namespace farpage::pager
