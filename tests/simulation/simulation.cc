#include "simulation.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/doorbell.h"
#include "log.h"
#include "page_words.h"
#include "pager/engine.h"
#include "pager/evict/eviction_progress.h"
#include "program.h"
#include "simulated_cluster.h"
#include "simulated_space.h"
#include "space_view.h"

namespace farpage::simulation {
namespace {

constexpr Milliseconds kDeadline{2500};  // of a fault
// Where pages may be lost, most faults on them take as long as this: each costs a lot of steps.
constexpr Milliseconds kShortDeadline{600};
constexpr Milliseconds kOperationTimeout{30};
// An access may end this much after the deadline: it may wait for a failing prefetch of its page,
// then the last operation, and threads without a CPU.
constexpr Milliseconds kAllowance{1000};
constexpr Milliseconds kLongestSilence{300};  // of a node that is not dead
constexpr uint64_t kLargeBudget = 600;        // a batch of prefetching is one page of 128
constexpr Milliseconds kPatience{1500};       // more than the product has with a node
constexpr uint64_t kMostDeaths = 3;           // of the engine, in one run; also of nodes
constexpr uint64_t kMoreAccesses = 4;         // where nodes die one after the other
constexpr Milliseconds kShortInterval{4};     // of heartbeats there
constexpr Milliseconds kLongestHealth{2};     // of a node's memory, where bits change
constexpr uint64_t kScrubRate = 64U << 20;    // bytes a second
constexpr Milliseconds kTrial{20};            // of a forked child: then it gets a budget

// What this run is like.
struct Shape {
  size_t nodes = 0;
  uint32_t replicas = 0;
  bool one_dies = false;
  bool one_is_silent = false;  // for so long that its replicas are lost, though it lives
  bool corrupts = false;       // bits of one node's memory change
  uint64_t node_deaths = 0;    // one after the other, each when the one before is repaired
  bool resolves_in_thread = false;
  bool is_large = false;  // the budget is large enough for prefetching
  uint64_t deaths = 0;    // of the engine
  uint64_t programs = 0;
  uint64_t threads = 0;  // of each program
  Weather weather;
  Habits habits;

