#include "serve/served_target.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/pidfd.h"
#include "uffd/other_process.h"

namespace farpage::serve {
namespace {

constexpr Milliseconds kNodePatience{5000};
constexpr Milliseconds kAliveCheck{20};
// A child that has neither called exec nor needed room for so long gets a budget.
constexpr Milliseconds kTrial{50};
// A discard of more pages than this could hold up the control thread.
constexpr uint32_t kFewPages = 4096;

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The addresses of a request. False: unaligned, empty, or past the end of the address space.
bool range_of(const uffd::handover::Request& request, Range& range) {
  const uint64_t bytes = (request.bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  range = {request.address, request.address + bytes};
  return request.address % kPageBytes == 0 && bytes >= request.bytes && range.begin < range.end;
}

// Its pages; none: a part of it is no far memory.
std::vector<uffd::PageRun> runs_of(Range range, const uffd::AddressSpace& space) {
  std::vector<uffd::PageRun> runs = space.runs_in(range.begin, range.end);
  uint64_t pages = 0;
  for (const uffd::PageRun& run : runs) pages += run.pages;
  if (pages != (range.end - range.begin) >> kPageShift) runs.clear();
  return runs;
}

// Page numbers for memory outside of the window: as many as for the window, if the region may have
// so many slabs.
uint64_t more_pages(const uffd::HandedOver& target, uint64_t slab_bytes) {
  const uint64_t most = coordinator::kMaxSlabsPerRegion * slab_bytes;
  const uint64_t wanted = target.attached ? target.extent_bytes : target.window_bytes;
  return std::min(wanted, most - std::min(most, target.window_bytes)) >> kPageShift;
}

// Carries out a request that never waits. False: it may wait.
bool apply_now(uffd::handover::RequestKind kind, uffd::PageRun run, pager::Pager& pager) {
  using uffd::handover::RequestKind;
  switch (kind) {
    case RequestKind::kDiscard:
      return run.pages <= kFewPages && pager.try_discard(run);
    case RequestKind::kColdHint:
      pager.hint_cold(run);
      return true;
    case RequestKind::kWillNeedHint:
      pager.hint_willneed(run);
      return true;
    case RequestKind::kNormalAccess:
      pager.advise(run, pager::AccessPattern::kNormal);
      return true;
    case RequestKind::kRandomAccess:
      pager.advise(run, pager::AccessPattern::kRandom);
      return true;
    case RequestKind::kSequentialAccess:
      pager.advise(run, pager::AccessPattern::kSequential);
      return true;
    case RequestKind::kUnpin:
      pager.unpin(run);
      return true;
    case RequestKind::kPin:
    case RequestKind::kForkBegin:
    case RequestKind::kForkDone:
    case RequestKind::kAddExtent:
    case RequestKind::kRemoveExtent:
    case RequestKind::kLifeline:
    case RequestKind::kLeave:
    case RequestKind::kAdoptPresent:
    case RequestKind::kBringBack:
      return false;
  }
  return false;
}

}  // namespace

// ---- helpers ----

template <typename Call, typename Then>
void ServedTarget::in_pool(Call&& call, Then&& then) {
  ++calls_;
  host_.waits.run([self = shared_from_this(), call = std::forward<Call>(call),
                   then = std::forward<Then>(then)]() mutable {
    call();
    boost::asio::post(self->host_.control, [self, then = std::move(then)] {
      --self->calls_;
      then();
      if (self->ending_) self->end();
    });
  });
}

template <typename Then>
void ServedTarget::after(Milliseconds time, Then&& then) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(),
                     then = std::forward<Then>(then)](boost::system::error_code error) {
    if (!error && !self->ending_) then();
  });
}

void ServedTarget::take_statistics(const pager::Pager& pager) {
  const pager::PagerStats stats = pager.stats();
  report_.counts = stats;
  report_.latencies = stats.latencies();
  report_.touches = pager.recorder();
}

std::optional<TargetReport> ServedTarget::report() {
  if (pager_) take_statistics(*pager_);
  const pager::PagerCounts& counts = report_.counts;
  if (counts.budget_pages == 0) return std::nullopt;  // it was never served
  const uint64_t faults = counts.faults_remote + counts.faults_zero + counts.faults_write;
  if (is_child_ && faults <= pager::kFreePages && counts.evictions() == 0) return std::nullopt;
  return report_;
}

