#include "snapshot/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/timespec.h"

namespace farpage::snapshot {
namespace {

constexpr uint64_t kBellData = ~uint64_t{0};
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
constexpr Nanoseconds kNap = std::chrono::microseconds(50);
constexpr Nanoseconds kRefused = std::chrono::microseconds(20);  // the kernel said: try again
constexpr Milliseconds kAsleep{1000};
constexpr uint32_t kTurnsOfALook = 4;

}  // namespace

void refuse_page(Session& session, uint64_t address) {
  session.memory().wake(address, session.unit_pages() << kPageShift);
  if (!session.note_refusal()) return;
  log::error(
      "serve: memory_refused session={} pid={} address={:#x}: no page can be placed there; "
      "the VMM gets SIGBUS",
      session.number(), session.pid(), address);
  send_signal(session.pidfd(), SIGBUS);
}

void end_in_sigbus(const Serving& serving, Session& session, uint64_t address) {
  if (session.has_ended()) return;
  if (!session.page_of(address))
    log::error("serve: stray_fault session={} pid={} address={:#x}: no region that the VMM named",
               session.number(), session.pid(), address);
  if (serving.can_poison) {
    // Refused while an event is queued: this thread reads events, so it cannot wait for that. A
    // woken thread faults again, and comes here again.
    const uint64_t bytes = session.unit_pages() << kPageShift;
    if (session.memory().poison(address, bytes) != uffd::Outcome::kDone)
      session.memory().wake(address, bytes);
    return;
  }
  // A kernel before 6.6: the guest as a whole, rather than a thread of it that waits forever.
  send_signal(session.pidfd(), SIGBUS);
}

Result<std::unique_ptr<Worker>> Worker::create(
    Serving& serving, pager::LinkPort& port, PlacingNote& note,
    std::function<void(std::shared_ptr<Session>)> on_end) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
  FARPAGE_TRY(bell, Doorbell::create());
  FARPAGE_TRY(epoll, Fd::from_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kBellData;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bell.fd(), &event) != 0)
    return fail_errno("epoll of the bell");
  return std::unique_ptr<Worker>(
      new Worker(serving, port, note, std::move(on_end), std::move(bell), std::move(epoll)));
}

Worker::Worker(Serving& serving, pager::LinkPort& port, PlacingNote& note,
               std::function<void(std::shared_ptr<Session>)> on_end, Doorbell bell, Fd epoll)
    : serving_(serving),
      port_(port),
      note_(note),
      on_end_(std::move(on_end)),
      bell_(std::move(bell)),
      epoll_(std::move(epoll)),
      reads_(serving.links, port, serving.reads, serving.read_counts),
      on_arrived_([this](const image::PageReads::Done& done) { arrived(done); }),
      places_(kMaxSessions),
      thread_([this] { run(); }) {}

Worker::~Worker() {
  stopping_.store(true, std::memory_order_release);
  bell_.ring();
}

Status Worker::add(std::shared_ptr<Session> session) {
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMaxSessions) {
    count_.fetch_sub(1, std::memory_order_relaxed);
    return fail(ErrorCode::kExhausted,
                "a thread serves " + std::to_string(kMaxSessions) + " guests already");
  }
  {
    const MutexLock lock(mutex_);
    inbox_.push_back(std::move(session));
  }
  bell_.ring();
  return {};
}

void Worker::run() {
  (void)pthread_setname_np(pthread_self(), "fp-snapshot");
  Instant moved_at{0};
  uint32_t turns = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    bool moved = reads_.progress(on_arrived_);
    begin_waiting();
    if (busy_ == 0) {
      gap_.rest();
      (void)look(kAsleep);
      moved_at = SteadyClock::read();
      continue;
    }
    moved = go_on() || moved;
    // Completions are looked for more often than new faults.
    if (moved || ++turns % kTurnsOfALook == 0) moved = look(Nanoseconds(0)) || moved;
    const Instant now = SteadyClock::read();
    if (moved) {
      moved_at = now;
    } else if (serving_.spins && now - moved_at < kSpin) {
      ::sched_yield();
    } else if (reads_.outstanding() != busy_ || !reads_.wait_a_little()) {
      (void)look(kNap);
    }
  }
}

bool Worker::take_inbox() {
  std::vector<std::shared_ptr<Session>> taken;
  {
    const MutexLock lock(mutex_);
    taken.swap(inbox_);
  }
  for (std::shared_ptr<Session>& session : taken) {
    size_t place = 0;
    while (places_[place].session != nullptr) ++place;
    epoll_event events{};
    events.events = EPOLLIN;
    events.data.u64 = place * 2;
    epoll_event ends{};
    ends.events = EPOLLIN;
    ends.data.u64 = place * 2 + 1;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->memory().fd(), &events) != 0 ||
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->pidfd(), &ends) != 0) {
      log::error("serve: not_watched session={} reason=\"{}\"", session->number(),
                 fail_errno("epoll_ctl").value().message());
      session->end();
    }
    places_[place] = Place{std::move(session), 0, false};
    if (places_[place].session->has_ended()) end(place);
  }
  return !taken.empty();
}

