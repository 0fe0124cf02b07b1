// A running inject_target, and the commands of the agent that is injected into it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "inject/injected_agent.h"
#include "target_process.h"
#include "uffd/agent_ring.h"
#include "uffd/handover.h"

namespace farpage::test {

// Why no process can be taken over here; nullopt: it can.
std::optional<std::string> why_no_injection();

class TakenProgram {
 public:
  enum class Linked { kDynamically, kStatically };
  explicit TakenProgram(Linked linked = Linked::kDynamically);

  pid_t pid() const { return process_.pid(); }
  TargetProcess& process() { return process_; }
  // Sends a command, and returns its answer.
  std::string ask(const std::string& command);
  uint64_t ask_number(const std::string& command);

  std::string maps() const { return text_of("maps"); }
  std::string text_of(const std::string& file) const;
  // Waits until its main thread sleeps in the system call of that number.
  void await_call(long number) const;
  std::string descriptors() const;

  // Fails the test if it cannot be done.
  inject::InjectedAgent& inject();
  void withdraw();
  inject::InjectedAgent& agent() { return *agent_; }
  // One command of the agent, with its result and `kept`.
  uffd::handover::Command execute(uffd::handover::Command command);

 private:
  TargetProcess process_;
  std::optional<inject::InjectedAgent> agent_;
  std::optional<uffd::AgentRingProducer> commands_;
};

// The bytes of that memory.
std::string memory_of(pid_t pid, uint64_t address, uint64_t bytes);

}  // namespace farpage::test
