#include "serve/holder.h"

#include <fcntl.h>
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
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "serve/served_state.h"
#include "uffd/userfaultfd.h"

namespace farpage::serve {
namespace {

constexpr std::array kPassedOn{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};
constexpr int kUpgradeSignal = SIGUSR2;  // from the engine
constexpr int kEndedBySignal = 128;      // the exit status, plus the signal's number
constexpr char kStateVariable[] = "FARPAGE_PAGER_STATE";
// After so many engines that were killed before they had lived so long there is no further one.
constexpr int kMostShortLives = 8;
constexpr Milliseconds kShortLife{200};

sigset_t signals_of_holder(EndSignals end_signals) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  ::sigaddset(&set, kUpgradeSignal);
  if (end_signals == EndSignals::kPassedOn)
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

bool may_be_irreplaceable(int descriptor) {
  return uffd::Userfaultfd::is_one(descriptor) || is_nameless_unix_socket(descriptor);
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
void close_strangers(StateStore& store, const KeptDescriptors& kept, const std::set<int>& holders) {
  auto noted = kept.noted(store);
  if (!noted) {  // nothing will be served
    log::error("pager: no_state reason=\"{}\"", noted.error().message());
    return;
  }
  noted->insert(holders.begin(), holders.end());
  for (const int descriptor : open_descriptors())
    if (!noted->contains(descriptor) && !(kept.and_unnoted && may_be_irreplaceable(descriptor)))
      ::close(descriptor);
}

[[noreturn]] void run_engine(EndSignals end_signals, const HeldEngine& engine,
                             const KeptDescriptors& kept, int state, bool takes_over, pid_t holder,
                             const std::set<int>& holders, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "farpage-engine");
  if (end_signals == EndSignals::kPassedOn) ::setpgid(0, 0);  // Ctrl-C is for the holder
  if (::getppid() != holder) ::_exit(1);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  const auto store = StateStore::take_over(state);
  if (!store) {
    log::error("pager: no_state reason=\"{}\"", store.error().message());
    std::exit(1);
  }
  if (takes_over) close_strangers(**store, kept, holders);
  // The store is not ended: that would close its descriptors in the holder, too, and this process
  // may be killed before it has exited.
  std::exit(engine(**store, takes_over));
}

struct End {
  int status = 0;  // of wait(2)
  int passed = 0;  // the last signal that was passed on
};

// Waits for the end of the child; passes signals on meanwhile.
End await_end(pid_t child, const sigset_t& signals) {
  End end;
  while (::waitpid(child, &end.status, WNOHANG) != child) {
    siginfo_t info{};
    const int number = ::sigwaitinfo(&signals, &info);
    if (number == kUpgradeSignal && info.si_pid == child) {
      ::kill(child, SIGKILL);
    } else if (number > 0 && number != SIGCHLD) {
      end.passed = number;
      ::kill(child, number);
    }
  }
  return end;
}

Result<int> new_state() {
  FARPAGE_TRY(made, StateStore::create());
  return made->release_log();
}

// Reads what a dead engine has left; nobody writes meanwhile.
template <typename Read>
auto with_state(int state, Read read) -> decltype(read(std::declval<StateStore&>())) {
  FARPAGE_TRY(store, StateStore::take_over(::fcntl(state, F_DUPFD_CLOEXEC, 0)));
  auto result = read(*store);
  store->release_ranges();
  return result;
}

// Those that no engine has made. After an upgrade there are no others: what else survived it,
// because it has no close-on-exec flag, is a dead engine's.
std::set<int> own_descriptors(int state, bool takes_over) {
  std::set<int> own{STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, state};
  if (!takes_over) own.merge(open_descriptors());
  return own;
}

void survive_exec(int descriptor) {
  ::fcntl(descriptor, F_SETFD, ::fcntl(descriptor, F_GETFD) & ~FD_CLOEXEC);
}

// Returns if there is nothing to execute, or it failed.
void upgrade(int state, const KeptDescriptors& kept, const sigset_t& mask) {
  const auto asked = with_state(state, [&](StateStore& store) -> Result<std::string> {
    std::string binary = upgrade_in(store);
    if (binary.empty()) return binary;
    FARPAGE_TRY_VOID(put_upgrade(store, ""));
    FARPAGE_TRY(noted, kept.noted(store));
    for (const int descriptor : noted) survive_exec(descriptor);
    return binary;
  });
  if (!asked || asked->empty()) return;
  for (const int descriptor : open_descriptors())
    if (kept.and_unnoted && may_be_irreplaceable(descriptor)) survive_exec(descriptor);
  survive_exec(state);
  pass_on(kStateVariable, std::to_string(state));
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  words.at(0) = *asked;
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  log::info("pager: upgrade binary={}", *asked);
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, &mask, &blocked);
  ::execv(asked->c_str(), arguments.data());
  const int problem = errno;
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  ::unsetenv(kStateVariable);
  log::error("pager: upgrade_failed binary={} reason=\"{}\"", *asked, std::strerror(problem));
}

}  // namespace

