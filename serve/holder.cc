#include "serve/holder.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "serve/served_state.h"

namespace farpage::serve {
namespace {

constexpr std::array kPassedOn{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
// After so many engines that were killed before they had lived so long there is no further one.
constexpr int kMostShortLives = 8;
constexpr Milliseconds kShortLife{200};

sigset_t signals_of_holder() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  for (const int number : kPassedOn) ::sigaddset(&set, number);
  return set;
}

// The child has the holder's memory as it was, and its descriptor table.
pid_t clone_with_descriptors() {
  return static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

bool is_nameless_unix_socket(int descriptor) {
  sockaddr_un address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return false;
  if (address.sun_family != AF_UNIX || bytes > sizeof(sa_family_t)) return false;
  bytes = sizeof address;
  return ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
         bytes <= sizeof(sa_family_t);
}

bool is_userfaultfd(int descriptor) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error) ==
         "anon_inode:[userfaultfd]";
}

bool may_be_irreplaceable(int descriptor) {
  return is_userfaultfd(descriptor) || is_nameless_unix_socket(descriptor);
}

std::set<int> open_descriptors() {
  std::set<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename().string();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    open.insert(number);
  }
  return open;
}

// Closes what only the dead engine needed.
void close_strangers(StateStore& store, const std::set<int>& holders) {
  const auto state = ServedState::create(&store);
  auto kept = state ? state->descriptors() : Result<std::set<int>>(tl::unexpect, state.error());
  if (!kept) {  // nothing will be served
    log::error("pager: no_state reason=\"{}\"", kept.error().message());
    return;
  }
  kept->insert(holders.begin(), holders.end());
  for (const int descriptor : open_descriptors())
    if (!kept->contains(descriptor) && !may_be_irreplaceable(descriptor)) ::close(descriptor);
}

[[noreturn]] void run_engine(const HeldEngine& engine, int state, bool takes_over, pid_t holder,
                             const std::set<int>& holders, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "farpage-engine");
  ::setpgid(0, 0);  // Ctrl-C is for the holder, which passes it on
  if (::getppid() != holder) ::_exit(1);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  int status = 1;
  if (const auto store = StateStore::take_over(state)) {
    if (takes_over) close_strangers(**store, holders);
    status = engine(**store, takes_over);
  } else {
    log::error("pager: no_state reason=\"{}\"", store.error().message());
  }
  std::exit(status);
}

// Waits for the end of the child; passes signals on meanwhile.
int await_end(pid_t child, const sigset_t& signals) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    siginfo_t info{};
    const int number = ::sigwaitinfo(&signals, &info);
    if (number > 0 && number != SIGCHLD) ::kill(child, number);
  }
}

}  // namespace

std::vector<int> userfaultfds_but(const std::set<int>& known) {
  std::vector<int> found;
  for (const int descriptor : open_descriptors())
    if (!known.contains(descriptor) && is_userfaultfd(descriptor)) found.push_back(descriptor);
  return found;
}

Result<int> hold(const HeldEngine& engine) {
  const sigset_t signals = signals_of_holder();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  FARPAGE_TRY(made, StateStore::create());
  const int state = made->release_log();
  made.reset();
  const std::set<int> holders = open_descriptors();
  const pid_t self = ::getpid();
  bool takes_over = false;
  for (int short_lives = 0; short_lives < kMostShortLives;) {
    const Instant start = SteadyClock::read();
    const pid_t child = clone_with_descriptors();
    if (child < 0) return fail_errno("clone of the engine's process");
    if (child == 0) run_engine(engine, state, takes_over, self, holders, before);
    const int status = await_end(child, signals);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    log::error("pager: engine_killed pid={} signal={}", child, WTERMSIG(status));
    takes_over = true;
    short_lives = SteadyClock::read() - start < kShortLife ? short_lives + 1 : 0;
  }
  log::error("pager: engine_given_up lives={} shorter_than_ms={}", kMostShortLives,
             kShortLife.count());
  return 1;
}

}  // namespace farpage::serve