  // Then pages of the dead node, or all, cannot be written back or read any more.
  bool may_lose_pages() const {
    return (one_dies && (replicas == 1 || nodes - 1 < replicas)) || (corrupts && replicas == 1);
  }
  Milliseconds deadline() const { return may_lose_pages() ? kShortDeadline : kDeadline; }
};

Shape shape_of(Scheduler& scheduler) {
  Shape shape;
  shape.nodes = 2 + scheduler.choose(2);
  shape.replicas = static_cast<uint32_t>(1 + scheduler.choose(2));
  shape.one_dies = scheduler.chance(3);
  shape.one_is_silent = shape.replicas == 2 && !shape.one_dies && scheduler.chance(4);
  if (shape.replicas == 2 && !shape.one_dies && !shape.one_is_silent && scheduler.chance(2))
    shape.node_deaths = 1 + scheduler.choose(kMostDeaths);
  const bool only_that = !shape.one_dies && !shape.one_is_silent && shape.node_deaths == 0;
  shape.corrupts = only_that && scheduler.chance(2);
  shape.resolves_in_thread = scheduler.chance(8);
  shape.programs = 1 + scheduler.choose(2);
  shape.threads = 1 + scheduler.choose(3);
  const auto maybe = [&](uint64_t one_in, uint64_t value) {
    return scheduler.chance(one_in) ? value : 0;
  };
  shape.weather.late = maybe(2, scheduler.chance(3) ? 25 : 300);
  shape.weather.unanswered = maybe(3, scheduler.chance(3) ? 150 : 1000);
  shape.weather.refused = maybe(2, 100);
  shape.habits.accesses = 20 + scheduler.choose(80);
  shape.habits.walks = maybe(2, 12);
  shape.habits.discards = maybe(2, 8);
  shape.habits.hints = maybe(2, 12);
  shape.is_large = scheduler.chance(24);
  if (shape.is_large) {
    shape.programs = 1;
    shape.threads = 2;
    shape.habits.pages = kLargeBudget;
    shape.habits.accesses = 4 + scheduler.choose(8);
    shape.habits.walks = 2;
  }
  if (shape.node_deaths > 0) shape.habits.accesses *= kMoreAccesses;
  if (shape.resolves_in_thread) return shape;
  if (scheduler.chance(3)) shape.deaths = 1 + scheduler.choose(kMostDeaths);
  if (shape.is_large) return shape;
  shape.habits.pins = maybe(4, 30);
  shape.habits.drops_past_shim = maybe(5, 12);
  shape.habits.unmaps_past_shim = maybe(6, 60);
  shape.habits.forks = maybe(3, 40);
  shape.habits.ends = maybe(6, 2);
  return shape;
}

pager::PagerOptions options_of(Scheduler& scheduler, const Shape& shape) {
  pager::PagerOptions options;
  options.name = "simulated";
  options.local_bytes = pager::kMinLocalBytes;
  options.replicas = shape.replicas;
  options.slab_bytes = kSlabBytes;
  options.workers = static_cast<uint32_t>(1 + scheduler.choose(3));
  options.resolve_in_thread = shape.resolves_in_thread;
  options.pin_workers = false;
  options.prefetch_depth = scheduler.chance(3) ? 0 : 16;
  options.high_water_percent = 85;
  options.low_water_percent = 70;
  options.fault_deadline = shape.deadline();
  options.session_group = 7;
  options.transports = {rdma::TransportKind::kShm};
  options.channel.operation_timeout = kOperationTimeout;
  options.compressed.enabled = scheduler.chance(2);
  if (scheduler.chance(2)) options.repair_rate.bytes_per_second = UINT64_MAX;
  options.checksums = shape.corrupts || !scheduler.chance(3);
  if (options.checksums && scheduler.chance(3)) options.scrub_bytes_per_second = kScrubRate;
  return options;
}

class Run {
 public:
  Run(Scheduler& scheduler, Outcome& outcome)
      : scheduler_(scheduler), outcome_(outcome), words_(scheduler), shape_(shape_of(scheduler)) {}

  void operator()() {
    cluster_ = std::make_unique<SimulatedCluster>(scheduler_, shape_.nodes, shape_.weather);
    if (!shape_.corrupts) forbid_log("wrong_page");
    if (shape_.node_deaths > 0) cluster_->set_heartbeat_interval(kShortInterval);
    if (shape_.deaths > 0) {
      auto store = StateStore::create();
      if (!store) scheduler_.fail("no state: " + store.error().message());
      store_ = std::move(*store);
    }
    make_engine();
    for (uint64_t i = 0; i < shape_.programs; ++i) start_program(static_cast<uint32_t>(1 + i));
    const Scheduler::FiberId disturber = scheduler_.spawn([this] { disturb(); }, "disturber");
    const Scheduler::FiberId killer = scheduler_.spawn([this] { kill_engines(); }, "killer");
    const Scheduler::FiberId corrupter = scheduler_.spawn([this] { corrupt(); }, "corrupter");
    while (members_ > 0) (void)scheduler_.wait(&members_, Nanoseconds(-1));
    scheduler_.join(disturber);
    scheduler_.join(corrupter);
    scheduler_.join(killer);
    engine_.reset();
    outcome_.repaired = cluster_->repaired();
    if (cluster_->regions_held() != 0) scheduler_.fail("a region was not given back");
  }

 private:
  // A process and its pager, as serve/served_target.cc has them.
  struct Member {
    Member(Scheduler& scheduler, std::unique_ptr<SimulatedSpace> of, bool queued)
        : space(of.get()), own_space(std::move(of)), requests(scheduler, queued) {}

