#include "kv/shell.h"

#include <gtest/gtest.h>

#include <sstream>

namespace kv {
namespace {

std::string answers(const std::string& commands) {
  const SteadyClock clock;
  Store store(*std::pmr::new_delete_resource(), clock);
  std::istringstream in(commands);
  std::ostringstream out;
  run_shell(store, in, out);
  return out.str();
}

TEST(Shell, AnswersEachCommandWithALine) {
  EXPECT_EQ(answers("put a 12\nget a\nget b\nstats\ndelete a\ndelete a\n"),
            "stored\nvalue 12\nnone\nkeys 1 value_bytes 2\ndeleted\nnone\n");
  EXPECT_EQ(answers("put a x 0\nget a\nput b y 100000\nget b\n"),
            "stored\nnone\nstored\nvalue y\n");
}

TEST(Shell, SaysWhatIsWrongAndGoesOn) {
  EXPECT_EQ(answers("fly\n\nput a\nput a x soon\nput " + std::string(251, 'k') + " x\nget a\n"),
            "error: no command 'fly': put, get, delete, stats\nerror: put KEY VALUE [TTL_MS]\n"
            "error: TTL_MS is a number of milliseconds\nerror: a key has 1 to 250 bytes\nnone\n");
}

}  // namespace
}  // namespace kv
