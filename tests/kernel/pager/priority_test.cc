// Eviction has a lower priority than the program while there is room (EvictionPriority), in a whole
// pager.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "rig.h"

namespace farpage::pager {
namespace {

// Of this process's evictor; -1: there is none.
int evictors_niceness() {
  int found = -1;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name) && name == "fp-evict")
      found = ::getpriority(PRIO_PROCESS, static_cast<id_t>(std::atoi(entry->d_name)));
  }
  ::closedir(tasks);
  return found;
}

TEST(PagerPriority, TheEvictorStepsBackOnlyWhileThereIsRoom) {
  Rig rig({.fault_deadline = Seconds(3600)});
  ASSERT_TRUE(comes_true([] { return evictors_niceness() == 19; })) << evictors_niceness();
  rig.client().set_slab_limit(1);  // 512 pages can be evicted, the others must stay
  std::thread program([&] {
    for (uint64_t page = 0; page < 3000; ++page) fill(rig, page, 1);
  });
  EXPECT_TRUE(comes_true([&] { return rig.stats().faults_waited_room > 0; }));
  EXPECT_TRUE(comes_true([] { return evictors_niceness() == 0; })) << evictors_niceness();
  ASSERT_TRUE(rig.pager().set_local(uint64_t{16} << 20).has_value());
  program.join();
  EXPECT_TRUE(comes_true([] { return evictors_niceness() == 19; })) << evictors_niceness();
  for (uint64_t page = 0; page < 3000; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

}  // namespace
}  // namespace farpage::pager