    SimulatedSpace* const space;
    std::unique_ptr<SimulatedSpace> own_space;
    const Member* parent = nullptr;  // of a forked child
    uint64_t fork = 0;               // of the parent's, by which it came
    Requests requests;
    std::optional<Scheduler::FiberId> control;
    uint64_t limit = 0;  // pages
    uint32_t group = 0;
    std::unique_ptr<pager::Pager> pager;
    std::unique_ptr<Program> program;
    std::vector<Scheduler::FiberId> threads;
    bool started = false;  // it has its threads
    bool served = false;   // and a control thread
    bool has_budget = false;
    bool ending = false;
    bool control_ended = false;
  };

  // Threads that resolve their own faults wait for each other: for a worker. A fault without room
  // may wait for two deadlines (EvictionProgress).
  Nanoseconds longest_access() const {
    const uint64_t waits = shape_.resolves_in_thread ? shape_.threads * shape_.programs : 1;
    return static_cast<int64_t>(waits) * shape_.deadline() * pager::EvictionProgress::kTriedOnce +
           kAllowance;
  }

  // ---- processes ----

  void make_engine() {
    auto* const transports =
        new std::vector<std::unique_ptr<rdma::Transport>>(cluster_->transports());
    auto engine =
        pager::Engine::create(options_of(scheduler_, shape_), *cluster_, *transports, store_.get());
    if (!engine) scheduler_.fail("no engine: " + engine.error().message());
    engine_ = std::move(*engine);
  }

  // The engine dies at some moments, with all its threads where they are, and a successor goes on
  // with what it has left. That may die in the middle of its start.
  void kill_engines() {
    for (uint64_t i = 0; i < shape_.deaths && members_ > 0; ++i) {
      scheduler_.sleep(
          scheduler_.choose_time(scheduler_.chance(3) ? Milliseconds(1) : Milliseconds(10)));
      scheduler_.note({.what = "kills the engine"});
      scheduler_.abandon_threads();
      if (starter_) scheduler_.abandon(*starter_);
      for (const auto& member : served_) {
        if (member->control_ended) continue;
        if (member->control) scheduler_.abandon(*member->control);
        member->requests.connect(nullptr);
        words_.remove(*member->space);
        (void)member->pager.release();
      }
      (void)engine_.release();
      cluster_->outlive_engine();
      const int descriptor = store_.release()->descriptor();
      auto store = StateStore::take_over(descriptor);
      if (!store) scheduler_.fail("no state: " + store.error().message());
      store_ = std::move(*store);
      starting_ = true;
      starter_ = scheduler_.spawn([this] { start_successor(); }, "successor");
    }
    while (starting_) (void)scheduler_.wait(&starting_, Nanoseconds(-1));
    deaths_over_ = true;
    scheduler_.notify(&deaths_over_);
  }

  void start_successor() {
    make_engine();
    note_served_children();
    const std::vector<std::shared_ptr<Member>> members = served_;  // children may come
    std::set<uint64_t> numbers;
    for (const auto& member : members) numbers.insert(member->space->number());
    engine_->end_succession(numbers);
    for (const auto& member : members) {
      if (member->control_ended) continue;
      member->space->await_agent();
      std::unique_ptr<uffd::AddressSpace> space = std::make_unique<SpaceView>(*member->space);
      pager::ResumeOptions options{
          {"simulated", pager::kMinLocalBytes,
           shape_.habits.forks != 0 ? pager::ForkMode::kShare : pager::ForkMode::kRefuse,
           member->space->number()}};
      options.fork_children = adopted_children(*member);
      options.agent_ready = member->program->connected();
      SimulatedSpace* const found = found_child(*member);
      auto pager = engine_->resume(options, space, on_child(*member));
      if (!pager) {
        if (!member->space->ended() && !member->ending)
          scheduler_.fail("a target was not resumed: " + pager.error().message());
        member->requests.close();
        member->served = true;
        member->control_ended = true;
        scheduler_.notify(member.get());
        continue;
      }
      member->pager = std::move(*pager);
      if (!member->has_budget && options.agent_ready) {
        member->has_budget = true;
        member->limit = choose_limit();
      }
      if (member->has_budget && !member->pager->set_limit(member->limit, 0))
        scheduler_.fail("no limit after a death");
      if (found != nullptr && member->pager->is_forking())
        member->pager->child_found(std::make_unique<SpaceView>(*found));
      words_.add(*member->pager, *member->space, member->group);
      start_control(*member);
    }
    starting_ = false;
    scheduler_.notify(&starting_);
  }

