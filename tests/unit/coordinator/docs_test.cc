// The examples of docs/protocol-rest.md, run as a reader would.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/unit/coordinator/test_service.h"

namespace farpage::coordinator {
namespace {

// The lines of every block that begins with ```sh.
std::string shell_blocks(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::string script;
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```sh";
      continue;
    }
    if (inside) script += line + "\n";
  }
  return script;
}

using RestDocumentation = ServiceTest;

TEST_F(RestDocumentation, EveryExampleWorks) {
  if (std::system("command -v curl >/dev/null && command -v bash >/dev/null") != 0)
    GTEST_SKIP() << "curl or bash is not installed";
  ServiceOptions options = test_options();
  options.token = "a-token";
  start(options);
  agents_.set_slab_bytes(kDefaultSlabBytes);
  const std::string script = shell_blocks(FARPAGE_SOURCE_DIR "/docs/protocol-rest.md");
  ASSERT_GT(script.size(), 1000U);
  ASSERT_EQ(::setenv("C", service_->url().c_str(), 1), 0);
  ASSERT_EQ(::setenv("TOKEN", "a-token", 1), 0);
  FILE* shell = ::popen("bash -eu -o pipefail >/dev/null", "w");
  ASSERT_NE(shell, nullptr);
  EXPECT_EQ(std::fwrite(script.data(), 1, script.size(), shell), script.size());
  const int status = ::pclose(shell);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_TRUE(client_->nodes()->empty());
  EXPECT_TRUE(client_->regions()->empty());
}

}  // namespace
}  // namespace farpage::coordinator
