// Attachment: a running program whose memory a pager has taken over. It does for that program what
// the shim does for one that was started with far memory: hands its userfaultfd over, and makes its
// mappings extents (uffd/handover.h).
//
// New mappings are found by looking (mappings.h), once the kernel has announced a change
// (mapping_watch.h). What goes away, moves or forks the pager learns from the kernel itself.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "inject/injected_agent.h"
#include "inject/mapping_watch.h"
#include "inject/mappings.h"
#include "inject/process_files.h"
#include "inject/settled_mappings.h"
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
  static Result<std::unique_ptr<Attachment>> begin(pid_t pid, const std::string& handover_path,
                                                   const AttachOptions& options,
                                                   const Clock& clock);

  // Readable when tend() has work before its time; -1: never.
  int changes() const { return watch_.descriptor(); }
  // Takes in new mappings. Call it when changes() is readable, and after the time that it returns.
  // kUnavailable: the program or the pager has ended.
  Result<Nanoseconds> tend();
  // Everything comes back, and the program is as it was before. kUnavailable: the program, or the
  // pager, has ended. Other failures: it is still attached.
  Status detach();

  const Fd& process() const { return agent_.process; }  // pidfd
  const Fd& agent() const { return agent_.agent; }      // of its thread: ends by exec, too
  std::string name() const { return process_.name(); }
  Nanoseconds stood() const { return agent_.stood; }
  uint64_t far_bytes() const;  // of mappings that were taken in

 private:
  // How long after a change to look: programs make mappings in bursts.
  static constexpr Nanoseconds kSettle = std::chrono::milliseconds(20);
  // Pages that came to be without an announcement: copies of the zero page, what the program had
  // given up with MADV_FREE and uses again.
  static constexpr Nanoseconds kSweep = std::chrono::seconds(5);

  Attachment(ProcessFiles process, InjectedAgent agent, Fd userfaultfd,
             const AttachOptions& options, const Clock& clock);
  Status hand_over(const std::string& path);
  Status ask(uffd::handover::RequestKind kind, AddressRange range);
  Status take_in(AddressRange range);
  Status look();
  Status sweep();
  Status unregister_all();

  const AttachOptions options_;
  const Clock& clock_;
  ProcessFiles process_;
  InjectedAgent agent_;
  uffd::Userfaultfd userfaultfd_;
  Fd socket_;
  uint64_t requests_ = 0;
  MappingWatch watch_;
  EligibleMappings mappings_;
  SettledMappings settled_;
  Instant look_at_{0};  // 0: nothing has changed
  Instant sweep_at_{0};
};

}  // namespace farpage::inject
