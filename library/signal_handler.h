// The SIGBUS handler of this process: faults of far memory go to their pager, all other signals to
// the previous handler.
#pragma once

#include <span>

#include "pager/pager.h"

namespace farpage::library {

inline constexpr size_t kMaxHandledRanges = 64;

// One range whose SIGBUS faults are resolved during the lifetime of this object. The first one
// installs the handler (SA_SIGINFO, SA_NODEFER, SA_ONSTACK). The handler then stays, because
// removing it could remove a handler that the program installed later.
// Threads: add() and destruction any; no thread may be in the range at its end.
class HandledRange {
 public:
  // The pager outlives it. kExhausted beyond kMaxHandledRanges.
  static Result<HandledRange> add(std::span<std::byte> bytes, pager::Pager& pager);
  HandledRange(HandledRange&& other) noexcept;
  HandledRange& operator=(HandledRange&& other) noexcept;
  ~HandledRange();

 private:
  explicit HandledRange(size_t index) : index_(index) {}
  void release();

  static constexpr size_t kNone = kMaxHandledRanges;
  size_t index_ = kNone;
};

}  // namespace farpage::library