  void start_control(Member& member) {
    member.requests.connect(member.pager.get());
    member.control = scheduler_.spawn([this, &member] { run_control(member); }, "control");
    member.served = true;
    scheduler_.notify(&member);
  }

  void start_program(uint32_t number) {
    const uint64_t pages = Program::pages_for(shape_.habits, shape_.threads);
    auto space = std::make_unique<SimulatedSpace>(scheduler_, number, pages);
    const auto member = std::make_shared<Member>(scheduler_, std::move(space), shape_.deaths > 0);
    member->group = number;
    const bool may_fork = shape_.habits.forks != 0;
    auto pager = engine_->add(
        {"simulated", pager::kMinLocalBytes,
         may_fork ? pager::ForkMode::kShare : pager::ForkMode::kRefuse, number},
        std::make_unique<SpaceView>(*member->space), Milliseconds(1000), on_child(*member));
    if (!pager) scheduler_.fail("no pager: " + pager.error().message());
    member->pager = std::move(*pager);
    words_.add(*member->pager, *member->space, member->group);
    if (shape_.resolves_in_thread)
      member->space->set_resolve([member = member.get()](PageIndex page, uffd::FaultKind kind) {
        member->pager->resolve(page, kind);
      });
    member->requests.connect(member->pager.get());
    member->has_budget = true;
    member->limit = choose_limit();
    set_limit(*member->pager, member->limit);
    member->program = std::make_unique<Program>(
        scheduler_, *member->space, shape_.threads, shape_.habits,
        ProgramLimits{longest_access(), shape_.may_lose_pages()}, forks_,
        [this](std::unique_ptr<SimulatedSpace> child, Program& parent, Program::Copy copy) {
          return make_child(std::move(child), parent, std::move(copy));
        });
    member->program->connect(member->requests);
    for (uint64_t thread = 0; thread < shape_.threads; ++thread) start_thread(*member, thread);
    member->started = true;
    ++members_;
    live(member);
  }

  // Its pager comes later, its thread when fork(2) returns.
  std::function<void()> make_child(std::unique_ptr<SimulatedSpace> space, Program& parent,
                                   Program::Copy copy) {
    const auto member = std::make_shared<Member>(scheduler_, std::move(space), shape_.deaths > 0);
    member->program = std::make_unique<Program>(parent, *member->space, std::move(copy));
    children_[member->space] = {member, &parent.space()};
    ++outcome_.forks;
    ++members_;
    return [this, member] {
      start_thread(*member, 0);
      member->started = true;
      scheduler_.notify(member.get());
    };
  }

  void start_thread(Member& member, uint64_t thread) {
    member.threads.push_back(scheduler_.spawn(
        [program = member.program.get(), thread] { program->run(thread); }, "program"));
  }

  // From now on a successor takes it for one that is served.
  void begin_life(const std::shared_ptr<Member>& member) {
    served_.push_back(member);
    scheduler_.spawn([this, member] { run_life(*member); }, "life");
  }

  void live(const std::shared_ptr<Member>& member) {
    begin_life(member);
    start_control(*member);
  }

