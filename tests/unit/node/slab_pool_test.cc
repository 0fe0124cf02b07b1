#include "node/slab_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fakes.h"
#include "node/memory_limits.h"

namespace farpage::node {
namespace {

constexpr Nanoseconds kLong = Seconds(30);

SlabPoolOptions options_of(uint64_t slabs) {
  SlabPoolOptions options;
  options.lend_bytes = slabs * kSlab;
  options.slab_bytes = kSlab;
  options.generation_base = 100;
  return options;
}

std::unique_ptr<SlabPool> make_pool(uint64_t slabs) {
  Result<std::unique_ptr<SlabPool>> pool = SlabPool::create(options_of(slabs));
  EXPECT_TRUE(pool.has_value()) << (pool ? "" : pool.error().message());
  return std::move(*pool);
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

uint64_t meminfo_bytes(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  return *meminfo_field(std::string{std::istreambuf_iterator<char>(file), {}}, field);
}

TEST(SlabPool, LendsEachSlabOnceAndCounts) {
  const auto pool = make_pool(3);
  ASSERT_EQ(pool->slab_count(), 3U);
  EXPECT_EQ(pool->capacity_bytes(), 3 * kSlab);
  ASSERT_TRUE(pool->lend(1, kLong).has_value());
  const auto again = pool->lend(1, kLong);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
  EXPECT_EQ(pool->counts().free, 2U);
  EXPECT_EQ(pool->counts().leased, 1U);
}

TEST(SlabPool, RefusesASlabPastTheEnd) {
  const auto pool = make_pool(2);
  ASSERT_TRUE(pool->lend(1, kLong).has_value());
  for (const uint32_t slab : {2U, 3U, ~0U}) {
    EXPECT_EQ(pool->lend(slab, kLong).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(pool->take_back(slab, Generation{101}).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(pool->status(slab).error().code, ErrorCode::kNotFound);
  }
}

TEST(SlabPool, WithdrawnSlabIsNotLentUntilItHasMemoryAgain) {
  const auto pool = make_pool(3);
  const std::vector<uint32_t> gone{0, 2};
  ASSERT_TRUE(pool->withdraw(gone, kLong).has_value());
  ASSERT_TRUE(pool->withdraw(gone, kLong).has_value()) << "twice is once";
  EXPECT_EQ(pool->capacity_bytes(), kSlab);
  EXPECT_EQ(pool->extent().numbers, 3U);
  EXPECT_EQ(pool->extent().withdrawn, gone);
  EXPECT_EQ(pool->lend(2, kLong).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(pool->counts().free, 1U);
  const std::vector<uint32_t> more{2, 4};
  ASSERT_TRUE(pool->add(more, 0).has_value());
  const auto lent = pool->lend(4, kLong);
  ASSERT_TRUE(lent.has_value()) << lent.error().message();
  std::memset(lent->memory.bytes.data(), 0xAB, kSlab);
  ASSERT_TRUE(pool->add(more, 0).has_value());
  EXPECT_EQ(lent->memory.bytes[0], std::byte{0xAB}) << "what has memory keeps it";
  EXPECT_EQ(pool->extent().withdrawn, (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(pool->slab_count(), 3U);
}

TEST(SlabPool, LeasedSlabIsNotWithdrawnAndNoOtherWithIt) {
  const auto pool = make_pool(3);
  const auto lent = pool->lend(1, kLong);
  ASSERT_TRUE(lent.has_value());
  const std::vector<uint32_t> some{0, 1};
  EXPECT_EQ(pool->withdraw(some, kLong).error().code, ErrorCode::kConflict);
  EXPECT_EQ(pool->slab_count(), 3U);
  ASSERT_TRUE(pool->take_back(1, lent->generation).has_value());
  ASSERT_TRUE(pool->withdraw(some, kLong).has_value()) << "it waits for the scrubber";
  EXPECT_EQ(pool->slab_count(), 1U);
  EXPECT_TRUE(pool->withdraw(std::vector<uint32_t>{3}, kLong).has_value()) << "it never came";
  EXPECT_EQ(pool->withdraw(std::vector<uint32_t>{kMaxSlabs}, kLong).error().code,
            ErrorCode::kInvalid);
}

TEST(SlabPool, MoreThanTheHostHasIsNotAdded) {
  SlabPoolOptions options = options_of(1);
  options.lazy = true;  // else a mistake would take all memory
  const auto pool = std::move(*SlabPool::create(options));
  const std::vector<uint32_t> next{1};
  EXPECT_EQ(pool->add(next, kMaxSlabs).error().code, ErrorCode::kExhausted) << "one too many";
  const uint64_t more = meminfo_bytes("MemAvailable") / kSlab + 1000;
  if (more >= kMaxSlabs) GTEST_SKIP() << "this host has memory for all slabs of a node";
  const Status refused = pool->add(next, more);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().context.find("available"), std::string::npos);
  EXPECT_EQ(pool->slab_count(), 1U);
  EXPECT_EQ(pool->add(std::vector<uint32_t>{kMaxSlabs}, 1).error().code, ErrorCode::kInvalid);
}

TEST(SlabPool, GenerationRisesWithEachLease) {
  const auto pool = make_pool(1);
  for (uint32_t generation = 101; generation < 105; ++generation) {
    const auto lent = pool->lend(0, kLong);
    ASSERT_TRUE(lent.has_value()) << lent.error().message();
    EXPECT_EQ(lent->generation, Generation{generation});
    ASSERT_TRUE(pool->take_back(0, lent->generation).has_value());
  }
}

TEST(SlabPool, NoTwoLeasesHaveTheSameGeneration) {
  const auto pool = make_pool(3);
  for (uint32_t slab = 0; slab < 3; ++slab)
    EXPECT_EQ(pool->lend(slab, kLong)->generation, Generation{101 + slab});
}

TEST(SlabPool, StaleGenerationTakesNothingBack) {
  const auto pool = make_pool(1);
  const auto first = pool->lend(0, kLong);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(pool->take_back(0, first->generation).has_value());
  EXPECT_TRUE(pool->take_back(0, first->generation).has_value()) << "twice is once";
  const auto second = pool->lend(0, kLong);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(pool->take_back(0, first->generation).error().code, ErrorCode::kConflict);
  EXPECT_EQ(pool->status(0)->state, SlabState::kLeased);
}

TEST(SlabPool, BytesOfTheFormerBorrowerAreNeverVisible) {
  const auto pool = make_pool(1);
  for (int life = 0; life < 3; ++life) {
    const auto lent = pool->lend(0, kLong);
    ASSERT_TRUE(lent.has_value());
    ASSERT_EQ(lent->memory.bytes.size(), kSlab);
    EXPECT_TRUE(all_zero(lent->memory.bytes)) << "life " << life;
    std::memset(lent->memory.bytes.data(), 0xAB, kSlab);
    ASSERT_TRUE(pool->take_back(0, lent->generation).has_value());
  }
}

// A borrower over shm holds the memfd itself, and nobody can revoke that.
TEST(SlabPool, FormerBorrowersMappingReachesNothingOfTheNextLife) {
  const auto pool = make_pool(1);
  const auto first = pool->lend(0, kLong);
  ASSERT_TRUE(first.has_value());
  const Fd handed_over(::fcntl(first->memory.memfd, F_DUPFD_CLOEXEC, 0));
  Result<Mapping> kept = Mapping::shared(handed_over.get(), kSlab);
  ASSERT_TRUE(kept.has_value());
  std::memset(kept->data(), 0xCD, kSlab);
  ASSERT_TRUE(pool->take_back(0, first->generation).has_value());

  const auto second = pool->lend(0, kLong);
  ASSERT_TRUE(second.has_value());
  struct stat old_file {};
  struct stat new_file {};
  ASSERT_EQ(::fstat(handed_over.get(), &old_file), 0);
  ASSERT_EQ(::fstat(second->memory.memfd, &new_file), 0);
  EXPECT_NE(old_file.st_ino, new_file.st_ino);
  EXPECT_EQ(old_file.st_blocks, 0) << "the pages went back to the kernel at once";

  std::memset(kept->data(), 0xEF, kSlab);
  EXPECT_TRUE(all_zero(second->memory.bytes));
  second->memory.bytes[0] = std::byte{1};
  EXPECT_EQ(kept->data()[0], std::byte{0xEF});
}

TEST(SlabPool, MemoryIsThereBeforeItIsLent) {
  const auto pool = make_pool(1);
  const auto lent = pool->lend(0, kLong);
  ASSERT_TRUE(lent.has_value());
  struct stat file {};
  ASSERT_EQ(::fstat(lent->memory.memfd, &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_blocks) * 512, kSlab);
}

TEST(SlabPool, ReportsProgressUpToAllOfIt) {
  SlabPoolOptions options = options_of(4);
  std::vector<uint64_t> seen;
  options.progress = [&](uint64_t ready, uint64_t total) {
    EXPECT_EQ(total, 4 * kSlab);
    seen.push_back(ready);
    return true;
  };
  ASSERT_TRUE(SlabPool::create(options).has_value());
  EXPECT_EQ(seen, (std::vector<uint64_t>{kSlab, 2 * kSlab, 3 * kSlab, 4 * kSlab}));
}

TEST(SlabPool, ProgressCanStopIt) {
  SlabPoolOptions options = options_of(4);
  int calls = 0;
  options.progress = [&](uint64_t, uint64_t) { return ++calls < 2; };
  EXPECT_EQ(SlabPool::create(options).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(calls, 2);
}

TEST(SlabPool, WrongSizesAreRefusedByName) {
  struct Case {
    uint64_t lend_bytes;
    uint64_t slab_bytes;
    const char* names;
  };
  for (const Case& c : {Case{kSlab, 0, "slab:"},
                        {kSlab, kSlab + 4096, "slab:"},
                        {kSlab, kSlab / 2, "slab:"},
                        {uint64_t{8} << 30, uint64_t{2} << 30, "slab:"},
                        {kSlab - 1, kSlab, "lend:"},
                        {0, kSlab, "lend:"},
                        {(kMaxSlabs + uint64_t{1}) * kSlab, kSlab, "lend:"}}) {
    SlabPoolOptions options;
    options.lend_bytes = c.lend_bytes;
    options.slab_bytes = c.slab_bytes;
    const auto pool = SlabPool::create(options);
    ASSERT_FALSE(pool.has_value());
    EXPECT_EQ(pool.error().code, ErrorCode::kInvalid);
    EXPECT_NE(pool.error().context.find(c.names), std::string::npos) << pool.error().context;
  }
}

TEST(SlabPool, MoreThanTheHostHasIsRefusedBeforeTouchingIt) {
  SlabPoolOptions options;
  options.lend_bytes = uint64_t{64} << 40;
  options.slab_bytes = uint64_t{1} << 30;
  const auto pool = SlabPool::create(options);
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code, ErrorCode::kExhausted);
  EXPECT_NE(pool.error().context.find("--lend"), std::string::npos) << pool.error().context;
}

// More huge pages than any host has reserved: the text must say how to reserve them.
TEST(SlabPool, MissingHugePagesSayHowToReserveThem) {
  const Status refused = check_available(uint64_t{64} << 40, true);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("vm.nr_hugepages=33554432"), std::string::npos)
      << refused.error().context;
}

TEST(SlabPool, NumaNodeBindsTheMemoryAndAMissingOneIsRefused) {
  SlabPoolOptions options = options_of(1);
  options.numa_node = 0;
  const auto pool = SlabPool::create(options);
  if (!pool && pool.error().sys_errno == ENOSYS) GTEST_SKIP() << "kernel without NUMA";
  ASSERT_TRUE(pool.has_value()) << pool.error().message();
  const auto lent = (*pool)->lend(0, kLong);
  ASSERT_TRUE(lent.has_value());
  int mode = -1;
  unsigned long mask[16] = {};
  ASSERT_EQ(
      ::syscall(SYS_get_mempolicy, &mode, mask, 1024UL, lent->memory.bytes.data(), MPOL_F_ADDR), 0);
  EXPECT_EQ(mode, MPOL_BIND);
  EXPECT_EQ(mask[0], 1UL);

  options.numa_node = 1023;
  const auto missing = SlabPool::create(options);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalid);
  EXPECT_NE(missing.error().context.find("numa_node 1023"), std::string::npos);
}

// Capabilities are per thread: a helper thread drops CAP_IPC_LOCK and creates the pool.
TEST(SlabPool, MemlockLimitIsRefusedWithTheCure) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{kSlab, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  std::string refusal;
  bool unpinned_works = false;
  std::thread unprivileged([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);
    SlabPoolOptions options = options_of(2);
    unpinned_works = SlabPool::create(options).has_value();
    options.pinned = true;
    const auto pool = SlabPool::create(options);
    if (!pool) refusal = pool.error().context;
  });
  unprivileged.join();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_TRUE(unpinned_works);
  EXPECT_EQ(refusal,
            "verbs pins 4M but the memlock limit is 2M: raise it (ulimit -l unlimited, "
            "LimitMEMLOCK=infinity in the systemd unit), give CAP_IPC_LOCK, or use --transports "
            "tcp,shm");
}

class SlabPoolInFiles : public ::testing::Test {
 protected:
  SlabPoolInFiles() { std::filesystem::create_directories(folder_); }
  ~SlabPoolInFiles() override { std::filesystem::remove_all(folder_); }

  SlabPoolOptions options(uint64_t slabs) const {
    SlabPoolOptions options = options_of(slabs);
    options.folder = folder_;
    return options;
  }
  // The bytes of the first page; -1: it cannot be read, or they differ.
  static int byte_of(const rdma::SlabMemory& slab, off_t offset) {
    const Mapping page = Mapping::anonymous(kPageBytes).value();
    if (::pread(slab.file, page.data(), kPageBytes, offset) != kPageBytes) return -1;
    const bool same =
        std::ranges::all_of(page.bytes(), [&](auto b) { return b == page.data()[0]; });
    return same ? static_cast<int>(page.data()[0]) : -1;
  }
  static bool write(const rdma::SlabMemory& slab, off_t offset, int byte) {
    const Mapping page = Mapping::anonymous(kPageBytes).value();
    std::memset(page.data(), byte, kPageBytes);
    return ::pwrite(slab.file, page.data(), kPageBytes, offset) == kPageBytes;
  }

  const std::string folder_ = "slab_pool_test." + std::to_string(::getpid());
};

TEST_F(SlabPoolInFiles, EachLeaseHasAFileOfZerosOfItsOwn) {
  for (const bool lazy : {false, true}) {
    SlabPoolOptions chosen = options(1);
    chosen.lazy = lazy;
    const auto pool = SlabPool::create(chosen);
    ASSERT_TRUE(pool.has_value()) << pool.error().message();
    EXPECT_TRUE((*pool)->is_in_files());
    for (int life = 1; life < 4; ++life) {
      const auto lent = (*pool)->lend(0, kLong);
      ASSERT_TRUE(lent.has_value()) << lent.error().message();
      EXPECT_EQ(lent->memory.memfd, -1);
      EXPECT_EQ(lent->memory.bytes.size(), kSlab);
      struct stat facts {};
      ASSERT_EQ(::fstat(lent->memory.file, &facts), 0);
      EXPECT_EQ(facts.st_nlink, 0U);
      EXPECT_GE(static_cast<uint64_t>(facts.st_blocks) * 512, kSlab) << "its room is its own";
      for (const off_t offset : {off_t{0}, static_cast<off_t>(kSlab - kPageBytes)}) {
        EXPECT_EQ(byte_of(lent->memory, offset), 0) << "life " << life;
        EXPECT_TRUE(write(lent->memory, offset, life));
        EXPECT_EQ(byte_of(lent->memory, offset), life);
      }
      ASSERT_TRUE((*pool)->take_back(0, lent->generation).has_value());
    }
  }
}

TEST_F(SlabPoolInFiles, SlabsHaveDistinctAddresses) {
  const auto pool = SlabPool::create(options(3)).value();
  const auto first = pool->lend(0, kLong);
  const auto second = pool->lend(1, kLong);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->memory.bytes.data() + kSlab <= second->memory.bytes.data() ||
              second->memory.bytes.data() + kSlab <= first->memory.bytes.data());
  EXPECT_TRUE(pool->add(std::vector<uint32_t>{3}, 1).has_value());
  EXPECT_TRUE(pool->withdraw(std::vector<uint32_t>{2}, kLong).has_value());
  EXPECT_EQ(pool->slab_count(), 3U);
}

TEST_F(SlabPoolInFiles, WhereTheyCannotBeIsSaid) {
  struct Case {
    std::string folder;
    uint64_t lend_bytes;
    ErrorCode code;
    const char* says;
  };
  for (const Case& c :
       {Case{folder_, kMaxSlabs * uint64_t{1} << 30, ErrorCode::kExhausted,
             "no room for a file of"},
        {"/dev/shm", uint64_t{1} << 30, ErrorCode::kUnsupported, "/dev/shm: is memory (tmpfs)"},
        {folder_ + "/none", uint64_t{1} << 30, ErrorCode::kNotFound, "/none"},
        {folder_, kSlab, ErrorCode::kInvalid, ": 2M is less than one slab of 1G"}}) {
    SlabPoolOptions wrong;
    wrong.slab_bytes = uint64_t{1} << 30;
    wrong.lend_bytes = c.lend_bytes;
    wrong.folder = c.folder;
    const auto pool = SlabPool::create(wrong);
    ASSERT_FALSE(pool.has_value()) << c.says;
    EXPECT_EQ(pool.error().code, c.code) << pool.error().message();
    EXPECT_NE(pool.error().context.find(c.says), std::string::npos) << pool.error().context;
  }
}

TEST(SlabPool, GenerationsRiseOverARestart) {
  SlabPoolOptions options = options_of(1);
  options.generation_base = 0;
  const auto pool = SlabPool::create(options);
  ASSERT_TRUE(pool.has_value());
  EXPECT_GT((*pool)->status(0)->generation.value, 200'000'000U) << "seconds since 2020";
}

TEST(MemoryLimits, ReadsFieldsOfMeminfo) {
  const std::string text = "MemTotal:  100 kB\nMemAvailable:   64 kB\nHugePages_Free:    7\nBad:\n";
  EXPECT_EQ(*meminfo_field(text, "MemTotal"), 100U << 10);
  EXPECT_EQ(*meminfo_field(text, "MemAvailable"), 64U << 10);
  EXPECT_EQ(*meminfo_field(text, "HugePages_Free"), 7U);
  EXPECT_EQ(meminfo_field(text, "Available").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(meminfo_field(text, "Bad").error().code, ErrorCode::kInvalid);
  EXPECT_EQ(meminfo_field("", "MemTotal").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace farpage::node
