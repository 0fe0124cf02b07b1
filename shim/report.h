// Report: one line on the standard error of a foreign program, built without libc and written by
// one system call, so that any code can use it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace farpage::shim {

class Report {
 public:
  Report() { text("farpage: "); }
  Report& text(const char* words);
  Report& number(uint64_t value);
  // "operation not permitted (errno 1)" for common errors, else "failed" and the number.
  Report& error(long negative_errno);
  // Writes the line. Longer ones are cut at kMaxBytes.
  void write();
  // Writes the line and ends the process: the user asked for far memory, and running on without it
  // would be wrong.
  [[noreturn]] void write_and_exit();

  static constexpr size_t kMaxBytes = 512;
  static constexpr int kExitStatus = 126;

 private:
  void add(char letter);

  size_t length_ = 0;
  char line_[kMaxBytes];
};

}  // namespace farpage::shim
