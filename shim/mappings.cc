#include "shim/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

namespace farpage::shim {
namespace {

// Reads digits up to `stop`; advances past it.
bool parse_number(const char*& at, const char* end, unsigned base, char stop, uint64_t& value) {
  value = 0;
  for (; at < end && *at != stop; ++at) {
    unsigned digit = 0;
    if (*at >= '0' && *at <= '9') {
      digit = static_cast<unsigned>(*at - '0');
    } else if (*at >= 'a' && *at <= 'f') {
      digit = static_cast<unsigned>(*at - 'a') + 10;
    } else {
      return false;
    }
    if (digit >= base) {
      return false;
    }
    value = value * base + digit;
  }
  return at++ < end;
}

bool skip_word(const char*& at, const char* end) {
  const void* blank = memchr(at, ' ', static_cast<size_t>(end - at));
  if (blank == nullptr) {
    return false;
  }
  at = static_cast<const char*>(blank) + 1;
  return true;
}

class MapsReader {
 public:
  explicit MapsReader(int fd) : fd_(fd) {}

  // 1 and the next line, 0 at the end, or a negative errno.
  long next(Mapping& mapping) {
    for (;;) {
      if (const void* newline = memchr(text_ + at_, '\n', held_ - at_)) {
        const char* const line = text_ + at_;
        const char* const end = static_cast<const char*>(newline);
        at_ = static_cast<size_t>(end - text_) + 1;
        const bool whole = !skipping_;
        skipping_ = false;
        if (whole && parse_mapping(line, end, mapping)) {
          return 1;
        }
      } else if (const long got = fill(); got <= 0) {
        return got;
      }
    }
  }

 private:
  long fill() {
    memmove(text_, text_ + at_, held_ - at_);
    held_ -= at_;
    at_ = 0;
    if (held_ == sizeof(text_)) {  // a line too long for the buffer
      held_ = 0;
      skipping_ = true;
    }
    const long got = system_call(SYS_read, fd_, text_ + held_, sizeof(text_) - held_);
    held_ += got > 0 ? static_cast<size_t>(got) : 0;
    return got;
  }

  const int fd_;
  size_t held_ = 0;
  size_t at_ = 0;
  bool skipping_ = false;
  char text_[4096];
};

}  // namespace

// "7f0000000000-7f0000001000 rw-p 00000000 00:00 0     path": inode 0 is anonymous memory.
bool parse_mapping(const char* line, const char* end, Mapping& mapping) {
  const char* at = line;
  if (!parse_number(at, end, 16, '-', mapping.span.begin) ||
      !parse_number(at, end, 16, ' ', mapping.span.end) || end - at < 5) {
    return false;
  }
  mapping.protection = (at[0] == 'r' ? PROT_READ : 0) | (at[1] == 'w' ? PROT_WRITE : 0) |
                       (at[2] == 'x' ? PROT_EXEC : 0);
  for (int words_before_inode = 0; words_before_inode < 3; ++words_before_inode) {
    if (!skip_word(at, end)) {
      return false;
    }
  }
  mapping.anonymous = at < end && *at == '0' && (at + 1 == end || at[1] == ' ');
  return true;
}

long find_mapping(Span span, Mapping& mapping) {
  const long fd = system_call(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (is_error(fd)) {
    return fd;
  }
  mapping = {};
  MapsReader lines(static_cast<int>(fd));
  Mapping line;
  long result = 0;
  while ((result = lines.next(line)) > 0) {
    if (line.span.begin <= span.begin && span.begin < line.span.end) {
      mapping = line;
    } else if (!mapping.span.empty()) {
      const bool continues = line.span.begin == mapping.span.end &&
                             line.protection == mapping.protection &&
                             line.anonymous == mapping.anonymous;
      if (!continues) {
        break;
      }
      mapping.span.end = line.span.end;
    }
    if (mapping.span.end >= span.end) {
      break;
    }
  }
  system_call(SYS_close, fd);
  if (is_error(result)) {
    return result;
  }
  return mapping.span.empty() ? -EFAULT : 0;
}

}  // namespace farpage::shim