  pager::OnChild on_child(const Member& parent) {
    return [this, &parent, group = parent.group](pager::Inheritance inheritance) {
      SimulatedSpace& space = static_cast<SpaceView&>(*inheritance.space).space();
      const auto entry = children_.find(&space);
      if (entry == children_.end()) scheduler_.fail("a child of no fork");
      const std::shared_ptr<Member> member = entry->second.member;
      member->group = group;
      auto pager = engine_->adopt(
          {"child", pager::kMinLocalBytes, pager::ForkMode::kShare, member->space->number()},
          inheritance, on_child(*member));
      if (!pager) scheduler_.fail("a child without a pager: " + pager.error().message());
      children_.erase(&space);
      note_child(member, parent);
      member->pager = std::move(*pager);
      if (scheduler_.chance(2)) {  // as where the budget is short (serve/budget_group.h)
        (void)member->pager->guard_shared();
        if (parent.pager) (void)parent.pager->guard_shared();
      }
      words_.add(*member->pager, *member->space, member->group);
      start_control(*member);
    };
  }

  // Those that the dead engine had begun to serve, and had not noted.
  void note_served_children() {
    for (auto child = children_.begin(); child != children_.end();) {
      const auto [member, of] = child->second;
      const auto parent = std::ranges::find(served_, of, [](const auto& m) { return m->space; });
      if (!engine_->can_resume(member->space->number()) || parent == served_.end()) {
        ++child;
        continue;
      }
      child = children_.erase(child);
      note_child(member, **parent);
    }
  }

  void note_child(const std::shared_ptr<Member>& member, const Member& parent) {
    member->group = parent.group;
    member->parent = &parent;
    member->fork = parent.program->forks();
    begin_life(member);
  }

  // Of the fork that is under way.
  size_t adopted_children(const Member& parent) const {
    return static_cast<size_t>(std::ranges::count_if(served_, [&](const auto& member) {
      return member->parent == &parent && member->fork == parent.program->forks();
    }));
  }
  // It exists, and its event was read by an engine that has not noted it.
  SimulatedSpace* found_child(const Member& parent) const {
    for (const auto& [space, child] : children_)
      if (child.parent == parent.space && space->number() == parent.space->last_child())
        return child.member->space;
    return nullptr;
  }

  // The thread that answers the process and its pager.
  void run_control(Member& member) {
    pager::Pager& pager = *member.pager;
    Instant trial_ends{INT64_MAX};
    if (!member.program->connected()) {
      // The child says Hello, unless it has ended.
      scheduler_.sleep(scheduler_.choose_time(Milliseconds(1)));
      if (!member.ending && !member.space->ended()) {
        pager.agent_ready("child", scheduler_.chance(2) ? 16 : pager::kFreePages);
        member.program->connect(member.requests);
        trial_ends = scheduler_.now() + kTrial;
      }
    }
    while (!member.ending) {
      std::array<pollfd, 2> polls{pollfd{pager.attention_descriptor(), POLLIN, 0},
                                  pollfd{member.requests.bell().fd(), POLLIN, 0}};
      const bool waits = trial_ends.count() != INT64_MAX && !member.has_budget;
      (void)scheduler_.wait_for_descriptors(
          polls, waits ? std::max(trial_ends - scheduler_.now(), Nanoseconds(0)) : Nanoseconds(-1));
      member.requests.serve();
      if (member.ending) break;
      pager.adopt_children();
      if (member.program->connected() && !member.has_budget &&
          (pager.wants_budget() || scheduler_.now() >= trial_ends)) {
        share_budget(member);
        pager.begin_eviction();
      }
    }
    member.control_ended = true;
    scheduler_.notify(&member);
  }

  void share_budget(Member& member) {
    member.has_budget = true;
    member.limit = choose_limit();
    set_limit(*member.pager, member.limit);
  }
  uint64_t choose_limit() {
    return shape_.is_large ? kLargeBudget + scheduler_.choose(kLargeBudget / 2)
                           : shape_.threads * shape_.habits.pages / (2 + scheduler_.choose(3));
  }
  // False: more is pinned.
  bool set_limit(pager::Pager& pager, uint64_t pages) {
    const Status set = pager.set_limit(pages, 0);
    if (!set && set.error().code != ErrorCode::kConflict)
      scheduler_.fail("no limit: " + set.error().message());
    return static_cast<bool>(set);
  }
  void change_limit(Member& member) {
    const uint64_t pages = choose_limit();
    member.requests.ask([&](pager::Pager& pager) {
      if (set_limit(pager, pages)) member.limit = pages;
    });
  }

