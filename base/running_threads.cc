#include "base/running_threads.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace farpage {
namespace {

// proc(5): fields are counted from 1; the second is the name, in parentheses, with any characters.
constexpr uint32_t kProcessor = 39;

std::string_view read_start(const Fd& file, std::array<char, 1024>& text) {
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  return bytes <= 0 ? std::string_view()
                    : std::string_view(text.data(), static_cast<size_t>(bytes));
}

template <typename Number>
std::optional<Number> number_at(std::string_view text, size_t at) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  if (at >= text.size() || std::from_chars(text.data() + at, end, number).ec != std::errc())
    return std::nullopt;
  return number;
}

}  // namespace

std::optional<int> RunningThreads::cpu_of(uint32_t thread) {
  if (thread != thread_) {
    std::array<char, 64> path;
    (void)std::snprintf(path.data(), path.size(), "/proc/%u/task/%u/stat", thread, thread);
    stat_ = Fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
    thread_ = thread;
  }
  std::array<char, 1024> buffer;
  const std::string_view text = read_start(stat_, buffer);
  size_t at = text.rfind(')');
  for (uint32_t field = 2; field < kProcessor && at != std::string_view::npos; ++field)
    at = text.find(' ', at + 1);
  return at == std::string_view::npos ? std::nullopt : number_at<int>(text, at + 1);
}

// "0.20 0.18 0.12 1/80 11206": the fourth field begins with the number.
uint32_t RunningThreads::count() {
  if (load_.get() < 0) load_ = Fd(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> buffer;
  const std::string_view text = read_start(load_, buffer);
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return 0;
  return number_at<uint32_t>(text, text.rfind(' ', slash) + 1).value_or(0);
}

}  // namespace farpage
