#include "inject/seized_thread.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

#include "inject/target_checks.h"

namespace farpage::inject {
namespace {

constexpr Nanoseconds kStopPatience = std::chrono::seconds(1);
constexpr Nanoseconds kCallPatience = std::chrono::seconds(10);
// A stop takes some 10 us. Sleeps, not sched_yield: that leaves the processor to the thread only
// where it has our priority.
constexpr Nanoseconds kShortWait = std::chrono::milliseconds(2);
constexpr Nanoseconds kShortSleep = std::chrono::microseconds(10);
constexpr Nanoseconds kLongSleep = std::chrono::microseconds(200);
constexpr int kHurries = -20;
constexpr size_t kMaxVdsoBytes = 16 << 10;
constexpr size_t kMaxCandidates = 8;
constexpr uint64_t kAllSignals = ~uint64_t{0};
constexpr uint64_t k64BitCode = 0x33;  // the segment of 64-bit programs
constexpr int kCallStop = SIGTRAP | 0x80;
constexpr std::array<unsigned char, 2> kCallInstruction{0x0f, 0x05};

// They fail with EINTR when the thread is stopped, though no signal has come (signal(7)).
constexpr long kFailByAnyStop[] = {SYS_epoll_wait,   SYS_epoll_pwait,    SYS_epoll_pwait2,
                                   SYS_io_getevents, SYS_io_pgetevents,  SYS_semop,
                                   SYS_semtimedop,   SYS_rt_sigtimedwait};
// The same on a socket with a timeout (SO_RCVTIMEO).
constexpr long kFailOnSomeSockets[] = {SYS_read,     SYS_readv,   SYS_write,   SYS_writev,
                                       SYS_recvfrom, SYS_recvmsg, SYS_sendto,  SYS_sendmsg,
                                       SYS_accept,   SYS_accept4, SYS_recvmmsg};
// The kernel begins them again, and a program that sleeps in one is in no hurry.
constexpr long kRestarted[] = {
    SYS_futex,  SYS_poll,    SYS_ppoll,    SYS_nanosleep,       SYS_clock_nanosleep,
    SYS_read,   SYS_wait4,   SYS_waitid,   SYS_select,          SYS_pselect6,
    SYS_accept, SYS_accept4, SYS_recvfrom, SYS_restart_syscall, SYS_recvmsg,
    SYS_pause};

template <size_t n>
bool is_one_of(const long (&calls)[n], long call) {
  return std::find(std::begin(calls), std::end(calls), call) != std::end(calls);
}

// Lower is better; nullopt: it cannot be stopped.
std::optional<int> rank_of(const ProcessFiles& process, pid_t thread) {
  const Result<std::string> call = process.read(fmt::format("task/{}/syscall", thread));
  const Result<std::string> stat = process.read(fmt::format("task/{}/stat", thread));
  if (!call || !stat) return std::nullopt;
  const size_t state = stat->rfind(") ");
  if (state == std::string::npos || state + 2 >= stat->size()) return std::nullopt;
  if (std::strchr("RSIP", (*stat)[state + 2]) == nullptr) return std::nullopt;
  long number = -1;
  const auto parsed = std::from_chars(call->data(), call->data() + call->size(), number);
  if (parsed.ec != std::errc()) return 1;  // "running"
  if (is_one_of(kRestarted, number)) return 0;
  return is_one_of(kFailByAnyStop, number) ? 3 : 2;
}

Error gone(pid_t thread) {
  return {ErrorCode::kUnavailable, fmt::format("thread {} has ended", thread), 0};
}

}  // namespace

Result<std::vector<pid_t>> seizable_threads(const ProcessFiles& process) {
  FARPAGE_TRY(threads, process.threads());
  std::vector<std::pair<int, pid_t>> ranked;
  size_t best = 0;
  for (const pid_t thread : threads) {
    const std::optional<int> rank = rank_of(process, thread);
    if (!rank) continue;
    ranked.emplace_back(*rank, thread);
    if (*rank == 0 && ++best == kMaxCandidates) break;
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<pid_t> chosen;
  for (const auto& [rank, thread] : ranked)
    if (chosen.size() < kMaxCandidates) chosen.push_back(thread);
  if (chosen.empty())
    return fail(ErrorCode::kUnavailable,
                process.described() + " has no thread that can be stopped: try again");
  return chosen;
}

SeizedThread::SeizedThread(SeizedThread&& other) noexcept
    : process_(other.process_),
      thread_(std::exchange(other.thread_, 0)),
      call_instruction_(other.call_instruction_),
      registers_(other.registers_),
      signal_mask_(other.signal_mask_),
      saved_(other.saved_),
      called_(other.called_),
      since_(other.since_),
      stood_(other.stood_),
      niceness_(other.niceness_) {}

SeizedThread::~SeizedThread() {
  (void)release();
}

Status SeizedThread::request(int request, uint64_t address, uint64_t data, const char* name) const {
  if (::syscall(SYS_ptrace, request, thread_, address, data) == 0) return {};
  if (errno == ESRCH) return tl::unexpected(gone(thread_));
  return fail_errno(name);
}

Status SeizedThread::begin(uint64_t options) {
  Status begun = request(PTRACE_SEIZE, 0, PTRACE_O_TRACESYSGOOD | options, "PTRACE_SEIZE");
  if (begun) return begun;
  const pid_t thread = std::exchange(thread_, 0);
  if (begun.error().code != ErrorCode::kDenied) return begun;
  FARPAGE_TRY_VOID(check_tracer(*process_, thread));
  return fail(ErrorCode::kDenied,
              process_->described() + " may not be traced by this user: run as root");
}

Result<SeizedThread> SeizedThread::seize(const ProcessFiles& process, pid_t thread,
                                         bool suspend_seccomp) {
  SeizedThread seized(process, thread);
  FARPAGE_TRY_VOID(seized.begin(suspend_seccomp ? PTRACE_O_SUSPEND_SECCOMP : 0));
  // A thread of this process still, and not of another that has its id by now.
  const Result<std::string> still = process.read(fmt::format("task/{}/comm", thread));
  if (!still) return tl::unexpected(gone(thread));
  FARPAGE_TRY_VOID(seized.stop());
  FARPAGE_TRY_VOID(seized.save());
  return seized;
}

Result<SeizedThread> SeizedThread::seize_at_exec(const ProcessFiles& process,
                                                 const std::function<void()>& execute) {
  SeizedThread seized(process, process.pid());
  FARPAGE_TRY_VOID(seized.begin(PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL));
  execute();
  FARPAGE_TRY_VOID(seized.await_stop(PTRACE_CONT, Stop::kExec, kCallPatience));
  seized.since_ = SteadyClock::read();
  // Within the call, whose end is a stop, too.
  FARPAGE_TRY_VOID(seized.request(PTRACE_SETOPTIONS, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL,
                                  "PTRACE_SETOPTIONS"));
  FARPAGE_TRY_VOID(seized.request(PTRACE_SYSCALL, 0, 0, "PTRACE_SYSCALL"));
  FARPAGE_TRY_VOID(seized.await_stop(PTRACE_SYSCALL, Stop::kCall, kCallPatience));
  FARPAGE_TRY_VOID(seized.save());
  return seized;
}

Status SeizedThread::stop() {
  FARPAGE_TRY_VOID(request(PTRACE_INTERRUPT, 0, 0, "PTRACE_INTERRUPT"));
  Status stopped = await_stop(PTRACE_CONT, Stop::kInterrupt, kStopPatience);
  since_ = SteadyClock::read();
  if (!stopped)
    thread_ = 0;  // it has ended, or cannot be let go of before our thread ends
  else
    hurry();
  return stopped;
}

// Each of its calls waits for a CPU, which on a busy machine takes most of the time that it stands.
// Without the privilege it goes on as it is.
void SeizedThread::hurry() {
  errno = 0;
  const int niceness = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread_));
  if (errno != 0 || ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread_), kHurries) != 0) return;
  niceness_ = niceness;
}