std::optional<TargetReport> ServedTarget::live_report() {
  if (ending_ || step_ == Step::kStarting || step_ == Step::kEnded) return std::nullopt;
  return report();
}

pager::TargetOptions ServedTarget::target_options(std::string name) const {
  return {.name = std::move(name),
          .local_bytes = host_.budgets.local_bytes(),
          .fork = host_.fork,
          .number = number_};
}

// ---- the beginning ----

std::shared_ptr<ServedTarget> ServedTarget::start(TargetHost& host, uffd::HandedOver handed) {
  std::shared_ptr<ServedTarget> target(new ServedTarget(host, host.state.next_number()));
  target->report_.program = handed.program;
  target->report_.pid = handed.pid;
  target->attached_ = handed.attached;
  const auto arrived = std::make_shared<uffd::HandedOver>(std::move(handed));
  const auto status = std::make_shared<Status>();
  target->socket_ = std::move(arrived->socket);
  target->in_pool([self = target.get(), arrived, status] { *status = self->serve(*arrived); },
                  [self = target.get(), arrived, status] { self->served(*arrived, *status); });
  return target;
}

Status ServedTarget::serve(uffd::HandedOver& target) {
  pager::TargetOptions options = target_options(fmt::format("{}-{}", target.program, target.pid));
  if (options.fork == pager::ForkMode::kShare && !uffd::tells_of_forks(target)) {
    log::warn(
        "run: no_fork_events pid={} program={}: it has dropped its privileges and cannot fork "
        "while pages of it are remote",
        target.pid, target.program);
    options.fork = pager::ForkMode::kRefuse;
  }
  const uint64_t more = more_pages(target, host_.slab_bytes);
  FARPAGE_TRY(extents, host_.state.extents(number_));
  FARPAGE_TRY(space, uffd::adopt_window(target, more, std::move(extents)));
  if (host_.state.keeps()) ring_ = std::move(target.ring_descriptor);
  FARPAGE_TRY_VOID(prepare_answers());
  FARPAGE_TRY_VOID(note([&](ServedRecord& record) {
    record = {.run = host_.run,
              .program = target.program,
              .pid = target.pid,
              .socket = socket_.get(),
              .userfaultfd = space->event_descriptor(),
              .ring = ring_.get(),
              .window_address = target.window_address,
              .window_bytes = target.window_bytes,
              .staging_address = target.staging_address,
              .more_pages = more,
              .features = target.features,
              .attached = target.attached};
  }));
  FARPAGE_TRY(pager, host_.engine.add(options, std::move(space), kNodePatience, on_child()));
  pager_ = std::move(pager);
  return {};
}

Status ServedTarget::prepare_answers() {
  FARPAGE_TRY(answers, host_.state.answers(number_));
  answers_ = std::move(answers);
  return {};
}

Status ServedTarget::note(const std::function<void(ServedRecord&)>& change) {
  const MutexLock lock(record_mutex_);
  if (record_erased_) return {};
  change(record_);
  return host_.state.put(number_, record_);
}

std::shared_ptr<ServedTarget> ServedTarget::resume(TargetHost& host, uint64_t number,
                                                   const ServedRecord& record,
                                                   FoundChildren children) {
  std::shared_ptr<ServedTarget> target(new ServedTarget(host, number));
  target->report_.program = record.program;
  target->report_.pid = record.pid;
  target->is_child_ = record.parent != 0;
  target->attached_ = record.attached;
  target->socket_ = Fd(record.socket);
  target->lifeline_ = Fd(record.lifeline);
  target->ring_ = Fd(record.ring);
  {
    const MutexLock lock(target->record_mutex_);
    target->record_ = record;
  }
  if (children.adopted == 0) {  // else it is the child's
    const MutexLock lock(target->child_socket_mutex_);
    target->child_socket_ = Fd(record.child_socket);
  }
  const auto handed = std::make_shared<uffd::HandedOver>();
  handed->userfaultfd = Fd(record.userfaultfd);
  handed->pid = record.pid;
  handed->program = record.program;
  handed->window_address = record.window_address;
  handed->window_bytes = record.window_bytes;
  handed->staging_address = record.staging_address;
  handed->features = record.features;
  handed->attached = record.attached;
  handed->forked = record.forked || record.parent != 0;
  const auto status = std::make_shared<Status>();
  target->in_pool(
      [self = target.get(), handed, status, record, children] {
        *status = self->serve_again(*handed, record, children);
      },
      [self = target.get(), handed, record, status] { self->served_again(record, *status); });
  return target;
}

