#include "uffd/other_process.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "base/check.h"
#include "uffd/agent_ring.h"
#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd_space.h"

namespace farpage::uffd {
namespace {

class OtherWindow final : public UserfaultfdSpace {
 public:
  OtherWindow(Userfaultfd userfaultfd, std::shared_ptr<ExtentMap> extents)
      : UserfaultfdSpace(std::move(userfaultfd), std::move(extents)) {}

  // Sets the target process. A forked child is served before it is known; read() and drop() are not
  // called then.
  void bind(HandedOver& target) {
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
    command_count_ = 0;
    for (size_t i = 0; i < runs.size(); ++i)
      for_each_part(runs[i], [&](uint64_t address, uint64_t bytes) {
        FARPAGE_CHECK(command_count_ < commands_.size(), "%zu runs", runs.size());
        run_of_command_[command_count_] = static_cast<uint16_t>(i);
        commands_[command_count_++] = {.address = address,
                                       .pages = static_cast<uint32_t>(bytes >> kPageShift),
                                       .kind = handover::CommandKind::kDrop};
        return true;
      });
    begun_ = false;
    return await_drop(results, patience);
  }

  Status await_drop(std::span<DropResult> results, Nanoseconds patience) override {
    const auto commands = std::span(commands_).first(command_count_);
    if (!begun_) {
      FARPAGE_TRY_VOID(agent_->begin(commands, patience));
      begun_ = true;
    }
    FARPAGE_TRY_VOID(agent_->await(commands, patience));
    std::ranges::fill(results, DropResult{});
    for (size_t i = 0; i < commands.size(); ++i)
      if (commands[i].result != 0) results[run_of_command_[i]].sys_errno = commands[i].result;
    return {};
  }

  Status await_agent(Nanoseconds patience) { return agent_->await_all(patience); }

  // Checks that the id is a thread of the target: a PID namespace of its own has other ids.
  pid_t dropping_thread() override {
    if (!bound_.load(std::memory_order_acquire)) return 0;
    const pid_t thread = agent_->agent_thread();
    std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(thread) +
                       "/comm");
    std::string name;
    return std::getline(file, name) && name == handover::kAgentName ? thread : 0;
  }

 protected:
  Status poison_by_mapping(uint64_t address, uint64_t bytes) override {
    if (!bound_.load(std::memory_order_acquire))
      return fail(ErrorCode::kUnavailable, "the child's agent is not there yet");
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

 private:
  static constexpr size_t kMaxElements = 512;

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
  // The last drop(): one thread at a time.
  std::array<handover::Command, handover::kRingCommands> commands_;
  std::array<uint16_t, handover::kRingCommands> run_of_command_;
  size_t command_count_ = 0;
  bool begun_ = false;
};

// Not bound yet.
Result<std::unique_ptr<OtherWindow>> make_window(HandedOver& target, uint64_t more_pages,
                                                 Mapping extents_memory) {
  Userfaultfd userfaultfd = Userfaultfd::adopt(std::move(target.userfaultfd), target.features);
  FARPAGE_TRY(extents, ExtentMap::create(target.window_address, target.window_bytes >> kPageShift,
                                         more_pages, std::move(extents_memory)));
  auto window = std::make_unique<OtherWindow>(std::move(userfaultfd), std::move(extents));
  if (target.forked) window->note_fork();
  return window;
}

}  // namespace

Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target, uint64_t more_pages,
                                                   Mapping extents) {
  FARPAGE_TRY(window, make_window(target, more_pages, std::move(extents)));
  window->bind(target);
  if (!window->is_readable())
    return fail(ErrorCode::kDenied,
                "the pager may not read the memory of process " + std::to_string(target.pid) +
                    ": run it as root, or set sysctl kernel.yama.ptrace_scope=0");
  return window;
}

Result<std::unique_ptr<AddressSpace>> adopt_child(HandedOver& child, uint64_t more_pages,
                                                  Mapping extents) {
  return make_window(child, more_pages, std::move(extents));
}

std::unique_ptr<AddressSpace> child_of(AddressSpace& parent, Fd userfaultfd) {
  auto& window = static_cast<OtherWindow&>(parent);
  return window.child_with(Userfaultfd::adopt(std::move(userfaultfd), window.features()));
}

bool address_space_exists(int userfaultfd) {
  Userfaultfd asked = Userfaultfd::adopt(Fd(::fcntl(userfaultfd, F_DUPFD_CLOEXEC, 0)), 0);
  return asked.write_protect(kPageBytes, kPageBytes, true) != Outcome::kProcessGone;
}

void keep_extents(AddressSpace& space, Mapping extents) {
  static_cast<OtherWindow&>(space).keep_extents(std::move(extents));
}

Status await_agent(AddressSpace& space, Nanoseconds patience) {
  return static_cast<OtherWindow&>(space).await_agent(patience);
}

// "API:\taa:FEATURES:IOCTLS", all in hexadecimal digits.
bool tells_of_forks(int userfaultfd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(userfaultfd));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("API:")) continue;
    const size_t features = line.find(':', std::string_view("API:").size());
    return features == std::string::npos ||
           (std::strtoull(line.c_str() + features + 1, nullptr, 16) & UFFD_FEATURE_EVENT_FORK) != 0;
  }
  return true;
}

bool tells_of_forks(const HandedOver& target) {
  return (target.features & UFFD_FEATURE_EVENT_FORK) != 0;
}

void bind_child(AddressSpace& space, HandedOver& child) {
  static_cast<OtherWindow&>(space).bind(child);
}

}  // namespace farpage::uffd
