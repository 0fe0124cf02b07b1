#include "cli/allocator.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace farpage::cli {
namespace {

constexpr char kShim[] = "/lib/shim.so";
constexpr char kOurs[] = "libmimalloc.so.2";

// A directory with a cache of the dynamic linker, and libraries that are this host's libc.
class Allocators : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/farpage-allocators-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"})
      if (::access(path, R_OK) == 0) defines_malloc_ = path;
    if (defines_malloc_.empty()) GTEST_SKIP() << "no libc.so.6 where it is looked for";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  void install(const std::string& name) const {
    std::filesystem::create_symlink(defines_malloc_, path_of(name));
  }
  // The format in as far as it matters: strings, each before a 0.
  void write_cache(const std::vector<std::string>& names) const {
    std::ofstream file(path_of("cache"), std::ios::binary);
    file << "glibc-ld.so.cache1.1" << '\0';
    for (const std::string& name : names) file << name << '\0' << path_of(name) << '\0';
  }
  Result<std::string> choose(const std::string& choice,
                             const std::vector<std::string>& directories = {}) const {
    return allocator_library(choice, {.directories = directories, .cache = path_of("cache")});
  }

  std::string folder_;
  std::string defines_malloc_;
};

TEST_F(Allocators, ANameIsTheLibraryThatTheLinkerFinds) {
  for (const char* name : {"libmimalloc.so.2", "libtcmalloc_minimal.so.4", "libjemalloc.so.2"})
    install(name);
  write_cache({"libmimalloc.so.2", "libtcmalloc_minimal.so.4", "libjemalloc.so.2"});
  EXPECT_EQ(choose("mimalloc").value_or("?"), "libmimalloc.so.2");
  EXPECT_EQ(choose("tcmalloc").value_or("?"), "libtcmalloc_minimal.so.4");
  EXPECT_EQ(choose("jemalloc").value_or("?"), "libjemalloc.so.2");
  EXPECT_EQ(choose("none").value_or("?"), "");
}

TEST_F(Allocators, AnOtherVersionServesWhereTheFirstIsMissing) {
  install("libmimalloc.so.3");
  write_cache({"libmimalloc.so.3"});
  EXPECT_EQ(choose("mimalloc").value_or("?"), "libmimalloc.so.3");
}

TEST_F(Allocators, AutomaticTakesWhatIsInstalledAndElseNothing) {
  write_cache({});
  EXPECT_EQ(choose("auto").value_or("?"), "");
  install("libtcmalloc_minimal.so.4");
  write_cache({"libtcmalloc_minimal.so.4"});
  EXPECT_EQ(choose("auto").value_or("?"), "libtcmalloc_minimal.so.4");
}

TEST_F(Allocators, TheUsersDirectoriesAreLookedInToo) {
  install("libjemalloc.so.2");
  write_cache({});
  EXPECT_EQ(choose("jemalloc", {"/nowhere", folder_}).value_or("?"), "libjemalloc.so.2");
}

TEST_F(Allocators, TheLinkersOwnDirectoriesAreKnown) {
  const std::vector<std::string> directories = LibraryPlaces::of_this_host().directories;
  const bool has_libc = std::ranges::any_of(directories, [](const std::string& directory) {
    return ::access((directory + "/libc.so.6").c_str(), R_OK) == 0;
  });
  EXPECT_TRUE(has_libc) << directories.size();
}

TEST_F(Allocators, AMissingLibraryIsRefusedWithThePackage) {
  write_cache({"libjemalloc.so.2"});  // it is in the cache, but has been removed
  const auto found = choose("jemalloc");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(
      found.error().context,
      "--allocator=jemalloc: libjemalloc.so.2 is not installed: apt-get install libjemalloc2");
}

TEST_F(Allocators, AnUnknownNameIsRefusedWithAllNames) {
  const auto found = choose("ptmalloc");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalid);
  for (const char* name : {"auto", "mimalloc", "tcmalloc", "jemalloc", "none", "a path"})
    EXPECT_NE(found.error().context.find(name), std::string::npos) << name;
}

TEST_F(Allocators, APathNamesAnyLibraryThatDefinesMalloc) {
  install("libown.so");
  EXPECT_EQ(choose(path_of("libown.so")).value_or("?"), path_of("libown.so"));
  const std::filesystem::path here = std::filesystem::current_path();
  const std::string relative = std::filesystem::path(path_of("libown.so")).lexically_relative(here);
  EXPECT_EQ(choose(relative).value_or("?"), path_of("libown.so"));
}

TEST_F(Allocators, APathThatCannotServeIsRefused) {
  const auto missing = choose(path_of("libmissing.so"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().sys_errno, ENOENT);
  const auto program = choose("/bin/sh");
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().context.find("defines malloc"), std::string::npos);
  install("lib own.so");
  const auto space = choose(path_of("lib own.so"));
  ASSERT_FALSE(space);
  EXPECT_NE(space.error().context.find("a space"), std::string::npos);
}

TEST(Allocator, OursComesLastUnlessTheUserOrTheProgramBringsOne) {
  EXPECT_EQ(preload_list(kShim, kOurs, "", false), "/lib/shim.so:libmimalloc.so.2");
  EXPECT_EQ(preload_list(kShim, kOurs, "", true), "/lib/shim.so");
  EXPECT_EQ(preload_list(kShim, "", "", false), "/lib/shim.so");
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