// A process that cannot be served must not go on: without its userfaultfd it would read zeros.
Status ServedTarget::serve_again(uffd::HandedOver& target, const ServedRecord& record,
                                 FoundChildren children) {
  std::unique_ptr<uffd::AddressSpace> space;
  Status served = take_over(target, record, children, space);
  if (served || (space && !space->alive())) return served;
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, target.pid, 0)));
  if (process.valid()) {
    send_signal(process.get(), SIGKILL);
    (void)has_ended(process.get(), kForeverLong);
  }
  return served;
}

// Waits for the agent of a stopped process, too.
Status ServedTarget::take_over(uffd::HandedOver& target, const ServedRecord& record,
                               FoundChildren children, std::unique_ptr<uffd::AddressSpace>& space) {
  pager::ResumeOptions options;
  static_cast<pager::TargetOptions&>(options) =
      target_options(fmt::format("{}-{}", target.program, target.pid));
  if (!uffd::tells_of_forks(target)) options.fork = pager::ForkMode::kRefuse;
  options.fork_children = children.adopted;
  options.agent_ready = record.hello;
  if (children.unknown)
    return fail(ErrorCode::kConflict,
                "it was forking, and its child could not be told from others");
  FARPAGE_TRY_VOID(prepare_answers());
  FARPAGE_TRY(extents, host_.state.extents(number_));
  if (record.hello) {
    FARPAGE_TRY(ring, Mapping::shared(ring_.get(), sizeof(uffd::handover::AgentRing)));
    target.ring = std::move(ring);
    FARPAGE_TRY(window, uffd::adopt_window(target, record.more_pages, std::move(extents)));
    space = std::move(window);
    Status idle = uffd::await_agent(*space, kAliveCheck);
    while (!idle && idle.error().code == ErrorCode::kTimedOut)
      idle = uffd::await_agent(*space, kAliveCheck);
    FARPAGE_TRY_VOID(idle);
  } else {
    FARPAGE_TRY(window, uffd::adopt_child(target, record.more_pages, std::move(extents)));
    space = std::move(window);
  }
  // Killed before it was served at all: its shim waits for Welcome, and has used nothing.
  const bool is_new = record.parent == 0 && !record.welcome && !host_.engine.can_resume(number_);
  FARPAGE_TRY(pager, is_new ? host_.engine.add(options, std::move(space), kNodePatience, on_child())
                            : host_.engine.resume(options, space, on_child()));
  pager_ = std::move(pager);
  if (!record.hello) free_pages_ = host_.budgets.begin_trial(*pager_, nullptr);
  if (children.userfaultfd >= 0)
    pager_->child_found(uffd::child_of(pager_->space(), Fd(children.userfaultfd)));
  return {};
}

void ServedTarget::served_again(const ServedRecord& record, const Status& status) {
  if (host_.on_resumed) host_.on_resumed();
  if (!status) {
    if (status.error().code == ErrorCode::kUnavailable)
      log::debug("pager: ended_meanwhile pid={} program={}", report_.pid, report_.program);
    else
      log::error("pager: not_taken_over pid={} program={} reason=\"{}\": it is killed", report_.pid,
                 report_.program, status.error().message());
    end();
    return;
  }
  if (!record.hello) {
    await_hello();
    return;
  }
  share_budget();
  await_attention();
  if (!socket_.valid() || !greet_again(record)) {
    hang_up();
    return;
  }
  step_ = Step::kServing;
  requests_ = std::make_unique<Watch>(host_.control, socket_.get());
  if (record.fork_request != 0) {
    fork_again(record);
  } else {
    on_request();
  }
}

