#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mapping.h"

namespace farpage {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(Fd, ClosesWhenDestroyedAndOnlyOnce) {
  int raw = -1;
  {
    Result<Fd> fd = create_memfd("farpage-test", 4096);
    ASSERT_TRUE(fd.has_value());
    raw = fd->get();
    const Fd moved = std::move(*fd);
    EXPECT_TRUE(is_open(raw));
    EXPECT_FALSE(fd->valid());
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(Fd, FailureKeepsErrno) {
  const Result<Fd> fd = Fd::from_call(::open("/no/such/file", O_RDONLY), "open /no/such/file");
  ASSERT_FALSE(fd.has_value());
  EXPECT_EQ(fd.error().sys_errno, ENOENT);
  EXPECT_EQ(fd.error().code, ErrorCode::kNotFound);
}

TEST(Mapping, SharedMappingsOfOneMemfdSeeEachOther) {
  Result<Fd> fd = create_memfd("farpage-test", 8192);
  ASSERT_TRUE(fd.has_value());
  Result<Mapping> a = Mapping::shared(fd->get(), 8192);
  Result<Mapping> b = Mapping::shared(fd->get(), 8192);
  ASSERT_TRUE(a.has_value() && b.has_value());
  a->data()[5000] = std::byte{7};
  EXPECT_EQ(b->data()[5000], std::byte{7});
}

TEST(Mapping, MemfdCannotBeShrunkUnderItsReaders) {
  Result<Fd> fd = create_memfd("farpage-test", 8192);
  ASSERT_TRUE(fd.has_value());
  EXPECT_NE(::ftruncate(fd->get(), 4096), 0);
}

}  // namespace
}  // namespace farpage
