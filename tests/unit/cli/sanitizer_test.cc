// Uses programs built by the compiler.
#include "cli/sanitizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/elf_check.h"

namespace farpage::cli {
namespace {

std::string built_with(const std::string& sanitizer) {
  return FARPAGE_SANITIZED_PROGRAM + sanitizer;
}

TEST(Sanitizer, ProgramsThatNeedItsMallocAreRecognised) {
  EXPECT_EQ(sanitizer_of(built_with("address")), "AddressSanitizer");
  EXPECT_EQ(sanitizer_of(built_with("thread")), "ThreadSanitizer");
  if (::access(built_with("address_static").c_str(), R_OK) == 0) {
    EXPECT_EQ(sanitizer_of(built_with("address_static")), "AddressSanitizer");
  }
}

TEST(Sanitizer, OtherProgramsHaveNone) {
  EXPECT_EQ(sanitizer_of(built_with("undefined")), "");
  EXPECT_EQ(sanitizer_of("/bin/sh"), "");
  EXPECT_EQ(sanitizer_of("/no/such/file"), "");
}

TEST(Sanitizer, ItsLibrariesAreKnownByTheirNames) {
  EXPECT_EQ(sanitizer_of_library("/usr/lib/gcc/x86_64-linux-gnu/12/libasan.so.8"),
            "AddressSanitizer");
  EXPECT_EQ(sanitizer_of_library("libclang_rt.asan-x86_64.so"), "AddressSanitizer");
  EXPECT_EQ(sanitizer_of_library("libtsan.so.2"), "ThreadSanitizer");
  EXPECT_EQ(sanitizer_of_library("/opt/libasan.so/libother.so"), "");
  EXPECT_EQ(sanitizer_of_library("liblsan.so.0"), "");
}

TEST(ElfCheckOfASanitizer, IsAnObstacleIfItHasAnAllocator) {
  EXPECT_EQ(check_program(built_with("address")).value().obstacle,
            "is built with AddressSanitizer");
  EXPECT_EQ(check_program(built_with("undefined")).value().obstacle, "");
}

}  // namespace
}  // namespace farpage::cli
