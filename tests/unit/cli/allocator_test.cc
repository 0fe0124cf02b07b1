#include "cli/allocator.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace farpage::cli {
namespace {

constexpr char kShim[] = "/lib/shim.so";
constexpr char kOurs[] = "libmimalloc.so.2";

TEST(Allocator, OursComesLastUnlessTheUserOrTheProgramBringsOne) {
  EXPECT_EQ(preload_list(kShim, kOurs, "", false), "/lib/shim.so:libmimalloc.so.2");
  EXPECT_EQ(preload_list(kShim, kOurs, "", true), "/lib/shim.so");
  EXPECT_EQ(preload_list(kShim, kOurs, "a.so b.so", false),
            "/lib/shim.so:a.so:b.so:libmimalloc.so.2");
  EXPECT_EQ(preload_list(kShim, kOurs, "/opt/lib/libjemalloc.so.2", false),
            "/lib/shim.so:/opt/lib/libjemalloc.so.2");
  EXPECT_EQ(preload_list(kShim, kOurs, "x.so:libtcmalloc_minimal.so.4", false),
            "/lib/shim.so:x.so:libtcmalloc_minimal.so.4");
}

TEST(Allocator, DirectoriesAreNotTakenForLibraries) {
  EXPECT_EQ(preload_list(kShim, kOurs, "/opt/jemalloc-5/libother.so", false),
            "/lib/shim.so:/opt/jemalloc-5/libother.so:libmimalloc.so.2");
}

TEST(Allocator, OrdinaryProgramsBringNone) {
  EXPECT_FALSE(brings_allocator("/bin/sh"));
  EXPECT_FALSE(brings_allocator("/no/such/file"));
}

TEST(Allocator, TheLibraryThatDefinesMallocBringsIt) {
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6",
                           "/lib64/libc.so.6"}) {
    if (::access(path, R_OK) == 0) {
      EXPECT_TRUE(brings_allocator(path));
      return;
    }
  }
  GTEST_SKIP() << "no libc.so.6 where it is looked for";
}

TEST(Allocator, CutOffAndGarbledFilesBringNone) {
  std::ifstream program("/bin/sh", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(program)), {});
  char path[] = "/tmp/farpage-elf-XXXXXX";
  ASSERT_GE(::mkstemp(path), 0);
  const auto judge = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return brings_allocator(path);
  };
  EXPECT_FALSE(judge(""));
  for (size_t size = 1; size < bytes.size(); size = size * 3 + 1)
    EXPECT_FALSE(judge(bytes.substr(0, size))) << size;
  for (size_t at = 0; at < 64; ++at) {  // set each header byte to 0xff
    std::string garbled = bytes;
    garbled[at] = '\xff';
    EXPECT_FALSE(judge(garbled)) << at;
  }
  ::unlink(path);
}

}  // namespace
}  // namespace farpage::cli
