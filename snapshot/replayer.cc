#include "snapshot/replayer.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace farpage::snapshot {
namespace {

constexpr Nanoseconds kPatience = Milliseconds(50);  // for pages that others fetch
constexpr int kMaxRefusals = 1000;                   // of the kernel, for one run of pages
constexpr Milliseconds kReplayIdle{1000};

}  // namespace

Replayer::Replayer(Serving& serving, const std::vector<pager::LinkPort*>& ports,
                   std::span<PlacingNote> notes)
    : serving_(serving) {
  for (size_t i = 0; i < ports.size(); ++i)
    threads_.emplace_back([this, port = ports[i], note = &notes[i]] { run(*port, *note); });
}

Replayer::~Replayer() {
  stopping_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Replayer::add(std::shared_ptr<Session> session, std::vector<uint32_t> pages, Urgency urgency) {
  if (pages.empty() || threads_.empty()) return;
  {
    const MutexLock lock(mutex_);
    const size_t count = pages.size();
    (urgency == Urgency::kSoon ? jobs_ : idle_jobs_)
        .push_back({std::move(session), std::move(pages), 0, SteadyClock::read(),
                    std::make_shared<std::atomic<size_t>>(count)});
  }
  changed_.notify_all();
}

void Replayer::run(pager::LinkPort& port, PlacingNote& note) {
  (void)pthread_setname_np(pthread_self(), "fp-replay");
  image::PageReads reads(serving_.links, port, serving_.reads, serving_.read_counts);
  const auto batch = std::make_unique<Batch>();
  batch->note = &note;
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!take(*batch)) continue;
    leave_out(*batch);
    if (batch->count > 0) {
      fetch(*batch, reads);
      place(*batch, port);
    }
    finish(*batch);
  }
}

// The next batch of the oldest job. False: there was none for a while.
bool Replayer::take(Batch& batch) {
  MutexLock lock(mutex_);
  const bool any = changed_.wait_for(lock, kReplayIdle, [this]() FARPAGE_REQUIRES(mutex_) {
    return stopping_.load(std::memory_order_acquire) || !jobs_.empty() || !idle_jobs_.empty();
  });
  if (!any || stopping_.load(std::memory_order_acquire)) return false;
  std::deque<Job>& jobs = jobs_.empty() ? idle_jobs_ : jobs_;
  Job& job = jobs.front();
  batch.session = job.session;
  batch.since = job.since;
  batch.left = job.left;
  batch.count = batch.taken = std::min(kBatchPages, job.pages.size() - job.next);
  std::copy_n(job.pages.begin() + static_cast<ptrdiff_t>(job.next), batch.count,
              batch.pages.begin());
  job.next += batch.count;
  // Jobs take turns: no guest waits for all of another one's memory.
  if (job.next == job.pages.size()) {
    jobs.pop_front();
  } else if (jobs.size() > 1) {
    jobs.push_back(std::move(job));
    jobs.pop_front();
  }
  return true;
}

// What the guest has by now, or does not have at all.
void Replayer::leave_out(Batch& batch) const {
  const auto begin = batch.pages.begin();
  const auto end =
      std::remove_if(begin, begin + static_cast<ptrdiff_t>(batch.count), [&](uint32_t page) {
        return batch.session->has_ended() || !batch.session->image().map()[page].is_stored() ||
               batch.session->is_own(page) || !batch.session->address_of(page);
      });
  std::sort(begin, end);
  batch.count = static_cast<size_t>(end - begin);
}

void Replayer::finish(Batch& batch) const {
  if (batch.left->fetch_sub(batch.taken, std::memory_order_acq_rel) == batch.taken)
    log::info("serve: replayed session={} pages={} in_ms={}", batch.session->number(),
              batch.session->counts().replayed_pages.load(std::memory_order_relaxed),
              (SteadyClock::read() - batch.since).count() / 1'000'000);
  batch.session.reset();
  batch.left.reset();
}

void Replayer::let_faults_pass() const {
  for (int i = 0; i < 100 && serving_.faults_in_hand.load(std::memory_order_relaxed) > 0; ++i)
    ::sched_yield();
}

// One page from the cache, if it is there; else it is claimed, or comes for somebody else.
void Replayer::ask(Batch& batch, size_t at, image::PageReads& reads) {
  const PageCache::Answer answer =
      serving_.cache.find(batch.session->served().key_of(batch.pages[at]));
  batch.coming[at] = answer.found == PageCache::Found::kComing;
  batch.claimed[at] = answer.found == PageCache::Found::kClaimed;
  batch.here[at] = answer.found == PageCache::Found::kReady;
  batch.frames[at] = answer.frame;
  if (!batch.here[at]) return;
  std::memcpy(bytes_of(reads.port(), at).data(), serving_.cache.bytes_of(answer.frame).data(),
              kPageBytes);
  serving_.cache.release(answer.frame);
}

