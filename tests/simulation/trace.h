// Trace: the last steps of a run: which thread did what on which page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace farpage::simulation {

// It has no pointers but to literals, so that it can lie in memory that a parent process shares.
//
// Threads: one.
class Trace {
 public:
  static constexpr size_t kNameBytes = 16;
  static constexpr uint64_t kNoPage = UINT64_MAX;
  static constexpr uint32_t kNoSpace = UINT32_MAX;

  struct Step {
    const char* what;  // a literal
    uint32_t space = kNoSpace;
    uint64_t page = kNoPage;
    uint64_t value = 0;
    std::string_view text{};  // instead of the value; cut off when it is long
  };

  void note(Instant time, size_t fiber, const Step& step);
  void set_name(size_t fiber, const char* name);
  // From now on only the steps on this page are kept, and those on none.
  void keep_only(uint64_t page) { only_ = page; }
  // The last `count` steps.
  void print(size_t count) const;

 private:
  static constexpr size_t kSteps = 1U << 13;  // that are kept
  static constexpr size_t kFibers = 256;      // whose names are
  static constexpr size_t kTextBytes = 160;
  struct Entry {
    Instant time;
    const char* what;
    uint64_t page;
    uint64_t value;
    uint32_t space;
    uint32_t fiber;
    std::array<char, kTextBytes> text;
  };
  void print(const Entry& entry) const;

  uint64_t only_ = kNoPage;  // this page; kNoPage: all
  uint64_t count_ = 0;       // ever kept
  std::array<Entry, kSteps> entries_;
  std::array<std::array<char, kNameBytes>, kFibers> names_;
};

}  // namespace farpage::simulation