bool Worker::look(Nanoseconds timeout) {
  std::array<epoll_event, 16> events;
  const timespec time = timespec_of(timeout);
  const int count =
      ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()), &time, nullptr);
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<size_t>(i)].data.u64;
    if (data == kBellData) {
      (void)bell_.wait(Milliseconds(0));
      any = take_inbox() || any;
      continue;
    }
    const size_t place = data / 2;
    if (places_[place].session == nullptr || places_[place].ending) continue;
    if (data % 2 == 1) {
      end(place);
      any = true;
    } else {
      any = read_events(place) || any;
    }
  }
  return any;
}

bool Worker::read_events(size_t place) {
  const std::shared_ptr<Session>& held = places_[place].session;
  Session& session = *held;
  uffd::GuestMemory::Events events;
  if (session.memory().has_events()) {
    session.gate().close();
    session.memory().read(events);
    for (size_t i = 0; i < events.gone_count; ++i) session.take_gone(events.gone[i]);
    session.gate().open();
  } else {
    session.memory().read(events);
  }
  if (events.fault_count > 0) {
    const Instant now = SteadyClock::read();
    for (size_t i = 0; i < events.fault_count; ++i) begin(held, events.faults[i], now);
  }
  return events.any();
}

void Worker::end(size_t place) {
  Place& ending = places_[place];
  ending.session->end();
  ending.ending = true;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ending.session->memory().fd(), nullptr);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ending.session->pidfd(), nullptr);
  for (Fault& fault : faults_)
    if (fault.step != Step::kFree && fault.step != Step::kReading &&
        fault.session == ending.session)
      release(fault);
  std::erase_if(waiting_,
                [&](const Waiting& waiting) { return waiting.session == ending.session; });
  // READs on the wire end in their landing pages; they hold the session until then.
  on_end_(std::exchange(ending, Place{}).session);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void Worker::begin(const std::shared_ptr<Session>& session, const uffd::GuestMemory::Fault& event,
                   Instant since) {
  const std::optional<uint64_t> page = session->page_of(event.address);
  if (!page) return end_in_sigbus(serving_, *session, event.address);
  if (session->is_huge()) {
    const uint64_t first = *page - *page % session->unit_pages();
    if (!session->is_own(first)) session->note_touch(first);
    return serving_.demand_huge_page(session, static_cast<uint32_t>(first));
  }
  for (size_t i = 0; i < faults_.size(); ++i) {
    Fault& fault = faults_[i];
    if (fault.step != Step::kFree) continue;
    fault.step = Step::kLookup;
    fault.is_write = event.is_write;
    fault.session = session;
    fault.address = event.address;
    fault.page = *page;
    fault.since = since;
    ++busy_;
    serving_.faults_in_hand.fetch_add(1, std::memory_order_relaxed);
    (void)step(i);
    return;
  }
  waiting_.push_back({session, event, since});
}

void Worker::begin_waiting() {
  while (!waiting_.empty() && busy_ < faults_.size()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(next.session, next.event, next.since);
  }
}

bool Worker::go_on() {
  const Instant now = SteadyClock::read();
  // Time in which this process was stopped does not count.
  if (const Nanoseconds gap = gap_.turn(now); gap.count() != 0) {
    for (Fault& fault : faults_) fault.since = gap_.without(gap, fault.since);
    for (Waiting& waiting : waiting_) waiting.since = gap_.without(gap, waiting.since);
  }
  if (reads_.outstanding() == busy_) return false;
  bool moved = false;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (fault.step == Step::kFree || fault.step == Step::kReading || fault.not_before > now)
      continue;
    moved = step(i) || moved;
  }
  return moved;
}

// One step of a fault that is in nobody else's hands. True: something moved.
bool Worker::step(size_t index) {
  Fault& fault = faults_[index];
  Session& session = *fault.session;
  if (session.is_own(fault.page) || !session.image().map()[fault.page].is_stored()) {
    const bool own = session.is_own(fault.page);
    if (!place_zeros(session, fault.address, fault.page, fault.is_write)) {
      fault.not_before = SteadyClock::read() + kRefused;
      return false;
    }
    if (!own) session.note_touch(fault.page);
    (own ? session.counts().faults_own : session.counts().faults_zero).add();
    release(fault);
    return true;
  }
  if (fault.step == Step::kLookup) return look_up(fault, index);
  if (!place_page(fault, landing(index))) {
    fault.not_before = SteadyClock::read() + kRefused;
    return false;
  }
  return true;
}