  // Resizes the budget now and then, until the program's threads have ended.
  void run_life(Member& member) {
    while (!member.started || !member.served) (void)scheduler_.wait(&member, Nanoseconds(-1));
    const bool resizes = scheduler_.chance(3);
    for (const Scheduler::FiberId thread : member.threads) {
      while (resizes && scheduler_.chance(2)) {
        scheduler_.sleep(scheduler_.choose_time(Milliseconds(3)));
        if (member.has_budget) change_limit(member);
      }
      scheduler_.join(thread);
    }
    if (!member.space->ended()) member.program->read_all();
    while (!deaths_over_) (void)scheduler_.wait(&deaths_over_, Nanoseconds(-1));
    if (!member.space->ended()) settle(member);
    outcome_.bus_errors += member.program->bus_errors();
    member.ending = true;
    member.requests.bell().ring();
    while (!member.control_ended) (void)scheduler_.wait(&member, Nanoseconds(-1));
    member.program->end();
    words_.remove(*member.space);
    if (member.pager) {
      const pager::PagerStats stats = member.pager->stats();
      outcome_.remote_faults += stats.faults_remote;
      outcome_.evicted += stats.evicted_written;
      outcome_.prefetched += stats.prefetch_pages;
      outcome_.from_copies += stats.compressed_hits;
    }
    member.pager.reset();
    --members_;
    scheduler_.notify(&members_);
  }

  // ---- disturbances ----

  void pause(Nanoseconds most) {
    const Instant end = scheduler_.now() + scheduler_.choose_time(most);
    while (members_ > 0 && scheduler_.now() < end)
      (void)scheduler_.wait(&members_, end - scheduler_.now());
  }

  // Always the same node: another replica of each page is right.
  void corrupt() {
    while (shape_.corrupts && members_ > 0) {
      pause(kLongestHealth);
      cluster_->node(0).corrupt();
    }
  }

  // Nodes and coordinator fail: at most one node for good, or one after the other, so that each
  // slab has a live replica at each moment.
  void disturb() {
    if (shape_.one_is_silent) {  // the others answer meanwhile
      pause(Milliseconds(4));
      cluster_->node(scheduler_.choose(cluster_->nodes_count())).be_silent(kPatience);
      return;
    }
    for (uint64_t i = 0; i < shape_.node_deaths && members_ > 0; ++i) {
      pause(Milliseconds(4));
      const size_t node = scheduler_.choose(cluster_->nodes_count());
      cluster_->kill(node);
      pause(Milliseconds(20));
      cluster_->restart(node);
      while (members_ > 0 && !cluster_->is_whole()) pause(Milliseconds(4));
    }
    if (shape_.node_deaths > 0) return;
    const uint64_t disturbances = scheduler_.choose(4);
    bool died = !shape_.one_dies;
    for (uint64_t i = 0; (i < disturbances || !died) && members_ > 0; ++i) {
      pause(Milliseconds(4));
      const size_t node = scheduler_.choose(cluster_->nodes_count());
      if (!died && scheduler_.chance(2)) {
        died = true;
        cluster_->kill(node);
        pause(Milliseconds(50));
        if (scheduler_.chance(2)) cluster_->restart(node);
      } else if (scheduler_.chance(2)) {
        cluster_->node(node).be_silent(scheduler_.choose_time(kLongestSilence));
      } else {
        cluster_->set_answering(false);
        pause(Milliseconds(50));
        if (scheduler_.chance(3)) cluster_->forget();
        cluster_->set_answering(true);
      }
    }
  }

  // ---- the invariants of a quiet engine ----

