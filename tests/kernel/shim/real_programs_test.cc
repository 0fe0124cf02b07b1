// Programs of the distribution, with their malloc served by mimalloc behind the shim, and a budget
// far below what they use.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/check.h"
#include "small_pager.h"
#include "target_process.h"

namespace farpage::test {
namespace {

constexpr size_t kBudgetPages = 1024;  // 4 MiB

std::string find_allocator() {
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"}) {
    std::string path = std::string(folder) + "/libmimalloc.so.2";
    if (access(path.c_str(), R_OK) == 0) {
      return path;
    }
  }
  return "";
}

class RealPrograms : public testing::Test {
 protected:
  void SetUp() override {
    allocator_ = find_allocator();
    if (allocator_.empty()) {
      GTEST_SKIP() << "no libmimalloc.so.2: install libmimalloc2.0";
    }
  }

  // Runs the command plainly and under the shim: same output, and at least `least_pages` pages were
  // far memory, most of them evicted at some time.
  void expect_same(const std::vector<std::string>& command, size_t least_pages) {
    if (access(command[0].c_str(), X_OK) != 0) {
      GTEST_SKIP() << "no " << command[0];
    }
    const TargetProcess::Outcome plain = TargetProcess(command, {}).finish();
    ASSERT_EQ(plain.exit_status, 0) << plain.errors;

    SmallPager pager({.budget_pages = kBudgetPages});
    TargetProcess target(command, {{"FARPAGE_HANDOVER", pager.socket_path()},
                                   {"LD_PRELOAD", std::string(FARPAGE_SHIM) + ":" + allocator_}});
    const TargetProcess::Outcome far = target.finish();
    EXPECT_EQ(far.exit_status, 0) << "signal " << far.signal << "\n" << far.errors;
    EXPECT_EQ(far.errors, "");
    EXPECT_TRUE(far.output == plain.output) << far.output.substr(0, 200);
    pager.with_target(0, [&](ServedTarget& served) {
      EXPECT_GE(served.zero_fills(), least_pages);
      EXPECT_GE(served.evictions(), least_pages / 2);
      EXPECT_GT(served.refetches(), 0U);
      EXPECT_LE(served.most_resident_pages(), kBudgetPages + 64);
      return 0;
    });
  }

  std::string allocator_;
};

TEST_F(RealPrograms, SortKeepsItsBufferInTheWindow) {
  char path[] = "/tmp/farpage-sort-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  close(file);
  {
    std::ofstream lines(path);
    std::mt19937 random(20240607);
    for (int i = 0; i < 100'000; ++i) {
      lines << random() << " " << i << " a line of some length for the buffer\n";
    }
  }
  expect_same({"/usr/bin/sort", "-S", "64M", path}, 2500);
  unlink(path);
}

TEST_F(RealPrograms, SqliteKeepsItsDatabaseInTheWindow) {
  expect_same({"/usr/bin/sqlite3", ":memory:",
               "CREATE TABLE t(id INTEGER PRIMARY KEY, word TEXT);"
               "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 80000)"
               " INSERT INTO t SELECT i, 'some text of row ' || (i * 7919 % 1000003) FROM n;"
               "CREATE INDEX w ON t(word);"
               "SELECT count(*), sum(length(word)), min(word), max(word) FROM t;"
               "SELECT id FROM t WHERE word > 'some text of row 5' LIMIT 3;"
               "PRAGMA integrity_check;"},
              1500);
}

TEST_F(RealPrograms, PythonKeepsItsObjectsInTheWindow) {
  expect_same({"/usr/bin/python3", "-c",
               "import hashlib\n"
               "items = [str(i) * 3 for i in range(150000)]\n"
               "numbers = [i * i for i in range(150000)]\n"
               "print(sum(map(len, items)), sum(numbers))\n"
               "print(hashlib.sha256(''.join(items).encode()).hexdigest())\n"
               "items.reverse()\n"
               "print(items[:3], sum(numbers[::7]))\n"},
              3000);
}

}  // namespace
}  // namespace farpage::test
