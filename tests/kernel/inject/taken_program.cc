#include "taken_program.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "base/fd.h"
#include "base/mapping.h"
#include "inject/target_checks.h"

namespace farpage::test {

namespace {

std::vector<std::string> command_of(TakenProgram::Linked linked) {
  return {linked == TakenProgram::Linked::kStatically ? FARPAGE_STATIC_INJECT_TARGET
                                                      : FARPAGE_INJECT_TARGET};
}

}  // namespace

std::optional<std::string> why_no_injection() {
  if (::geteuid() != 0) return "other programs are taken over by root";
  if (const Status kernel = inject::check_kernel(); !kernel) return kernel.error().context;
  return std::nullopt;
}

TakenProgram::TakenProgram(Linked linked) : process_(command_of(linked), {}) {
  EXPECT_EQ(process_.read_line(), "ready");
}

std::string TakenProgram::ask(const std::string& command) {
  process_.write_line(command);
  return process_.read_line();
}

uint64_t TakenProgram::ask_number(const std::string& command) {
  return std::strtoull(ask(command).c_str(), nullptr, 10);
}

std::string TakenProgram::text_of(const std::string& file) const {
  std::ifstream stream("/proc/" + std::to_string(pid()) + "/" + file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void TakenProgram::await_call(long number) const {
  while (true) {
    const std::string call = text_of("syscall");
    // A relative timeout makes the kernel go on with the other call.
    for (const long here : {number, long{SYS_restart_syscall}})
      if (call.starts_with(std::to_string(here) + " ")) return;
    std::this_thread::yield();
  }
}

std::string TakenProgram::descriptors() const {
  std::set<std::string> names;
  const std::string path = "/proc/" + std::to_string(pid()) + "/fd";
  DIR* directory = ::opendir(path.c_str());
  while (const dirent* entry = directory == nullptr ? nullptr : ::readdir(directory))
    names.insert(static_cast<const char*>(entry->d_name));
  if (directory != nullptr) ::closedir(directory);
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

inject::InjectedAgent& TakenProgram::inject() {
  Result<inject::InjectedAgent> agent = inject::inject(pid(), {});
  if (!agent) {
    ADD_FAILURE() << agent.error().message();
    std::abort();
  }
  agent_ = std::move(*agent);
  Result<Mapping> ring = Mapping::shared(agent_->ring.get(), agent_->ring_bytes);
  EXPECT_TRUE(ring.has_value()) << ring.error().message();
  commands_.emplace(std::move(*ring), [] { return true; });
  return *agent_;
}

void TakenProgram::withdraw() {
  commands_.reset();
  const Status done = inject::withdraw(*agent_);
  EXPECT_TRUE(done.has_value()) << done.error().message();
}

uffd::handover::Command TakenProgram::execute(uffd::handover::Command command) {
  EXPECT_TRUE(commands_->begin({&command, 1}, std::chrono::seconds(10)).has_value());
  EXPECT_TRUE(commands_->await({&command, 1}, std::chrono::seconds(10)).has_value());
  return command;
}

std::string memory_of(pid_t pid, uint64_t address, uint64_t bytes) {
  const Fd memory(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(bytes, '\0');
  const ssize_t got = ::pread(memory.get(), text.data(), bytes, static_cast<off_t>(address));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace farpage::test
