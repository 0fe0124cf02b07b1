// SeizedThread: one thread of another program, stopped by ptrace(2), which makes system calls for
// us and then goes on as if nothing had been.
//
// The program runs on meanwhile. All signals of the thread are blocked while it works for us. At
// the end it stops once more where the kernel looks for signals, with its own registers and its own
// mask: so it is the kernel that begins an interrupted call again, or delivers a signal that came
// meanwhile. Only calls that fail with EINTR by any stop (signal(7): epoll_wait and others) are
// begun again here.
//
// Threads: one thread of ours from seize() to the end: ptrace(2) knows no other. When that thread
// ends, the kernel lets go of what it has seized.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inject/process_files.h"

namespace farpage::inject {

// Threads that can be seized, the best ones first: those that sleep in a call which the kernel
// begins again.
Result<std::vector<pid_t>> seizable_threads(const ProcessFiles& process);

class SeizedThread {
 public:
  struct Call {
    uint64_t instruction = 0;  // the address of a system call instruction; 0: one of the program's
    long number = 0;
    std::array<uint64_t, 6> arguments = {};
    uint64_t r12 = 0;  // a register that no call changes
  };

  // kUnavailable: the thread has ended, or cannot stop now: take another one.
  static Result<SeizedThread> seize(const ProcessFiles& process, pid_t thread,
                                    bool suspend_seccomp);
  // The only thread of a child of ours that waits for `execute`, which has it call exec: stopped
  // before the first instruction of its new program. It is killed with our thread until release().
  static Result<SeizedThread> seize_at_exec(const ProcessFiles& process,
                                            const std::function<void()>& execute);
  SeizedThread(SeizedThread&& other) noexcept;
  SeizedThread& operator=(SeizedThread&&) = delete;
  ~SeizedThread();

  // What it returns; its failure is a failure. `name` is for the message.
  Result<uint64_t> call(const Call& call, const char* name);
  // Also where the program itself may not write.
  Status write(uint64_t address, std::span<const std::byte> bytes);
  // Puts the thread back and lets it go on.
  Status release();
  // For a thread that it has made: it has inherited the priority with which this one works for us.
  void give_back_priority(pid_t thread) const;
  // How long it stood, after release().
  Nanoseconds stood() const { return stood_; }

 private:
  SeizedThread(const ProcessFiles& process, pid_t thread) : process_(&process), thread_(thread) {}

  enum class Stop : uint8_t {
    kInterrupt,  // by PTRACE_INTERRUPT
    kCall,       // at the begin or the end of a system call
    kExec,
  };

  Status begin(uint64_t options);
  Status request(int request, uint64_t address, uint64_t data, const char* name) const;
  Status stop();
  void hurry();
  Status save();
  Status find_call_instruction();
  Status leave_critical_section();
  Status await_stop(int resumption, Stop stop, Nanoseconds patience);
  Status put_back();
  bool fails_by_any_stop() const;
  bool has_signal() const;

  const ProcessFiles* process_;
  pid_t thread_ = 0;  // 0: let go of
  uint64_t call_instruction_ = 0;
  user_regs_struct registers_ = {};
  uint64_t signal_mask_ = 0;
  bool saved_ = false;
  bool called_ = false;
  Instant since_{};
  Nanoseconds stood_{};
  std::optional<int> niceness_;  // before it hurried
};

}  // namespace farpage::inject
