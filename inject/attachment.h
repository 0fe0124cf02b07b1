// Attachment: a running program whose memory a pager has taken over. It does for that program what
// the shim does for one that was started with far memory: hands its userfaultfd over, and makes its
// mappings extents (uffd/handover.h).
//
// New mappings are found by looking (mappings.h), once the kernel has announced a change
// (mapping_watch.h). What goes away, moves or forks the pager learns from the kernel itself.
//
// A child that such a program forks is served, without an agent of its own at first. begin_child()
// gives it one.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "inject/injected_agent.h"
#include "inject/mapping_watch.h"
#include "inject/mappings.h"
#include "inject/process_files.h"
#include "inject/settled_mappings.h"
#include "uffd/children_call.h"
#include "uffd/handover.h"
#include "uffd/userfaultfd.h"

namespace farpage::inject {

struct AttachOptions {
  InjectOptions inject;
  uint64_t least_bytes = uint64_t{128} << 10;  // smaller mappings stay local
  uint64_t extent_bytes = uint64_t{256}
                          << 30;  // of page numbers: far memory that may exist at once
};

// Threads: one. Blocks while the pager answers. The destructor does not detach: the program has its
// lifeline, and ends with the pager.
class Attachment {
 public:
  // Injects the agent, and hands the program over to the pager that listens on `handover_path`. The
  // memory that is there is far when it returns, though not evicted yet. A failure has changed
  // nothing; but with InjectOptions::execute the child has been killed, unless that call failed.
  // `watch` outlives the attachment.
  static Result<std::unique_ptr<Attachment>> begin(pid_t pid, const std::string& handover_path,
                                                   const AttachOptions& options,
                                                   MappingWatch& watch, const Clock& clock);
  // The same for a process that is one of these children, as far as its caller knows: the pager
  // serves it already. kConflict: it is none of them, or has an agent.
  static Result<std::unique_ptr<Attachment>> begin_child(pid_t pid,
                                                         std::span<const uffd::FoundChild> children,
                                                         const std::string& handover_path,
                                                         const AttachOptions& options,
                                                         MappingWatch& watch, const Clock& clock);
  ~Attachment();

  pid_t pid() const { return process_.pid(); }
  // MappingWatch::may_have_changed() was true for this process.
  void note_change();
  // Takes in new mappings. Call it after note_change(), and after the time that it returns.
  // kUnavailable: the program or the pager has ended.
  Result<Nanoseconds> tend();
  // Everything comes back, and the program is as it was before. kUnavailable: the program, or the
  // pager, has ended. Other failures: it is still attached.
  Status detach();

  const Fd& process() const { return agent_.process; }  // pidfd
  const Fd& agent() const { return agent_.agent; }      // of its thread: ends by exec, too
  std::string name() const { return process_.name(); }
  const ProcessFiles& files() const { return process_; }
  // AgentlessChild::number of what begin_child() has attached.
  uint64_t child() const { return child_; }
  Nanoseconds stood() const { return agent_.stood; }
  uint64_t far_bytes() const;  // of mappings that were taken in

 private:
  // How long after a change to look: programs make mappings in bursts.
  static constexpr Nanoseconds kSettle = std::chrono::milliseconds(20);
  // Pages that came to be without an announcement: copies of the zero page, what the program had
  // given up with MADV_FREE and uses again.
  static constexpr Nanoseconds kSweep = std::chrono::seconds(5);

  Attachment(ProcessFiles process, InjectedAgent agent, Fd userfaultfd,
             const AttachOptions& options, MappingWatch& watch, const Clock& clock);
  static Result<std::unique_ptr<Attachment>> begin_with(pid_t pid,
                                                        std::span<const uffd::FoundChild> children,
                                                        const std::string& handover_path,
                                                        const AttachOptions& options,
                                                        MappingWatch& watch, const Clock& clock);
  // `child`: its number; 0: the pager does not know the process yet.
  Status hand_over(const std::string& path, uint64_t child);
  Status ask(uffd::handover::RequestKind kind, AddressRange range);
  Status take_in(AddressRange range);
  // Registers what is small. False: it is a mapping of its own, or is gone.
  Result<bool> join(AddressRange small);
  Status look();
  Status sweep();
  Status unregister_all();

  const AttachOptions options_;
  const Clock& clock_;
  ProcessFiles process_;
  InjectedAgent agent_;
  uffd::Userfaultfd userfaultfd_;
  Fd socket_;
  uint64_t child_ = 0;
  uint64_t requests_ = 0;
  MappingWatch& watch_;
  EligibleMappings mappings_;
  SettledMappings settled_;
  Instant look_at_{0};  // 0: nothing has changed
  Instant sweep_at_{0};
};

}  // namespace farpage::inject
