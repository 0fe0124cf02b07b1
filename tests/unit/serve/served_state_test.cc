#include "serve/served_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "uffd/extent_map.h"

namespace farpage::serve {
namespace {

TEST(ServedState, ASuccessorFindsRunsAndTargetsAndTheirDescriptors) {
  const auto store = std::move(*StateStore::create(1 << 20));
  const auto dead = std::move(*ServedState::create(store.get()));
  const uint64_t run = dead.next_number();
  const uint64_t parent = dead.next_number();
  const uint64_t child = dead.next_number();
  ASSERT_TRUE(dead.put_listener(40));
  ASSERT_TRUE(dead.put(run, RunRecord{.program = "a \"name\"\n\xff",
                                      .socket = 41,
                                      .listener = 42,
                                      .local_bytes = 1 << 30,
                                      .fork = pager::ForkMode::kShare,
                                      .exit_status = 137}));
  const ServedRecord record{.run = run,
                            .program = "program",
                            .pid = 1234,
                            .forked = true,
                            .fork_request = 17,
                            .may_fork = true,
                            .socket = 43,
                            .lifeline = 44,
                            .userfaultfd = 45,
                            .ring = 46,
                            .window_address = uint64_t{1} << 44,
                            .window_bytes = uint64_t{1} << 40,
                            .staging_address = uint64_t{1} << 43,
                            .more_pages = 77,
                            .features = UINT64_MAX};
  ASSERT_TRUE(dead.put(parent, record));
  ASSERT_TRUE(dead.put(child, child_record(parent, record, 47, 48)));

  const auto next = std::move(*StateStore::take_over(::dup(store->descriptor())));
  const auto found = std::move(*ServedState::create(next.get()));
  EXPECT_EQ(found.next_number(), child + 1);
  EXPECT_EQ(found.listener(), 40);
  const auto runs = std::move(*found.runs());
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs.at(run).local_bytes, uint64_t{1} << 30);
  EXPECT_EQ(runs.at(run).fork, pager::ForkMode::kShare);
  EXPECT_EQ(runs.at(run).exit_status, 137);
  const auto targets = std::move(*found.targets());
  ASSERT_EQ(targets.size(), 2U);
  EXPECT_EQ(targets.at(parent).pid, 1234);
  EXPECT_EQ(targets.at(parent).fork_request, 17U);
  EXPECT_EQ(targets.at(parent).features, UINT64_MAX);
  EXPECT_EQ(targets.at(parent).window_address, uint64_t{1} << 44);
  EXPECT_EQ(targets.at(parent).staging_address, uint64_t{1} << 43);
  EXPECT_FALSE(targets.at(parent).welcome);
  EXPECT_EQ(targets.at(child).parent, parent);
  EXPECT_EQ(targets.at(child).fork, 17U);
  EXPECT_FALSE(targets.at(child).hello);
  EXPECT_EQ(targets.at(child).more_pages, 77U);
  auto descriptors = std::move(*found.descriptors());
  for (int number = 40; number <= 48; ++number) EXPECT_TRUE(descriptors.contains(number)) << number;
  EXPECT_FALSE(descriptors.contains(-1));

  found.erase_target(parent);
  found.erase_run(run);
  EXPECT_EQ(found.targets()->size(), 1U);
  EXPECT_TRUE(found.runs()->empty());
  EXPECT_FALSE(found.descriptors()->contains(45));
  next->release_ranges();  // another store's: it must not close them
}

// It has no staging area, and whatever it maps where its parent has one is its own.
TEST(ServedState, AChildOfAnAttachedProgramHasNoWindow) {
  const ServedRecord parent{
      .window_address = uint64_t{1} << 40, .staging_address = uint64_t{1} << 40, .attached = true};
  const ServedRecord child = child_record(1, parent, -1, 5);
  EXPECT_TRUE(child.attached);
  EXPECT_EQ(child.window_address, uffd::ExtentMap::kNoWindow);
  EXPECT_EQ(child.staging_address, 0U);
  const ServedRecord with_shim{.window_address = uint64_t{1} << 40};
  EXPECT_EQ(child_record(1, with_shim, -1, 5).window_address, uint64_t{1} << 40);
}

}  // namespace
}  // namespace farpage::serve