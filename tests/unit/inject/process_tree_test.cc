#include "inject/process_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace farpage::inject {
namespace {

// As proc_pid_stat(5) has it, up to field 52.
std::string stat_of(const std::string& name, const std::string& heap = "94000") {
  return "4711 (" + name + ") S 17 4711 4711 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 300 9000000 " +
         "200 18446744073709551615 4096 8192 140736 140000 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 " +
         "5000 6000 " + heap + " 140100 140200 140200 140300 0\n";
}

TEST(ProcessTree, FieldsOfAProcessAreRead) {
  const auto facts = parse_process(stat_of("redis-server"), std::chrono::seconds(10));
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->pid, 4711);
  EXPECT_EQ(facts->parent, 17);
  EXPECT_EQ(facts->age, Nanoseconds(std::chrono::seconds(10)) -
                            Nanoseconds(300 * 1'000'000'000LL / ::sysconf(_SC_CLK_TCK)));
  EXPECT_EQ(facts->layout, (MemoryLayout{.code = 4096, .stack = 140736, .heap = 94000}));
}

TEST(ProcessTree, ANameMayContainAnything) {
  for (const char* name : {"a b", ") S 1 2", "((", "x) R 9 9 9 ("}) {
    const auto facts = parse_process(stat_of(name), {});
    ASSERT_TRUE(facts.has_value()) << name;
    EXPECT_EQ(facts->parent, 17) << name;
  }
}

TEST(ProcessTree, WhatIsNoSuchTextIsNoProcess) {
  for (const std::string& text : {std::string(), std::string("4711"), std::string("4711 (x) S 17"),
                                  stat_of("x", "heap"), std::string(") 1 ("), "x" + stat_of("x")})
    EXPECT_FALSE(parse_process(text, {}).has_value()) << text;
}

ProcessFacts process(pid_t pid, pid_t parent) {
  return {.pid = pid, .parent = parent, .age = {}, .layout = {}};
}

TEST(ProcessTree, DescendantsComeAfterTheirParents) {
  const std::vector<ProcessFacts> processes = {process(5, 4), process(4, 2), process(3, 2),
                                               process(2, 1), process(9, 1)};
  EXPECT_EQ(descendants_of(2, processes, 0), (std::vector<pid_t>{4, 3, 5}));
  EXPECT_EQ(descendants_of(9, processes, 0), std::vector<pid_t>());
}

TEST(ProcessTree, WhatTheExceptionHasStartedIsLeftOut) {
  const std::vector<ProcessFacts> processes = {process(2, 1), process(3, 2), process(4, 3)};
  EXPECT_EQ(descendants_of(1, processes, 3), std::vector<pid_t>{2});
}

// Ids are given again while /proc is read.
TEST(ProcessTree, ACircleEnds) {
  const std::vector<ProcessFacts> processes = {process(2, 3), process(3, 2)};
  EXPECT_EQ(descendants_of(2, processes, 0), std::vector<pid_t>{3});
}

// A child that waits until its end of the pipe is closed.
class WaitingChild {
 public:
  WaitingChild() {
    EXPECT_EQ(::pipe2(pipe_.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(pipe_[1]);
      char nothing = 0;
      (void)!::read(pipe_[0], &nothing, 1);
      ::_exit(0);
    }
    ::close(pipe_[0]);
  }
  ~WaitingChild() {
    ::close(pipe_[1]);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
  }
  pid_t pid() const { return pid_; }

 private:
  std::array<int, 2> pipe_{};
  pid_t pid_ = 0;
};

TEST(ProcessTree, AForkedChildHasTheLayoutOfItsParent) {
  const WaitingChild child;
  const auto own = ProcessFiles::open(::getpid());
  const auto its = ProcessFiles::open(child.pid());
  ASSERT_TRUE(own && its);
  const auto its_facts = facts_of(*its);
  const auto own_facts = facts_of(*own);  // later: its age is not less
  ASSERT_TRUE(own_facts && its_facts);
  EXPECT_NE(own_facts->layout, MemoryLayout());
  EXPECT_EQ(its_facts->layout, own_facts->layout);
  EXPECT_EQ(its_facts->parent, ::getpid());
  EXPECT_LE(its_facts->age, own_facts->age);
  const auto all = all_processes();
  EXPECT_EQ(descendants_of(::getpid(), all, 0), std::vector<pid_t>{child.pid()});
  EXPECT_EQ(descendants_of(::getpid(), all, child.pid()), std::vector<pid_t>());
}

TEST(ProcessTree, AForkedChildSharesNoMemory) {
  const WaitingChild child;
  EXPECT_FALSE(share_memory(::getpid(), child.pid()));
  EXPECT_TRUE(share_memory(::getpid(), ::getpid()));
}

}  // namespace
}  // namespace farpage::inject
