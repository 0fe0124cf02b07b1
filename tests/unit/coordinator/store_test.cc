// Both stores behave the same; the data of the SQLite store outlives its object.
#include "coordinator/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "coordinator/memory_store.h"
#include "coordinator/sqlite_store.h"
#include "tests/unit/coordinator/store_contract.h"

namespace farpage::coordinator {
namespace {

// A directory of its own for each test.
class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-store-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string file() const { return directory_ / "state.db"; }

  std::filesystem::path directory_;
};

TEST_F(StoreTest, MemoryStorePutsAndRemoves) {
  expect_put_and_remove(*make_memory_store());
}

TEST_F(StoreTest, SqliteStorePutsAndRemoves) {
  auto store = open_sqlite_store(file());
  ASSERT_TRUE(store.has_value()) << store.error().message();
  EXPECT_EQ((*store)->load()->last_sequence, 0U);
  expect_put_and_remove(**store);
}

TEST_F(StoreTest, SqliteStoreIsThereAfterItWasClosed) {
  {
    auto store = open_sqlite_store(file());
    ASSERT_TRUE(store.has_value()) << store.error().message();
    ASSERT_TRUE((*store)->write(some_changes()).has_value());
  }
  auto again = open_sqlite_store(file());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  expect_some_changes(**again);
}

TEST_F(StoreTest, FileIsForItsOwnerAlone) {
  auto store = open_sqlite_store(file());
  ASSERT_TRUE(store.has_value());
  ASSERT_TRUE((*store)->write(some_changes()).has_value());
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077, 0U) << entry.path();
  }
}

TEST_F(StoreTest, SecondCoordinatorOnTheSameFileIsRefused) {
  auto first = open_sqlite_store(file());
  ASSERT_TRUE(first.has_value());
  const auto second = open_sqlite_store(file());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_NE(second.error().context.find(file()), std::string::npos);
  EXPECT_NE(second.error().context.find("in use"), std::string::npos);
}

TEST_F(StoreTest, DamagedOrForeignFilesAreRefusedWithACure) {
  std::ofstream(file()) << "This is not a database, and longer than the header of one is.\n"
                        << std::string(4096, 'x');
  const auto garbage = open_sqlite_store(file());
  ASSERT_FALSE(garbage.has_value());
  EXPECT_EQ(garbage.error().code, ErrorCode::kInvalid);
  EXPECT_NE(garbage.error().context.find("restore it"), std::string::npos);
  const auto nowhere = open_sqlite_store(directory_ / "no" / "such" / "folder.db");
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_NE(nowhere.error().context.find("folder.db"), std::string::npos);
}

TEST_F(StoreTest, DamagedPagesAreFoundAtTheStart) {
  {
    auto store = open_sqlite_store(file());
    ASSERT_TRUE(store.has_value());
    ASSERT_TRUE((*store)->write(some_changes()).has_value());
  }
  {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(4096 + 8);
    bytes << std::string(4096 * 3, '\xff');
  }
  const auto damaged = open_sqlite_store(file());
  ASSERT_FALSE(damaged.has_value());
  EXPECT_EQ(damaged.error().code, ErrorCode::kInvalid) << damaged.error().message();
}

// Runs the sqlite3 program on the file.
void sqlite(const std::string& file, const std::string& sql) {
  const std::string command = "sqlite3 '" + file + "' \"" + sql + "\" >/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

TEST_F(StoreTest, OtherSchemasAndOtherProgramsFilesAreRefused) {
  if (std::system("command -v sqlite3 >/dev/null") != 0)
    GTEST_SKIP() << "the sqlite3 program is not installed";
  { ASSERT_TRUE(open_sqlite_store(file()).has_value()); }
  sqlite(file(), "PRAGMA user_version=999");
  const auto newer = open_sqlite_store(file());
  ASSERT_FALSE(newer.has_value());
  EXPECT_NE(newer.error().context.find("schema 999"), std::string::npos);
  sqlite(file(), "PRAGMA user_version=3");
  const auto older = open_sqlite_store(file());
  ASSERT_FALSE(older.has_value());
  EXPECT_NE(older.error().context.find("schema 3"), std::string::npos);
  EXPECT_NE(older.error().context.find("addresses and keys of an older one"), std::string::npos);
  const std::string foreign = directory_ / "foreign.db";
  sqlite(foreign, "CREATE TABLE theirs(x)");
  const auto refused = open_sqlite_store(foreign);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("another program"), std::string::npos);
}

TEST_F(StoreTest, StoreWithoutImagesGetsTheirTableWhenItIsOpened) {
  if (std::system("command -v sqlite3 >/dev/null") != 0)
    GTEST_SKIP() << "the sqlite3 program is not installed";
  {
    Changes changes = some_changes();
    changes.images.clear();
    auto store = open_sqlite_store(file());
    ASSERT_TRUE((*store)->write(changes).has_value());
  }
  sqlite(file(),
         "DROP TABLE images; ALTER TABLE nodes DROP COLUMN lend_slabs; "
         "ALTER TABLE regions DROP COLUMN spread_by; "
         "ALTER TABLE regions DROP COLUMN borrower; "
         "PRAGMA user_version=4");
  auto store = open_sqlite_store(file());
  ASSERT_TRUE(store.has_value()) << store.error().message();
  EXPECT_EQ((*store)->load()->regions.size(), 1U);
  expect_put_and_remove(**store);
}

TEST_F(StoreTest, LeaseWithAKeyThatIsNoneIsAnErrorThatNamesIt) {
  if (std::system("command -v sqlite3 >/dev/null") != 0)
    GTEST_SKIP() << "the sqlite3 program is not installed";
  for (const std::string keys :
       {"1234567", "''", R"('{\"rkeys\":{\"tcp\":\"1234567\"}}')",
        R"('{\"rkeys\":{\"udp\":\"1234567\"}}')", R"('{\"rkeys\":1234567}')"}) {
    std::filesystem::remove(file());
    {
      auto store = open_sqlite_store(file());
      ASSERT_TRUE(store.has_value());
      ASSERT_TRUE((*store)->write(some_changes()).has_value());
    }
    sqlite(file(), "UPDATE leases SET rkeys=" + keys);
    auto store = open_sqlite_store(file());
    ASSERT_TRUE(store.has_value());
    const auto snapshot = (*store)->load();
    ASSERT_FALSE(snapshot.has_value()) << keys;
    EXPECT_EQ(snapshot.error().code, ErrorCode::kInvalid);
    EXPECT_NE(snapshot.error().context.find("keys of slab"), std::string::npos);
    EXPECT_EQ(snapshot.error().context.find("1234567"), std::string::npos);
  }
}

TEST_F(StoreTest, CopyHasWhatWasWrittenAndNothingOfWhatCameLater) {
  auto store = open_sqlite_store(file());
  ASSERT_TRUE(store.has_value());
  ASSERT_TRUE((*store)->write(some_changes()).has_value());
  const auto bytes = (*store)->copy();
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message();
  Changes later;
  later.regions[RegionId{"r1"}] = std::nullopt;
  ASSERT_TRUE((*store)->write(later).has_value());
  const std::string path = directory_ / "copy.db";
  std::ofstream(path, std::ios::binary) << *bytes;
  auto copy = open_sqlite_store(path);
  ASSERT_TRUE(copy.has_value()) << copy.error().message();
  EXPECT_EQ((*copy)->load()->regions.size(), 1U);
  EXPECT_EQ((*copy)->load()->leases.size(), some_changes().leases.size());
  EXPECT_EQ((*store)->load()->regions.size(), 0U);
  EXPECT_EQ(make_memory_store()->copy().error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace farpage::coordinator