void Replayer::start_reads(Batch& batch, const std::array<bool, kBatchPages>& missing,
                           image::PageReads& reads) {
  const auto done = [&](const image::PageReads::Done& end) {
    const size_t pages = end.bytes.size() >> kPageShift;
    for (size_t at = end.token; at < end.token + pages; ++at) {
      batch.here[at] = end.outcome == image::ReadOutcome::kOk;
      if (!batch.claimed[at]) continue;
      if (batch.here[at]) {
        std::memcpy(serving_.cache.bytes_of(batch.frames[at]).data(),
                    bytes_of(reads.port(), at).data(), kPageBytes);
        serving_.cache.fill(batch.frames[at]);
        serving_.cache.release(batch.frames[at]);
      } else {
        serving_.cache.abandon(batch.frames[at]);
      }
      batch.claimed[at] = false;
    }
  };
  for (size_t at = 0; at < batch.count;) {
    if (!missing[at]) {
      ++at;
      continue;
    }
    size_t together = 1;
    while (at + together < batch.count && missing[at + together] &&
           batch.pages[at + together] == batch.pages[at] + together)
      ++together;
    const auto most =
        static_cast<uint32_t>(std::min<size_t>(together, image::PageReads::kMaxRunPages));
    const image::StoredRun run = batch.session->image().run_at(batch.pages[at], most);
    while (!reads.has_room())
      if (!reads.progress(done)) (void)reads.wait_a_little();
    reads.start(batch.session->image(), batch.pages[at], run, bytes_of(reads.port(), at, run.pages),
                at);
    at += run.pages;
  }
  reads.finish(done);
}

void Replayer::fetch(Batch& batch, image::PageReads& reads) {
  std::array<bool, kBatchPages> missing{};
  for (size_t at = 0; at < batch.count; ++at) {
    ask(batch, at, reads);
    missing[at] = !batch.here[at] && !batch.coming[at];
  }
  let_faults_pass();
  start_reads(batch, missing, reads);
  await_others(batch, reads);
}

// After all that this thread has claimed is there: two threads never wait for each other.
void Replayer::await_others(Batch& batch, image::PageReads& reads) {
  const Instant end = SteadyClock::read() + kPatience;
  for (bool any = true; any && SteadyClock::read() < end;) {
    any = false;
    std::array<bool, kBatchPages> missing{};
    bool some_missing = false;
    for (size_t at = 0; at < batch.count; ++at) {
      if (!batch.coming[at]) continue;
      ask(batch, at, reads);
      any = any || batch.coming[at];
      missing[at] = !batch.here[at] && !batch.coming[at];
      some_missing = some_missing || missing[at];
    }
    if (some_missing) start_reads(batch, missing, reads);
    if (any) ::sched_yield();
  }
}

void Replayer::place(Batch& batch, pager::LinkPort& port) {
  for (size_t at = 0; at < batch.count;) {
    if (!batch.here[at]) {
      ++at;
      continue;
    }
    const std::optional<uint64_t> address = batch.session->address_of(batch.pages[at]);
    size_t count = 1;
    while (at + count < batch.count && count < kPlacePages && batch.here[at + count] &&
           batch.session->address_of(batch.pages[at + count]) == *address + (count << kPageShift))
      ++count;
    let_faults_pass();
    place_run(batch, port, at, count);
    at += count;
  }
}

void Replayer::place_run(Batch& batch, pager::LinkPort& port, size_t first, size_t count) {
  Session& session = *batch.session;
  int refusals = 0;
  for (size_t at = first; at < first + count && refusals < kMaxRefusals;) {
    if (session.has_ended()) return;
    if (!session.gate().enter()) {
      ::sched_yield();
      continue;
    }
    // What the guest has given back meanwhile is left out.
    if (session.is_own(batch.pages[at])) {
      session.gate().leave();
      ++at;
      continue;
    }
    size_t pages = 1;
    while (session.memory().tells_removals() && at + pages < first + count &&
           !session.is_own(batch.pages[at + pages]))
      ++pages;
    const uint64_t page = batch.pages[at];
    const uffd::Outcome outcome =
        session.place(page, *session.address_of(page), bytes_of(port, at, pages), *batch.note);
    if (outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent) {
      for (size_t i = 0; i < pages; ++i) session.own(batch.pages[at + i]);
      session.counts().replayed_pages.fetch_add(pages, std::memory_order_relaxed);
    }
    session.gate().leave();
    switch (outcome) {
      case uffd::Outcome::kDone:
      case uffd::Outcome::kAlreadyPresent:
        at += pages;
        break;
      case uffd::Outcome::kRetry:
        ++refusals;
        ::sched_yield();
        break;
      case uffd::Outcome::kUnmapped:
        // A run that crosses mappings is placed nowhere: faults fetch what is still there.
      case uffd::Outcome::kProcessGone:
        return;
    }
  }
}

}  // namespace farpage::snapshot