void SeizedThread::give_back_priority(pid_t thread) const {
  if (niceness_) (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), *niceness_);
}

Status SeizedThread::save() {
  FARPAGE_TRY_VOID(
      request(PTRACE_GETREGS, 0, reinterpret_cast<uint64_t>(&registers_), "PTRACE_GETREGS"));
  FARPAGE_TRY_VOID(request(PTRACE_GETSIGMASK, sizeof(signal_mask_),
                           reinterpret_cast<uint64_t>(&signal_mask_), "PTRACE_GETSIGMASK"));
  if (registers_.cs != k64BitCode)
    return fail(ErrorCode::kInvalid, process_->described() +
                                         " runs 32-bit code: only 64-bit programs can have far "
                                         "memory");
  FARPAGE_TRY_VOID(find_call_instruction());
  FARPAGE_TRY_VOID(leave_critical_section());
  saved_ = true;
  return request(PTRACE_SETSIGMASK, sizeof(kAllSignals), reinterpret_cast<uint64_t>(&kAllSignals),
                 "PTRACE_SETSIGMASK");
}

// rseq(2): a thread that is stopped within a critical section goes on at its abort handler. The
// kernel looks at the address at which the thread goes on, which will be ours.
Status SeizedThread::leave_critical_section() {
  __ptrace_rseq_configuration rseq{};
  if (::syscall(SYS_ptrace, PTRACE_GET_RSEQ_CONFIGURATION, thread_, sizeof(rseq), &rseq) !=
          static_cast<long>(sizeof(rseq)) ||
      rseq.rseq_abi_pointer == 0)
    return {};
  FARPAGE_TRY(memory, process_->open_file("mem", O_RDONLY));
  constexpr uint64_t kOffsetOfSection = 8;  // struct rseq: rseq_cs
  uint64_t address = 0;
  if (::pread(memory.get(), &address, sizeof(address),
              static_cast<off_t>(rseq.rseq_abi_pointer + kOffsetOfSection)) != sizeof(address) ||
      address == 0)
    return {};
  struct {
    uint32_t version, flags;
    uint64_t begin, bytes, abort;
  } section{};
  if (::pread(memory.get(), &section, sizeof(section), static_cast<off_t>(address)) !=
      sizeof(section))
    return {};
  if (registers_.rip - section.begin < section.bytes) registers_.rip = section.abort;
  return {};
}