// A second Welcome is no reply to any request.
bool ServedTarget::greet_again(const ServedRecord& record) {
  if (record.welcome) return true;
  const Status sent = is_child_ && !attached_
                          ? uffd::welcome_child(socket_, pager_->space().event_descriptor())
                          : uffd::welcome(socket_, 0, "");
  if (!sent) return false;
  return static_cast<bool>(note([](ServedRecord& changed) { changed.welcome = true; }));
}

// The request kForkBegin may be on the socket still. Its answer may have been sent, and the target
// have forked: it is the same then.
void ServedTarget::fork_again(const ServedRecord& record) {
  const Result<std::optional<uffd::TargetRequest>> next = uffd::peek_request(socket_, MSG_DONTWAIT);
  if (next && *next && (*next)->number == record.fork_request) {
    on_request();
    return;
  }
  request_.number = record.fork_request;
  request_taken_ = true;
  if (last_answer().number == record.fork_request && last_answer().status != 0) {
    reply(last_answer().status);  // it was refused
    note_fork_over();
    return;
  }
  if (record.may_fork || pager_->is_forking()) {
    (void)note([](ServedRecord& changed) { changed.may_fork = true; });
    reply(0);
    return;
  }
  Fd child_socket;
  {
    const MutexLock lock(child_socket_mutex_);
    child_socket = std::move(child_socket_);
  }
  begin_fork_later(std::move(child_socket));
}

void ServedTarget::served(const uffd::HandedOver& target, const Status& status) {
  if (!status) {
    (void)uffd::welcome(socket_, ENOMEM, status.error().message());
    end();
    return;
  }
  share_budget();
  log::debug("run: target_started pid={} program={} window_bytes={}", target.pid, target.program,
             target.window_bytes);
  await_attention();
  if (uffd::welcome(socket_, 0, "")) {
    (void)note([](ServedRecord& record) { record.welcome = true; });
    await_requests();
  } else {
    hang_up();
  }
}

pager::OnChild ServedTarget::on_child() {
  return [this](pager::Inheritance inheritance) { take_child(std::move(inheritance)); };
}

void ServedTarget::take_child(pager::Inheritance inheritance) {
  std::shared_ptr<ServedTarget> child(new ServedTarget(host_, host_.state.next_number()));
  child->is_child_ = true;
  child->attached_ = attached_;
  child->report_.program = report_.program;
  (void)note([&](ServedRecord& record) {
    record.child = child->number_;
    child->parent_ = {.number = number_, .record = record};
  });
  {
    const MutexLock lock(child_socket_mutex_);
    child->socket_ = std::move(child_socket_);
  }
  if (host_.state.keeps()) child->keep_extents(*inheritance.space);
  const bool adopted = child->adopt(inheritance, pager_.get());
  (void)note([](ServedRecord& record) { record.child_socket = -1; });  // it is the child's
  if (!adopted)
    log::error("run: child_not_served program={} (trying again)", child->report_.program);
  const auto left = std::make_shared<pager::Inheritance>(std::move(inheritance));
  boost::asio::post(host_.control, [child, adopted, left] {
    child->host_.on_child(child);
    if (adopted) {
      child->await_hello();
    } else {
      child->adopt_later(std::move(*left));
    }
  });
}

// Before it is served.
void ServedTarget::keep_extents(uffd::AddressSpace& space) const {
  if (Result<Mapping> extents = host_.state.extents(number_))
    uffd::keep_extents(space, std::move(*extents));
}

// After it was adopted. Until then a successor has the number from its parent's record, and makes
// this one (HostPager::take_over).
Status ServedTarget::note_child() {
  return note([this](ServedRecord& record) {
    record = child_record(parent_->number, parent_->record, socket_.get(),
                          pager_->space().event_descriptor());
  });
}

bool ServedTarget::adopt(pager::Inheritance& inheritance, pager::Pager* parent) {
  if (!prepare_answers()) return false;
  Result<std::unique_ptr<pager::Pager>> pager =
      host_.engine.adopt(target_options(report_.program + "-fork"), inheritance, on_child());
  if (!pager) return false;
  pager_ = std::move(*pager);
  free_pages_ = host_.budgets.begin_trial(*pager_, parent);
  if (host_.state.keeps() && parent_) (void)note_child();
  return true;
}