  // What is under way ends; then everything agrees. Pages of a dead node cannot be evicted. Where
  // many operations are not answered each batch takes a timeout: it may take long while pages
  // leave.
  void settle(const Member& member) {
    Status agrees;
    uint64_t fewest = UINT64_MAX;
    for (int tries = 0; tries < 200; ++tries) {
      scheduler_.sleep(Milliseconds(10));
      const Scheduler::Undisturbed undisturbed(scheduler_);
      agrees = check(member);
      if (agrees) return;
      const uint64_t used = member.pager->budget_use().used_pages;
      if (used < fewest) tries = 0;
      fewest = std::min(fewest, used);
    }
    scheduler_.fail("space " + std::to_string(member.space->number()) + ": " +
                    agrees.error().message());
  }

  Status check(const Member& member) {
    FARPAGE_TRY_VOID(member.pager->check_invariants());
    for (uint64_t i = 0; i < member.space->pages(); ++i) {
      FARPAGE_TRY_VOID(check_page(member, PageIndex{i}));
    }
    const pager::BudgetUse use = member.pager->budget_use();
    if (use.used_pages > use.limit_pages && !shape_.one_dies && member.has_budget)
      return fail(ErrorCode::kConflict, std::to_string(use.used_pages) +
                                            " pages are used, the limit is " +
                                            std::to_string(use.limit_pages));
    return {};
  }

  Status check_page(const Member& member, PageIndex page) {
    if (member.program->is_uncertain(page) || member.program->is_unmapped(page)) return {};
    const pager::PageWord word = words_.word(*member.space, page);
    const bool present = member.space->is_present(page);
    const bool is_protected = member.space->is_protected(page);
    bool agrees = false;
    switch (word.state()) {
      case pager::PageState::kEmpty:
      case pager::PageState::kLost:
        agrees = !present;
        break;
      case pager::PageState::kRemote:
        agrees = !present || word.has(pager::PageWord::kMaybePresent);
        break;
      case pager::PageState::kClean:
        agrees = present && is_protected;
        break;
      case pager::PageState::kDirty:
        agrees = present || member.program->may_lack(page);
        break;
      case pager::PageState::kEvicting:
        agrees = present && shape_.one_dies;  // it is tried again and again
        break;
      case pager::PageState::kFetching:
      case pager::PageState::kUnprotecting:
      case pager::PageState::kDropping:
        break;  // nothing is under way
    }
    if (agrees) return {};
    return fail(ErrorCode::kConflict, "page " + std::to_string(page.value) + " is " +
                                          std::string(to_string(word.state())) + ", and " +
                                          (!present       ? "absent"
                                           : is_protected ? "protected"
                                                          : "present"));
  }

  Scheduler& scheduler_;
  Outcome& outcome_;
  PageWords words_;
  const Shape shape_;
  Forks forks_;
  std::unique_ptr<SimulatedCluster> cluster_;
  std::unique_ptr<StateStore> store_;  // null: the engine does not die
  std::unique_ptr<pager::Engine> engine_;
  std::vector<std::shared_ptr<Member>> served_;
  std::optional<Scheduler::FiberId> starter_;
  bool starting_ = false;     // a successor
  bool deaths_over_ = false;  // those of the engine
  struct Child {
    std::shared_ptr<Member> member;
    const SimulatedSpace* parent = nullptr;
  };
  std::map<const SimulatedSpace*, Child> children_;  // without a pager
  uint64_t members_ = 0;                             // that have not ended
};

}  // namespace

Outcome simulate(uint64_t seed, Trace& trace) {
  Outcome outcome;
  // After a failure the threads of the run are where they are: all is left to the end of the
  // process.
  Scheduler& scheduler = *new Scheduler(seed, trace);
  Run& run = *new Run(scheduler, outcome);
  scheduler.run([&run] { run(); });
  outcome.failure = scheduler.failure();
  outcome.trace_hash = scheduler.trace_hash();
  outcome.steps = scheduler.steps();
  return outcome;
}

}  // namespace farpage::simulation
