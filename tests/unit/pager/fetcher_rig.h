// FetcherRig: a TargetRig with a fetcher, of which the test is the worker.
#pragma once

#include <gtest/gtest.h>

#include "pager/fault/fetcher.h"
#include "target_rig.h"

namespace farpage::pager {

class FetcherRig : public TargetRig {
 public:
  explicit FetcherRig(const TargetRigOptions& options = {}) : TargetRig(options) {}

  // As the worker does for a fault on a remote page, which is read now or was read at `since`.
  void start(uint64_t page, uffd::FaultKind kind = uffd::FaultKind::kMissingRead,
             Instant since = SteadyClock::read()) {
    const PageWord word = table.load(PageIndex{page});
    const PageWord fetching =
        word.to(PageState::kFetching, PageWord::kFromRemote | compressed_flag(word));
    ASSERT_TRUE(budget.try_take());
    table.transition_owned(PageIndex{page}, word, fetching);
    fetcher.start(target, PageIndex{page}, fetching, kind, since);
  }
  // A thread has touched the page, and the message is read.
  void fault(uint64_t page, uffd::FaultKind kind = uffd::FaultKind::kMissingRead,
             Instant since = SteadyClock::read()) {
    if (kind == uffd::FaultKind::kMissingWrite) {
      EXPECT_FALSE(space.touch_write(page, kWritten, thread_of(page)));
    } else {
      EXPECT_FALSE(space.touch_read(page, thread_of(page)));
    }
    space.read_all();
    start(page, kind, since);
  }
  // A fault on a remote page whose READ is on the wire.
  void begin_fetch(uint64_t page, Instant since = SteadyClock::read()) {
    make_remote(pages_of(page));
    fault(page, uffd::FaultKind::kMissingRead, since);
    fetcher.post_queued();
  }
  // The node answers; the fetcher installs the page, or goes on otherwise.
  void answer(rdma::CompletionStatus status = rdma::CompletionStatus::kOk) {
    node().answer(status);
    EXPECT_TRUE(fetcher.progress());
  }
  bool waits(uint64_t page) const { return space.sleeps(thread_of(page)); }
  bool is_killed(uint64_t page) const { return space.has_sigbus(thread_of(page)); }
  // Posts again what has failed, after the pause if that was the last replica.
  bool posts_again(size_t node) {
    return becomes_true([&] {
      (void)fetcher.progress();
      return nodes[node]->waiting() > 0;
    });
  }
  // As long ago as a fault that is too late.
  Instant too_long_ago() const {
    return SteadyClock::read() - engine.options.fault_deadline - Seconds(1);
  }

  static constexpr uint64_t kWritten = 77;
  std::unique_ptr<LinkPort> port = make_port(Fetcher::kBufferBytes);
  Fetcher fetcher{engine, *port, 0};

 private:
  static uint32_t thread_of(uint64_t page) { return static_cast<uint32_t>(page) + 1; }
};

}  // namespace farpage::pager
