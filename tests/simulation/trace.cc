#include "trace.h"

#include <algorithm>
#include <cstdio>

namespace farpage::simulation {
namespace {

template <size_t kBytes>
void copy_text(std::string_view from, std::array<char, kBytes>& to) {
  const size_t length = std::min(from.size(), kBytes - 1);
  std::copy_n(from.begin(), length, to.begin());
  to[length] = '\0';
}

}  // namespace

void Trace::note(Instant time, size_t fiber, const Step& step) {
  if (only_ != kNoPage && step.page != kNoPage && step.page != only_) return;
  Entry& entry = entries_[count_++ % kSteps];
  entry.time = time;
  entry.what = step.what;
  entry.page = step.page;
  entry.value = step.value;
  entry.space = step.space;
  entry.fiber = static_cast<uint32_t>(fiber);
  copy_text(step.text, entry.text);
}

void Trace::set_name(size_t fiber, const char* name) {
  if (fiber < kFibers) copy_text(name, names_[fiber]);
}

void Trace::print(const Entry& entry) const {
  const char* name = entry.fiber < kFibers ? names_[entry.fiber].data() : "";
  const auto time_ns = static_cast<unsigned long long>(entry.time.count());
  std::printf("%10llu.%03llu us %3u %-15s ", time_ns / 1000 % 1'000'000'000, time_ns % 1000,
              entry.fiber, name);
  if (entry.space != kNoSpace) std::printf("space %u ", entry.space);
  if (entry.page != kNoPage) std::printf("page %llu ", static_cast<unsigned long long>(entry.page));
  const auto value = static_cast<unsigned long long>(entry.value);
  std::printf("%s %llu %s\n", entry.what, value, entry.text.data());
}

void Trace::print(size_t count) const {
  const uint64_t printed = std::min<uint64_t>({count_, kSteps, count});
  for (uint64_t i = count_ - printed; i < count_; ++i) print(entries_[i % kSteps]);
}

}  // namespace farpage::simulation