bool Worker::look_up(Fault& fault, size_t index) {
  Session& session = *fault.session;
  const PageCache::Answer answer = serving_.cache.find(session.served().key_of(fault.page));
  switch (answer.found) {
    case PageCache::Found::kReady: {
      const bool placed = place_page(fault, serving_.cache.bytes_of(answer.frame));
      serving_.cache.release(answer.frame);
      if (!placed) fault.not_before = SteadyClock::read() + kRefused;
      return placed;
    }
    case PageCache::Found::kComing:
      fault.waited = true;
      // Else each that gives up leaves it to another, with a deadline of its own.
      if (SteadyClock::read() - fault.since <= serving_.reads.deadline) return false;
      lose(fault);
      return true;
    case PageCache::Found::kClaimed:
      fault.has_frame = true;
      fault.frame = answer.frame;
      break;
    case PageCache::Found::kNoRoom:
      break;
  }
  fault.step = Step::kReading;
  reads_.start(session.image(), fault.page, session.image().run_at(fault.page, 1), landing(index),
               index, fault.since);
  return true;
}

void Worker::arrived(const image::PageReads::Done& done) {
  Fault& fault = faults_[done.token];
  FARPAGE_CHECK(fault.step == Step::kReading, "READ %llu, which nobody waits for",
                static_cast<unsigned long long>(done.token));
  if (done.outcome == image::ReadOutcome::kLost) {
    if (std::exchange(fault.has_frame, false)) serving_.cache.abandon(fault.frame);
    return lose(fault);
  }
  const bool has_frame = std::exchange(fault.has_frame, false);
  const PageCache::Frame frame = fault.frame;
  fault.step = Step::kPlace;
  if (fault.session->has_ended()) {
    release(fault);
  } else {
    (void)step(done.token);
  }
  // After the guest was woken: the first use of a frame may be a fault of this process.
  if (!has_frame) return;
  std::memcpy(serving_.cache.bytes_of(frame).data(), done.bytes.data(), kPageBytes);
  serving_.cache.fill(frame);
  serving_.cache.release(frame);
}

// A guest that does not tell what it gives back may have got this page from the replayer since it
// was looked up, and given it back: so both do not place and note at the same time.
std::optional<uffd::Outcome> Worker::copy(Fault& fault, std::span<const std::byte> bytes) {
  Session& session = *fault.session;
  const bool alone = !session.memory().tells_removals();
  if (alone) session.gate().close();
  std::optional<uffd::Outcome> outcome;
  if (!alone || !session.is_own(fault.page)) {
    outcome = session.place(fault.page, fault.address, bytes, note_);
    if (outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent)
      session.own(fault.page);
  }
  if (alone) session.gate().open();
  return outcome;
}

bool Worker::place_page(Fault& fault, std::span<const std::byte> bytes) {
  Session& session = *fault.session;
  const auto outcome = copy(fault, bytes);
  if (!outcome) return false;
  switch (*outcome) {
    case uffd::Outcome::kDone:
    case uffd::Outcome::kAlreadyPresent: {
      session.note_placed();
      session.note_touch(fault.page);
      SessionCounts& counts = session.counts();
      (fault.step == Step::kPlace ? counts.faults_read
       : fault.waited             ? counts.faults_joined
                                  : counts.faults_cached)
          .add();
      serving_.fault_ns.record(static_cast<uint64_t>((SteadyClock::read() - fault.since).count()));
      break;
    }
    case uffd::Outcome::kRetry:
      return false;
    case uffd::Outcome::kUnmapped:
      refuse_page(session, fault.address);
      break;
    case uffd::Outcome::kProcessGone:
      break;  // its pidfd says so, too
  }
  release(fault);
  return true;
}

bool Worker::place_zeros(Session& session, uint64_t address, uint64_t page, bool is_write) {
  const uffd::ZeroFrames frames = is_write ? uffd::ZeroFrames::kOwn : uffd::ZeroFrames::kShared;
  switch (session.memory().zero(address, frames).outcome) {
    case uffd::Outcome::kDone:
    case uffd::Outcome::kAlreadyPresent:
      session.own(page);
      session.note_placed();
      return true;
    case uffd::Outcome::kRetry:
      return false;
    case uffd::Outcome::kUnmapped:
      refuse_page(session, address);
      return true;
    case uffd::Outcome::kProcessGone:
      return true;
  }
  return true;
}

// The image is incomplete, for this guest at least: it must not go on with other bytes.
void Worker::lose(Fault& fault) {
  Session& session = *fault.session;
  session.counts().faults_lost.add();
  const auto ms = (SteadyClock::read() - fault.since).count() / 1'000'000;
  log::error(
      "serve: page_lost image={} session={} pid={} address={:#x} page={} after_ms={}: the "
      "guest gets SIGBUS",
      session.image().name(), session.number(), session.pid(), fault.address, fault.page, ms);
  end_in_sigbus(serving_, session, fault.address);
  release(fault);
}

void Worker::release(Fault& fault) {
  FARPAGE_CHECK(!fault.has_frame, "frame %u would stay claimed", fault.frame);
  fault = Fault{};
  --busy_;
  serving_.faults_in_hand.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace farpage::snapshot