// Its userfaultfd must not be closed while it lives: its remote pages would become zeros.
void ServedTarget::adopt_later(pager::Inheritance inheritance) {
  const auto left = std::make_shared<pager::Inheritance>(std::move(inheritance));
  after(kAliveCheck, [this, left] {
    if (!left->space->alive()) {
      end();
    } else if (adopt(*left, nullptr)) {
      await_hello();
    } else {
      adopt_later(std::move(*left));
    }
  });
}

void ServedTarget::await_hello() {
  await_attention();
  if (!socket_.valid()) {
    hang_up();
    return;
  }
  requests_ = std::make_unique<Watch>(host_.control, socket_.get());
  requests_->wait([self = shared_from_this()] {
    if (!self->ending_) self->greet();
  });
  step_ = Step::kAwaitingHello;
  await_exit();  // it may end, or call exec, first
}

void ServedTarget::greet() {
  Result<std::optional<uffd::HandedOver>> hello = uffd::read_child_hello(socket_);
  if (!hello && pager_->space().alive())
    log::error("run: bad_child reason=\"{}\"", hello.error().message());
  if (!hello || !*hello) {
    hang_up();
    return;
  }
  report_.pid = (*hello)->pid;
  if (host_.state.keeps()) ring_ = std::move((*hello)->ring_descriptor);
  uffd::bind_child(pager_->space(), **hello);
  (void)note([this](ServedRecord& record) {
    record.hello = true;
    record.pid = report_.pid;
    record.ring = ring_.get();
  });
  pager_->agent_ready(fmt::format("{}-fork-{}", report_.program, report_.pid), free_pages_);
  if (!uffd::welcome_child(socket_, pager_->space().event_descriptor())) {
    hang_up();
    return;
  }
  (void)note([](ServedRecord& record) { record.welcome = true; });
  await_requests();
  after(kTrial, [this] { end_trial(); });
}

// ---- a child that gets an agent ----

// Nothing of it is known until then, not even its process.
bool ServedTarget::lacks_agent() const {
  return is_child_ && attached_ && step_ == Step::kAwaitingExit && report_.pid == 0 && !ending_;
}

bool ServedTarget::may_have_new_children() const {
  if (step_ == Step::kStarting) return is_child_;
  return adopting_ || ending_ || pager_->has_arrivals();
}

uffd::AgentlessChild ServedTarget::described() const {
  uffd::AgentlessChild child;
  child.number = number_;
  child.features = uffd::features_of(pager_->space());
  child.age_ns = Nanoseconds(SteadyClock::read() - begun_).count();
  child.userfaultfd = pager_->space().event_descriptor();
  return child;
}

// The record is written first: an agent that a successor did not know of would have no commands.
void ServedTarget::take_agent(uffd::HandedOver agent) {
  report_.pid = agent.pid;
  socket_ = std::move(agent.socket);
  if (host_.state.keeps()) ring_ = std::move(agent.ring_descriptor);
  (void)note([&](ServedRecord& record) {
    record.hello = true;
    record.pid = agent.pid;
    record.socket = socket_.get();
    record.ring = ring_.get();
    record.staging_address = agent.staging_address;
  });
  uffd::bind_child(pager_->space(), agent);
  pager_->agent_ready(fmt::format("{}-fork-{}", report_.program, report_.pid), free_pages_);
  log::debug("run: child_has_agent pid={} program={}", report_.pid, report_.program);
  if (!uffd::welcome(socket_, 0, "")) {
    hang_up();
    return;
  }
  (void)note([](ServedRecord& record) { record.welcome = true; });
  await_requests();
  end_trial();
}

// ---- requests ----

void ServedTarget::await_requests() {
  step_ = Step::kServing;
  if (!requests_) requests_ = std::make_unique<Watch>(host_.control, socket_.get());
  on_request();
}

void ServedTarget::on_request() {
  requests_->wait([self = shared_from_this()] {
    if (self->ending_) return;
    Result<std::optional<uffd::TargetRequest>> request = uffd::peek_request(self->socket_);
    if (!request) log::error("run: bad_request reason=\"{}\"", request.error().message());
    if (!request || !*request) {
      self->hang_up();
    } else {
      self->answer(**request);
    }
  });
}

