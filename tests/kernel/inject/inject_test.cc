// A thread of ours comes into a program that runs, and leaves it as it was.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/maps_line.h"
#include "inject/agent_code.h"
#include "inject/injected_agent.h"
#include "inject/pidfd_thread.h"
#include "inject/process_files.h"
#include "inject/target_checks.h"
#include "taken_program.h"

namespace farpage::test {
namespace {

class Injection : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
  }
};

TEST_F(Injection, LeavesTheMappingsByteForByteAHundredTimes) {
  TakenProgram program;
  for (const char* kind : {"compute", "futex", "poll", "nanosleep"})
    ASSERT_EQ(program.ask(std::string("thread ") + kind), "ok");
  program.await_call(SYS_read);
  const std::string maps = program.maps();
  const std::string descriptors = program.descriptors();
  std::vector<double> stood_us;
  for (int i = 0; i < 100; ++i) {
    const inject::InjectedAgent& agent = program.inject();
    stood_us.push_back(static_cast<double>(agent.stood.count()) / 1000);
    ASSERT_NE(program.maps(), maps);
    ASSERT_EQ(program.descriptors(), descriptors);
    program.withdraw();
    ASSERT_EQ(program.maps(), maps) << "round " << i;
  }
  std::sort(stood_us.begin(), stood_us.end());
  std::printf("a thread stood for %.0f us (median), %.0f us (most)\n", stood_us[50],
              stood_us.back());
  const uint64_t rounds = program.ask_number("rounds");
  while (program.ask_number("rounds") == rounds) {
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(Injection, OfAStaticProgramLeavesItAsItWas) {
  TakenProgram program(TakenProgram::Linked::kStatically);
  ASSERT_EQ(program.ask("thread compute"), "ok");
  program.await_call(SYS_read);
  const std::string maps = program.maps();
  for (int i = 0; i < 10; ++i) {
    program.inject();
    program.withdraw();
    ASSERT_EQ(program.maps(), maps) << "round " << i;
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

struct Waiting {
  const char* call;
  long number;
  const char* answer;
  bool ends_by_a_byte = true;
};

void PrintTo(const Waiting& waiting, std::ostream* out) {
  *out << waiting.call;
}

class InjectionDuring : public testing::TestWithParam<Waiting> {
 protected:
  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, InjectionDuring,
                         testing::Values(Waiting{"nanosleep", SYS_clock_nanosleep, "0 0", false},
                                         Waiting{"recv", SYS_recvfrom, "-1 11", false},
                                         Waiting{"read", SYS_read, "1 0"},
                                         Waiting{"poll", SYS_poll, "1 0"},
                                         Waiting{"ppoll", SYS_ppoll, "1 0"},
                                         Waiting{"epoll_wait", SYS_epoll_wait, "1 0"}),
                         [](const auto& parameter) { return std::string(parameter.param.call); });

TEST_P(InjectionDuring, ACallThatWaitsLetsItGoOn) {
  const Waiting& waiting = GetParam();
  TakenProgram program;
  ASSERT_EQ(program.ask(std::string("wait ") + waiting.call), "waiting");
  program.await_call(waiting.number);
  for (int i = 0; i < 5; ++i) {
    program.inject();
    program.withdraw();
  }
  if (waiting.ends_by_a_byte) {
    // It waits still.
    program.await_call(waiting.number);
    program.process().write_line("");
  }
  EXPECT_EQ(program.process().read_line(), waiting.answer);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

// It hurries while it works for us.
TEST_F(Injection, LeavesThePriorityOfTheThread) {
  constexpr int kNiceness = 3;
  TakenProgram program;
  const auto niceness_of = [](pid_t thread) {
    return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
  };
  ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(program.pid()), kNiceness), 0);
  const inject::InjectedAgent& agent = program.inject();
  EXPECT_EQ(niceness_of(program.pid()), kNiceness);
  EXPECT_EQ(niceness_of(agent.thread), kNiceness);
  program.withdraw();
  EXPECT_EQ(niceness_of(program.pid()), kNiceness);
}

TEST_F(Injection, DeliversTheSignalsThatComeMeanwhile) {
  TakenProgram program;
  program.await_call(SYS_read);
  std::atomic<bool> ends{false};
  std::thread sender([&] {
    while (!ends) {
      ::kill(program.pid(), SIGUSR1);
      ::usleep(100);
    }
  });
  for (int i = 0; i < 50; ++i) {
    program.inject();
    program.withdraw();
  }
  ends = true;
  sender.join();
  EXPECT_GT(program.ask_number("handled"), 0U);
  // One that is sent now comes, too: none is left blocked.
  const uint64_t before = program.ask_number("handled");
  ::kill(program.pid(), SIGUSR1);
  while (program.ask_number("handled") == before) std::this_thread::yield();
  EXPECT_EQ(program.text_of("status").find("SigBlk:\t0000000000000000") == std::string::npos,
            false);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

// ----------------------------------------------------------------- lifeline ----

TEST_F(Injection, OfAnInjectorThatDiesIsTheEndOfTheProgram) {
  TakenProgram program;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t injector = ::fork();
  if (injector == 0) {
    const auto agent = inject::inject(program.pid(), {});
    const char done = agent.has_value() ? 'y' : 'n';
    if (::write(ready[1], &done, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char done = 0;
  EXPECT_EQ(::read(ready[0], &done, 1), 1);
  EXPECT_EQ(done, 'y');
  EXPECT_EQ(program.ask("pid"), std::to_string(program.pid()));
  ::kill(injector, SIGKILL);
  ::waitpid(injector, nullptr, 0);
  EXPECT_EQ(program.process().finish().signal, SIGKILL);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Injection, IsOverWhenTheProgramCallsExec) {
  TakenProgram program;
  for (int i = 0; i < 20; ++i) {
    const inject::InjectedAgent& agent = program.inject();
    pollfd end{agent.agent.get(), POLLIN, 0};
    ASSERT_EQ(program.ask("exec"), "ready");  // of the new program, which lives
    ASSERT_EQ(::poll(&end, 1, 10'000), 1);
    const std::string maps = program.maps();
    program.withdraw();
    EXPECT_EQ(program.maps(), maps);
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(Injection, IsOverWhenTheProgramEnds) {
  TakenProgram program;
  program.inject();
  EXPECT_EQ(program.process().finish().exit_status, 7);
  program.withdraw();
}

// What the program maps at an address of its own choice, or moves back to where it was, is not put
// onto the agent.
TEST_F(Injection, IsFarFromAllMappingsOfTheProgram) {
  constexpr uint64_t kFar = uint64_t{1} << 30;
  TakenProgram program;
  const std::string before = program.maps();
  const inject::InjectedAgent& agent = program.inject();
  for (const uint64_t address : {agent.ring_address, agent.code_address, agent.staging_address}) {
    for_each_line(before, [&](std::string_view line) {
      const std::optional<MapsLine> mapping = parse_maps_line(line);
      ASSERT_TRUE(mapping);
      EXPECT_TRUE(address > mapping->end + kFar || address + kFar < mapping->begin) << line;
    });
  }
  program.withdraw();
}

TEST_F(Injection, IsNotInheritedByForkedChildren) {
  TakenProgram program;
  const inject::InjectedAgent& agent = program.inject();
  const std::string child = program.ask("fork");
  std::ifstream file("/proc/" + child + "/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(maps.empty());
  for (const uint64_t address : {agent.ring_address, agent.code_address, agent.staging_address}) {
    char line[32];
    std::snprintf(line, sizeof(line), "%lx-", address);
    EXPECT_NE(program.maps().find(line), std::string::npos);
    EXPECT_EQ(maps.find(line), std::string::npos);
  }
  EXPECT_EQ(program.ask("reap " + child), "0");
  program.withdraw();
}

// The program replaces itself again and again, and ends with its usual status.
TEST_F(Injection, MeetsExecAtAnyMoment) {
  TakenProgram program;
  program.process().write_line("exec_often 300");
  int injected = 0;
  while (program.text_of("cmdline").find("done") == std::string::npos) {
    ASSERT_EQ(program.text_of("stat").find(") Z "), std::string::npos) << "it was killed";
    auto agent = inject::inject(program.pid(), {});
    if (!agent) {
      EXPECT_TRUE(agent.error().code == ErrorCode::kUnavailable ||
                  agent.error().code == ErrorCode::kIo ||
                  agent.error().code == ErrorCode::kNotFound)
          << agent.error().message();
      continue;
    }
    ++injected;
    const Status withdrawn = inject::withdraw(*agent);
    EXPECT_TRUE(withdrawn.has_value()) << withdrawn.error().message();
  }
  std::printf("%d times injected\n", injected);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(Injection, MeetsThreadsThatComeAndGo) {
  TakenProgram program;
  ASSERT_EQ(program.ask("thread short"), "ok");
  for (int i = 0; i < 50; ++i) {
    program.inject();
    program.withdraw();
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

// -------------------------------------------------------------- half-way back ----

class InjectionPutsBack : public Injection {
 protected:
  // With that limit the injection fails, with that text in its message; without it all is as ever.
  void fail_by_limit(__rlimit_resource resource, rlim_t limit, const std::string& text) {
    TakenProgram program;
    ASSERT_EQ(program.ask("drop_privileges"), "0");  // limits do not hold for root
    ASSERT_EQ(program.ask("thread compute"), "ok");
    program.await_call(SYS_read);
    const std::string maps = program.maps();
    const std::string limited = "limit " + std::to_string(resource) + " ";
    const std::string before = program.ask(limited + std::to_string(limit));
    for (int i = 0; i < 3; ++i) {
      const auto agent = inject::inject(program.pid(), {});
      ASSERT_FALSE(agent.has_value());
      EXPECT_NE(agent.error().message().find(text), std::string::npos) << agent.error().message();
      EXPECT_EQ(agent.error().message().find("left in"), std::string::npos);
      EXPECT_EQ(program.maps(), maps);
    }
    ASSERT_EQ(program.ask(limited + before), std::to_string(limit));
    program.inject();
    program.withdraw();
    EXPECT_EQ(program.maps(), maps);
    EXPECT_EQ(program.process().finish().exit_status, 7);
  }
  // Of addresses that the program has.
  static rlim_t mapped_bytes() {
    TakenProgram program;
    program.ask("thread compute");
    const std::string status = program.text_of("status");
    return std::strtoull(status.c_str() + status.find("VmSize:") + 7, nullptr, 10) << 10;
  }
};

TEST_F(InjectionPutsBack, WhatWasPlacedWhenTheRingCannotBeMapped) {
  fail_by_limit(RLIMIT_AS, mapped_bytes() + (16 << 10), "mmap in process");
}

TEST_F(InjectionPutsBack, WhatWasPlacedWhenTheCodeCannotBeMapped) {
  fail_by_limit(RLIMIT_AS, mapped_bytes() + inject::kSharedBytes, "mmap in process");
}

TEST_F(InjectionPutsBack, WhatWasPlacedWhenTheStagingAreaCannotBeMapped) {
  fail_by_limit(RLIMIT_AS, mapped_bytes() + inject::kSharedBytes + (64 << 10),
                "mapping the agent's staging area");
}

TEST_F(InjectionPutsBack, WhatWasPlacedWhenTheAgentHasNoDescriptors) {
  fail_by_limit(RLIMIT_NOFILE, 0, "socketpair by the agent");
}

TEST_F(InjectionPutsBack, WhatWasPlacedWhenTheAgentsThreadCannotStart) {
  fail_by_limit(RLIMIT_NPROC, 1, "clone in process");
}

// ----------------------------------------------------------------- refusals ----

class InjectionRefused : public Injection {
 protected:
  static void expect_refusal(pid_t pid, ErrorCode code, const std::string& text) {
    const auto agent = inject::inject(pid, {});
    ASSERT_FALSE(agent.has_value());
    EXPECT_EQ(agent.error().code, code) << agent.error().message();
    EXPECT_NE(agent.error().message().find(text), std::string::npos) << agent.error().message();
  }
};

TEST_F(InjectionRefused, ForAProcessThatDoesNotExist) {
  TakenProgram program;
  const pid_t pid = program.pid();
  program.process().finish();
  expect_refusal(pid, ErrorCode::kNotFound, "there is no process " + std::to_string(pid));
  expect_refusal(0, ErrorCode::kNotFound, "there is no process 0");
  expect_refusal(-1, ErrorCode::kNotFound, "there is no process -1");
}

TEST_F(InjectionRefused, ForAThreadOfAProcess) {
  std::atomic<bool> ends{false};
  std::atomic<pid_t> id{0};
  std::thread thread([&] {
    id = ::gettid();
    while (!ends) ::usleep(1000);
  });
  while (id == 0) std::this_thread::yield();
  expect_refusal(id, ErrorCode::kInvalid, "is the id of a thread");
  ends = true;
  thread.join();
}

TEST_F(InjectionRefused, ForOurOwnProcessAndTheKernels) {
  expect_refusal(::getpid(), ErrorCode::kInvalid, "the injector itself");
  constexpr pid_t kKthreadd = 2;
  std::ifstream file("/proc/2/comm");
  std::string name;
  if (!std::getline(file, name) || name != "kthreadd") GTEST_SKIP() << "no kernel threads here";
  expect_refusal(kKthreadd, ErrorCode::kInvalid, "is a thread of the kernel");
}

TEST_F(InjectionRefused, ForAZombie) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  expect_refusal(child, ErrorCode::kNotFound, "has ended");
  ::waitpid(child, nullptr, 0);
}

TEST_F(InjectionRefused, ForAStoppedProcess) {
  TakenProgram program;
  ::kill(program.pid(), SIGSTOP);
  while (program.text_of("stat").find(") T ") == std::string::npos) std::this_thread::yield();
  expect_refusal(program.pid(), ErrorCode::kConflict,
                 "kill -CONT " + std::to_string(program.pid()));
  ::kill(program.pid(), SIGCONT);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(InjectionRefused, ForATracedProcessWhichGoesOn) {
  TakenProgram program;
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, program.pid(), 0, 0), 0);
  expect_refusal(program.pid(), ErrorCode::kConflict,
                 "traced by process " + std::to_string(::getpid()));
  EXPECT_EQ(program.ask("pid"), std::to_string(program.pid()));
}

TEST_F(InjectionRefused, ForAProcessThatHasFarMemory) {
  TakenProgram program;
  program.inject();
  expect_refusal(program.pid(), ErrorCode::kConflict, "has far memory already");
  program.withdraw();
  ::setenv("FARPAGE_HANDOVER", "/nowhere", 1);
  TakenProgram started;
  ::unsetenv("FARPAGE_HANDOVER");
  expect_refusal(started.pid(), ErrorCode::kConflict, "started by farpage run");
}

TEST_F(InjectionRefused, ForAnotherUsersProcess) {
  TakenProgram program;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const auto agent = inject::inject(program.pid(), {});
    const bool is_right = !agent.has_value() && agent.error().code == ErrorCode::kDenied &&
                          agent.error().message().find("run as root") != std::string::npos;
    if (!is_right && !agent) ::fprintf(stderr, "%s\n", agent.error().message().c_str());
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(InjectionRefused, ForAProgramWithAThreadUnderSeccomp) {
  TakenProgram program;
  ASSERT_EQ(program.ask("thread seccomp"), "ok");
  while (program.ask_number("rounds") == 0) std::this_thread::yield();
  expect_refusal(program.pid(), ErrorCode::kConflict, "seccomp");
}

TEST_F(InjectionRefused, ForAProgramWithSeccompUnlessThatIsAllowed) {
  TakenProgram program;
  ASSERT_EQ(program.ask("seccomp"), "0");
  const std::string maps = program.maps();
  expect_refusal(program.pid(), ErrorCode::kConflict, "seccomp");
  EXPECT_EQ(program.maps(), maps);
  for (int i = 0; i < 5; ++i) {
    auto agent = inject::inject(program.pid(), {.allow_seccomp = true});
    ASSERT_TRUE(agent.has_value()) << agent.error().message();
    EXPECT_EQ(program.ask("pid"), std::to_string(program.pid()));
    const Status withdrawn = inject::withdraw(*agent);
    ASSERT_TRUE(withdrawn.has_value()) << withdrawn.error().message();
    EXPECT_EQ(program.maps(), maps);
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

TEST_F(InjectionRefused, WhereLockedMemoryExceedsALimit) {
  TakenProgram program;
  const Result<inject::ProcessFiles> process = inject::ProcessFiles::open(program.pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(inject::check_locked_memory(*process, 0).has_value());
  const std::string address = program.ask("map 100");
  ASSERT_EQ(program.ask("lock " + address + " 100"), "0");
  EXPECT_TRUE(inject::check_locked_memory(*process, 100 * kPageBytes).has_value());
  const Status refused = inject::check_locked_memory(*process, 100 * kPageBytes - 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message().find("has locked 400K of its memory (mlock)"),
            std::string::npos)
      << refused.error().message();
}

// As kernels before 6.9 answer, which do not know the flag.
TEST(InjectionRefusedByKernel, ThatCannotHoldAThreadByADescriptor) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::array<sock_filter, 6> code{{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(uint64_t)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, inject::kPidfdThread, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    }};
    const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      ::_exit(2);
    const Status kernel = inject::check_kernel();
    const bool is_right =
        !kernel && kernel.error().code == ErrorCode::kUnsupported &&
        kernel.error().message().find("run Linux 6.9 or newer") != std::string::npos;
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Of a user without the privilege for userfaultfd(2).
TEST_F(Injection, WorksForAProgramWithoutPrivileges) {
  if (::access("/dev/userfaultfd", R_OK) != 0) GTEST_SKIP() << "no /dev/userfaultfd";
  TakenProgram program;
  ASSERT_EQ(program.ask("drop_privileges"), "0");
  const std::string maps = program.maps();
  program.inject();
  program.withdraw();
  EXPECT_EQ(program.maps(), maps);
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

// Where thread ids are others.
TEST_F(Injection, WorksInAPidNamespace) {
  TakenProgram outer;
  const auto pid = static_cast<pid_t>(outer.ask_number("fork_into_namespace"));
  const auto agent = inject::inject(pid, {});
  ASSERT_TRUE(agent.has_value()) << agent.error().message();
  EXPECT_GT(agent->thread, 2);
  outer.ask("reap " + std::to_string(pid));
}

}  // namespace
}  // namespace farpage::test
