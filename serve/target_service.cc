#include "serve/target_service.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <variant>

#include "base/log.h"
#include "uffd/other_process.h"

namespace farpage::serve {
namespace {

constexpr Milliseconds kNodePatience{5000};
constexpr Milliseconds kAliveCheck{20};
// A child that has neither called exec nor needed room for so long gets a budget.
constexpr Milliseconds kTrial{50};

// The pages of a request. False: unaligned, or outside of the window.
bool run_of(const uffd::handover::Request& request, const uffd::AddressSpace& space,
            uffd::PageRun& run) {
  const uint64_t window_address = space.address_of(PageIndex{0});
  if (request.address < window_address || request.address % kPageBytes != 0) return false;
  const uint64_t first = (request.address - window_address) >> kPageShift;
  const uint64_t pages = (request.bytes + kPageBytes - 1) >> kPageShift;
  if (first >= space.pages() || pages > space.pages() - first) return false;
  run = {PageIndex{first}, static_cast<uint32_t>(pages)};
  return true;
}

// Returns the status of the reply to a request about pages: 0 or an errno.
int apply(uffd::handover::RequestKind kind, uffd::PageRun run, pager::Pager& pager,
          BudgetGroup& budgets) {
  using uffd::handover::RequestKind;
  switch (kind) {
    case RequestKind::kDiscard:
      pager.discard(run);
      return 0;
    case RequestKind::kColdHint:
      pager.hint_cold(run);
      return 0;
    case RequestKind::kWillNeedHint:
      pager.hint_willneed(run);
      return 0;
    case RequestKind::kNormalAccess:
      pager.advise(run, pager::AccessPattern::kNormal);
      return 0;
    case RequestKind::kRandomAccess:
      pager.advise(run, pager::AccessPattern::kRandom);
      return 0;
    case RequestKind::kSequentialAccess:
      pager.advise(run, pager::AccessPattern::kSequential);
      return 0;
    case RequestKind::kPin:
      return budgets.pin(pager, run) ? 0 : ENOMEM;
    case RequestKind::kUnpin:
      pager.unpin(run);
      return 0;
    case RequestKind::kForkBegin:
    case RequestKind::kForkDone:
      break;
  }
  return ENOSYS;
}

}  // namespace

std::string label_of(std::string_view program, int pid) {
  return pid == 0 ? fmt::format("{} (a new child)", program)
                  : fmt::format("{} (pid {})", program, pid);
}

TargetService::TargetService(uffd::HandoverServer& server, pager::Engine& engine,
                             const pager::PagerOptions& options, BudgetScope scope)
    : server_(server),
      engine_(engine),
      fork_(options.fork),
      budgets_(options.local_bytes, scope),
      acceptor_([this] { accept_arrivals(); }) {}

TargetService::~TargetService() {
  server_.stop();
}

void TargetService::accept_arrivals() {
  while (true) {
    Result<std::optional<uffd::Arrival>> arrival = server_.accept();
    if (!arrival) {
      log::error("run: accept_failed reason=\"{}\"", arrival.error().message());
      return;
    }
    if (!*arrival) return;
    if (auto* target = std::get_if<uffd::HandedOver>(&**arrival)) take_in(std::move(*target));
    if (const auto* call = std::get_if<uffd::ResizeCall>(&**arrival)) resize(*call);
  }
}

void TargetService::take_in(uffd::HandedOver target) {
  const std::lock_guard lock(mutex_);
  reap();
  Session& session = sessions_.emplace_back();
  session.report.program = target.program;
  session.report.pid = target.pid;
  session.thread = std::jthread([this, &session, handed = std::move(target)]() mutable {
    serve(session, std::move(handed));
  });
}

void TargetService::resize(const uffd::ResizeCall& call) {
  const Result<uffd::ResizedProcesses> changes = set_local(call.local_bytes);
  if (changes)
    log::info("run: budget_changed local_bytes={} processes={}", call.local_bytes, changes->size());
  const Status told = uffd::answer(call, changes);
  if (!told) log::warn("run: resize_not_told reason=\"{}\"", told.error().message());
}

Result<uffd::ResizedProcesses> TargetService::set_local(uint64_t local_bytes) {
  FARPAGE_TRY(changes, budgets_.set_local(local_bytes));
  const std::lock_guard lock(mutex_);
  uffd::ResizedProcesses processes;
  for (const BudgetGroup::Change& change : changes) {
    const auto session = std::ranges::find_if(
        sessions_, [&](const Session& s) { return s.pager.get() == change.pager; });
    if (session == sessions_.end()) continue;  // it has just ended
    uffd::handover::ResizedProcess& process = processes.emplace_back();
    process.pid = session->report.pid;
    process.before_bytes = change.before_bytes;
    process.after_bytes = change.after_bytes;
    session->report.program.copy(process.program, sizeof process.program - 1);
  }
  return processes;
}

pager::TargetOptions TargetService::target_options(std::string name) const {
  return {.name = std::move(name), .local_bytes = budgets_.local_bytes(), .fork = fork_};
}

void TargetService::serve(Session& session, uffd::HandedOver target) {
  pager::TargetOptions options = target_options(target.program + "-" + std::to_string(target.pid));
  if (options.fork == pager::ForkMode::kShare && !uffd::tells_of_forks(target)) {
    log::warn(
        "run: no_fork_events pid={} program={}: it has dropped its privileges and cannot fork "
        "while pages of it are remote",
        target.pid, target.program);
    options.fork = pager::ForkMode::kRefuse;
  }
  Result<std::unique_ptr<uffd::AddressSpace>> space = uffd::adopt_window(target);
  Result<std::unique_ptr<pager::Pager>> pager =
      space ? engine_.add(options, std::move(*space), kNodePatience, children_of(session))
            : tl::unexpected(space.error());
  if (!pager) {
    (void)uffd::welcome(target, ENOMEM, pager.error().message());
    end(session);
    return;
  }
  pager::Pager& running = keep(session, std::move(*pager));
  share_budget(session, running);
  session.has_budget = true;
  log::debug("run: target_started pid={} program={} window_bytes={} budget_bytes={}", target.pid,
             target.program, target.window_bytes, options.local_bytes);
  if (uffd::welcome(target, 0, "")) answer_requests(session, running, target.socket);
  wait_for_exit(running);
  end(session);
}

pager::OnChild TargetService::children_of(Session& session) {
  return [this, &session](pager::Inheritance inheritance) {
    take_child(session, std::move(inheritance));
  };
}

// Called by the thread that answers the parent's requests.
void TargetService::take_child(Session& parent, pager::Inheritance inheritance) {
  const std::lock_guard lock(mutex_);
  reap();
  Session& session = sessions_.emplace_back();
  session.is_child = true;
  session.report.program = parent.report.program;
  session.thread = std::jthread([this, &session, inherited = std::move(inheritance),
                                 socket = std::move(parent.child_socket)]() mutable {
    serve_child(session, std::move(inherited), std::move(socket));
  });
}

// Waits for the child's Hello. False: it has ended, or called exec, first.
bool TargetService::greet_child(Session& session, pager::Pager& pager, const Fd& socket) {
  uffd::AddressSpace& space = pager.space();
  while (space.alive()) {
    std::array<pollfd, 2> polls{pollfd{socket.get(), POLLIN, 0},
                                pollfd{pager.attention_descriptor(), POLLIN, 0}};
    (void)::poll(polls.data(), polls.size(), static_cast<int>(kAliveCheck.count()));
    if (polls[1].revents != 0) pager.adopt_children();
    if (polls[0].revents != 0) break;
  }
  Result<std::optional<uffd::HandedOver>> hello = uffd::read_child_hello(socket);
  if (!hello && !space.alive()) return false;  // the child has ended
  if (!hello) {
    log::error("run: bad_child reason=\"{}\"", hello.error().message());
    return false;
  }
  if (!*hello) return false;
  const int pid = (*hello)->pid;
  uffd::bind_child(space, **hello);
  {
    const std::lock_guard lock(mutex_);
    session.report.pid = pid;
  }
  return static_cast<bool>(uffd::welcome_child(socket, space.event_descriptor()));
}

// Its userfaultfd must not be closed while it lives: its remote pages would become zeros.
Result<pager::Pager*> TargetService::adopt(Session& session, pager::Inheritance& inheritance) {
  const std::string name = session.report.program + "-fork";
  FARPAGE_TRY(pager, engine_.adopt(target_options(name), inheritance, children_of(session)));
  return &keep(session, std::move(pager));
}

void TargetService::serve_child(Session& session, pager::Inheritance inheritance, Fd socket) {
  Result<pager::Pager*> adopted = adopt(session, inheritance);
  if (!adopted)
    log::error("run: child_not_served program={} reason=\"{}\" (trying again)",
               session.report.program, adopted.error().message());
  while (!adopted && inheritance.space->alive()) {
    std::this_thread::sleep_for(kAliveCheck);
    adopted = adopt(session, inheritance);
  }
  if (adopted && greet_child(session, **adopted, socket)) {
    (*adopted)->agent_ready(
        fmt::format("{}-fork-{}", session.report.program, session.report.pid));
    answer_requests(session, **adopted, socket);
    if (!session.has_budget) end_trial(session, **adopted);
  }
  socket.reset();
  if (adopted) wait_for_exit(**adopted);
  end(session);
}

void TargetService::answer_requests(Session& session, pager::Pager& pager, const Fd& socket) {
  const Instant start = SteadyClock::read();
  while (true) {
    std::array<pollfd, 2> polls{pollfd{socket.get(), POLLIN, 0},
                                pollfd{pager.attention_descriptor(), POLLIN, 0}};
    (void)::poll(polls.data(), polls.size(),
                 session.has_budget ? -1 : static_cast<int>(kTrial.count()));
    if (polls[1].revents != 0) pager.adopt_children();
    if (!session.has_budget && (pager.wants_budget() || SteadyClock::read() - start >= kTrial))
      end_trial(session, pager);
    if (polls[0].revents == 0) continue;
    Result<std::optional<uffd::TargetRequest>> request = uffd::read_request(socket);
    if (!request) {
      log::error("run: bad_request reason=\"{}\"", request.error().message());
      return;
    }
    if (!*request) return;
    if (!uffd::reply(socket, answer(session, pager, std::move(**request)))) return;
  }
}

int TargetService::answer(Session& session, pager::Pager& pager, uffd::TargetRequest request) {
  using uffd::handover::RequestKind;
  if (request.kind == RequestKind::kForkBegin)
    return begin_fork(session, pager, std::move(request.descriptor));
  if (request.kind == RequestKind::kForkDone) {
    pager.end_fork(request.bytes != 0);
    return 0;
  }
  uffd::PageRun run;
  if (!run_of(request, pager.space(), run)) return EINVAL;
  return apply(request.kind, run, pager, budgets_);
}

int TargetService::begin_fork(Session& session, pager::Pager& pager, Fd child_socket) {
  if (child_socket.valid() && !uffd::expect_child(child_socket)) return EINVAL;
  {
    const std::lock_guard lock(mutex_);
    session.child_socket = std::move(child_socket);
  }
  return pager.begin_fork() ? 0 : EAGAIN;
}

pager::Pager& TargetService::keep(Session& session, std::unique_ptr<pager::Pager> pager) {
  const std::lock_guard lock(mutex_);
  session.pager = std::move(pager);
  return *session.pager;
}

void TargetService::share_budget(Session& session, pager::Pager& pager) {
  std::string label;
  {
    const std::lock_guard lock(mutex_);
    label = label_of(session.report.program, session.report.pid);
  }
  budgets_.add(pager, std::move(label));
}

void TargetService::end_trial(Session& session, pager::Pager& pager) {
  share_budget(session, pager);
  pager.begin_eviction();
  session.has_budget = true;
}

bool TargetService::is_reported(const Session& session) {
  const pager::PagerCounts& counts = session.report.counts;
  if (!session.is_child) return counts.budget_pages > 0;
  return counts.faults_remote + counts.faults_zero + counts.faults_write >
             pager::kFreePages ||
         counts.evictions() > 0;
}

void TargetService::take_statistics(TargetReport& report, const pager::Pager& pager) {
  const pager::PagerStats stats = pager.stats();
  report.counts = stats;
  report.latencies = stats.latencies();
}

void TargetService::end(Session& session) {
  std::unique_ptr<pager::Pager> finished;
  {
    const std::lock_guard lock(mutex_);
    if (session.pager) {
      take_statistics(session.report, *session.pager);
      budgets_.remove(*session.pager);
    }
    finished = std::move(session.pager);
  }
  finished.reset();
  const std::lock_guard lock(mutex_);
  session.ended = true;
  ended_.notify_all();
}

void TargetService::reap() {
  std::erase_if(sessions_, [](Session& session) {
    if (session.ended && session.thread.joinable()) session.thread.join();
    return session.ended && !is_reported(session);
  });
}

void TargetService::wait_for_exit(pager::Pager& pager) {
  // The control socket is closed: by exit, by exec, or by a program that closes unknown
  // descriptors. The pager must run until the kernel reports that the memory is gone; otherwise
  // faults of a live program would block forever.
  while (!pager.target_gone() && pager.space().alive()) {
    pollfd children{pager.attention_descriptor(), POLLIN, 0};
    if (::poll(&children, 1, kAliveCheck.count()) > 0) pager.adopt_children();
  }
}

void TargetService::wait_for_targets() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] {
    return std::all_of(sessions_.begin(), sessions_.end(),
                       [](const Session& session) { return session.ended; });
  });
}

std::vector<TargetReport> TargetService::reports() {
  const std::lock_guard lock(mutex_);
  std::vector<TargetReport> reports;
  for (Session& session : sessions_) {
    if (session.pager) take_statistics(session.report, *session.pager);
    if (is_reported(session)) reports.push_back(session.report);
  }
  return reports;
}

}  // namespace farpage::serve