// It stays on the socket until it has its reply. A successor carries it out again, which changes
// nothing for a target that waits for the reply; or if that may have been sent, only replies again.
void ServedTarget::answer(const uffd::TargetRequest& request) {
  using uffd::handover::RequestKind;
  request_ = request;
  request_taken_ = false;
  if (request.number != 0 && last_answer().number == request.number) {
    reply(last_answer().status);  // a dead engine has carried it out
    return;
  }
  const auto status = std::make_shared<int>(0);
  const auto then = [this, status] { reply(*status); };
  switch (request.kind) {
    case RequestKind::kForkBegin: {
      Fd child_socket = copy_descriptor();
      (void)note([&](ServedRecord& record) {
        record.forked = true;
        record.fork_request = request.number;
        record.child_socket = child_socket.get();
      });
      take_request();
      begin_fork_later(std::move(child_socket));
      return;
    }
    case RequestKind::kForkDone:
      in_pool(
          [this, forked = request.bytes != 0] {
            if (pager_->is_forking()) pager_->end_fork(forked);
            note_fork_over();
          },
          then);
      return;
    case RequestKind::kLifeline:
      keep_lifeline();
      return;
    case RequestKind::kLeave:
      end();
      return;
    case RequestKind::kBringBack:
      in_pool([this, status] { *status = pager_->bring_back() ? 0 : EIO; }, then);
      return;
    default:
      break;
  }
  Range range;
  if (!range_of(request, range)) {
    reply(EINVAL);
    return;
  }
  if (request.kind == RequestKind::kAddExtent) {
    in_pool([this, range, status] { *status = add_extent(range.begin, range.end) ? 0 : ENOMEM; },
            then);
    return;
  }
  if (request.kind == RequestKind::kAdoptPresent) {
    in_pool([this, range,
             status] { *status = pager_->adopt_present(range.begin, range.end) ? 0 : EIO; },
            then);
    return;
  }
  if (request.kind == RequestKind::kRemoveExtent) {
    in_pool([this, range] { pager_->remove_extent(range.begin, range.end); }, then);
    return;
  }
  std::vector<uffd::PageRun> runs = runs_of(range, pager_->space());
  const auto done = [&](uffd::PageRun run) { return apply_now(request.kind, run, *pager_); };
  if (runs.empty()) {
    reply(EINVAL);
  } else if (std::ranges::all_of(runs, done)) {
    reply(0);
  } else if (request.kind == RequestKind::kDiscard) {
    in_pool(
        [this, runs = std::move(runs)] {
          for (const uffd::PageRun& run : runs) pager_->discard(run);
        },
        then);
  } else if (request.kind == RequestKind::kPin) {
    in_pool([this, runs = std::move(runs), status] { *status = pin(runs) ? 0 : ENOMEM; }, then);
  } else {
    reply(ENOSYS);
  }
}

// Without a reply: the agent sends it while a thread of the target may wait for one.
void ServedTarget::keep_lifeline() {
  Fd lifeline = copy_descriptor();
  if (!lifeline.valid() || lifeline_.valid()) {
    log::error("run: bad_lifeline pid={}", report_.pid);
    hang_up();
    return;
  }
  lifeline_ = std::move(lifeline);
  (void)note([this](ServedRecord& record) { record.lifeline = lifeline_.get(); });
  take_request();
  on_request();
}

Fd ServedTarget::copy_descriptor() const {
  Result<std::optional<uffd::TargetRequest>> request = uffd::copy_request(socket_);
  return request && *request ? std::move((*request)->descriptor) : Fd();
}

void ServedTarget::take_request() {
  request_taken_ = true;
  (void)uffd::read_request(socket_);
}

Status ServedTarget::add_extent(uint64_t begin, uint64_t end) {
  return pager_->space().event_order() != nullptr ? pager_->cover(begin, end)
                                                  : pager_->add_extent(begin, end);
}

// All of them, or none.
bool ServedTarget::pin(std::span<const uffd::PageRun> runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (host_.budgets.pin(*pager_, runs[i])) continue;
    for (const uffd::PageRun& pinned : runs.first(i)) pager_->unpin(pinned);
    return false;
  }
  return true;
}