// In the [vdso], which the kernel has mapped for the program that the thread is of now: after exec
// it is elsewhere.
Status SeizedThread::find_call_instruction() {
  FARPAGE_TRY(auxiliary, process_->read("auxv"));
  uint64_t vdso = 0;
  for (size_t at = 0; at + sizeof(Elf64_auxv_t) <= auxiliary.size(); at += sizeof(Elf64_auxv_t)) {
    Elf64_auxv_t entry;
    std::memcpy(&entry, auxiliary.data() + at, sizeof(entry));
    if (entry.a_type == AT_SYSINFO_EHDR) vdso = entry.a_un.a_val;
  }
  if (vdso == 0)
    return fail(ErrorCode::kUnsupported,
                process_->described() + " has no [vdso]: boot this host without vdso=0");
  FARPAGE_TRY(memory, process_->open_file("mem", O_RDONLY));
  std::array<unsigned char, kMaxVdsoBytes> code;
  const ssize_t got = ::pread(memory.get(), code.data(), code.size(), static_cast<off_t>(vdso));
  const auto end = code.begin() + std::max<ssize_t>(got, 0);
  const auto found =
      std::search(code.begin(), end, kCallInstruction.begin(), kCallInstruction.end());
  if (found == end)
    return fail(ErrorCode::kUnsupported,
                process_->described() + " has no system call in its [vdso]: run another kernel");
  call_instruction_ = vdso + static_cast<uint64_t>(found - code.begin());
  return {};
}

