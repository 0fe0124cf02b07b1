#include "coordinator/event_log.h"

#include <gtest/gtest.h>

namespace farpage::coordinator {
namespace {

Event event_of(const char* node) {
  Event event;
  event.node = NodeId{node};
  return event;
}

TEST(EventLog, GivesWhatCameAfterANumber) {
  EventLog log(10, 100, false);
  log.append(event_of("a"));
  log.append(event_of("b"));
  const EventBatch all = log.since(0);
  ASSERT_EQ(all.events.size(), 2U);
  EXPECT_EQ(all.events[0].sequence, 101U);
  EXPECT_EQ(all.next_since, 102U);
  EXPECT_FALSE(all.missed);
  EXPECT_EQ(log.since(101).events.at(0).node, NodeId{"b"});
  EXPECT_TRUE(log.since(102).events.empty());
  EXPECT_FALSE(log.since(102).missed);
}

TEST(EventLog, ForgetsTheOldestAndSaysSo) {
  EventLog log(3, 100, false);
  for (int i = 0; i < 5; ++i) log.append(event_of("x"));
  EXPECT_EQ(log.since(0).events.size(), 3U);
  EXPECT_TRUE(log.since(0).missed);
  EXPECT_TRUE(log.since(101).missed);
  EXPECT_FALSE(log.since(102).missed);
  EXPECT_EQ(log.since(102).events.size(), 3U);
}

TEST(EventLog, NumbersOfAnotherCoordinatorAreNoticed) {
  EventLog log(3, 100, false);
  log.append(event_of("a"));
  for (const uint64_t since : {uint64_t{5}, uint64_t{5000}}) {
    EXPECT_TRUE(log.since(since).missed) << since;
    EXPECT_EQ(log.since(since).events.size(), 1U);
    EXPECT_EQ(log.since(since).next_since, 101U);
  }
}

}  // namespace
}  // namespace farpage::coordinator