void ServedTarget::begin_fork_later(Fd child_socket) {
  const auto socket = std::make_shared<Fd>(std::move(child_socket));
  const auto status = std::make_shared<int>(0);
  in_pool(
      [this, status, socket] {
        *status = begin_fork(std::move(*socket));
        if (*status == 0) (void)note([](ServedRecord& record) { record.may_fork = true; });
      },
      [this, status] {
        reply(*status);
        if (*status != 0) note_fork_over();
      });
}

void ServedTarget::note_fork_over() {
  (void)note([](ServedRecord& record) {
    record.fork_request = 0;
    record.may_fork = false;
    record.child = 0;
    record.child_socket = -1;
  });
  const MutexLock lock(child_socket_mutex_);
  child_socket_.reset();
}

int ServedTarget::begin_fork(Fd child_socket) {
  if (child_socket.valid() && !uffd::expect_child(child_socket)) return EINVAL;
  {
    const MutexLock lock(child_socket_mutex_);
    child_socket_ = std::move(child_socket);
  }
  return pager_->begin_fork() ? 0 : EAGAIN;
}

void ServedTarget::reply(int status) {
  if (ending_) return;
  last_answer() = {.number = 0, .status = status};
  std::atomic_ref(last_answer().number).store(request_.number, std::memory_order_release);
  const bool told = static_cast<bool>(uffd::reply(socket_, request_, status));
  if (!request_taken_) (void)uffd::read_request(socket_);
  if (told) {
    on_request();
  } else {
    hang_up();
  }
}

// ---- what the pager asks for ----

void ServedTarget::await_attention() {
  if (!attention_)
    attention_ = std::make_unique<Watch>(host_.control, pager_->attention_descriptor());
  attention_->wait([self = shared_from_this()] {
    if (!self->ending_) self->on_attention();
  });
}

void ServedTarget::on_attention() {
  // Page tables are copied. What the doorbell said is looked at afterwards: the call clears it.
  adopting_ = true;
  in_pool([this] { pager_->adopt_children(); },
          [this] {
            adopting_ = false;
            if (ending_) return;
            if (pager_->wants_budget()) end_trial();
            await_attention();
          });
}

void ServedTarget::share_budget() {
  host_.budgets.add(*pager_, {report_.program, report_.pid});
  has_budget_ = true;
}

void ServedTarget::end_trial() {
  if (std::exchange(has_budget_, true)) return;
  const BudgetGroup::Process process{report_.program, report_.pid};
  in_pool(
      [this, process] {
        host_.budgets.end_trial(*pager_, process);
        pager_->begin_eviction();
      },
      [] {});
}

// ---- the end ----

// The control socket is closed: by exit, by exec, or by a program that closes unknown descriptors.
// The pager must run until the kernel reports that the memory is gone; otherwise faults of a live
// program would block forever.
void ServedTarget::hang_up() {
  requests_.reset();
  (void)note([](ServedRecord& record) { record.socket = -1; });
  socket_.reset();
  if (report_.pid != 0) end_trial();
  step_ = Step::kAwaitingExit;
  await_exit();
}

void ServedTarget::await_exit() {
  if (step_ == Step::kServing) return;
  if (pager_->target_gone() || !pager_->space().alive()) {
    end();
  } else {
    after(kAliveCheck, [this] { await_exit(); });
  }
}

void ServedTarget::end() {
  ending_ = true;
  if (calls_ > 0 || step_ == Step::kEnded) return;  // called again after the last call
  step_ = Step::kEnded;
  timer_.cancel();
  requests_.reset();
  attention_.reset();
  {
    const MutexLock lock(record_mutex_);
    record_erased_ = true;
    host_.state.erase_target(number_);
  }
  // Statistics are sums over large histograms; the pager waits for its engine, and gives its region
  // back.
  host_.waits.run(
      [self = shared_from_this(), pager = std::shared_ptr(std::move(pager_))]() mutable {
        if (pager) self->take_statistics(*pager);
        if (pager) self->host_.budgets.remove(*pager);
        pager.reset();
        boost::asio::post(self->host_.control, [self] { self->host_.on_end(*self); });
      });
}

}  // namespace farpage::serve
