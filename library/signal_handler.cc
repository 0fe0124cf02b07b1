#include "library/signal_handler.h"

#include <signal.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/mutex.h"
#include "library/signals.h"

#if !defined(__x86_64__)
#error "the error code of a fault is read from an x86-64 signal frame"
#endif

namespace farpage::library {
namespace {

// Bits of the page fault error code (Intel SDM, volume 3A, 4.7).
constexpr uint64_t kPresent = 1;
constexpr uint64_t kWrite = 2;

// The only mutable global of the library: a signal handler has no other way to find these.
struct Range {
  std::atomic<uint64_t> begin{0};  // 0: free entry. Written last, cleared first
  std::atomic<uint64_t> end{0};
  std::atomic<pager::Pager*> pager{nullptr};
};
struct Registry {
  std::array<Range, kMaxHandledRanges> ranges;
  Mutex mutex;  // for changes; the handler takes no lock
  bool installed FARPAGE_GUARDED_BY(mutex) = false;
  struct sigaction former {};  // constant once `installed`
};
Registry registry;

void pass_on(int number, siginfo_t* info, void* context) {
  const struct sigaction& former = registry.former;
  if ((former.sa_flags & SA_SIGINFO) != 0) {
    former.sa_sigaction(number, info, context);
    return;
  }
  const bool sent_by_somebody = info->si_code <= 0;
  if (former.sa_handler == SIG_IGN && sent_by_somebody) return;
  if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(number);
    return;
  }
  // The default action: the instruction runs again and ends the process, as without this library.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &action, nullptr);
  if (sent_by_somebody) ::raise(SIGBUS);
}

const Range* find(uint64_t address) {
  for (const Range& range : registry.ranges) {
    // Acquire: pairs with the release in add().
    const uint64_t begin = range.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < range.end.load(std::memory_order_relaxed))
      return &range;
  }
  return nullptr;
}

uffd::FaultKind kind_of(const void* context) {
  const auto error =
      static_cast<uint64_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR]);
  if ((error & kWrite) == 0) return uffd::FaultKind::kMissingRead;
  return (error & kPresent) != 0 ? uffd::FaultKind::kWriteProtected
                                 : uffd::FaultKind::kMissingWrite;
}

void on_sigbus(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  // A signal sent by kill(2) or similar carries no address.
  const Range* range = info->si_code > 0 ? find(address) : nullptr;
  if (range != nullptr) {
    pager::Pager& pager = *range->pager.load(std::memory_order_relaxed);
    const PageIndex page{(address - range->begin.load(std::memory_order_relaxed)) >> kPageShift};
    if (!pager.is_lost(page)) {
      pager.resolve(page, kind_of(context));
      errno = saved_errno;
      return;
    }
  }
  errno = saved_errno;
  // The next handler runs with the signal mask from before the signal.
  (void)::pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask,
                          nullptr);
  pass_on(number, info, context);
}

Status install() FARPAGE_REQUIRES(registry.mutex) {
  if (registry.installed) return {};
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  // A handler of the program that touches the region must not interrupt ours, which may hold a
  // lock that it needs: only synchronous signals are left unblocked. NODEFER: the next handler may
  // leave by longjmp. ONSTACK: use the thread's alternate signal stack if it has one.
  action.sa_mask = asynchronous_signals();
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  if (::sigaction(SIGBUS, nullptr, &registry.former) != 0 ||
      ::sigaction(SIGBUS, &action, nullptr) != 0)
    return fail_errno("sigaction(SIGBUS)");
  registry.installed = true;
  return {};
}

}  // namespace

Result<HandledRange> HandledRange::add(std::span<std::byte> bytes, pager::Pager& pager) {
  const MutexLock lock(registry.mutex);
  FARPAGE_TRY_VOID(install());
  for (size_t i = 0; i < registry.ranges.size(); ++i) {
    Range& range = registry.ranges[i];
    if (range.begin.load(std::memory_order_relaxed) != 0) continue;
    range.pager.store(&pager, std::memory_order_relaxed);
    range.end.store(reinterpret_cast<uint64_t>(bytes.data()) + bytes.size(),
                    std::memory_order_relaxed);
    range.begin.store(reinterpret_cast<uint64_t>(bytes.data()), std::memory_order_release);
    return HandledRange(i);
  }
  return fail(ErrorCode::kExhausted,
              "at most " + std::to_string(kMaxHandledRanges) + " regions with faults in a handler");
}

HandledRange::HandledRange(HandledRange&& other) noexcept
    : index_(std::exchange(other.index_, kNone)) {}

HandledRange& HandledRange::operator=(HandledRange&& other) noexcept {
  if (this != &other) {
    release();
    index_ = std::exchange(other.index_, kNone);
  }
  return *this;
}

HandledRange::~HandledRange() {
  release();
}

void HandledRange::release() {
  if (index_ == kNone) return;
  const MutexLock lock(registry.mutex);
  registry.ranges[index_].begin.store(0, std::memory_order_release);
  index_ = kNone;
}

}  // namespace farpage::library
