#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "scenario.h"

namespace farpage::test {
namespace {

int status_of(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

bool ended_well(pid_t child) {
  const int status = status_of(child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int run_exit_status(const char* status) {
  fill(map_memory(kMiB), kMiB, 1);
  return atoi(status);
}

int run_fork(const char*) {
  unsigned char* memory = map_memory(kMiB);
  unsigned char* untouched = map_memory(kMiB);
  fill(memory, kMiB, 1);
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      REQUIRE(is_filled(memory, kMiB, 1) && is_zero(untouched, kMiB));
      fill(memory, kMiB, 1000);
      unsigned char* own = map_memory(4 * kMiB);
      fill(own, 4 * kMiB, 2);
      REQUIRE(is_filled(own, 4 * kMiB, 2) && is_filled(memory, kMiB, 1000));
      REQUIRE(munmap(memory, kMiB) == 0 && !is_readable(memory));
      const pid_t grandchild = fork();
      if (grandchild == 0) {
        _exit(is_filled(own, 4 * kMiB, 2) ? 0 : 1);
      }
      _exit(ended_well(grandchild) ? 0 : 1);
    }
    REQUIRE(ended_well(child));
    REQUIRE(is_filled(memory, kMiB, 1));
  }
  fill(memory, kMiB, 3);
  tell_and_wait("ready", memory, kMiB);  // the test evicts: the parent is paged as before
  REQUIRE(is_filled(memory, kMiB, 3) && is_zero(untouched, kMiB));
  return 0;
}

int run_fork_refused(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  tell_and_wait("ready", memory, kMiB);  // the test evicts
  errno = 0;
  REQUIRE(fork() == -1 && errno == ENOMEM);
  REQUIRE(is_filled(memory, kMiB, 1));  // brings all of it back
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    _exit(is_filled(memory, kMiB, 1) ? 0 : 1);
  }
  REQUIRE(ended_well(child));
  return 0;
}

// A fork that the shim does not see: a signal, never zeros.
int run_bare_fork(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  const pid_t child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    _exit(*const_cast<volatile unsigned char*>(memory) == 1 ? 0 : 1);
  }
  const int status = status_of(child);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  return 0;
}

int run_exec(const char*) {
  fill(map_memory(kMiB), kMiB, 1);
  execl("/proc/self/exe", "target", "exit-status", "5", nullptr);
  return 1;
}

int run_spawn(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  tell_and_wait("ready", memory, kMiB);  // the test evicts: fork would be refused now
  pid_t child = -1;
  char program[] = "/bin/true";
  char* const arguments[] = {program, nullptr};
  REQUIRE(posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0);
  REQUIRE(ended_well(child));
  REQUIRE(system("exit 3") == 3 << 8);
  REQUIRE(is_filled(memory, kMiB, 1));
  return 0;
}

int run_close_all(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  closefrom(3);
  for (int fd = 3; fd < 1100; ++fd) {
    close(fd);
  }
  close_range(3, ~0U, 0);
  REQUIRE(is_filled(memory, kMiB, 1));
  REQUIRE(madvise(memory, kMiB, MADV_DONTNEED) == 0);
  REQUIRE(is_zero(memory, kMiB));
  return 0;
}

// Whoever reads the output sees its end now, not when the program ends.
int run_close_output(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  fclose(stdout);
  char line[8];
  REQUIRE(fgets(line, sizeof(line), stdin) != nullptr);
  return 0;
}

namespace {
void* work_on(void* memory) {
  fill(static_cast<unsigned char*>(memory), kMiB, 1);
  return nullptr;
}
}  // namespace

// The program ends with its last thread: the agent is none of them.
int run_main_thread_exit(const char*) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, work_on, map_memory(kMiB)) == 0);
  pthread_exit(nullptr);
}

// Threads map and unmap while another forks: the children find the locks free.
int run_threads_fork(const char*) {
  std::atomic<bool> stop{false};
  std::thread threads[3];
  for (std::thread& thread : threads) {
    thread = std::thread([&stop] {
      while (!stop.load()) {
        unsigned char* memory = map_memory(64 * kPageSize);
        fill(memory, 64 * kPageSize, 9);
        REQUIRE(is_filled(memory, 64 * kPageSize, 9));
        REQUIRE(munmap(memory, 64 * kPageSize) == 0);
      }
    });
  }
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      unsigned char* own = map_memory(kMiB);
      fill(own, kMiB, 2);
      _exit(is_filled(memory, kMiB, 1) && munmap(own, kMiB) == 0 ? 0 : 1);
    }
    REQUIRE(ended_well(child));
  }
  stop.store(true);
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}

int run_terminal(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    printf("%s\n", isatty(1) == 1 && is_filled(memory, kMiB, 1) ? "all here" : "no");
    fflush(stdout);
    _exit(0);
  }
  char text[64] = {};
  REQUIRE(read(terminal, text, sizeof(text) - 1) > 0);
  REQUIRE(std::string(text) == "all here\r\n");
  REQUIRE(ended_well(child));
  return 0;
}

int run_daemon(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 1);
  REQUIRE(daemon(0, 1) == 0);
  char folder[8] = {};
  REQUIRE(getcwd(folder, sizeof(folder)) != nullptr);
  printf("%s %s\n", folder, is_filled(memory, kMiB, 1) && getsid(0) == getpid() ? "well" : "no");
  return 0;
}

// Goes on as another scenario, on a kernel whose process_madvise cannot drop pages (before 6.13).
int run_old_kernel(const char* scenario) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof(code) / sizeof(code[0]), .filter = code};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
  execl("/proc/self/exe", "target", scenario, nullptr);
  return 1;
}

}  // namespace farpage::test
