// A program that is taken over while it runs. It reads commands from its standard input, and
// answers each with one line.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "require.h"

namespace {

constexpr uint64_t kPageBytes = 4096;
std::atomic<bool> ends{false};
std::atomic<uint64_t> rounds{0};
std::atomic<int> handled{0};
std::atomic<uint32_t> futex_word{0};
int pipe_ends[2];

void answer(const std::string& line) {
  const std::string text = line + "\n";
  REQUIRE(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

uint64_t word_of(uint64_t address) {
  return address * 0x9e3779b97f4a7c15 + 1;
}

volatile uint64_t* words_at(uint64_t address) {
  return reinterpret_cast<volatile uint64_t*>(address);
}

void fill(uint64_t address, uint64_t pages) {
  for (uint64_t at = address; at < address + pages * kPageBytes; at += sizeof(uint64_t))
    *words_at(at) = word_of(at);
}

uint64_t bad_words(uint64_t address, uint64_t pages) {
  uint64_t bad = 0;
  for (uint64_t at = address; at < address + pages * kPageBytes; at += sizeof(uint64_t))
    bad += *words_at(at) != word_of(at) ? 1 : 0;
  return bad;
}

// Its registers must be its own, the floating-point ones too.
void compute() {
  while (!ends) {
    double sum = 0;
    uint64_t hash = 1;
    for (uint64_t i = 1; i <= 20'000; ++i) {
      sum += 1.0 / static_cast<double>(i);
      hash = hash * 6364136223846793005U + i;
    }
    static const double right_sum = sum;
    static const uint64_t right_hash = hash;
    REQUIRE(sum == right_sum && hash == right_hash);
    ++rounds;
  }
}

void sleep_in_futex() {
  while (!ends) {
    const timespec second{.tv_sec = 100, .tv_nsec = 0};
    const long result = syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, &second, nullptr, 0);
    REQUIRE(result == 0 || errno == EAGAIN);  // and never EINTR
  }
}

void sleep_in_poll() {
  pollfd end{pipe_ends[0], POLLIN, 0};
  REQUIRE(poll(&end, 1, 100'000) == 1);
}

void sleep_in_nanosleep() {
  while (!ends) {
    const timespec some{.tv_sec = 0, .tv_nsec = 50'000'000};
    REQUIRE(nanosleep(&some, nullptr) == 0);
  }
}

void start_short_threads() {
  while (!ends) {
    std::thread first([] {});
    std::thread second([] {});
    first.join();
    second.join();
    ++rounds;
  }
}

// A filter that kills the process for any call that it does not need, as those of services do.
int allow_few_calls() {
  constexpr unsigned kAllowed[] = {SYS_read,         SYS_write, SYS_getpid, SYS_exit_group,
                                   SYS_rt_sigreturn, SYS_mmap,  SYS_munmap, SYS_restart_syscall};
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : kAllowed) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program{.len = static_cast<unsigned short>(filter.size()),
                           .filter = filter.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

void read_under_filter() {
  REQUIRE(allow_few_calls() == 0);
  ++rounds;
  char byte = 0;
  REQUIRE(read(pipe_ends[0], &byte, 1) == 1);
}

void start_thread(const std::string& kind) {
  std::thread thread(kind == "compute"   ? compute
                     : kind == "futex"   ? sleep_in_futex
                     : kind == "short"   ? start_short_threads
                     : kind == "seccomp" ? read_under_filter
                     : kind == "poll"    ? sleep_in_poll
                                         : sleep_in_nanosleep);
  thread.detach();
}

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// One call that waits; a line with its result and errno. The test ends the waiting with a byte into
// the standard input.
void wait_in(const std::string& call) {
  answer("waiting");
  char byte = 0;
  long result = -1;
  errno = 0;
  const int64_t begin_ms = now_ms();
  if (call == "nanosleep") {
    const timespec time{.tv_sec = 0, .tv_nsec = 800'000'000};
    timespec rest{};
    result = nanosleep(&time, &rest);
    REQUIRE(now_ms() - begin_ms >= 800);
  } else if (call == "read") {
    result = read(STDIN_FILENO, &byte, 1);
  } else if (call == "poll") {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    result = poll(&input, 1, 100'000);
  } else if (call == "ppoll") {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    sigset_t none;
    sigemptyset(&none);
    const timespec time{.tv_sec = 100, .tv_nsec = 0};
    result = ppoll(&input, 1, &time, &none);
  } else if (call == "recv") {  // with a timeout of the socket
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    const timeval timeout{.tv_sec = 0, .tv_usec = 700'000};
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
    result = recv(pair[0], &byte, 1, 0);
  } else if (call == "epoll_wait") {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {}};
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0);
    result = epoll_wait(epoll, &event, 1, 100'000);
    const int saved = errno;
    close(epoll);
    errno = saved;
  }
  const int error = result < 0 ? errno : 0;
  if ((call == "poll" || call == "ppoll" || call == "epoll_wait") && result == 1)
    REQUIRE(read(STDIN_FILENO, &byte, 1) == 1);
  answer(std::to_string(result) + " " + std::to_string(error));
}

void on_signal(int) {
  ++handled;
}

std::string run(const std::string& command, std::istringstream& words, const char* program) {
  if (command == "thread") {
    std::string kind;
    words >> kind;
    start_thread(kind);
    return "ok";
  }
  if (command.starts_with("map") && command != "map_often") {
    uint64_t pages = 0;
    words >> pages;
    const bool of_file = command == "map_file";
    const int file = of_file ? memfd_create("file", MFD_CLOEXEC) : -1;
    if (of_file) REQUIRE(ftruncate(file, static_cast<off_t>(pages * kPageBytes)) == 0);
    const int protection = PROT_READ | PROT_WRITE | (command == "map_executable" ? PROT_EXEC : 0);
    const int flags =
        (command == "map_shared" ? MAP_SHARED : MAP_PRIVATE) | (of_file ? 0 : MAP_ANONYMOUS);
    void* memory = mmap(nullptr, pages * kPageBytes, protection, flags, file, 0);
    REQUIRE(memory != MAP_FAILED);
    if (of_file) close(file);
    if (command == "map_wiped") REQUIRE(madvise(memory, pages * kPageBytes, MADV_WIPEONFORK) == 0);
    madvise(memory, pages * kPageBytes, MADV_NOHUGEPAGE);
    fill(reinterpret_cast<uint64_t>(memory), pages);
    return std::to_string(reinterpret_cast<uint64_t>(memory));
  }
  if (command == "check") {
    uint64_t address = 0;
    uint64_t pages = 0;
    words >> address >> pages;
    return std::to_string(bad_words(address, pages));
  }
  if (command == "map_often") {
    int times = 0;
    words >> times;
    for (int i = 0; i < times; ++i) {
      void* memory =
          mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      REQUIRE(munmap(memory, kPageBytes) == 0);
    }
    return "0";
  }
  if (command == "heap") {
    static const std::vector<char> block(100);
    return std::to_string(reinterpret_cast<uint64_t>(block.data()));
  }
  if (command == "grow_heap") {
    void* more = sbrk(1 << 20);
    return more == reinterpret_cast<void*>(-1) ? "failed" : "0";
  }
  if (command == "grow") {
    uint64_t address = 0;
    uint64_t pages = 0;
    words >> address >> pages;
    void* grown = mremap(reinterpret_cast<void*>(address), pages * kPageBytes,
                         2 * pages * kPageBytes, MREMAP_MAYMOVE);
    return grown == MAP_FAILED ? "failed" : "0";
  }
  if (command == "watch") {  // by a userfaultfd of its own
    uffdio_register wanted{};
    words >> wanted.range.start >> wanted.range.len;
    wanted.range.len *= kPageBytes;
    wanted.mode = UFFDIO_REGISTER_MODE_MISSING;
    const auto own =
        static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    REQUIRE(own >= 0 && ioctl(own, UFFDIO_API, &api) == 0);
    REQUIRE(ioctl(own, UFFDIO_REGISTER, &wanted) == 0);
    return "0";
  }
  if (command == "move_often") {  // to another place, and back
    uint64_t address = 0;
    uint64_t pages = 0;
    int times = 0;
    words >> address >> pages >> times;
    void* here = reinterpret_cast<void*>(address);
    const uint64_t bytes = pages * kPageBytes;
    void* there = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(there != MAP_FAILED);
    for (int i = 0; i < times; ++i) {
      REQUIRE(mremap(here, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
      REQUIRE(mremap(there, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, here) == here);
    }
    return "0";
  }
  if (command == "stack") return std::to_string(reinterpret_cast<uint64_t>(&words));
  if (command == "stack_of_thread") {
    static std::atomic<uint64_t> address{0};
    std::thread([] {
      const int variable = 0;
      address = reinterpret_cast<uint64_t>(&variable);
      while (true) pause();
    }).detach();
    while (address == 0) sched_yield();
    return std::to_string(address);
  }
  if (command == "lock" || command == "unlock" || command == "unmap" || command == "protect") {
    uint64_t address = 0;
    uint64_t pages = 0;
    words >> address >> pages;
    void* memory = reinterpret_cast<void*>(address);
    const uint64_t bytes = pages * kPageBytes;
    const int result = command == "lock"     ? mlock(memory, bytes)
                       : command == "unlock" ? munlock(memory, bytes)
                       : command == "unmap"  ? munmap(memory, bytes)
                                             : mprotect(memory, bytes, PROT_READ);
    return std::to_string(result);
  }
  if (command == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    return std::to_string(child);
  }
  if (command == "fork_into_namespace") {
    REQUIRE(unshare(CLONE_NEWPID) == 0);
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    return std::to_string(child);
  }
  if (command == "seccomp") return std::to_string(allow_few_calls());
  if (command == "limit") {  // and returns the one before
    int resource = 0;
    rlim_t wanted = 0;
    words >> resource >> wanted;
    rlimit limit{};
    REQUIRE(getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0);
    const rlim_t before = std::exchange(limit.rlim_cur, wanted);
    REQUIRE(setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0);
    return std::to_string(before);
  }
  if (command == "drop_privileges") {
    REQUIRE(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    return "0";
  }
  if (command == "reap") {
    pid_t child = 0;
    words >> child;
    kill(child, SIGKILL);
    return std::to_string(waitpid(child, nullptr, 0) == child ? 0 : 1);
  }
  if (command == "rounds") return std::to_string(rounds);
  if (command == "handled") return std::to_string(handled);
  if (command == "pid") return std::to_string(getpid());
  if (command == "exec_often") {
    std::string times;
    words >> times;
    execl(program, program, "exec_often", times.c_str(), nullptr);
    return "exec failed";
  }
  if (command == "exec") {
    execl(program, program, nullptr);
    return "exec failed";
  }
  return "what?";
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "exec_often") {
    const int left = std::atoi(arguments[2]);
    execl(arguments[0], arguments[0], left > 0 ? "exec_often" : "done",
          std::to_string(left - 1).c_str(), nullptr);
    return 1;
  }
  REQUIRE(pipe2(pipe_ends, O_CLOEXEC) == 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  answer("ready");
  std::string line;
  while (true) {
    char byte = 0;
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1) break;
    if (byte != '\n') {
      line.push_back(byte);
      continue;
    }
    std::istringstream words(line);
    line.clear();
    std::string command;
    words >> command;
    if (command == "wait") {
      std::string call;
      words >> call;
      wait_in(call);
    } else if (command == "quit") {
      break;
    } else {
      answer(run(command, words, arguments[0]));
    }
  }
  return 7;
}
