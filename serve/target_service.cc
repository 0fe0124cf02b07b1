#include "serve/target_service.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "base/log.h"

namespace farpage::serve {
namespace {

constexpr Milliseconds kHelloPatience{5000};
// Until the new children of all targets are known; who asks waits for 2 s.
constexpr Milliseconds kTellPatience{1000};
constexpr Milliseconds kTellLook{5};

}  // namespace

// A connection whose first message has not arrived.
struct TargetService::Newcomer {
  Newcomer(boost::asio::io_context& control, Fd fd)
      : socket(std::move(fd)), hello(control, socket.get()), timer(control) {}
  Fd socket;
  Watch hello;
  boost::asio::steady_timer timer;
};

TargetService::TargetService(boost::asio::io_context& control, uffd::HandoverServer& server,
                             pager::Engine& engine, const pager::PagerOptions& options,
                             BudgetScope scope, const ServedState& state, uint64_t run)
    : control_(control),
      server_(server),
      budgets_(control, options.local_bytes, scope),
      host_{.control = control,
            .waits = waits_,
            .engine = engine,
            .budgets = budgets_,
            .state = state,
            .run = run,
            .fork = options.fork,
            .slab_bytes = options.slab_bytes,
            .on_child = [this](std::shared_ptr<ServedTarget> child) { keep(std::move(child)); },
            .on_end =
                [this](ServedTarget& target) {
                  if (auto report = target.report())
                    ended_.emplace(target.number(), std::move(*report));
                  targets_.erase(target.number());
                  tell_children();
                  note_end();
                }},
      connections_(control, server.descriptor()),
      questions_timer_(control) {
  await_connections();
}

TargetService::~TargetService() {
  connections_.end();
  for (const auto& newcomer : newcomers_) newcomer->hello.end();
  newcomers_.clear();
  while (has_targets()) (void)control_.run_one();
}

void TargetService::keep(std::shared_ptr<ServedTarget> target) {
  const uint64_t number = target->number();
  targets_.emplace(number, std::move(target));
}

void TargetService::resume(uint64_t number, const ServedRecord& record, FoundChildren children) {
  keep(ServedTarget::resume(host_, number, record, children));
}

void TargetService::await_connections() {
  connections_.wait([this] {
    accept();
    await_connections();
  });
}

void TargetService::accept() {
  for (Fd socket = server_.accept(); socket.valid(); socket = server_.accept()) {
    const auto newcomer = std::make_shared<Newcomer>(control_, std::move(socket));
    newcomers_.insert(newcomer);
    // One that has expired has been taken in, or this service has ended.
    newcomer->hello.wait([this, weak = std::weak_ptr(newcomer)] {
      if (const auto here = weak.lock()) take_in(here);
    });
    newcomer->timer.expires_after(kHelloPatience);
    newcomer->timer.async_wait([this, weak = std::weak_ptr(newcomer)](boost::system::error_code) {
      if (const auto here = weak.lock()) leave(here);  // it says nothing
    });
  }
}

void TargetService::leave(const std::shared_ptr<Newcomer>& newcomer) {
  newcomer->hello.end();
  newcomers_.erase(newcomer);
  note_end();
}

void TargetService::note_end() const {
  if (!has_targets() && when_empty_) when_empty_();
}

void TargetService::take_in(const std::shared_ptr<Newcomer>& newcomer) {
  newcomer->hello.end();
  Result<uffd::Arrival> arrival =
      uffd::receive_arrival(std::move(newcomer->socket), server_.user());
  if (!arrival) {
    log::warn("run: refused reason=\"{}\"", arrival.error().message());
  } else if (auto* target = std::get_if<uffd::HandedOver>(&*arrival)) {
    if (target->child != 0)
      take_agent(std::move(*target));
    else
      keep(ServedTarget::start(host_, std::move(*target)));
  } else if (auto* call = std::get_if<uffd::ChildrenCall>(&*arrival)) {
    questions_.push_back({std::move(*call), SteadyClock::read() + kTellPatience});
    tell_children();
  } else {
    resize(std::get<uffd::ResizeCall>(*arrival));
  }
  leave(newcomer);
}

void TargetService::take_agent(uffd::HandedOver agent) {
  const auto child = targets_.find(agent.child);
  if (child != targets_.end() && child->second->lacks_agent())
    child->second->take_agent(std::move(agent));
  else
    (void)uffd::welcome(agent.socket, ESRCH, "that child has ended, or has an agent");
}

std::vector<uffd::AgentlessChild> TargetService::agentless_children() const {
  std::vector<uffd::AgentlessChild> children;
  for (const auto& [number, target] : targets_)
    if (target->lacks_agent()) children.push_back(target->described());
  return children;
}

// Answers when every child is known whose fork has returned: a parent may have ended before.
void TargetService::tell_children() {
  if (questions_.empty()) return;
  const bool all_known = std::ranges::none_of(
      targets_, [](const auto& entry) { return entry.second->may_have_new_children(); });
  const Instant now = SteadyClock::read();
  std::erase_if(questions_, [&](const Question& question) {
    if (!all_known && now < question.deadline) return false;
    const Status told = uffd::answer(question.call, agentless_children());
    if (!told) log::warn("run: children_not_told reason=\"{}\"", told.error().message());
    return true;
  });
  if (questions_.empty()) return;
  questions_timer_.expires_after(kTellLook);
  questions_timer_.async_wait([this, here = std::weak_ptr(here_)](boost::system::error_code error) {
    if (!error && !here.expired()) tell_children();
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
  if (check_local_) FARPAGE_TRY_VOID(check_local_(local_bytes));
  FARPAGE_TRY(changes, budgets_.set_local(local_bytes));
  uffd::ResizedProcesses processes;
  for (const BudgetGroup::Change& change : changes) {
    uffd::handover::ResizedProcess& process = processes.emplace_back();
    process.pid = change.process.pid;
    process.before_bytes = change.before_bytes;
    process.after_bytes = change.after_bytes;
    change.process.program.copy(process.program, sizeof process.program - 1);
  }
  return processes;
}

std::vector<TargetReport> TargetService::live_reports() const {
  std::vector<TargetReport> reports;
  for (const auto& [number, target] : targets_)
    if (auto report = target->live_report()) reports.push_back(std::move(*report));
  return reports;
}

std::vector<TargetReport> TargetService::reports() const {
  std::map<uint64_t, TargetReport> by_number = ended_;
  for (const auto& [number, target] : targets_)
    if (auto report = target->report()) by_number.emplace(number, std::move(*report));
  std::vector<TargetReport> reports;
  for (auto& [number, report] : by_number) reports.push_back(std::move(report));
  return reports;
}

}  // namespace farpage::serve