void ask_for_upgrade() {
  ::kill(::getppid(), kUpgradeSignal);
}

std::string own_binary() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::optional<std::string> inherited(const char* name) {
  const char* const word = std::getenv(name);
  if (word == nullptr) return std::nullopt;
  std::string copied(word);
  ::unsetenv(name);
  return copied;
}

void pass_on(const char* name, const std::string& word) {
  ::setenv(name, word.c_str(), 1);
}

std::vector<int> userfaultfds_but(const std::set<int>& known) {
  std::vector<int> found;
  for (const int descriptor : open_descriptors())
    if (!known.contains(descriptor) && uffd::Userfaultfd::is_one(descriptor))
      found.push_back(descriptor);
  return found;
}

KeptDescriptors descriptors_of_programs() {
  return {[](StateStore& store) -> Result<std::set<int>> {
            FARPAGE_TRY(state, ServedState::create(&store));
            return state.descriptors();
          },
          true};
}

Result<int> hold(EndSignals end_signals, const HeldEngine& engine, const KeptDescriptors& kept) {
  ::signal(SIGCHLD, SIG_DFL);  // it may have been inherited as ignored, and would not come then
  const sigset_t signals = signals_of_holder(end_signals);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  const std::optional<std::string> state_of_former = inherited(kStateVariable);
  bool takes_over = state_of_former.has_value();
  FARPAGE_TRY(state, takes_over ? Result<int>(std::stoi(*state_of_former)) : new_state());
  const std::set<int> holders = own_descriptors(state, takes_over);
  const pid_t self = ::getpid();
  for (int short_lives = 0; short_lives < kMostShortLives;) {
    const Instant start = SteadyClock::read();
    const pid_t child = clone_with_descriptors();
    if (child < 0) return fail_errno("clone of the engine's process");
    if (child == 0) run_engine(end_signals, engine, kept, state, takes_over, self, holders, before);
    const auto [status, passed] = await_end(child, signals);
    const bool failed = WIFEXITED(status) && WEXITSTATUS(status) == kCannotTakeOver;
    if (WIFEXITED(status) && !failed) return WEXITSTATUS(status);
    if (WIFSIGNALED(status) && WTERMSIG(status) == passed)
      return kEndedBySignal + passed;  // it was meant to end
    takes_over = true;
    if (failed) {
      std::this_thread::sleep_for(kShortLife);
    } else {
      upgrade(state, kept, before);
      log::error("pager: engine_killed pid={} signal={}", child, WTERMSIG(status));
    }
    const bool short_life = failed || SteadyClock::read() - start < kShortLife;
    short_lives = short_life ? short_lives + 1 : 0;
  }
  log::error("pager: engine_given_up lives={} shorter_than_ms={}", kMostShortLives,
             kShortLife.count());
  return 1;
}

}  // namespace farpage::serve
