// OtherWindow: the address space of another process that has a window. Internal: other_process.cc
// makes it.
#pragma once

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "uffd/agent_ring.h"
#include "uffd/handover_server.h"
#include "uffd/userfaultfd_space.h"

namespace farpage::uffd {

class OtherWindow : public UserfaultfdSpace {
 public:
  OtherWindow(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents)
      : UserfaultfdSpace(std::move(userfaultfd), std::move(extents)) {}

  // Sets the target process. A forked child is served before it is known; read() and drop() are not
  // called then.
  virtual void bind(HandedOver& target) {
    pid_ = target.pid;
    memory_ =
        Fd(::open(("/proc/" + std::to_string(target.pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
    may_read_ = memory_.valid() || (errno != EACCES && errno != EPERM);
    // After exec the process lives on, but its agent does not.
    agent_.emplace(std::move(target.ring), [this] { return alive(); });
    bound_.store(true, std::memory_order_release);
  }

  std::unique_ptr<AddressSpace> child_with(Userfaultfd userfaultfd) {
    return make_child(std::move(userfaultfd));
  }
  void keep_extents(Mapping memory) {
    if (extents().use_count() == 1)
      extents()->keep(std::move(memory));  // else they are its parent's
  }
  // See ExtentMap::begin_change().
  bool is_behind() const { return extents()->is_changing(); }
  void note_fork() { has_forked_.store(true, std::memory_order_relaxed); }

  // False: the kernel refuses to let this process read the target's memory, so that no page could
  // leave.
  bool is_readable() const { return may_read_; }

  // process_vm_readv(2) refuses what the target itself may not read (PROT_NONE); /proc/PID/mem does
  // not, but reads only one range per call. process_vm_readv also pins the frames, and the kernel
  // first copies one that a relative has too (FAULT_FLAG_UNSHARE in mm/gup.c): a page that is to
  // leave would need one frame more.
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
    const bool without_pins = has_forked_.load(std::memory_order_relaxed) && memory_.valid();
    size_t page = 0;
    while (page < present.size()) {
      if (without_pins) page += read_memory(present.subspan(page), out.subspan(page * kPageBytes));
      if (page == present.size()) break;
      const size_t most = without_pins ? 1 : present.size() - page;  // an absent page, or PROT_NONE
      FARPAGE_TRY(pages, read_by_calls(present.subspan(page, most),
                                       out.subspan(page * kPageBytes, most * kPageBytes)));
      page += pages;
    }
    return {};
  }

  Status drop(std::span<const PageRun> runs, std::span<DropResult> results,
              Nanoseconds patience) override {
    commands_.clear();
    run_of_command_.clear();
    for (size_t i = 0; i < runs.size(); ++i)
      for_each_part(runs[i], [&](uint64_t address, uint64_t bytes) {
        run_of_command_.push_back(static_cast<uint16_t>(i));
        commands_.push_back({.address = address,
                             .pages = static_cast<uint32_t>(bytes >> kPageShift),
                             .kind = handover::CommandKind::kDrop});
        return true;
      });
    begun_ = false;
    return await_drop(results, patience);
  }

  Status await_drop(std::span<DropResult> results, Nanoseconds patience) override {
    if (!begun_) {
      FARPAGE_TRY_VOID(agent_->begin(commands_, patience));
      begun_ = true;
    }
    FARPAGE_TRY_VOID(agent_->await(commands_, patience));
    std::ranges::fill(results, DropResult{});
    for (size_t i = 0; i < commands_.size(); ++i)
      if (commands_[i].result != 0) results[run_of_command_[i]].sys_errno = commands_[i].result;
    return {};
  }

  virtual Status await_agent(Nanoseconds patience) { return agent_->await_all(patience); }

  // Checks that the id is a thread of the target: a PID namespace of its own has other ids.
  pid_t dropping_thread() override {
    if (!has_agent()) return 0;
    const pid_t thread = agent_->agent_thread();
    std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(thread) +
                       "/comm");
    std::string name;
    return std::getline(file, name) && name == handover::kAgentName ? thread : 0;
  }

 protected:
  Status poison_by_mapping(uint64_t address, uint64_t bytes) override {
    if (!has_agent()) return fail(ErrorCode::kUnavailable, "the child's agent is not there yet");
    return agent_->post({.address = address,
                         .pages = static_cast<uint32_t>(bytes >> kPageShift),
                         .kind = handover::CommandKind::kPoison});
  }

  std::unique_ptr<AddressSpace> make_child(Userfaultfd userfaultfd) override {
    // Without memory for a copy the child keeps to the parent's: its userfaultfd must not be
    // closed.
    Result<std::unique_ptr<ExtentMap>> copied = extents()->copy();
    auto child = std::make_unique<OtherWindow>(std::move(userfaultfd),
                                               copied ? std::move(*copied) : extents());
    child->has_forked_.store(true, std::memory_order_relaxed);
    has_forked_.store(true, std::memory_order_relaxed);
    return child;
  }

  static constexpr size_t kMaxElements = 512;

  pid_t pid() const { return pid_; }
  bool has_forked() const { return has_forked_.load(std::memory_order_relaxed); }
  // A forked child has none before bind().
  bool has_agent() const { return bound_.load(std::memory_order_acquire); }
  AgentRingProducer& agent() { return *agent_; }

  // The pages before the first one that /proc/PID/mem does not give: it is absent.
  size_t read_memory(std::span<const PageIndex> present, std::span<std::byte> out) const {
    std::array<iovec, kMaxElements> ranges;
    const Gathered gathered = gather(present, ranges);
    size_t pages = 0;
    for (const iovec& range : std::span(ranges).first(gathered.elements)) {
      const ssize_t got = ::pread(memory_.get(), out.data() + pages * kPageBytes, range.iov_len,
                                  reinterpret_cast<off_t>(range.iov_base));
      if (got > 0) pages += static_cast<size_t>(got) / kPageBytes;
      if (got != static_cast<ssize_t>(range.iov_len)) break;
    }
    return pages;
  }

 private:
  // At least one page.
  Result<size_t> read_by_calls(std::span<const PageIndex> present, std::span<std::byte> out) const {
    std::array<iovec, kMaxElements> remote;
    const Gathered gathered = gather(present, remote);
    const iovec local{out.data(), gathered.pages * kPageBytes};
    const ssize_t got = ::process_vm_readv(pid_, &local, 1, remote.data(), gathered.elements, 0);
    if (got < 0 && errno != EFAULT) return fail_errno("process_vm_readv of the target");
    const size_t pages = got < 0 ? 0 : static_cast<size_t>(got) / kPageBytes;
    if (pages == gathered.pages) return pages;
    FARPAGE_TRY_VOID(read_closed(present[pages], out.subspan(pages * kPageBytes, kPageBytes)));
    return pages + 1;
  }

  Status read_closed(PageIndex page, std::span<std::byte> out) const {
    const auto at = static_cast<off_t>(address_of(page));
    if (::pread(memory_.get(), out.data(), out.size(), at) != static_cast<ssize_t>(out.size()))
      return fail_errno("reading a page of the target");
    return {};
  }

  // Written by bind() before bound_ (release).
  pid_t pid_ = 0;
  bool may_read_ = true;
  Fd memory_;  // invalid where /proc denies access: PROT_NONE pages then stay resident
  std::optional<AgentRingProducer> agent_;
  std::atomic<bool> bound_{false};
  std::atomic<bool> has_forked_{false};  // frames may be those of relatives too
  // The last drop(): one thread at a time. Vectors, which grow to what the target's batches need: a
  // ring's length of commands would be 100 KiB of each target.
  std::vector<handover::Command> commands_;
  std::vector<uint16_t> run_of_command_;
  bool begun_ = false;
};

}  // namespace farpage::uffd
