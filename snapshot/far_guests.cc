#include "snapshot/far_guests.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapping.h"
#include "base/pidfd.h"
#include "snapshot/image_pages.h"
#include "uffd/extent_map.h"
#include "uffd/handover.h"
#include "uffd/other_process.h"

namespace farpage::snapshot {
namespace {

// An agent that was being placed when an engine was killed leaves by itself in 10 s (inject/).
constexpr Seconds kFormerAgent{15};
constexpr Milliseconds kAgainAfter{100};

}  // namespace

struct FarGuests::Guest {
  explicit Guest(FarParts parts_of_guest) : parts(std::move(parts_of_guest)) {}

  FarParts parts;
  uint64_t target = 0;  // its number in the engine
  uint64_t features = 0;
  int userfaultfd = -1;               // the pager's
  std::shared_ptr<ImagePages> pages;  // once it is served
  std::unique_ptr<pager::Pager> pager;
  std::optional<GuestAgent> agent;
  Mutex mutex;
  std::optional<Result<GuestAgent>> given FARPAGE_GUARDED_BY(mutex);
  std::jthread giving;

  const std::string& image() const { return parts.served->image->name(); }
  std::string name() const { return fmt::format("{}-{}", image(), parts.pid); }
  SessionRecord record() const {
    return {.image = image(),
            .pid = parts.pid,
            .pidfd = parts.pidfd.get(),
            .userfaultfd = userfaultfd,
            .socket = parts.socket.get(),
            .lifeline = parts.lifeline.descriptors(),
            .regions = parts.regions,
            .target = target,
            .is_served = pager != nullptr,
            .ring = agent ? agent->ring.get() : -1,
            .agent_lifeline = agent ? agent->lifeline.get() : -1,
            .staging_address = agent ? agent->staging_address : 0};
  }
};

void FarGuests::Totals::add(const pager::PagerCounts& counts) {
  faults += counts.faults_remote;
  zero += counts.faults_zero;
  lost += counts.faults_failed;
  prefetched += counts.prefetch_pages;
  dropped += counts.evictions();
  written += counts.evicted_written;
}

Result<std::unique_ptr<FarGuests>> FarGuests::create(
    FarOptions options, uint32_t group, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore& store,
    const SnapshotState& state, std::function<void()> changed) {
  options.pager.session_group = group;  // it reads the images' slabs by the channels of its own
  options.pager.fork = pager::ForkMode::kRefuse;
  std::unique_ptr<FarGuests> made(new FarGuests(std::move(options), state, std::move(changed)));
  FARPAGE_TRY(engine, pager::Engine::create(made->options_.pager, client, transports, &store));
  made->engine_ = std::move(engine);
  return made;
}

FarGuests::~FarGuests() {
  for (const auto& [number, guest] : guests_) send_signal(guest->parts.pidfd.get(), SIGKILL);
}

// Of a guest that is new, or of a predecessor. Takes the userfaultfd.
Result<std::unique_ptr<uffd::AddressSpace>> FarGuests::space_of(Guest& guest, bool is_new) const {
  std::vector<uffd::GuestRange> ranges;
  for (const GuestRegion& region : guest.parts.regions)
    ranges.push_back({region.address, region.address + region.bytes});
  FARPAGE_TRY(extents, state_.session_memory(guest.parts.number, uffd::ExtentMap::kKeptBytes));
  FARPAGE_TRY(events, state_.event_memory(guest.parts.number, uffd::kGuestEventBytes));
  FARPAGE_TRY(space,
              uffd::adopt_guest(std::move(guest.parts.userfaultfd), ranges, options_.staging_pages,
                                is_new, std::move(extents), std::move(events)));
  guest.features = uffd::features_of(*space);
  return space;
}

// The page numbers of its regions.
Result<std::shared_ptr<ImagePages>> FarGuests::pages_of(const Guest& guest,
                                                        const uffd::AddressSpace& space) {
  std::vector<GuestPart> parts;
  for (const GuestRegion& region : guest.parts.regions)
    for (const uffd::PageRun& run : space.runs_in(region.address, region.address + region.bytes))
      parts.push_back(
          {.first = run.first,
           .pages = run.pages,
           .image_page =
               (space.address_of(run.first) - region.address + region.offset) >> kPageShift});
  return ImagePages::create({guest.parts.served, guest.parts.served->image.get()},
                            *guest.parts.opened, std::move(parts));
}

pager::TargetOptions FarGuests::target_options(const Guest& guest) const {
  return {.name = guest.name(),
          .local_bytes = options_.pager.local_bytes,
          .fork = pager::ForkMode::kRefuse,
          .number = guest.target};
}

// The record is there before the lifeline is tied, since a successor closes what it does not know,
// and before it is served: a successor goes on with what has been placed, or begins
// anew if nothing was.
Status FarGuests::serve_new(Guest& guest) {
  guest.userfaultfd = guest.parts.userfaultfd.get();
  FARPAGE_TRY_VOID(state_.put_session(guest.parts.number, guest.record()));
  FARPAGE_TRY_VOID(guest.parts.lifeline.tie(guest.parts.pidfd.get(), guest.parts.pid));
  FARPAGE_TRY(space, space_of(guest, true));
  FARPAGE_TRY(pages, pages_of(guest, *space));
  FARPAGE_TRY(pager, engine_->restore(target_options(guest), space, pages));
  guest.pager = std::move(pager);
  guest.pages = std::move(pages);
  return state_.put_session(guest.parts.number, guest.record());
}

Status FarGuests::begin(FarParts parts) {
  const auto guest = std::make_shared<Guest>(std::move(parts));
  guest->target = state_.succession().next_number();
  if (Status served = serve_new(*guest); !served) {
    send_signal(guest->parts.pidfd.get(), SIGKILL);
    state_.erase_session(guest->parts.number);
    return served;
  }
  guests_.emplace(guest->parts.number, guest);
  ask_for_agent(guest, Seconds(0));
  return {};
}

Status FarGuests::resume(FarParts parts, const SessionRecord& record) {
  FARPAGE_TRY(process, parts.pidfd.duplicate());
  const uint64_t number = parts.number;
  Status resumed = has_ended(process.get()) ? fail(ErrorCode::kUnavailable, "it has ended")
                                            : serve_again(std::move(parts), record);
  if (resumed || !has_ended(process.get())) return resumed;
  state_.erase_session(number);  // what the engine has of it is given back by end_succession()
  return {};
}

Status FarGuests::serve_again(FarParts parts, const SessionRecord& record) {
  const auto guest = std::make_shared<Guest>(std::move(parts));
  guest->target = record.target;
  guest->userfaultfd = guest->parts.userfaultfd.get();
  if (record.ring >= 0)
    guest->agent = GuestAgent{.ring = Fd(record.ring),
                              .staging_address = record.staging_address,
                              .lifeline = Fd(record.agent_lifeline)};
  if (!record.is_served && !engine_->can_resume(guest->target)) {
    FARPAGE_TRY_VOID(serve_new(*guest));
  } else {
    FARPAGE_TRY_VOID(guest->parts.lifeline.tie(guest->parts.pidfd.get(), guest->parts.pid));
    FARPAGE_TRY(space, space_of(*guest, false));
    FARPAGE_TRY(pages, pages_of(*guest, *space));
    if (guest->agent) FARPAGE_TRY_VOID(bind(*guest, *space));
    pager::ResumeOptions options;
    static_cast<pager::TargetOptions&>(options) = target_options(*guest);
    options.agent_ready = guest->agent.has_value();
    options.stored = pages;
    FARPAGE_TRY(pager, engine_->resume(options, space, {}));
    guest->pager = std::move(pager);
    guest->pages = std::move(pages);
  }
  guests_.emplace(guest->parts.number, guest);
  if (!guest->agent) ask_for_agent(guest, kFormerAgent);
  return {};
}

void FarGuests::end_succession() {
  std::set<uint64_t> resumed;
  for (const auto& [number, guest] : guests_) resumed.insert(guest->target);
  engine_->end_succession(resumed);
}

// In a thread of its own: it waits for a thread of the VMM, which may wait for pages.
void FarGuests::ask_for_agent(const std::shared_ptr<Guest>& guest, Nanoseconds patience) {
  guest->giving = std::jthread([this, patience, &guest = *guest] {
    const Instant end = SteadyClock::read() + patience;
    const auto ask = [&] {
      return options_.give_agent(guest.parts.pid, guest.userfaultfd, guest.features,
                                 guest.parts.regions);
    };
    Result<GuestAgent> agent = ask();
    while (!agent && agent.error().code == ErrorCode::kConflict && SteadyClock::read() < end) {
      std::this_thread::sleep_for(kAgainAfter);
      agent = ask();
    }
    {
      const MutexLock lock(guest.mutex);
      guest.given.emplace(std::move(agent));
    }
    changed_();
  });
}

Status FarGuests::bind(Guest& guest, uffd::AddressSpace& space) {
  FARPAGE_TRY(ring, Mapping::shared(guest.agent->ring.get(), sizeof(uffd::handover::AgentRing)));
  uffd::HandedOver agent;
  agent.pid = guest.parts.pid;
  agent.ring = std::move(ring);
  agent.staging_address = guest.agent->staging_address;
  uffd::bind_child(space, agent);
  return {};
}

// The record is written first: an agent that a successor did not know of would have no commands.
Status FarGuests::take_agent(Guest& guest, GuestAgent agent) const {
  guest.agent.emplace(std::move(agent));
  FARPAGE_TRY_VOID(state_.put_session(guest.parts.number, guest.record()));
  FARPAGE_TRY_VOID(bind(guest, guest.pager->space()));
  guest.pager->agent_ready(guest.name(), 0);
  FARPAGE_TRY_VOID(guest.pager->set_local(options_.pager.local_bytes));
  guest.pager->begin_eviction();
  return {};
}

Status FarGuests::refresh(const coordinator::OpenedImage& opened) {
  Status done;
  for (const auto& [number, guest] : guests_) {
    if (guest->image() != opened.image.name.value) continue;
    Status refreshed = guest->pager->refresh_stored(guest->pages->leases_of(opened));
    if (!refreshed) done = std::move(refreshed);
  }
  return done;
}

std::optional<FarChange> FarGuests::change_of(Guest& guest) const {
  FarChange change{.number = guest.parts.number,
                   .kind = FarChange::Kind::kHasAgent,
                   .pid = guest.parts.pid,
                   .image = guest.image(),
                   .text = {}};
  if (has_ended(guest.parts.pidfd.get())) {
    Totals totals;
    totals.add(guest.pager->stats());
    change.kind = FarChange::Kind::kEnded;
    change.text =
        fmt::format("read={} prefetched={} zero={} lost={} dropped={} written={}", totals.faults,
                    totals.prefetched, totals.zero, totals.lost, totals.dropped, totals.written);
    return change;
  }
  std::optional<Result<GuestAgent>> given;
  {
    const MutexLock lock(guest.mutex);
    given.swap(guest.given);
  }
  if (!given) return std::nullopt;
  Status taken =
      *given ? take_agent(guest, std::move(**given)) : Status(tl::unexpected(given->error()));
  if (taken) return change;
  change.kind = FarChange::Kind::kRefused;
  change.text = taken.error().message();
  send_signal(guest.parts.pidfd.get(), SIGKILL);
  return change;
}

std::vector<FarChange> FarGuests::turn() {
  std::vector<FarChange> changes;
  for (const auto& [number, guest] : guests_)
    if (auto change = change_of(*guest)) changes.push_back(std::move(*change));
  for (const FarChange& change : changes)
    if (change.kind != FarChange::Kind::kHasAgent) forget(change.number);
  return changes;
}

// Its region is given back by a thread: the coordinator may be slow.
void FarGuests::forget(uint64_t number) {
  std::shared_ptr<Guest> guest = guests_.at(number);
  ended_.add(guest->pager->stats());
  state_.erase_session(number);
  guests_.erase(number);
  std::erase_if(ending_, [](const Ending& ending) { return ending.is_over->load(); });
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  ending_.push_back({is_over, std::jthread([guest = std::move(guest), is_over]() mutable {
                       guest.reset();
                       is_over->store(true);
                     })});
}

std::vector<int> FarGuests::pidfds() const {
  std::vector<int> all;
  for (const auto& [number, guest] : guests_) all.push_back(guest->parts.pidfd.get());
  return all;
}

nlohmann::json FarGuests::stats() const {
  Totals sum = ended_;
  uint64_t resident_pages = 0;
  uint64_t away_pages = 0;
  uint64_t budget_pages = 0;
  for (const auto& [number, guest] : guests_) {
    const pager::PagerCounts counts = guest->pager->stats();
    sum.add(counts);
    resident_pages += counts.resident_pages;
    away_pages += counts.away_pages;
    budget_pages += counts.budget_pages;
  }
  return {{"resident_pages", resident_pages},
          {"away_pages", away_pages},
          {"budget_pages", budget_pages},
          {"read", sum.faults},
          {"prefetched", sum.prefetched},
          {"zero", sum.zero},
          {"lost", sum.lost},
          {"dropped", sum.dropped},
          {"written", sum.written}};
}

}  // namespace farpage::snapshot
