// HostedMemory: far memory of this process that the pager of the host serves (`farpage pager`).
//
// It hands a window over as the shim does for a whole program (uffd/handover.h): the pager resolves
// its faults, and a thread here executes the pager's commands (shim/ring_commands.h). Each is a run
// of its own at the pager, with a budget of its own.
#pragma once

#include <sys/un.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "library/memory.h"
#include "serve/pager_session.h"
#include "shim/ring_commands.h"
#include "uffd/handover.h"
#include "uffd/own_process.h"

namespace farpage::library {

struct HostedOptions {
  std::string pager;  // its socket
  std::string name;
  uint64_t local_bytes = 0;
};

// Threads: any; calls with a request take turns. In a child of fork() the window is not mapped, and
// all calls fail: the connections are its parent's, and are closed in the child.
class HostedMemory final : public Memory {
 public:
  // kNotFound: no pager listens there. kDenied: it serves another user, or there is no privilege
  // for userfaultfd. kExhausted, kInvalid, kUnavailable: it refuses, with the reason.
  static Result<std::unique_ptr<HostedMemory>> create(uint64_t pages, const HostedOptions& options);
  // Waits until the pager has left the window.
  ~HostedMemory() override;

  std::span<std::byte> bytes() const override { return window_.bytes(); }
  uint64_t local_pages() const override {
    return local_bytes_.load(std::memory_order_relaxed) >> kPageShift;
  }
  Status prefault(uffd::PageRun run, bool writable) const override;
  void hint_willneed(uffd::PageRun run) const override;
  void hint_cold(uffd::PageRun run) const override;
  void advise(uffd::PageRun run, pager::AccessPattern pattern) const override;
  void unpin(uffd::PageRun run) const override;
  Status set_local(uint64_t local_bytes) const override;
  RegionStats stats() const override;

 private:
  HostedMemory(serve::PagerSession session, uffd::RegisteredMemory registered, uint64_t local_bytes)
      : session_(std::move(session)),
        userfaultfd_(std::move(registered.userfaultfd)),
        window_(std::move(registered.memory)),
        local_bytes_(local_bytes) {}

  class Registry;

  Result<bool> try_pin(uffd::PageRun run) const override;
  Status forget(uffd::PageRun run) const override;
  Status begin(const HostedOptions& options);
  Status start();
  Status hand_over(const HostedOptions& options);
  Status send_lifeline(const Fd& pagers_end);
  Result<Fd> connect() const;
  // False: the pager may still send commands.
  bool leave();
  void abandon() FARPAGE_NO_THREAD_SAFETY_ANALYSIS;
  // 0, or the errno of the pager's answer.
  Result<int> request(uffd::handover::RequestKind kind, uffd::PageRun run) const;

  std::atomic<bool> abandoned_{false};  // this is a forked child
  mutable Mutex session_mutex_;
  mutable std::optional<serve::PagerSession> session_ FARPAGE_GUARDED_BY(session_mutex_);
  uffd::Userfaultfd userfaultfd_;
  Mapping window_;
  mutable std::atomic<uint64_t> local_bytes_;
  sockaddr_un handover_{};  // where the pager accepts this process
  socklen_t handover_bytes_ = 0;
  mutable Mutex control_mutex_;
  Fd control_;
  mutable uint64_t last_number_ FARPAGE_GUARDED_BY(control_mutex_) = 0;
  Fd lifeline_;
  // The thread's, too.
  std::shared_ptr<shim::RingCommands> commands_ = std::make_shared<shim::RingCommands>();
  std::thread agent_;
};

}  // namespace farpage::library
