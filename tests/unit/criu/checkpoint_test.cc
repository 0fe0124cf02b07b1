#include "criu/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/host.h"

namespace farpage::criu {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> page_of(unsigned number) {
  return std::vector<std::byte>(kPageBytes, static_cast<std::byte>(number));
}

// A folder that ends with the test.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : folder_(fs::temp_directory_path() / ("farpage-" + std::to_string(random_u32()))) {
    fs::create_directories(folder());
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  std::string folder() const { return folder_ / "checkpoint"; }
  std::string other() const { return folder_ / "other"; }

  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream file(fs::path(folder()) / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  static std::vector<std::byte> read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
  }
  // A process whose present pages have the bytes `first`, `first` + 1, ..
  void write_process(uint64_t pid, const Pagemap& pagemap, unsigned first) const {
    write("pagemap-" + std::to_string(pid) + ".img", encode_pagemap(pagemap));
    std::vector<std::byte> pages;
    for (unsigned i = 0; i < pagemap.present_pages(); ++i) {
      const auto page = page_of(first + i);
      pages.insert(pages.end(), page.begin(), page.end());
    }
    write("pages-" + std::to_string(pagemap.pages_file) + ".img", pages);
  }
  void write_two_processes() const {
    write_process(20, {2, {{0x10000, 1, kPresent}, {0x20000, 2, kPresent | kLazy}}}, 50);
    write_process(3,
                  {1,
                   {{0x1000, 2, kPresent | kLazy},
                    {0x3000, 1, kPresent | kLazy},
                    {0x5000, 2, kPresent},
                    {0x8000, 1, kPresent | kLazy}}},
                  1);
    write("inventory.img", page_of(200));
  }
  std::string error() const {
    const auto checkpoint = Checkpoint::open(folder());
    return checkpoint ? "none" : checkpoint.error().context;
  }

 private:
  const fs::path folder_;
};

TEST_F(CheckpointTest, ServedPagesFollowTheirIndex) {
  write_two_processes();
  const auto checkpoint = Checkpoint::open(folder());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto source = CheckpointSource::create(*checkpoint);
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ(source->index().ranges(),
            (std::vector<IndexedRange>{{3, 0x1000, 3, 1}, {3, 0x8000, 1, 4}, {20, 0x20000, 2, 5}}));
  ASSERT_EQ(source->bytes(), 7 * kPageBytes);
  std::vector<std::byte> all(source->bytes());
  ASSERT_TRUE(source->read(0, all).has_value());
  const auto index = AddressIndex::decode(all, 7);
  ASSERT_TRUE(index.has_value()) << index.error().message();
  EXPECT_EQ(index->ranges(), source->index().ranges());
  const unsigned contents[] = {1, 2, 3, 6, 51, 52};
  for (uint64_t page = 1; page < 7; ++page) {
    std::vector<std::byte> one(kPageBytes);
    ASSERT_TRUE(source->read(page, one).has_value());
    EXPECT_EQ(one, page_of(contents[page - 1])) << page;
    EXPECT_EQ(std::memcmp(all.data() + page * kPageBytes, one.data(), kPageBytes), 0) << page;
  }
  EXPECT_TRUE(source->is_unchanged());
  fs::resize_file(folder() + "/pages-2.img", kPageBytes);
  EXPECT_FALSE(source->is_unchanged());
  EXPECT_EQ(source->read(6, std::span(all).first(kPageBytes)).error().code, ErrorCode::kConflict);
}

TEST_F(CheckpointTest, RestHasAllButTheServedPages) {
  write_two_processes();
  const auto checkpoint = Checkpoint::open(folder());
  ASSERT_TRUE(checkpoint.has_value());
  {
    auto rest = RemainingCheckpoint::create(*checkpoint, other() + "/");
    ASSERT_TRUE(rest.has_value()) << rest.error().message();
    EXPECT_FALSE(fs::exists(other()));
    ASSERT_TRUE((*rest)->keep().has_value());
  }
  EXPECT_EQ(read(other() + "/inventory.img"), page_of(200));
  EXPECT_EQ(read(other() + "/pages-2.img"), page_of(50));
  EXPECT_EQ(fs::file_size(other() + "/pages-1.img"), 2 * kPageBytes);
  const auto pagemap = decode_pagemap(read(other() + "/pagemap-3.img"));
  ASSERT_TRUE(pagemap.has_value());
  EXPECT_EQ(
      pagemap->ranges,
      (std::vector<PagemapRange>{
          {0x1000, 2, kLazy}, {0x3000, 1, kLazy}, {0x5000, 2, kPresent}, {0x8000, 1, kLazy}}));
  EXPECT_EQ(fs::status(other()).permissions(), fs::perms::owner_all);
  const auto again = Checkpoint::open(other());
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().context.find("not in this folder"), std::string::npos);
}

TEST_F(CheckpointTest, NothingIsLeftOfARestThatIsNotKept) {
  write_two_processes();
  const auto checkpoint = Checkpoint::open(folder());
  ASSERT_TRUE(checkpoint.has_value());
  { ASSERT_TRUE(RemainingCheckpoint::create(*checkpoint, other()).has_value()); }
  EXPECT_FALSE(fs::exists(other()));
  EXPECT_FALSE(fs::exists(other() + ".partial"));
  fs::create_directory(other());
  const auto there = RemainingCheckpoint::create(*checkpoint, other());
  ASSERT_FALSE(there.has_value());
  EXPECT_EQ(there.error().code, ErrorCode::kConflict);
}

TEST_F(CheckpointTest, FoldersThatCannotBeServedAreRefused) {
  EXPECT_EQ(error(), folder() + " is no checkpoint of criu: no pagemap-PID.img");
  write_process(3, {1, {{0x1000, 2, kPresent}}}, 1);
  EXPECT_EQ(error(), "none");
  const auto checkpoint = Checkpoint::open(folder());
  EXPECT_NE(CheckpointSource::create(*checkpoint).error().context.find("has no page that"),
            std::string::npos);

  fs::resize_file(folder() + "/pages-1.img", kPageBytes);
  EXPECT_EQ(error(), folder() + "/pages-1.img has 4096 bytes, and " + folder() +
                         "/pagemap-3.img names 8192");
  fs::remove(folder() + "/pages-1.img");
  EXPECT_EQ(error(), "opening " + folder() + "/pages-1.img");
  write_process(3, {1, {{0x1000, 2, kPresent | kLazy}, {0x9000, 1, kLazy}}}, 1);
  EXPECT_EQ(
      error(),
      folder() +
          "/pagemap-3.img: the pages at 0x9000 are not in this folder: dump without --lazy-pages");
  write_process(3, {1, {{0x1000, 2, kInParent}}}, 1);
  EXPECT_NE(error().find("the pages at 0x1000 are in another checkpoint"), std::string::npos);
  write("pagemap-3.img", page_of(1));
  EXPECT_EQ(error(), folder() + "/pagemap-3.img: it is no pagemap of criu (1.3 or later)");
  write_process(3, {1, {{0x1000, 2, kPresent}}}, 1);
  write_process(4, {1, {{0x1000, 2, kPresent}}}, 1);
  EXPECT_EQ(error(), folder() + "/pages-1.img is named by two pagemaps");
  write_process(4, {2, {{0x1000, 2, kPresent}}}, 1);
  fs::create_symlink("../before", folder() + "/parent");
  EXPECT_NE(error().find("in its parent"), std::string::npos);
  const auto nowhere = Checkpoint::open(folder() + "/nowhere");
  EXPECT_FALSE(nowhere.has_value());
}

}  // namespace
}  // namespace farpage::criu
