#include "shim/report.h"

#include <errno.h>
#include <unistd.h>

#include "shim/syscalls.h"

namespace farpage::shim {
namespace {

const char* name_of(long error) {
  switch (error) {
    case EPERM:
      return "operation not permitted";
    case ENOENT:
      return "no such file or directory";
    case EACCES:
      return "permission denied";
    case ENOMEM:
      return "cannot allocate memory";
    case EINVAL:
      return "invalid argument";
    case EMFILE:
      return "too many open files";
    case ENOSYS:
      return "not in this kernel";
    case ECONNREFUSED:
      return "connection refused";
    case ETIMEDOUT:
      return "timed out";
    case EPIPE:
    case ECONNRESET:
      return "connection closed";
    default:
      return "failed";
  }
}

}  // namespace

void Report::add(char letter) {
  if (length_ < kMaxBytes - 1) {  // the last place is for the newline
    line_[length_++] = letter;
  }
}

Report& Report::text(const char* words) {
  for (; *words != '\0'; ++words) {
    add(*words);
  }
  return *this;
}

Report& Report::number(uint64_t value) {
  char digits[20];
  size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  while (count > 0) {
    add(digits[--count]);
  }
  return *this;
}

Report& Report::error(long negative_errno) {
  const long error = -negative_errno;
  return text(name_of(error)).text(" (errno ").number(static_cast<uint64_t>(error)).text(")");
}

void Report::write() {
  line_[length_++] = '\n';
  system_call(SYS_write, STDERR_FILENO, static_cast<const char*>(line_), length_);
  length_ = 0;
}

void Report::write_and_exit() {
  write();
  for (;;) {
    system_call(SYS_exit_group, kExitStatus);
  }
}

}  // namespace farpage::shim
