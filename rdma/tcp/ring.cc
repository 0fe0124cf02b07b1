#include "rdma/tcp/ring.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/check.h"

namespace farpage::rdma::tcp {
namespace {

// Without an inter-processor interrupt.
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
constexpr unsigned kPreferredFlags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
#else
constexpr unsigned kPreferredFlags = 0;
#endif

}  // namespace

Ring::~Ring() {
  if (open_) io_uring_queue_exit(&ring_);
}

Status Ring::open(unsigned entries, TaskWork task_work) {
  const unsigned flags = task_work == TaskWork::kCooperative ? kPreferredFlags : 0;
  int code = io_uring_queue_init(entries, &ring_, flags);
  if (code == -EINVAL) code = io_uring_queue_init(entries, &ring_, 0);
  if (code == -ENOSYS || code == -EPERM)
    return fail(
        ErrorCode::kUnsupported,
        "io_uring is not available: it needs Linux 5.15, kernel.io_uring_disabled = 0 and a "
        "container profile that allows io_uring_setup");
  if (code < 0) return fail_errno("io_uring_queue_init", -code);
  open_ = true;
  return {};
}

io_uring_sqe* Ring::next_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    const int code = io_uring_submit(&ring_);
    FARPAGE_CHECK(code >= 0 || code == -EBUSY || code == -EAGAIN || code == -EINTR,
                  "io_uring_submit returned %d", code);
    entry = io_uring_get_sqe(&ring_);
  }
  return entry;
}

bool Ring::has_completion() {
  io_uring_cqe* completion = nullptr;
  return io_uring_peek_cqe(&ring_, &completion) == 0;
}

}  // namespace farpage::rdma::tcp
