#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/cpus.h"
#include "cli/host_checks.h"
#include "uffd/probe.h"

namespace farpage::cli {
namespace {

// A fake /proc and /sys in a directory.
class FakeHost {
 public:
  FakeHost() {
    std::string pattern = testing::TempDir() + "farpage-doctor-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~FakeHost() { std::filesystem::remove_all(root_); }
  FakeHost& with(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    return *this;
  }
  HostFiles files() const { return HostFiles(root_); }

 private:
  std::string root_;
};

TEST(Doctor, KernelMustBeNewEnough) {
  EXPECT_EQ(check_kernel_version("6.1.0-25-amd64").verdict, Verdict::kOk);
  EXPECT_EQ(check_kernel_version("10.0").verdict, Verdict::kOk);
  EXPECT_EQ(check_kernel_version("5.15.0-91-generic").verdict, Verdict::kOptional);
  EXPECT_EQ(check_kernel_version("5.13.0").verdict, Verdict::kMissing);
  EXPECT_EQ(check_kernel_version("4.19.0").verdict, Verdict::kMissing);
  EXPECT_EQ(check_kernel_version("unknown").verdict, Verdict::kMissing);
}

TEST(Doctor, OneWayToAFullUserfaultfdIsEnough) {
  uffd::KernelReport kernel;
  kernel.reason = "Operation not permitted";
  kernel.user_mode_works = true;
  EXPECT_EQ(check_userfaultfd(kernel)[0].verdict, Verdict::kMissing);
  EXPECT_NE(check_userfaultfd(kernel)[0].detail.find("Operation not permitted"), std::string::npos);
  kernel.device_works = true;
  EXPECT_EQ(check_userfaultfd(kernel)[0].verdict, Verdict::kOk);
  kernel.device_works = false;
  kernel.system_call_works = true;
  EXPECT_EQ(check_userfaultfd(kernel)[0].verdict, Verdict::kOk);
}

TEST(Doctor, UserfaultfdFeaturesAreRequiredOrOptional) {
  uffd::KernelReport kernel;
  kernel.system_call_works = true;
  kernel.features = {{"WP", true, true, "dirty pages"},
                     {"POISON", false, false, "lost pages (6.6)"},
                     {"MINOR", false, true, "guests (5.13)"}};
  const std::vector<Check> checks = check_userfaultfd(kernel);
  ASSERT_EQ(checks.size(), 4U);
  EXPECT_EQ(checks[1].verdict, Verdict::kOk);
  EXPECT_EQ(checks[2].verdict, Verdict::kOptional);
  EXPECT_EQ(checks[3].verdict, Verdict::kMissing);
  EXPECT_EQ(checks[3].name, "userfaultfd MINOR");
  EXPECT_FALSE(checks[3].cure.empty());
}

TEST(Doctor, CapabilitiesAreReadFromProc) {
  FakeHost capable;
  capable.with("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  EXPECT_TRUE(has_capability(capable.files(), CAP_IPC_LOCK));
  EXPECT_FALSE(has_capability(capable.files(), CAP_SYS_PTRACE));
  EXPECT_FALSE(has_capability(FakeHost().files(), CAP_IPC_LOCK));
}

TEST(Doctor, MemlockLimitIsNamedWithTheCure) {
  EXPECT_EQ(check_memlock_limit(RLIM_INFINITY, false).verdict, Verdict::kOk);
  EXPECT_EQ(check_memlock_limit(65536, true).verdict, Verdict::kOk);
  const Check low = check_memlock_limit(8 << 20, false);
  EXPECT_EQ(low.verdict, Verdict::kOptional);
  EXPECT_NE(low.detail.find("8M"), std::string::npos);
  EXPECT_NE(low.cure.find("LimitMEMLOCK"), std::string::npos);
}

TEST(Doctor, HugePagesAreCounted) {
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  FakeHost some;
  some.with(pool + "nr_hugepages", "512\n").with(pool + "free_hugepages", "500\n");
  EXPECT_EQ(check_huge_pages(some.files()).detail, "500 of 512 of 2 MiB free");
  EXPECT_EQ(check_huge_pages(FakeHost().files()).verdict, Verdict::kOptional);
}

TEST(Doctor, CgroupLimitIsFoundInBothVersions) {
  FakeHost v2;
  v2.with("/proc/self/cgroup", "0::/user.slice\n")
      .with("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
  EXPECT_NE(check_cgroup_limit(v2.files()).detail.find("limit 1G"), std::string::npos);
  FakeHost v1;
  v1.with("/proc/self/cgroup", "7:cpu:/\n5:memory:/box\n0::/\n")
      .with("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "268435456\n");
  EXPECT_NE(check_cgroup_limit(v1.files()).detail.find("limit 256M"), std::string::npos);
  FakeHost unlimited;
  unlimited.with("/proc/self/cgroup", "5:memory:/\n")
      .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(check_cgroup_limit(unlimited.files()).detail, "no limit");
  EXPECT_EQ(check_cgroup_limit(FakeHost().files()).detail, "no limit");
}

TEST(Doctor, FlushesThatStopOtherCpusAreNamedWithTheCure) {
  using std::chrono::microseconds;
  const auto check = [](int alone, int beside) {
    return check_flush_cost(FlushCost{microseconds(alone), microseconds(beside)});
  };
  EXPECT_EQ(check(2, 2).verdict, Verdict::kOk);
  EXPECT_EQ(check(2, 18).verdict, Verdict::kOk);   // interrupts to the other CPU
  EXPECT_EQ(check(30, 40).verdict, Verdict::kOk);  // all is slow
  EXPECT_EQ(check(7, 44).verdict, Verdict::kOptional);
  EXPECT_EQ(check(7, 44).detail.find("7.0 us, beside a busy CPU 44.0 us"), 0U);
  EXPECT_NE(check(7, 44).cure.find("taskset -c 0"), std::string::npos);
  EXPECT_EQ(check_flush_cost(std::nullopt).verdict, Verdict::kOk);
  const Check failed = check_flush_cost(fail(ErrorCode::kIo, "no CPU"));
  EXPECT_EQ(failed.verdict, Verdict::kOk);
  EXPECT_NE(failed.detail.find("no CPU"), std::string::npos);
}

TEST(Doctor, FlushesAreMeasuredAndTheCallerMayRunWhereItMight) {
  const std::vector<int> before = allowed_cpus();
  const Result<std::optional<FlushCost>> cost = measure_flush_cost();
  ASSERT_TRUE(cost) << cost.error().message();
  ASSERT_EQ(cost->has_value(), before.size() > 1);
  EXPECT_EQ(allowed_cpus(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no process is left
  if (!*cost) return;
  EXPECT_GT((*cost)->alone.count(), 0);
  EXPECT_GT((*cost)->beside_busy_cpu.count(), 0);
}

TEST(Doctor, OnlyWhatIsMissingKeepsTheProgramFromRunning) {
  EXPECT_TRUE(can_run({{"a", Verdict::kOk, "", ""}, {"b", Verdict::kOptional, "", "x"}}));
  EXPECT_FALSE(can_run({{"a", Verdict::kOk, "", ""}, {"b", Verdict::kMissing, "", "x"}}));
}

TEST(Doctor, EveryLineThatIsNotOkSaysHowToFixIt) {
  for (const Check& check : check_host()) {
    EXPECT_FALSE(check.name.empty());
    EXPECT_FALSE(check.detail.empty()) << check.name;
    EXPECT_EQ(check.cure.empty(), check.verdict == Verdict::kOk) << check.name;
  }
}

}  // namespace
}  // namespace farpage::cli
