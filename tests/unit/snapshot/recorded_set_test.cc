#include "snapshot/recorded_set.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace farpage::snapshot {
namespace {

const std::string kDigest(64, 'a');
constexpr uint64_t kPages = 1001;

class RecordedSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-set-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file() const { return folder_ / "vm.set"; }

  std::filesystem::path folder_;
};

TEST(RecordedSet, ClassesDoubleFromTheFirstSixtyFour) {
  EXPECT_EQ(RecordedSet::class_of(0), 1);
  EXPECT_EQ(RecordedSet::class_of(63), 1);
  EXPECT_EQ(RecordedSet::class_of(64), 2);
  EXPECT_EQ(RecordedSet::class_of(191), 2);
  EXPECT_EQ(RecordedSet::class_of(192), 3);
  EXPECT_EQ(RecordedSet::class_of(~uint64_t{0}), RecordedSet::kClasses);
}

TEST(RecordedSet, IsTheUnionWithTheEarliestClassOfEachPage) {
  RecordedSet set(kDigest, 10);
  EXPECT_FALSE(set.add({}));
  EXPECT_TRUE(set.add(std::vector<uint8_t>{0, 2, 0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(set.in_order(), (std::vector<uint32_t>{3, 1}));
  EXPECT_TRUE(set.add(std::vector<uint8_t>{0, 1, 3, 5, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(set.in_order(), (std::vector<uint32_t>{1, 3, 2}));
  EXPECT_FALSE(set.add(std::vector<uint8_t>{0, 4, 4, 4, 0, 0, 0, 0, 0, 0})) << "nothing is new";
}

TEST(RecordedSet, HasAtMostHalfOfThePagesTheEarliestOnes) {
  RecordedSet set(kDigest, 100);
  std::vector<uint8_t> touches(100, 3);
  for (size_t page = 80; page < 100; ++page) touches[page] = 1;
  EXPECT_TRUE(set.add(touches));
  EXPECT_EQ(set.size(), 50U);
  const std::vector<uint32_t> pages = set.in_order();
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(pages[i], 80 + i);
  EXPECT_FALSE(set.add(touches)) << "it is full";
  EXPECT_EQ(set.size(), 50U);
}

TEST_F(RecordedSetTest, IsReadAsItWasPublished) {
  RecordedSet set(kDigest, kPages);
  std::vector<uint8_t> touches(kPages, 0);
  for (uint64_t page = 0; page < kPages; page += 3)
    touches[page] = static_cast<uint8_t>(1 + page % RecordedSet::kClasses);
  ASSERT_TRUE(set.add(touches));
  ASSERT_TRUE(set.publish(file()).has_value());
  const auto again = RecordedSet::load(file(), kDigest, kPages);
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->in_order(), set.in_order());
  EXPECT_EQ(again->size(), set.size());
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path(), file());
    ++files;
  }
  EXPECT_EQ(files, 1U);
}

TEST_F(RecordedSetTest, FilesThatDoNotFitAreToldApart) {
  EXPECT_EQ(RecordedSet::load(file(), kDigest, kPages).error().code, ErrorCode::kNotFound);
  RecordedSet set(kDigest, kPages);
  ASSERT_TRUE(set.add(std::vector<uint8_t>(kPages, 1)));
  ASSERT_TRUE(set.publish(file()).has_value());
  EXPECT_EQ(RecordedSet::load(file(), std::string(64, 'b'), kPages).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(RecordedSet::load(file(), kDigest, kPages + 1).error().code, ErrorCode::kConflict);
  const auto size = std::filesystem::file_size(file());
  for (const uint64_t length : {uint64_t{0}, uint64_t{10}, size - 1}) {
    std::filesystem::resize_file(file(), length);
    EXPECT_EQ(RecordedSet::load(file(), kDigest, kPages).error().code, ErrorCode::kInvalid)
        << length;
    ASSERT_TRUE(set.publish(file()).has_value());
  }
  {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(size) - 5);
    bytes.put('x');
  }
  EXPECT_EQ(RecordedSet::load(file(), kDigest, kPages).error().code, ErrorCode::kInvalid);
}

TEST_F(RecordedSetTest, FileInAMissingFolderIsAnErrorThatNamesIt) {
  const Status status = RecordedSet(kDigest, 8).publish(folder_ / "no" / "vm.set");
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().context.find("vm.set"), std::string::npos);
}

}  // namespace
}  // namespace farpage::snapshot
