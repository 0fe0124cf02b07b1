#include "pager/pages/pressure.h"

#include "base/futex.h"

namespace farpage::pager {

void Pressure::signal() {
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_seq_cst) != 0) futex_wake(sequence_);
}

void Pressure::wait(uint32_t seen, Nanoseconds timeout) {
  sleeps_.store(1, std::memory_order_seq_cst);
  futex_wait(sequence_, seen, timeout);
  sleeps_.store(0, std::memory_order_relaxed);
}

}  // namespace farpage::pager