// Waits until the thread has stopped as `stop` says. Where it stops for another reason it goes on
// by `resumption`, with the signal that it stopped for: only SIGSTOP and the like are not blocked.
Status SeizedThread::await_stop(int resumption, Stop stop, Nanoseconds patience) {
  const Instant start = SteadyClock::read();
  while (true) {
    // Its end is for its parent, which may be another thread of ours.
    siginfo_t stopped{};
    siginfo_t ended{};
    const auto id = static_cast<id_t>(thread_);
    const int waited = ::waitid(P_PID, id, &stopped, WSTOPPED | WNOHANG | __WALL);
    if (waited != 0 && errno != EINTR) return tl::unexpected(gone(thread_));
    if (waited != 0 || stopped.si_pid != thread_) {
      if (::waitid(P_PID, id, &ended, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 &&
          ended.si_pid == thread_ && ended.si_code != CLD_TRAPPED)  // a stop, after all
        return tl::unexpected(gone(thread_));
      const Nanoseconds passed = SteadyClock::read() - start;
      if (passed > patience)
        return fail(ErrorCode::kUnavailable, fmt::format("thread {} of {} does not stop: try again",
                                                         thread_, process_->described()));
      std::this_thread::sleep_for(passed < kShortWait ? kShortSleep : kLongSleep);
      continue;
    }
    const int signal = stopped.si_status & 0xff;
    const int event = stopped.si_status >> 8;
    if (stop == Stop::kCall
            ? signal == kCallStop
            : event == (stop == Stop::kExec ? PTRACE_EVENT_EXEC : PTRACE_EVENT_STOP))
      return {};
    const auto passed_on = static_cast<uint64_t>(event != 0 || signal == kCallStop ? 0 : signal);
    FARPAGE_TRY_VOID(request(resumption, 0, passed_on, "resuming a thread"));
  }
}

Result<uint64_t> SeizedThread::call(const Call& call, const char* name) {
  user_regs_struct registers = registers_;
  registers.rip = call.instruction == 0 ? call_instruction_ : call.instruction;
  registers.rax = static_cast<uint64_t>(call.number);
  registers.orig_rax = ~0ULL;  // in no call: none is begun again
  registers.rdi = call.arguments[0];
  registers.rsi = call.arguments[1];
  registers.rdx = call.arguments[2];
  registers.r10 = call.arguments[3];
  registers.r8 = call.arguments[4];
  registers.r9 = call.arguments[5];
  registers.r12 = call.r12;
  called_ = true;
  FARPAGE_TRY_VOID(
      request(PTRACE_SETREGS, 0, reinterpret_cast<uint64_t>(&registers), "PTRACE_SETREGS"));
  for (int stop = 0; stop < 2; ++stop) {  // at the begin and at the end of the call
    FARPAGE_TRY_VOID(request(PTRACE_SYSCALL, 0, 0, "PTRACE_SYSCALL"));
    FARPAGE_TRY_VOID(await_stop(PTRACE_SYSCALL, Stop::kCall, kCallPatience));
  }
  FARPAGE_TRY_VOID(
      request(PTRACE_GETREGS, 0, reinterpret_cast<uint64_t>(&registers), "PTRACE_GETREGS"));
  const auto result = static_cast<int64_t>(registers.rax);
  if (result < 0 && result >= -4095)
    return fail_errno(fmt::format("{} in {}", name, process_->described()),
                      static_cast<int>(-result));
  return registers.rax;
}

Status SeizedThread::write(uint64_t address, std::span<const std::byte> bytes) {
  const Result<Fd> memory = process_->open_file("mem", O_RDWR);
  if (memory && ::pwrite(memory->get(), bytes.data(), bytes.size(), static_cast<off_t>(address)) ==
                    static_cast<ssize_t>(bytes.size()))
    return {};
  // Where proc_mem.force_override forbids it (Linux 6.12).
  for (size_t done = 0; done < bytes.size(); done += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + done, std::min(sizeof(word), bytes.size() - done));
    FARPAGE_TRY_VOID(request(PTRACE_POKEDATA, address + done, word, "writing to the program"));
  }
  return {};
}

bool SeizedThread::fails_by_any_stop() const {
  const auto call = static_cast<long>(registers_.orig_rax);
  return registers_.rax == static_cast<uint64_t>(-EINTR) &&
         (is_one_of(kFailByAnyStop, call) || is_one_of(kFailOnSomeSockets, call));
}

// One that its own mask lets through.
bool SeizedThread::has_signal() const {
  for (const char* name : {"SigPnd", "ShdPnd"}) {
    const std::string pending =
        process_->status_field(fmt::format("task/{}/status", thread_), name).value_or("0");
    if ((std::strtoull(pending.c_str(), nullptr, 16) & ~signal_mask_) != 0) return true;
  }
  return false;
}

Status SeizedThread::put_back() {
  if (!saved_) return {};
  if (called_) {
    FARPAGE_TRY_VOID(
        request(PTRACE_SETREGS, 0, reinterpret_cast<uint64_t>(&registers_), "PTRACE_SETREGS"));
    FARPAGE_TRY_VOID(request(PTRACE_INTERRUPT, 0, 0, "PTRACE_INTERRUPT"));
    FARPAGE_TRY_VOID(request(PTRACE_CONT, 0, 0, "PTRACE_CONT"));
    FARPAGE_TRY_VOID(await_stop(PTRACE_CONT, Stop::kInterrupt, kCallPatience));
  }
  if (fails_by_any_stop() && !has_signal()) {
    registers_.rax = registers_.orig_rax;
    registers_.rip -= kCallInstruction.size();
    registers_.orig_rax = ~0ULL;
  }
  FARPAGE_TRY_VOID(
      request(PTRACE_SETREGS, 0, reinterpret_cast<uint64_t>(&registers_), "PTRACE_SETREGS"));
  return request(PTRACE_SETSIGMASK, sizeof(signal_mask_), reinterpret_cast<uint64_t>(&signal_mask_),
                 "PTRACE_SETSIGMASK");
}

Status SeizedThread::release() {
  if (thread_ == 0) return {};
  Status back = put_back();
  give_back_priority(thread_);
  const Status let_go = request(PTRACE_DETACH, 0, 0, "PTRACE_DETACH");
  thread_ = 0;
  stood_ = SteadyClock::read() - since_;
  return back ? let_go : back;
}

}  // namespace farpage::inject
