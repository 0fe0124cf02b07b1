#include "snapshot/replayer.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"

namespace farpage::snapshot {
namespace {

constexpr Nanoseconds kPatience = Milliseconds(50);  // for pages that others fetch
constexpr int kMaxRefusals = 1000;                   // of the kernel, for one run of pages
constexpr Milliseconds kReplayIdle{1000};

// The pages of 2 MiB that these are in, each once, in the order of their first one.
std::vector<uint32_t> huge_pages_of(const Session& session, const std::vector<uint32_t>& pages) {
  std::vector<uint32_t> found;
  std::set<uint32_t> known;
  for (const uint32_t page : pages) {
    const uint32_t first = page - page % static_cast<uint32_t>(session.unit_pages());
    if (session.address_of(first) && known.insert(first).second) found.push_back(first);
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<Replayer>> Replayer::create(Serving& serving,
                                                   const std::vector<pager::LinkPort*>& ports,
                                                   std::span<PlacingNote> notes) {
  FARPAGE_TRY(zeros, Mapping::anonymous(kBufferBytes));
  return std::unique_ptr<Replayer>(new Replayer(serving, ports, notes, std::move(zeros)));
}

Replayer::Replayer(Serving& serving, const std::vector<pager::LinkPort*>& ports,
                   std::span<PlacingNote> notes, Mapping zeros)
    : serving_(serving), zeros_(std::move(zeros)) {
  serving.demand_huge_page = [this](std::shared_ptr<Session> session, uint32_t page) {
    add(std::move(session), {page}, Urgency::kNow);
  };
  for (size_t i = 0; i < ports.size(); ++i)
    threads_.emplace_back([this, port = ports[i], note = &notes[i]] { run(*port, *note); });
}

Replayer::~Replayer() {
  stopping_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Replayer::add(std::shared_ptr<Session> session, std::vector<uint32_t> pages, Urgency urgency) {
  if (session->is_huge()) pages = huge_pages_of(*session, pages);
  if (pages.empty() || threads_.empty()) return;
  if (urgency == Urgency::kNow) serving_.faults_in_hand.fetch_add(1, std::memory_order_relaxed);
  {
    const MutexLock lock(mutex_);
    const size_t count = pages.size();
    (urgency == Urgency::kNow    ? demands_
     : urgency == Urgency::kSoon ? jobs_
                                 : idle_jobs_)
        .push_back({std::move(session), std::move(pages), 0, urgency, SteadyClock::read(),
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
    if (batch->session->is_huge()) {
      serve_huge_page(*batch, reads);
    } else if (leave_out(*batch); batch->count > 0) {
      fetch(*batch, reads);
      place(*batch, port);
      let_go(*batch);
    }
    finish(*batch);
  }
}

// The next batch of the oldest job. False: there was none for a while.
bool Replayer::take(Batch& batch) {
  MutexLock lock(mutex_);
  const bool any = changed_.wait_for(lock, kReplayIdle, [this]() FARPAGE_REQUIRES(mutex_) {
    return stopping_.load(std::memory_order_acquire) || !demands_.empty() || !jobs_.empty() ||
           !idle_jobs_.empty();
  });
  if (!any || stopping_.load(std::memory_order_acquire)) return false;
  std::deque<Job>& jobs = !demands_.empty() ? demands_ : !jobs_.empty() ? jobs_ : idle_jobs_;
  Job& job = jobs.front();
  batch.session = job.session;
  batch.urgency = job.urgency;
  batch.since = job.since;
  batch.left = job.left;
  const size_t most = job.session->is_huge() ? 1 : kBatchPages;
  batch.count = batch.taken = std::min(most, job.pages.size() - job.next);
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
  const bool is_last = batch.left->fetch_sub(batch.taken, std::memory_order_acq_rel) == batch.taken;
  if (batch.urgency == Urgency::kNow) {
    serving_.faults_in_hand.fetch_sub(1, std::memory_order_relaxed);
  } else if (is_last) {
    log::info("serve: replayed session={} pages={} in_ms={}", batch.session->number(),
              batch.session->counts().replayed_pages.load(std::memory_order_relaxed),
              (SteadyClock::read() - batch.since).count() / 1'000'000);
  }
  batch.session.reset();
  batch.left.reset();
}

void Replayer::let_faults_pass() const {
  for (int i = 0; i < 100 && serving_.faults_in_hand.load(std::memory_order_relaxed) > 0; ++i)
    ::sched_yield();
}

// One page of the cache, if it is there; else it is claimed, or comes for somebody else.
void Replayer::ask(Batch& batch, size_t at) {
  const PageCache::Answer answer =
      serving_.cache.find(batch.session->served().key_of(batch.pages[at]));
  batch.coming[at] = answer.found == PageCache::Found::kComing;
  batch.claimed[at] = answer.found == PageCache::Found::kClaimed;
  batch.here[at] = batch.held[at] = answer.found == PageCache::Found::kReady;
  batch.frames[at] = answer.frame;
}

void Replayer::copy_held(Batch& batch, pager::LinkPort& port, size_t fewest) {
  for (size_t at = 0; at < batch.count;) {
    size_t end = at + 1;
    while (end < batch.count && follows(batch, port, end)) ++end;
    if (batch.held[at] && end - at < fewest) {
      for (size_t i = at; i < end; ++i) {
        std::memcpy(bytes_of(port, i).data(), serving_.cache.bytes_of(batch.frames[i]).data(),
                    kPageBytes);
        serving_.cache.release(batch.frames[i]);
        batch.held[i] = false;
      }
    }
    at = end;
  }
}

void Replayer::let_go(Batch& batch) {
  for (size_t at = 0; at < batch.count; ++at)
    if (std::exchange(batch.held[at], false)) serving_.cache.release(batch.frames[at]);
}

std::span<const std::byte> Replayer::source_of(const Batch& batch, pager::LinkPort& port, size_t at,
                                               size_t pages) const {
  if (!batch.held[at]) return bytes_of(port, at, pages);
  return {serving_.cache.bytes_of(batch.frames[at]).data(), pages << kPageShift};
}

bool Replayer::follows(const Batch& batch, pager::LinkPort& port, size_t at) const {
  return batch.held[at] == batch.held[at - 1] &&
         source_of(batch, port, at, 1).data() ==
             source_of(batch, port, at - 1, 1).data() + kPageBytes;
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
    ask(batch, at);
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
      ask(batch, at);
      any = any || batch.coming[at];
      missing[at] = !batch.here[at] && !batch.coming[at];
      some_missing = some_missing || missing[at];
    }
    if (some_missing) start_reads(batch, missing, reads);
    if (any) ::sched_yield();
  }
}

void Replayer::serve_huge_page(Batch& batch, image::PageReads& reads) {
  Session& session = *batch.session;
  const uint32_t first = batch.pages[0];
  const bool is_demand = batch.urgency == Urgency::kNow;
  if (session.has_ended() || (!is_demand && session.is_own(first))) return;
  if (!is_demand) let_faults_pass();
  if (session.is_own(first)) {
    place_huge_page(batch, zeros_.bytes());
  } else if (assemble(batch, reads)) {
    place_huge_page(batch, bytes_of(reads.port(), 0, kBatchPages));
  } else if (is_demand) {
    lose_huge_page(batch);
  }
}

bool Replayer::assemble(Batch& batch, image::PageReads& reads) {
  const image::PageMap& map = batch.session->image().map();
  const uint32_t first = batch.pages[0];
  batch.count = kBatchPages;
  for (uint32_t at = 0; at < kBatchPages; ++at) batch.pages[at] = first + at;
  std::array<bool, kBatchPages> missing{};
  for (size_t at = 0; at < kBatchPages; ++at) {
    if (map[first + at].is_stored()) {
      ask(batch, at);
    } else {
      std::memset(bytes_of(reads.port(), at).data(), 0, kPageBytes);
      batch.here[at] = true;
      batch.coming[at] = batch.claimed[at] = batch.held[at] = false;
    }
    missing[at] = !batch.here[at] && !batch.coming[at];
  }
  start_reads(batch, missing, reads);
  await_others(batch, reads);
  // Who has claimed the rest may have to wait for long: it is read here, too, and not cached.
  for (size_t at = 0; at < kBatchPages; ++at) missing[at] = std::exchange(batch.coming[at], false);
  start_reads(batch, missing, reads);
  copy_held(batch, reads.port(), kBatchPages + 1);
  return std::all_of(batch.here.begin(), batch.here.end(), [](bool here) { return here; });
}

void Replayer::place_huge_page(Batch& batch, std::span<const std::byte> bytes) {
  Session& session = *batch.session;
  const uint32_t first = batch.pages[0];
  const uint64_t address = *session.address_of(first);
  const bool is_demand = batch.urgency == Urgency::kNow;
  const bool are_zeros = bytes.data() == zeros_.data();
  const Instant end = SteadyClock::read() + serving_.reads.deadline;
  while (!session.has_ended()) {
    if (!session.gate().enter()) {
      ::sched_yield();
      continue;
    }
    uffd::Outcome outcome = uffd::Outcome::kAlreadyPresent;
    std::unique_lock alone = session.alone_in_replay();
    // It may have been given back, or placed by another thread, meanwhile: then these bytes are
    // old.
    const bool is_late = session.is_own(first) && !are_zeros;
    if (!is_late) outcome = session.place(first, address, bytes, *batch.note);
    if (outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent)
      session.own_unit(first);
    if (alone) alone.unlock();
    session.gate().leave();
    switch (outcome) {
      case uffd::Outcome::kDone:
        placed_huge_page(batch);
        return;
      case uffd::Outcome::kAlreadyPresent:
        // Who waits faults again, if it is not there.
        if (is_late) session.memory().wake(address, bytes.size());
        return;
      case uffd::Outcome::kRetry:
        // An event waits to be read, or this host has no page of 2 MiB left.
        if (SteadyClock::read() < end) {
          ::sched_yield();
          break;
        }
        if (is_demand) lose_huge_page(batch);
        return;
      case uffd::Outcome::kUnmapped:
        if (is_demand) refuse_page(session, address);
        return;
      case uffd::Outcome::kProcessGone:
        return;
    }
  }
}

void Replayer::placed_huge_page(const Batch& batch) const {
  Session& session = *batch.session;
  session.note_placed();
  if (batch.urgency != Urgency::kNow) {
    session.counts().replayed_pages.fetch_add(kBatchPages, std::memory_order_relaxed);
    return;
  }
  session.counts().faults_huge.fetch_add(1, std::memory_order_relaxed);
  serving_.fault_ns.record(static_cast<uint64_t>((SteadyClock::read() - batch.since).count()));
}

void Replayer::lose_huge_page(const Batch& batch) const {
  Session& session = *batch.session;
  const uint64_t address = *session.address_of(batch.pages[0]);
  session.counts().huge_lost.fetch_add(1, std::memory_order_relaxed);
  log::error(
      "serve: page_lost image={} session={} pid={} address={:#x} page={} pages={} after_ms={}: the "
      "guest gets SIGBUS",
      session.image().name(), session.number(), session.pid(), address, batch.pages[0], kBatchPages,
      (SteadyClock::read() - batch.since).count() / 1'000'000);
  end_in_sigbus(serving_, session, address);
}

void Replayer::place(Batch& batch, pager::LinkPort& port) {
  if (batch.session->memory().tells_removals()) copy_held(batch, port, kFewestFromCache);
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
    std::unique_lock alone = session.alone_in_replay();
    // What the guest has given back meanwhile is left out.
    if (session.is_own(batch.pages[at])) {
      if (alone) alone.unlock();
      session.gate().leave();
      ++at;
      continue;
    }
    size_t pages = 1;
    while (session.memory().tells_removals() && at + pages < first + count &&
           !session.is_own(batch.pages[at + pages]) && follows(batch, port, at + pages))
      ++pages;
    const uint64_t page = batch.pages[at];
    const uffd::Outcome outcome = session.place(page, *session.address_of(page),
                                                source_of(batch, port, at, pages), *batch.note);
    if (outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent) {
      // Two jobs may have had the same page.
      uint64_t placed = 0;
      for (size_t i = 0; i < pages; ++i) placed += session.own(batch.pages[at + i]) ? 1 : 0;
      session.counts().replayed_pages.fetch_add(placed, std::memory_order_relaxed);
    }
    if (alone) alone.unlock();
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
