// Ring: owns one io_uring. Written for liburing 2.1 and Linux 5.15 or later; uses features of newer
// kernels if present.
#pragma once

#include <liburing.h>

#include "base/result.h"

namespace farpage::rdma::tcp {

// Values of the kernel's ABI that liburing 2.1's own header does not know.
#ifdef IORING_ACCEPT_MULTISHOT
inline constexpr uint16_t kAcceptMultishot = IORING_ACCEPT_MULTISHOT;
#else
inline constexpr uint16_t kAcceptMultishot = 1U << 0;
#endif

// Who processes what has completed in the kernel.
enum class TaskWork : uint8_t {
  kCooperative,  // the thread, when it enters the kernel anyway (Linux 5.19)
  kAtOnce,       // the thread, which is interrupted: a look finds it without a system call
};

// Threads: one, after construction.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // With room for `entries` submissions. Fails with kUnsupported and the remedy if io_uring is
  // missing or forbidden.
  Status open(unsigned entries, TaskWork task_work = TaskWork::kCooperative);

  io_uring* get() { return &ring_; }
  // Never null: submits what is queued when the queue is full.
  io_uring_sqe* next_entry();
  // Whether a completion is there, without waiting.
  bool has_completion();

 private:
  io_uring ring_{};
  bool open_ = false;
};

}  // namespace farpage::rdma::tcp
