#include "bench/control_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "bench/control_bench.h"
#include "bench/load_lane.h"
#include "bench/pace.h"
#include "bench/self_check.h"
#include "bench/simulated_nodes.h"
#include "coordinator/api_json.h"

namespace farpage::bench {
namespace {

using coordinator::Lease;

constexpr Milliseconds kPatience{30'000};    // for one answer
constexpr Milliseconds kPollTime{20'000};    // of a watcher
constexpr uint32_t kSentAtOnce = 16;         // of what is late; then answers get a turn
constexpr Milliseconds kTick{1};             // of what is due
constexpr Milliseconds kSettleTime{20'000};  // until all agree
constexpr Nanoseconds kPeriod = Seconds(1);  // of heartbeats
constexpr uint32_t kJoinsAtOnce = 32;
constexpr uint32_t kCreatesAtOnce = 4;
constexpr uint32_t kSlabsPerChange = 4;
constexpr uint32_t kRegionsEvery = 25;  // changes
constexpr uint32_t kNodeCounters = 20;
constexpr uint32_t kRegionCounters = 60;
constexpr size_t kErrorsShown = 5;

tl::unexpected<Error> wrong(std::string what) {
  return farpage::fail(ErrorCode::kConflict, "the run did not check out: " + std::move(what));
}

// As many as nodes and pagers push, a third of them a histogram.
coordinator::Counters counters(uint32_t count) {
  coordinator::Counters counters;
  for (uint32_t i = 0; i < count; ++i)
    counters[i % 3 == 0 ? fmt::format("simulated_seconds_bucket{{le=\"{}\"}}", i + 1)
                        : fmt::format("simulated_{}_total{{kind=\"load\"}}", i)] = i;
  return counters;
}

// What one lane has seen. Threads: the lane's; others after it has ended.
struct Tally {
  std::array<Histogram, kLoadKinds> latency_ns;
  uint64_t answered = 0;  // of the whole run
  uint64_t measured = 0;
  std::map<std::string, uint64_t> errors;

  void note_error(const std::string& what) { ++errors[what]; }
};

// The pagers' side of the leases. Threads: one lane's.
class Borrowers {
 public:
  struct Region {
    std::string id;
    uint32_t next_slab = 0;
  };
  struct Extension {
    size_t region = 0;
    std::vector<SlabIndex> slabs;
    std::vector<std::string> places;  // "node/slab"
  };

  // False: one of them is held already, or lost.
  bool take(const std::vector<Lease>& leases, std::vector<std::string>& places) {
    bool sound = true;
    for (const Lease& lease : leases) {
      places.push_back(fmt::format("{}/{}", lease.node.value, lease.node_slab));
      sound = held_.insert(places.back()).second && !lease.lost && sound;
    }
    return sound;
  }
  void give_back(const std::vector<std::string>& places) {
    for (const std::string& place : places) held_.erase(place);
  }
  size_t held() const { return held_.size(); }

  std::vector<Region> regions;
  std::deque<Extension> extensions;
  std::deque<std::pair<std::string, std::vector<std::string>>> small_regions;

 private:
  std::set<std::string> held_;
};

class Load {
 public:
  Load(const ControlLoadOptions& options, MeasuredCoordinator& coordinator)
      : options_(options),
        coordinator_(coordinator),
        random_(options.seed),
        groups_(options.nodes) {
    borrowers_.regions.resize(options.regions);
  }

  Result<ControlLoadResult> measure();

 private:
  using Bodies = std::vector<std::string>;

  Status join_nodes();
  Status create_regions();
  void start_heartbeats();
  void start_watchers();
  void start_changes();
  Status await_quiet();
  Status check_leases();
  Status check_watchers();
  Status check_requests();
  Status check_errors();
  Status restart();
  Result<std::string> get(const char* path);

  // On the control lane. Its hosts are the nodes, those with a region, and one for the rest.
  uint32_t host_of_region(size_t index) const {
    return options_.nodes + static_cast<uint32_t>(index);
  }
  uint32_t host_of_others() const { return options_.nodes + options_.regions; }
  void send(LoadKind kind, uint32_t host, const char* method, const std::string& path,
            const std::string& body, Instant due, std::function<void(const LaneAnswer&)> then);
  bool send_due_heartbeats();
  void heartbeat(size_t actor, Instant due);
  bool change_when_due();
  void extend(Instant due);
  void release(Instant due);
  void create(Instant due);
  void remove(Instant due);
  void note_tick(Instant due);
  // On the watchers' lane.
  void watch(uint32_t host, uint64_t since);

  // Sends `count` requests, `at_once` at a time, and waits for all.
  template <typename Send>
  void send_all(uint32_t count, uint32_t at_once, Send send_one);

  const ControlLoadOptions& options_;
  MeasuredCoordinator& coordinator_;
  std::mt19937_64 random_;
  std::unique_ptr<SimulatedNodes> nodes_;
  Tally tally_;
  Tally watch_tally_;
  Borrowers borrowers_;
  std::atomic<bool> measuring_{false};
  std::atomic<bool> beating_{false};
  std::atomic<bool> changing_{false};
  std::atomic<bool> watching_{false};
  std::atomic<uint64_t> events_{0};
  std::atomic<int64_t> event_since_ns_{0};  // when the latest change was sent that makes one
  std::vector<std::set<uint32_t>> groups_;  // of sessions, by node
  Bodies node_bodies_;
  std::string region_body_;
  std::vector<std::pair<Instant, size_t>> schedule_;  // due first, and the actor
  size_t next_actor_ = 0;
  Instant round_{0};
  Instant first_change_{0};
  uint64_t changes_ = 0;
  ControlLoadResult result_;
  std::unique_ptr<LoadLane> lane_;  // the last: their threads use the others
  std::unique_ptr<LoadLane> watch_lane_;
};

template <typename SendOne>
void Load::send_all(uint32_t count, uint32_t at_once, SendOne send_one) {
  std::promise<void> all;
  uint32_t sent = 0;
  uint32_t ended = 0;
  std::function<void()> next = [&] {
    if (sent == count) return;
    const uint32_t index = sent++;
    send_one(index, [&] {
      if (++ended == count) return all.set_value();
      next();
    });
  };
  if (count == 0) return;
  lane_->run([&] {
    for (uint32_t i = 0; i < at_once; ++i) next();
  });
  all.get_future().wait();
  lane_->run([] {});  // the last callback has returned
}

void Load::send(LoadKind kind, uint32_t host, const char* method, const std::string& path,
                const std::string& body, Instant due, std::function<void(const LaneAnswer&)> then) {
  const bool measured = measuring_.load();
  lane_->call(host, method, path, body, kPatience,
              [this, kind, due, measured, then = std::move(then)](const LaneAnswer& answer) {
                const bool setup = kind == LoadKind::kJoin || kind == LoadKind::kMetrics;
                if (answer.status != 0) ++tally_.answered;
                if (answer.is_good() && (measured || setup)) {
                  tally_.measured += setup ? 0 : 1;
                  tally_.latency_ns[static_cast<size_t>(kind)].record(
                      static_cast<uint64_t>((SteadyClock::read() - due).count()));
                }
                if (!answer.is_good())
                  tally_.note_error(fmt::format("{}: {} {}", to_string(kind), answer.status,
                                                answer.status == 0 ? answer.failure : answer.body));
                if (then) then(answer);
              });
}

Status Load::join_nodes() {
  send_all(options_.nodes, kJoinsAtOnce, [this](uint32_t index, auto ended) {
    send(LoadKind::kJoin, index, "POST", "/v1/nodes", coordinator::encode(nodes_->join_of(index)),
         SteadyClock::read(), [ended](const LaneAnswer&) { ended(); });
  });
  return check_errors();
}

Status Load::create_regions() {
  send_all(options_.regions, kCreatesAtOnce, [this](uint32_t index, auto ended) {
    const uint64_t slabs =
        options_.leases / options_.regions + (index < options_.leases % options_.regions ? 1 : 0);
    coordinator::RegionCreate create;
    create.name = fmt::format("simulated-{}", index);
    create.bytes = slabs * options_.slab_bytes;
    create.slab_bytes = options_.slab_bytes;
    create.session_group = index + 1;
    send(LoadKind::kCreateRegion, host_of_region(index), "POST", "/v1/regions",
         coordinator::encode(create), SteadyClock::read(),
         [this, index, slabs, ended](const LaneAnswer& answer) {
           const auto region = coordinator::decode_region_info(answer.body);
           std::vector<std::string> places;
           if (!region || region->leases.size() != slabs ||
               !borrowers_.take(region->leases, places)) {
             tally_.note_error("a region was created with other leases");
             return ended();
           }
           borrowers_.regions[index] = {region->id.value, static_cast<uint32_t>(slabs)};
           for (const Lease& lease : region->leases) {
             uint32_t node = 0;
             const std::string& id = lease.node.value;
             (void)std::from_chars(id.data() + id.rfind('-') + 1, id.data() + id.size(), node);
             if (node < groups_.size()) groups_[node].insert(index + 1);
           }
           ended();
         });
  });
  return check_errors();
}

void Load::heartbeat(size_t actor, Instant due) {
  if (actor < options_.nodes) {
    send(LoadKind::kNodeHeartbeat, static_cast<uint32_t>(actor), "PUT",
         fmt::format("/v1/nodes/simulated-{}/heartbeat", actor), node_bodies_[actor], due, nullptr);
    return;
  }
  const std::string& region = borrowers_.regions[actor - options_.nodes].id;
  if (region.empty()) return;  // it is being created
  send(LoadKind::kRegionHeartbeat, static_cast<uint32_t>(actor), "PUT",
       fmt::format("/v1/regions/{}/heartbeat", region), region_body_, due, nullptr);
}

void Load::note_tick(Instant due) {
  if (measuring_.load())
    result_.latest_tick = std::max(result_.latest_tick, SteadyClock::read() - due);
}

bool Load::send_due_heartbeats() {
  for (uint32_t sent = 0; beating_.load(); ++sent) {
    if (sent == kSentAtOnce) return true;
    if (next_actor_ == schedule_.size()) {
      next_actor_ = 0;
      round_ += kPeriod;
    }
    const Instant due = round_ + schedule_[next_actor_].first;
    if (due > SteadyClock::read()) return true;
    note_tick(due);
    heartbeat(schedule_[next_actor_++].second, due);
  }
  return false;
}

// Each at its own time of the period.
void Load::start_heartbeats() {
  coordinator::NodeHeartbeat beat;
  beat.counters = counters(kNodeCounters);
  node_bodies_.clear();
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    beat.incarnation = i + 1;
    beat.session_groups.assign(groups_[i].begin(), groups_[i].end());
    node_bodies_.push_back(coordinator::encode(beat));
  }
  region_body_ = coordinator::encode(coordinator::RegionHeartbeat{counters(kRegionCounters)});
  schedule_.clear();
  std::uniform_int_distribution<int64_t> phase(0, kPeriod.count() - 1);
  for (size_t actor = 0; actor < options_.nodes + options_.regions; ++actor)
    schedule_.emplace_back(Instant(phase(random_)), actor);
  std::sort(schedule_.begin(), schedule_.end());
  next_actor_ = 0;
  round_ = SteadyClock::read();
  beating_ = true;
  lane_->run([this] { lane_->repeat(kTick, [this] { return send_due_heartbeats(); }); });
}

bool Load::change_when_due() {
  for (uint32_t sent = 0; changing_.load(); ++sent) {
    if (sent == kSentAtOnce) return true;
    const Instant due =
        first_change_ +
        Nanoseconds(changes_ * static_cast<uint64_t>(kPeriod.count()) / options_.changes_per_s);
    if (due > SteadyClock::read()) return true;
    note_tick(due);
    const uint64_t turn = changes_++ % kRegionsEvery;
    if (turn == 0) {
      create(due);
    } else if (turn == kRegionsEvery / 2) {
      remove(due);
    } else if (turn % 2 == 1) {
      extend(due);
    } else {
      release(due);
    }
  }
  return false;
}

void Load::extend(Instant due) {
  const size_t index = random_() % borrowers_.regions.size();
  Borrowers::Region& region = borrowers_.regions[index];
  Borrowers::Extension extension{index, {}, {}};
  for (uint32_t i = 0; i < kSlabsPerChange; ++i)
    extension.slabs.push_back(SlabIndex{region.next_slab++});
  const std::string body = coordinator::encode(extension.slabs);
  send(LoadKind::kLease, host_of_region(index), "POST",
       fmt::format("/v1/regions/{}/slabs", region.id), body, due,
       [this, extension](const LaneAnswer& answer) mutable {
         if (!answer.is_good()) return;
         const auto leases = coordinator::decode_lease_list(answer.body);
         if (!leases || leases->size() != kSlabsPerChange ||
             !borrowers_.take(*leases, extension.places))
           return tally_.note_error("a lease was answered with other slabs");
         borrowers_.extensions.push_back(std::move(extension));
       });
}

void Load::release(Instant due) {
  if (borrowers_.extensions.empty()) return extend(due);
  const Borrowers::Extension extension = std::move(borrowers_.extensions.front());
  borrowers_.extensions.pop_front();
  borrowers_.give_back(extension.places);  // others may have them before the answer is here
  send(LoadKind::kRelease, host_of_region(extension.region), "POST",
       fmt::format("/v1/regions/{}/slabs/release", borrowers_.regions[extension.region].id),
       coordinator::encode(extension.slabs), due, nullptr);
}

void Load::create(Instant due) {
  coordinator::RegionCreate create;
  create.name = "simulated-small";
  create.bytes = kSlabsPerChange * options_.slab_bytes;
  create.slab_bytes = options_.slab_bytes;
  event_since_ns_ = due.count();
  send(LoadKind::kCreateRegion, host_of_others(), "POST", "/v1/regions",
       coordinator::encode(create), due, [this](const LaneAnswer& answer) {
         if (!answer.is_good()) return;
         const auto region = coordinator::decode_region_info(answer.body);
         std::vector<std::string> places;
         if (!region || region->leases.size() != kSlabsPerChange ||
             !borrowers_.take(region->leases, places))
           return tally_.note_error("a small region was created with other leases");
         borrowers_.small_regions.emplace_back(region->id.value, std::move(places));
       });
}

void Load::remove(Instant due) {
  if (borrowers_.small_regions.empty()) return;
  const auto [id, places] = std::move(borrowers_.small_regions.front());
  borrowers_.small_regions.pop_front();
  borrowers_.give_back(places);
  event_since_ns_ = due.count();
  send(LoadKind::kDeleteRegion, host_of_others(), "DELETE", "/v1/regions/" + id, "", due, nullptr);
}

void Load::start_changes() {
  first_change_ = SteadyClock::read();
  changes_ = 0;
  changing_ = true;
  lane_->run([this] {
    lane_->repeat(kTick, [this] { return change_when_due(); });
    lane_->repeat(Milliseconds(1000), [this] {
      if (!changing_.load()) return false;
      send(LoadKind::kTotals, host_of_others(), "GET", "/v1/cluster", "", SteadyClock::read(),
           nullptr);
      return true;
    });
  });
}

void Load::watch(uint32_t host, uint64_t since) {
  watch_lane_->call(
      host, "GET", fmt::format("/v1/events?since={}&timeout={}", since, kPollTime.count() / 1000),
      "", kPatience, [this, host](const LaneAnswer& answer) {
        if (answer.status != 0) ++watch_tally_.answered;
        const auto batch = coordinator::decode_event_batch(answer.body);
        if (!answer.is_good() || !batch || batch->missed) {
          watch_tally_.note_error(fmt::format("a watcher: {} {}{}", answer.status, answer.failure,
                                              answer.body.substr(0, 200)));
          return;
        }
        if (!batch->events.empty()) {
          events_ += batch->events.size();
          const int64_t sent = event_since_ns_.load();
          if (measuring_.load() && sent != 0)
            watch_tally_.latency_ns[static_cast<size_t>(LoadKind::kEvent)].record(
                static_cast<uint64_t>(std::max<int64_t>(0, SteadyClock::read().count() - sent)));
          if (measuring_.load()) ++watch_tally_.measured;
        }
        if (watching_.load()) watch(host, batch->next_since);
      });
}

void Load::start_watchers() {
  watching_ = true;
  uint64_t latest = 0;
  if (const auto totals = get("/v1/cluster"))
    latest = nlohmann::json::parse(*totals, nullptr, false).value("last_sequence", uint64_t{0});
  watch_lane_->run([&] {
    for (uint32_t i = 0; i < options_.watchers; ++i) watch(i, latest);
  });
}

Result<std::string> Load::get(const char* path) {
  std::promise<LaneAnswer> answered;
  const bool metrics = std::string_view(path) == "/metrics";
  lane_->run([&] {
    send(metrics ? LoadKind::kMetrics : LoadKind::kTotals, host_of_others(), "GET", path, "",
         SteadyClock::read(), [&](const LaneAnswer& answer) { answered.set_value(answer); });
  });
  const LaneAnswer answer = answered.get_future().get();
  if (!answer.is_good()) return wrong(fmt::format("GET {}: {}", path, answer.status));
  return answer.body;
}

// What was sent is answered.
Status Load::await_quiet() {
  const Instant start = SteadyClock::read();
  while (true) {
    size_t in_flight = 0;
    lane_->run([&] { in_flight = lane_->in_flight(); });
    if (in_flight == 0) return {};
    if (SteadyClock::read() - start > kPatience + Seconds(5))
      return wrong(fmt::format("{} requests have no answer", in_flight));
    std::this_thread::sleep_for(Milliseconds(2));
  }
}

Status Load::check_errors() {
  std::vector<std::string> shown;
  uint64_t errors = 0;
  const auto gather = [&](const Tally& tally) {
    for (const auto& [what, count] : tally.errors) {
      errors += count;
      if (shown.size() < kErrorsShown) shown.push_back(fmt::format("{} x {}", count, what));
    }
  };
  lane_->run([&] { gather(tally_); });
  watch_lane_->run([&] { gather(watch_tally_); });
  if (nodes_->wrong_revocations() > 0)
    return wrong(
        fmt::format("{} slabs were revoked that were not leased so", nodes_->wrong_revocations()));
  if (errors == 0) return {};
  return wrong(fmt::format("{} errors: {}", errors, fmt::join(shown, "; ")));
}

// Released slabs are revoked in the background if their nodes were busy.
Status Load::check_leases() {
  const Instant start = SteadyClock::read();
  while (true) {
    FARPAGE_TRY(text, get("/v1/cluster"));
    const auto totals = nlohmann::json::parse(text, nullptr, false);
    size_t held = 0;
    size_t regions = 0;
    lane_->run([&] {
      held = borrowers_.held();
      regions = borrowers_.regions.size() + borrowers_.small_regions.size();
    });
    const auto number = [&](const char* group, const char* name) {
      return totals.value(nlohmann::json::json_pointer(fmt::format("/{}/{}", group, name)),
                          uint64_t{0});
    };
    result_.leases = number("leases", "held");
    const std::string counts = fmt::format(
        "pagers have {} leases, the coordinator {}, nodes {}; {} regions of {}, {} nodes of {} "
        "alive, {} leases lost, {} revocations pending",
        held, result_.leases, nodes_->leased(), totals.value("regions", uint64_t{0}), regions,
        number("nodes", "alive"), options_.nodes, number("leases", "lost"),
        totals.value("pending_revocations", uint64_t{0}));
    const bool sound = result_.leases == held && nodes_->leased() == held &&
                       totals.value("regions", uint64_t{0}) == regions &&
                       number("nodes", "alive") == options_.nodes && number("leases", "lost") == 0;
    if (sound) return {};
    if (SteadyClock::read() - start > kSettleTime) return wrong(counts);
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

Status Load::check_watchers() {
  const Instant start = SteadyClock::read();
  while (true) {
    FARPAGE_TRY(metrics, get("/metrics"));
    constexpr std::string_view kName = "\nfarpage_coordinator_long_polls ";
    const size_t at = metrics.find(kName);
    result_.watchers_waiting =
        at == std::string::npos ? 0
                                : std::strtoull(metrics.c_str() + at + kName.size(), nullptr, 10);
    if (result_.watchers_waiting == options_.watchers) return {};
    if (SteadyClock::read() - start > kSettleTime)
      return wrong(
          fmt::format("{} of {} watchers wait", result_.watchers_waiting, options_.watchers));
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

// When nothing is in flight but watchers: the coordinator has counted what it has answered, but for
// the request that asks.
Status Load::check_requests() {
  const Instant start = SteadyClock::read();
  while (true) {
    FARPAGE_TRY(metrics, get("/metrics"));
    result_.counted_requests = requests_in(metrics);
    uint64_t answered = 0;
    lane_->run([&] { answered += tally_.answered - 1; });
    watch_lane_->run([&] { answered += watch_tally_.answered; });
    if (result_.counted_requests == answered) return {};
    if (SteadyClock::read() - start > kSettleTime)
      return wrong(fmt::format("the coordinator has counted {} requests, and answered {}",
                               result_.counted_requests, answered));
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

Status Load::restart() {
  watching_ = false;
  watch_lane_->run([this] { watch_lane_->drop_all(); });
  const auto held_in = [](const std::string& cluster) {
    const nlohmann::json::json_pointer held("/leases/held");
    return nlohmann::json::parse(cluster, nullptr, false).value(held, uint64_t{0});
  };
  // What was in flight when the leases were compared has been answered since.
  FARPAGE_TRY(before, get("/v1/cluster"));
  result_.leases = held_in(before);
  size_t held = 0;
  lane_->run([&] { held = borrowers_.held(); });
  if (held != result_.leases)
    return wrong(fmt::format("pagers have {} leases, the coordinator {}", held, result_.leases));
  coordinator_.kill();
  const Instant start = SteadyClock::read();
  FARPAGE_TRY_VOID(coordinator_.start());
  FARPAGE_TRY(after, get("/v1/cluster"));
  result_.restart = SteadyClock::read() - start;
  if (const uint64_t leases = held_in(after); leases != result_.leases)
    return wrong(
        fmt::format("after the restart there are {} leases, not {}", leases, result_.leases));
  FARPAGE_TRY(facts, facts_of_process(coordinator_.pid()));
  result_.restarted = facts;
  return {};
}

Result<ControlLoadResult> Load::measure() {
  // Room for what is leased for a moment beside the others, on every node.
  const uint32_t slabs = options_.leases / options_.nodes * 2 + 64;
  FARPAGE_TRY(nodes, SimulatedNodes::create(options_.nodes, slabs, options_.slab_bytes));
  nodes_ = std::move(nodes);
  FARPAGE_TRY(port, coordinator_.start());
  lane_ = std::make_unique<LoadLane>(port);
  watch_lane_ = std::make_unique<LoadLane>(port);
  const Instant start = SteadyClock::read();
  FARPAGE_TRY_VOID(join_nodes());
  start_heartbeats();
  FARPAGE_TRY_VOID(create_regions());
  beating_ = false;
  FARPAGE_TRY_VOID(await_quiet());
  result_.setup = SteadyClock::read() - start;
  start_heartbeats();  // now with the nodes' sessions
  FARPAGE_TRY_VOID(check_leases());
  start_watchers();
  FARPAGE_TRY_VOID(check_watchers());
  FARPAGE_TRY(before, facts_of_process(coordinator_.pid()));
  result_.before = before;
  const Instant begin = SteadyClock::read();
  measuring_ = true;
  start_changes();
  {
    const Progress progress(options_.progress, "control",
                            {.operations = 0, .time = options_.duration},
                            [this] { return events_.load(); });
    std::this_thread::sleep_for(options_.duration);
  }
  measuring_ = false;
  changing_ = false;
  result_.elapsed = SteadyClock::read() - begin;
  FARPAGE_TRY(after, facts_of_process(coordinator_.pid()));
  result_.after = after;
  lane_->run([this] { result_.requests = tally_.measured; });
  watch_lane_->run([this] { result_.requests += watch_tally_.measured; });
  FARPAGE_TRY_VOID(check_leases());
  beating_ = false;
  FARPAGE_TRY_VOID(await_quiet());
  FARPAGE_TRY_VOID(check_watchers());
  FARPAGE_TRY_VOID(check_requests());
  FARPAGE_TRY_VOID(check_errors());
  FARPAGE_TRY_VOID(restart());
  FARPAGE_TRY_VOID(check_errors());
  result_.events = events_.load();
  for (size_t kind = 0; kind < kLoadKinds; ++kind) {
    result_.latency_ns[kind].merge(tally_.latency_ns[kind]);
    result_.latency_ns[kind].merge(watch_tally_.latency_ns[kind]);
  }
  return std::move(result_);
}

}  // namespace

std::string_view to_string(LoadKind kind) {
  switch (kind) {
    case LoadKind::kNodeHeartbeat:
      return "node heartbeat";
    case LoadKind::kRegionHeartbeat:
      return "region heartbeat";
    case LoadKind::kLease:
      return "lease of 4 slabs";
    case LoadKind::kRelease:
      return "release of 4";
    case LoadKind::kCreateRegion:
      return "create region";
    case LoadKind::kDeleteRegion:
      return "delete region";
    case LoadKind::kTotals:
      return "totals";
    case LoadKind::kEvent:
      return "event at watcher";
    case LoadKind::kJoin:
      return "join";
    case LoadKind::kMetrics:
      return "metrics";
  }
  return "unknown";
}

Status validate(const ControlLoadOptions& options) {
  const auto bad = [](const char* text) { return farpage::fail(ErrorCode::kInvalid, text); };
  if (options.regions == 0) return bad("--regions: 1 or more, with --nodes");
  if (options.leases < options.regions) return bad("--leases: at least one for each of --regions");
  if (options.duration < Milliseconds(1000)) return bad("--duration: 1s or more, with --nodes");
  if (options.duration > kMaxDuration) return bad("--duration: at most 24h");
  return {};
}

Result<ProcessFacts> facts_of_process(int pid) {
  ProcessFacts facts;
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    const auto number = [&] {
      return std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
    };
    if (line.starts_with("VmRSS:")) facts.resident_bytes = number() << 10;
    if (line.starts_with("VmHWM:")) facts.peak_resident_bytes = number() << 10;
    if (line.starts_with("Threads:")) facts.threads = static_cast<uint32_t>(number());
  }
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(stat, line);
  if (facts.threads == 0 || line.rfind(')') == std::string::npos)
    return farpage::fail(ErrorCode::kNotFound, fmt::format("process {} has ended", pid));
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  facts.cpu_time = Nanoseconds((user + system) * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
  return facts;
}

Result<ControlLoadResult> measure_control_load(const ControlLoadOptions& options,
                                               MeasuredCoordinator& coordinator) {
  FARPAGE_TRY_VOID(validate(options));
  return Load(options, coordinator).measure();
}

Report control_load_report(const ControlLoadOptions& options, const ControlLoadResult& result) {
  const auto seconds = [](Nanoseconds time) { return static_cast<double>(time.count()) / 1e9; };
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  Report report;
  report.benchmark = "control";
  report.configuration = {
      {"Cluster", fmt::format("{} simulated nodes, {} regions, {} leases, {} watchers",
                              options.nodes, options.regions, options.leases, options.watchers)},
      {"Load", fmt::format("a heartbeat of each node and region a second, {} changes a second",
                           options.changes_per_s)},
      {"Changes", "leases and releases of 4 slabs; of 25, one creates and one deletes a region"},
      {"Connections",
       "each node, pager and watcher keeps its own; from when a request was due to its whole "
       "answer"},
      {"Content", "each answer checked; pagers, nodes and coordinator agree on the leases"}};
  for (size_t kind = 0; kind < kLoadKinds; ++kind)
    if (result.latency_ns[kind].count() > 0)
      report.rows.push_back(
          {std::string(to_string(static_cast<LoadKind>(kind))), 0, result.latency_ns[kind]});
  report.figures = {
      {"requests_per_s", static_cast<double>(result.requests) / seconds(result.elapsed)},
      {"coordinator_cpus",
       seconds(result.after.cpu_time - result.before.cpu_time) / seconds(result.elapsed)},
      {"coordinator_resident_mib", mib(result.after.resident_bytes)},
      {"coordinator_peak_mib", mib(result.after.peak_resident_bytes)},
      {"restarted_resident_mib", mib(result.restarted.resident_bytes)},
      {"restart_s", seconds(result.restart)},
      {"setup_s", seconds(result.setup)},
      {"generator_late_ms", seconds(result.latest_tick) * 1e3}};
  report.counts = {{"requests", result.requests},
                   {"counted_by_coordinator", result.counted_requests},
                   {"coordinator_threads", result.after.threads},
                   {"leases", result.leases},
                   {"watchers_waiting", result.watchers_waiting},
                   {"events_told", result.events}};
  return report;
}

}  // namespace farpage::bench
