#include "pager/fork/event_readers.h"

#include <gtest/gtest.h>

#include <thread>

namespace farpage::pager {
namespace {

TEST(EventReaders, NobodyIsWaitedForWhoReadsNothing) {
  EventReaders readers;
  readers.wait_until_handled();
  readers.begin(3);
  readers.end(3);
  readers.wait_until_handled();
}

TEST(EventReaders, AnEventThatHasBeenReadIsHandledWhenTheWaitEnds) {
  EventReaders readers;
  std::atomic<bool> handled{false};
  std::atomic<bool> waits{false};
  readers.begin(1);  // it has read an event
  std::jthread other([&] {
    while (!waits) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    handled = true;
    readers.end(1);
  });
  waits = true;
  readers.wait_until_handled();
  EXPECT_TRUE(handled);
}

TEST(EventReaders, WorkersThatReadAgainAndAgainHoldNobodyUp) {
  EventReaders readers;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::jthread worker([&] {
    for (; !stop; ++reads) {
      readers.begin(0);
      readers.end(0);
    }
  });
  for (int i = 0; i < 1000 || reads < 1000; ++i) readers.wait_until_handled();
  stop = true;
}

}  // namespace
}  // namespace farpage::pager
