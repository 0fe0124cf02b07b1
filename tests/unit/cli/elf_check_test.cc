// Uses real files: scripts, privileged copies, and this test binary.
#include "cli/elf_check.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace farpage::cli {
namespace {

class ElfCheck : public testing::Test {
 protected:
  ElfCheck() {
    char name[] = "/tmp/farpage-elf-check-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::filesystem::permissions(folder_, std::filesystem::perms(0755));
  }
  ~ElfCheck() override { std::filesystem::remove_all(folder_); }

  std::string script(const std::string& first_line) {
    const std::string path = folder_ + "/script" + std::to_string(files_++);
    std::ofstream(path) << first_line << "\necho something\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }
  std::string copy_of_true(mode_t mode) {
    const std::string path = folder_ + "/copy" + std::to_string(files_++);
    std::filesystem::copy_file("/bin/true", path);
    ::chmod(path.c_str(), mode);
    return path;
  }
  static std::string why_not(const std::string& path) {
    const Result<CheckedProgram> judged = check_program(path);
    return judged ? "" : judged.error().message();
  }

 private:
  std::string folder_;
  int files_ = 0;
};

TEST_F(ElfCheck, ADynamicallyLinkedProgramIsTaken) {
  EXPECT_EQ(check_program("/bin/true").value().elf, "/bin/true");
}

TEST_F(ElfCheck, AScriptIsJudgedByItsInterpreter) {
  EXPECT_EQ(check_program(script("#!/bin/sh")).value().elf, "/bin/sh");
  EXPECT_EQ(check_program(script("#! /bin/sh -e")).value().elf, "/bin/sh");
  EXPECT_EQ(check_program(script("#!" + script("#!/bin/sh"))).value().elf, "/bin/sh");
  EXPECT_TRUE(check_program(script("#!/usr/bin/env sh")).value().elf.ends_with("/sh"));
  EXPECT_NE(why_not(script("#!/no/such/interpreter")), "");
}

TEST_F(ElfCheck, ATextWithoutAnInterpreterLineGoesToTheShell) {
  EXPECT_TRUE(check_program(script("# no interpreter")).value().needs_shell);
  EXPECT_EQ(check_program(script("# no interpreter")).value().elf, "/bin/sh");
  EXPECT_FALSE(check_program(script("#!/bin/sh")).value().needs_shell);
}

TEST_F(ElfCheck, WhatIsMissingIsNotFoundAndWhatCannotBeExecutedIsDenied) {
  const auto code_of = [](const std::string& command) {
    return find_program(command).error().code;
  };
  EXPECT_EQ(code_of("/no/such/program"), ErrorCode::kNotFound);
  EXPECT_EQ(code_of("no-such-program-at-all"), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(""), ErrorCode::kNotFound);
  EXPECT_EQ(code_of("/etc/passwd"), ErrorCode::kDenied);
  EXPECT_EQ(code_of("/tmp"), ErrorCode::kDenied);
  EXPECT_EQ(check_program(script("#!/no/such/interpreter")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(find_program("true").value().substr(0, 1), "/");
}

TEST_F(ElfCheck, AFileInPathThatCannotBeExecutedIsDeniedUnlessAnotherOneCan) {
  const char* before = std::getenv("PATH");
  const std::string path = before != nullptr ? before : "";
  const std::string plain = copy_of_true(0644);
  const std::string name = plain.substr(plain.rfind('/') + 1);
  ::setenv("PATH", plain.substr(0, plain.rfind('/')).c_str(), 1);
  const Result<std::string> found = find_program(name);
  ::setenv("PATH", (plain.substr(0, plain.rfind('/')) + ":/bin").c_str(), 1);
  std::filesystem::copy_file(plain, plain.substr(0, plain.rfind('/')) + "/true");
  const Result<std::string> other = find_program("true");
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kDenied);
  EXPECT_EQ(other.value(), "/bin/true");
}

TEST_F(ElfCheck, InterpretersInARowEndSomewhere) {
  std::string path = script("#!/bin/sh");
  for (int i = 0; i < 8; ++i) path = script("#!" + path);
  EXPECT_NE(why_not(path).find("too many interpreters"), std::string::npos);
}

TEST_F(ElfCheck, ProgramsThatChangeTheirPrivilegesAreRefusedAlsoBehindAScript) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make such files";
  const std::string changes_user = copy_of_true(0755);
  ASSERT_EQ(::chown(changes_user.c_str(), 1, 1), 0);
  ASSERT_EQ(::chmod(changes_user.c_str(), 04755), 0);
  EXPECT_NE(why_not(changes_user).find("setuid"), std::string::npos);
  EXPECT_NE(why_not(script("#!" + changes_user)).find("setuid"), std::string::npos);
  const std::string changes_group = copy_of_true(0755);
  ASSERT_EQ(::chown(changes_group.c_str(), 0, 1), 0);
  ASSERT_EQ(::chmod(changes_group.c_str(), 02755), 0);
  EXPECT_NE(why_not(changes_group).find("setgid"), std::string::npos);
}

TEST_F(ElfCheck, FileCapabilitiesAreRefusedForWhoeverHasThemNotYet) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file capabilities";
  const std::string path = copy_of_true(0755);
  vfs_cap_data capabilities{};
  capabilities.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  capabilities.data[0].permitted = 1U << CAP_NET_RAW;
  if (::setxattr(path.c_str(), "security.capability", &capabilities, XATTR_CAPS_SZ_2, 0) != 0)
    GTEST_SKIP() << "this file system keeps no capabilities";
  EXPECT_EQ(why_not(path), "");  // root gains no privileges from them
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
    ::_exit(why_not(path).find("capabilities") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ElfCheck, WhatIsNoProgramForThisMachineIsRefused) {
  const std::string path = copy_of_true(0755);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4);
  file.put(1);  // ELFCLASS32
  file.close();
  EXPECT_NE(why_not(path).find("64-bit"), std::string::npos);
}

}  // namespace
}  // namespace farpage::cli
