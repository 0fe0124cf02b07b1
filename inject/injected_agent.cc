#include "inject/injected_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/futex.h"
#include "base/mapping.h"
#include "base/pidfd.h"
#include "base/strong.h"
#include "base/unix_socket.h"
#include "inject/agent_code.h"
#include "inject/far_place.h"
#include "inject/pidfd_thread.h"
#include "inject/process_files.h"
#include "inject/seized_thread.h"
#include "inject/target_checks.h"
#include "uffd/agent_ring.h"
#include "uffd/handover.h"
#include "uffd/userfaultfd.h"

namespace farpage::inject {
namespace {

namespace handover = uffd::handover;

constexpr Nanoseconds kStepPatience = std::chrono::seconds(5);
constexpr Nanoseconds kStepSlice = std::chrono::milliseconds(20);
constexpr Nanoseconds kSeizePatience = std::chrono::seconds(3);
constexpr int kRemoveAttempts = 3;
constexpr Milliseconds kEndPatience{5000};

uint64_t round_up_to_page(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Of this thread alone: meanwhile one of the program stands.
void begin_own_thread() {
  (void)::setpriority(PRIO_PROCESS, 0, -20);
  (void)::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  ::pthread_setname_np(::pthread_self(), "fp-inject");
}

// The tracer of a thread is a thread of ours: when it ends, the kernel lets go of what it has not.
template <typename Work>
auto in_own_thread(Work work) {
  std::optional<decltype(work())> result;
  std::thread thread([&] {
    begin_own_thread();
    result.emplace(work());
  });
  thread.join();
  return std::move(*result);
}

// The agent's mappings in the program; 0: there is none.
struct Placed {
  uint64_t shared_address = 0;
  uint64_t code_address = 0;
  uint64_t code_bytes = 0;
};

std::string map_file(uint64_t shared_address) {
  return fmt::format("map_files/{:x}-{:x}", shared_address, shared_address + kSharedBytes);
}

// Seizes the first thread that lets itself be seized. A thread that has called vfork or exec, or
// waits for a page, does not for a while.
Result<SeizedThread> seize_any(const ProcessFiles& process, bool suspend_seccomp) {
  const Instant start = SteadyClock::read();
  while (true) {
    Result<std::vector<pid_t>> threads = seizable_threads(process);
    if (!threads && threads.error().code != ErrorCode::kUnavailable)
      return tl::unexpected(std::move(threads).error());
    Error last{};
    if (!threads) last = threads.error();
    for (const pid_t thread : threads.value_or(std::vector<pid_t>())) {
      Result<SeizedThread> seized = SeizedThread::seize(process, thread, suspend_seccomp);
      if (seized || seized.error().code != ErrorCode::kUnavailable) return seized;
      last = std::move(seized).error();
    }
    if (!process.alive() || SteadyClock::read() - start > kSeizePatience)
      return tl::unexpected(std::move(last));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The program is killed, or ends, at any time.
Error or_ended(const ProcessFiles& process, Error error) {
  if (process.alive()) return error;
  return {ErrorCode::kNotFound, fmt::format("process {} has ended meanwhile", process.pid()), 0};
}

// ------------------------------------------------------------------ placing ----

class Placing {
 public:
  // `address`: where the agent's mappings begin, if nothing is there; 0: the kernel chooses.
  Placing(const ProcessFiles& process, SeizedThread& thread, uint64_t address)
      : process_(process), thread_(thread), address_(address) {}

  // What has been placed is unmapped by undo().
  Status place(bool begin_at_once);
  Status undo();

  const Placed& placed() const { return placed_; }
  Fd take_ring() { return std::move(ring_); }
  Mapping take_shared() { return std::move(shared_); }
  int32_t inner_thread() const { return inner_thread_; }

 private:
  Result<uint64_t> map(uint64_t address, uint64_t bytes, int protection, int flags);
  Status unmap(uint64_t& address, uint64_t bytes);
  AgentSetup& setup() { return *reinterpret_cast<AgentSetup*>(shared_.data() + kSetupOffset); }
  Status place_shared(bool begin_at_once);
  Status place_code();
  Status start();

  const ProcessFiles& process_;
  SeizedThread& thread_;
  const uint64_t address_;
  Placed placed_;
  Fd ring_;
  Mapping shared_;
  int32_t inner_thread_ = 0;
};

Result<uint64_t> Placing::map(uint64_t address, uint64_t bytes, int protection, int flags) {
  return thread_.call({.number = SYS_mmap,
                       .arguments = {address, bytes, static_cast<uint64_t>(protection),
                                     static_cast<uint64_t>(flags), ~uint64_t{0}, 0}},
                      "mmap");
}

Status Placing::unmap(uint64_t& address, uint64_t bytes) {
  if (address == 0) return {};
  FARPAGE_TRY(done, thread_.call({.number = SYS_munmap, .arguments = {address, bytes, 0, 0, 0, 0}},
                                 "munmap"));
  (void)done;
  address = 0;
  return {};
}

Status Placing::undo() {
  FARPAGE_TRY_VOID(unmap(placed_.code_address, placed_.code_bytes));
  return unmap(placed_.shared_address, kSharedBytes);
}

Status Placing::place(bool begin_at_once) {
  FARPAGE_TRY_VOID(place_shared(begin_at_once));
  FARPAGE_TRY_VOID(place_code());
  return start();
}

Status Placing::place_shared(bool begin_at_once) {
  FARPAGE_TRY(address,
              map(address_, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS));
  placed_.shared_address = address;
  Result<Fd> ring = process_.open_file(map_file(address), O_RDWR);
  if (!ring && ring.error().code == ErrorCode::kDenied)
    return fail(ErrorCode::kDenied,
                "the memory of another process may not be mapped: run as root, or with "
                "CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE");
  if (!ring) return tl::unexpected(std::move(ring).error());
  ring_ = std::move(*ring);
  FARPAGE_TRY(shared, Mapping::shared(ring_.get(), kSharedBytes));
  shared_ = std::move(shared);
  // All zeros, which is an empty ring.
  auto& agent = *new (&setup()) AgentSetup;
  agent.shared_address = address;
  agent.shared_bytes = kSharedBytes;
  std::strncpy(static_cast<char*>(agent.name), handover::kAgentName, sizeof(agent.name) - 1);
  if (begin_at_once) agent.wanted.store(word_of(AgentStep::kOpen), std::memory_order_release);
  return {};
}

Status Placing::place_code() {
  const std::span<const std::byte> code = agent_code();
  placed_.code_bytes = round_up_to_page(code.size());
  FARPAGE_TRY(address, map(placed_.shared_address + kSharedBytes, placed_.code_bytes,
                           PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS));
  placed_.code_address = address;
  setup().code_address = address;
  setup().code_bytes = placed_.code_bytes;
  return thread_.write(address, code);
}

Status Placing::start() {
  const uint64_t setup_address = placed_.shared_address + kSetupOffset;
  const uint64_t thread_address = setup_address + offsetof(AgentSetup, thread);
  // No CLONE_FILES: a descriptor table of its own.
  constexpr uint64_t kFlags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                              CLONE_UNTRACED | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  FARPAGE_TRY(thread, thread_.call({.instruction = placed_.code_address + agent_clone_offset(),
                                    .number = SYS_clone,
                                    .arguments = {kFlags, placed_.shared_address + kSharedBytes, 0,
                                                  thread_address, 0, 0},
                                    .r12 = setup_address},
                                   "clone"));
  inner_thread_ = static_cast<int32_t>(thread);
  return {};
}

// ------------------------------------------------------------- the new agent ----

// The id that a thread of the process has for us. In a PID namespace it has others: NSpid lists
// them, its own one last. A list that is read while threads end may lack one that lives.
Result<pid_t> outer_id(const ProcessFiles& process, int32_t inner_thread) {
  constexpr int kLooks = 10;
  for (int look = 0; look < kLooks; ++look) {
    FARPAGE_TRY(threads, process.threads());
    threads.insert(threads.begin(), inner_thread);  // mostly
    for (const pid_t thread : threads) {
      const std::string ids =
          process.status_field(fmt::format("task/{}/status", thread), "NSpid").value_or("");
      const size_t last = ids.find_last_of(" \t");
      if (ids.substr(last == std::string::npos ? 0 : last + 1) == std::to_string(inner_thread))
        return thread;
    }
  }
  return fail(ErrorCode::kUnavailable, "the agent's thread has ended");
}

std::string failure_text(const AgentSetup& setup) {
  switch (setup.failure) {
    case AgentFailure::kNone:
      break;
    case AgentFailure::kLifeline:
      return "socketpair by the agent";
    case AgentFailure::kUserfaultfd:
      return "userfaultfd by the agent: let this user open /dev/userfaultfd, or set sysctl "
             "vm.unprivileged_userfaultfd=1";
    case AgentFailure::kForeign:
      return "none of the memory that is served is that of the process";
    case AgentFailure::kStaging:
      return "mapping the agent's staging area";
    case AgentFailure::kAdvice:
      return "madvise of the agent's memory";
  }
  return "unknown failure of the agent";
}

class NewAgent {
 public:
  NewAgent(const ProcessFiles& process, Mapping shared, Placed placed)
      : process_(process), shared_(std::move(shared)), placed_(placed) {}

  // From its first step to kServe.
  Status set_up(int32_t inner_thread, bool suspend_seccomp, const InjectOptions& options,
                InjectedAgent& out);
  // Ends the thread; only then may its memory be unmapped.
  Status dismiss();

 private:
  AgentSetup& setup() { return *reinterpret_cast<AgentSetup*>(shared_.data() + kSetupOffset); }
  Status want(AgentStep from, AgentStep to);
  Status await(AgentStep step);
  Status serve();
  Status send_device(const Fd& lifeline);
  Status send_inherited(const Fd& lifeline, const std::vector<InheritedUserfaultfd>& inherited);

  const ProcessFiles& process_;
  Mapping shared_;
  const Placed placed_;
  Fd thread_;
  std::unique_ptr<AgentTracer> tracer_;
};

Status NewAgent::want(AgentStep from, AgentStep to) {
  uint32_t expected = word_of(from);
  if (!setup().wanted.compare_exchange_strong(expected, word_of(to), std::memory_order_seq_cst))
    return fail(ErrorCode::kUnavailable, "the agent has left: this host was too slow, try again");
  futex_wake(setup().wanted, FutexScope::kShared);
  return await(to);
}

Status NewAgent::await(AgentStep step) {
  const Instant start = SteadyClock::read();
  while (true) {
    const uint32_t done = setup().done.load(std::memory_order_acquire);
    if (done == word_of(step)) break;
    if (has_ended(thread_.get()))
      return fail(ErrorCode::kUnavailable,
                  "the agent's thread has ended: the program ends, or has called exec");
    if (SteadyClock::read() - start > kStepPatience)
      return fail(ErrorCode::kUnavailable,
                  process_.described() + ": the agent does not run: is the program stopped?");
    futex_wait(setup().done, done, kStepSlice, FutexScope::kShared);
  }
  if (setup().failure == AgentFailure::kNone) return {};
  if (setup().failure == AgentFailure::kForeign)
    return fail(ErrorCode::kConflict, failure_text(setup()));
  return fail_errno(failure_text(setup()), setup().error);
}

// An agent that has not begun in time must not begin later: it would find its lifeline cut.
Status NewAgent::serve() {
  Status served = want(AgentStep::kPrepare, AgentStep::kServe);
  uint32_t expected = word_of(AgentStep::kServe);
  if (served || setup().wanted.compare_exchange_strong(expected, word_of(AgentStep::kLeave),
                                                       std::memory_order_seq_cst))
    return served;
  return expected == word_of(AgentStep::kServing) ? await(AgentStep::kServe) : std::move(served);
}

// The agent makes its userfaultfd from it where it has no privilege of its own. A byte without a
// descriptor: it has to.
Status NewAgent::send_device(const Fd& lifeline) {
  const Fd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  const std::byte nothing{};
  if (send_with_descriptor(lifeline.get(), {&nothing, 1}, device.get()) != 1)
    return fail_errno("sending to the agent");
  return {};
}

// A message for each: the agent receives them one by one.
Status NewAgent::send_inherited(const Fd& lifeline,
                                const std::vector<InheritedUserfaultfd>& inherited) {
  FARPAGE_CHECK(inherited.size() <= kMaxInherited, "%zu userfaultfds", inherited.size());
  for (const InheritedUserfaultfd& each : inherited) {
    const std::byte nothing{};
    if (send_with_descriptor(lifeline.get(), {&nothing, 1}, each.descriptor) != 1)
      return fail_errno("sending to the agent");
  }
  setup().inherited = static_cast<uint32_t>(inherited.size());
  return {};
}

Status NewAgent::set_up(int32_t inner_thread, bool suspend_seccomp, const InjectOptions& options,
                        InjectedAgent& out) {
  FARPAGE_TRY(id, outer_id(process_, inner_thread));
  FARPAGE_TRY(thread, open_thread(id));
  thread_ = std::move(thread);
  // Still that thread, and not another one with its id.
  FARPAGE_TRY(same, outer_id(process_, inner_thread));
  if (same != id) return fail(ErrorCode::kUnavailable, "the agent's thread has ended");
  if (suspend_seccomp) {
    FARPAGE_TRY(tracer, AgentTracer::trace(id));
    tracer_ = std::move(tracer);
    FARPAGE_TRY_VOID(want(AgentStep::kNone, AgentStep::kOpen));
  } else {
    FARPAGE_TRY_VOID(await(AgentStep::kOpen));
  }
  FARPAGE_TRY(lifeline, take_descriptor(thread_, setup().lifeline[1]));
  const bool inherits = !options.inherited.empty();
  FARPAGE_TRY_VOID(inherits ? send_inherited(lifeline, options.inherited) : send_device(lifeline));
  FARPAGE_TRY_VOID(want(AgentStep::kOpen, AgentStep::kPrepare));
  FARPAGE_TRY(descriptor, take_descriptor(thread_, setup().userfaultfd));
  out.inherited = setup().chosen;
  if (out.inherited >= std::max<size_t>(options.inherited.size(), 1))
    return fail(ErrorCode::kConflict, "the agent's memory was changed");
  Result<uffd::Userfaultfd> enabled =
      inherits ? uffd::Userfaultfd::adopt(std::move(descriptor),
                                          options.inherited[out.inherited].features)
               : uffd::Userfaultfd::enable(std::move(descriptor), uffd::attach_features());
  if (!enabled) return tl::unexpected(std::move(enabled).error());
  uffd::Userfaultfd userfaultfd = std::move(*enabled);
  // From here on a failure closes the last descriptor but the agent's, and it unmaps the area.
  FARPAGE_TRY_VOID(userfaultfd.register_for_moves(setup().staging_address, kStagingBytes));
  const uint64_t features = userfaultfd.features();
  // From here on the program dies with the last holder of `lifeline`.
  FARPAGE_TRY_VOID(serve());
  out.thread = id;
  out.agent = std::move(thread_);
  out.userfaultfd = std::move(userfaultfd).release();
  out.features = features;
  out.ring_address = placed_.shared_address;
  out.ring_bytes = kSharedBytes;
  out.staging_address = setup().staging_address;
  out.staging_bytes = kStagingBytes;
  out.code_address = placed_.code_address;
  out.code_bytes = placed_.code_bytes;
  out.lifeline = std::move(lifeline);
  out.tracer = std::move(tracer_);
  return {};
}

Status NewAgent::dismiss() {
  setup().wanted.store(word_of(AgentStep::kLeave), std::memory_order_seq_cst);
  futex_wake(setup().wanted, FutexScope::kShared);
  // The kernel clears the id when the thread has left user mode for good.
  const Instant start = SteadyClock::read();
  const std::atomic_ref<int32_t> thread(setup().thread);
  while (thread_.valid() ? !has_ended(thread_.get())
                         : thread.load(std::memory_order_acquire) != 0) {
    if (!process_.alive()) return {};
    if (SteadyClock::read() - start > kEndPatience)
      return fail(ErrorCode::kTimedOut, "the agent does not end");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

// ------------------------------------------------------------ taking it back ----

// Is the program's mapping at that address still the one that `ring` is of? After exec it is not.
bool has_mapping(const ProcessFiles& process, const Fd& ring, uint64_t shared_address) {
  const Result<Fd> there = process.open_file(map_file(shared_address), O_RDWR);
  struct stat ours {};
  struct stat theirs {};
  return there && ::fstat(ring.get(), &ours) == 0 && ::fstat(there->get(), &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

// Unmaps the agent's code and ring. The thread has ended.
Status remove_mappings(const ProcessFiles& process, const Fd& ring, const Placed& placed,
                       bool suspend_seccomp, Nanoseconds& stood) {
  FARPAGE_TRY(thread, seize_any(process, suspend_seccomp));
  if (!has_mapping(process, ring, placed.shared_address)) return thread.release();
  for (const auto& [address, bytes] : {std::pair(placed.code_address, placed.code_bytes),
                                       std::pair(placed.shared_address, kSharedBytes)}) {
    FARPAGE_TRY(done, thread.call({.number = SYS_munmap, .arguments = {address, bytes, 0, 0, 0, 0}},
                                  "munmap"));
    (void)done;
  }
  FARPAGE_TRY_VOID(thread.release());
  stood = thread.stood();
  return {};
}

// A thread of the program that we have stopped.
struct Stopped {
  ProcessFiles process;
  std::optional<SeizedThread> thread;

  Status release(Nanoseconds& stood) {
    Status released = thread->release();
    stood = thread->stood();
    return released;
  }
};

// With `execute` the thread stays stopped.
Result<InjectedAgent> inject_here(const InjectOptions& options, Stopped& stopped) {
  const ProcessFiles& process = stopped.process;
  FARPAGE_TRY_VOID(check_kernel());
  if (Status fits = check_target(process, options.allow_seccomp); !fits)
    return tl::unexpected(or_ended(process, std::move(fits).error()));
  const bool suspend = options.allow_seccomp && has_seccomp(process);

  const auto failed = [&](Error error) {
    return tl::unexpected(or_ended(process, std::move(error)));
  };
  const auto find_place = [&] { return far_place(process.read("maps").value_or("")); };
  // While a thread stands only the new mappings of an exec are read: those are few.
  uint64_t place = options.execute == nullptr ? find_place() : 0;
  Result<SeizedThread> thread = options.execute == nullptr
                                    ? seize_any(process, suspend)
                                    : SeizedThread::seize_at_exec(process, options.execute);
  if (!thread) return failed(std::move(thread).error());
  stopped.thread.emplace(std::move(*thread));

  if (options.execute != nullptr) place = find_place();

  InjectedAgent agent;
  Placing placing(process, *stopped.thread, place);
  if (Status placed = placing.place(!suspend); !placed) {
    (void)placing.undo();
    return failed(std::move(placed).error());
  }
  if (options.execute == nullptr)
    if (Status released = stopped.release(agent.stood); !released)
      return failed(std::move(released).error());

  const Placed placed = placing.placed();
  agent.ring = placing.take_ring();
  NewAgent fresh(process, placing.take_shared(), placed);
  if (Status set_up = fresh.set_up(placing.inner_thread(), suspend, options, agent); !set_up) {
    Error error = or_ended(process, std::move(set_up).error());
    if (options.execute != nullptr) return tl::unexpected(std::move(error));
    Status undone = fresh.dismiss();
    if (undone && process.alive())
      undone = remove_mappings(process, agent.ring, placed, suspend, agent.stood);
    if (!undone && process.alive())
      error.context +=
          " (memory of the agent is left in the program: " + undone.error().message() + ")";
    return tl::unexpected(std::move(error));
  }
  stopped.thread->give_back_priority(agent.thread);
  agent.pid = process.pid();
  FARPAGE_TRY(pidfd, process.pidfd().duplicate());
  agent.process = std::move(pidfd);
  return agent;
}

// The thread of ours that has stopped the program lives as long as it stands.
class HeldByThread final : public HeldProgram {
 public:
  // In `result`: the agent, or the failure, after which the program has been killed.
  HeldByThread(ProcessFiles process, const InjectOptions& options, Result<InjectedAgent>& result)
      : thread_([this, &options, &result, stopped = Stopped{std::move(process), {}}]() mutable {
          begin_own_thread();
          result = inject_here(options, stopped);
          if (!result) send_signal(stopped.process.pidfd().get(), SIGKILL);
          injected_.release();
          go_on_.acquire();
        }) {
    injected_.acquire();
  }
  ~HeldByThread() override {
    go_on_.release();
    thread_.join();
  }

 private:
  std::binary_semaphore injected_{0};
  std::binary_semaphore go_on_{0};
  std::thread thread_;
};

Status withdraw_here(InjectedAgent& agent) {
  Result<ProcessFiles> process = ProcessFiles::open(agent.pid);
  const auto ended = [&] { return has_ended(agent.process.get()); };
  // Ours lives, so its id is that of no other.
  if (ended()) return {};
  if (!process) return tl::unexpected(std::move(process).error());

  const bool has_agent = !has_ended(agent.agent.get());  // exec ends it
  if (has_agent) {
    if (agent.userfaultfd.valid()) {
      FARPAGE_TRY(copy, agent.userfaultfd.duplicate());
      auto userfaultfd = uffd::Userfaultfd::adopt(std::move(copy), agent.features);
      // The agent unmaps it, which would else be an event that somebody has to read. After exec
      // there is nothing to unregister, and the agent ends.
      Status done = userfaultfd.unregister_range(agent.staging_address, agent.staging_bytes);
      if (!done && !has_ended(agent.agent.get(), kEndPatience)) return done;
      agent.userfaultfd.reset();
    }
    FARPAGE_TRY(ring, Mapping::shared(agent.ring.get(), agent.ring_bytes));
    uffd::AgentRingProducer commands(std::move(ring), [&] { return !ended(); });
    FARPAGE_TRY_VOID(commands.post({.kind = handover::CommandKind::kEnd}));
    if (!has_ended(agent.agent.get(), kEndPatience) && !ended())
      return fail(ErrorCode::kTimedOut,
                  "the agent of " + process->described() + ": the thread has not ended");
  }
  const bool suspend = agent.tracer != nullptr;
  agent.tracer.reset();
  const Placed placed{.shared_address = agent.ring_address,
                      .code_address = agent.code_address,
                      .code_bytes = agent.code_bytes};
  Status removed;
  for (int attempt = 0; attempt < kRemoveAttempts; ++attempt) {
    removed = remove_mappings(*process, agent.ring, placed, suspend, agent.stood);
    // A thread that was seized ends by exec alone, which leaves no mapping either.
    if (removed || removed.error().code != ErrorCode::kUnavailable ||
        !has_mapping(*process, agent.ring, placed.shared_address))
      break;
  }
  if (!removed && !ended() && has_mapping(*process, agent.ring, placed.shared_address))
    return removed;
  return {};
}

}  // namespace

Result<InjectedAgent> inject(pid_t pid, const InjectOptions& options) {
  FARPAGE_TRY(process, ProcessFiles::open(pid));
  if (options.execute == nullptr)
    return in_own_thread([&] {
      Stopped stopped{std::move(process), {}};
      return inject_here(options, stopped);
    });
  Result<InjectedAgent> agent = InjectedAgent();
  auto held = std::make_unique<HeldByThread>(std::move(process), options, agent);
  if (agent) agent->held = std::move(held);
  return agent;
}

Status withdraw(InjectedAgent& agent) {
  Status done = in_own_thread([&] { return withdraw_here(agent); });
  if (done) agent = {};
  return done;
}

}  // namespace farpage::inject
