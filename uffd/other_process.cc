#include "uffd/other_process.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
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
    // After exec the process lives on, but its agent does not.
    agent_.emplace(std::move(target.ring), [this] { return alive(); });
    bound_.store(true, std::memory_order_release);
  }

  // process_vm_readv(2) refuses what the target itself may not read (PROT_NONE); /proc/PID/mem does
  // not, but reads only one range per call.
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    FARPAGE_CHECK(out.size() >= present.size() * kPageBytes, "%zu bytes", out.size());
    constexpr size_t kMaxElements = 512;
    std::array<iovec, kMaxElements> remote;
    size_t page = 0;
    while (page < present.size()) {
      const size_t first = page;
      const Gathered gathered = gather(present.subspan(first), remote);
      const iovec local{out.data() + first * kPageBytes, gathered.pages * kPageBytes};
      const ssize_t got = ::process_vm_readv(pid_, &local, 1, remote.data(), gathered.elements, 0);
      if (got < 0 && errno != EFAULT) return fail_errno("process_vm_readv of the target");
      page += got < 0 ? 0 : static_cast<size_t>(got) / kPageBytes;
      if (page == first + gathered.pages) continue;
      FARPAGE_TRY_VOID(read_closed(present[page], out.subspan(page * kPageBytes, kPageBytes)));
      ++page;
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
    return std::make_unique<OtherWindow>(std::move(userfaultfd),
                                         copied ? std::move(*copied) : extents());
  }

 private:
  Status read_closed(PageIndex page, std::span<std::byte> out) const {
    const auto at = static_cast<off_t>(address_of(page));
    if (::pread(memory_.get(), out.data(), out.size(), at) != static_cast<ssize_t>(out.size()))
      return fail_errno("reading a page of the target");
    return {};
  }

  // Written by bind() before bound_ (release).
  pid_t pid_ = 0;
  Fd memory_;  // invalid where /proc denies access: PROT_NONE pages then stay resident
  std::optional<AgentRingProducer> agent_;
  std::atomic<bool> bound_{false};
  // The last drop(): one thread at a time.
  std::array<handover::Command, handover::kRingCommands> commands_;
  std::array<uint16_t, handover::kRingCommands> run_of_command_;
  size_t command_count_ = 0;
  bool begun_ = false;
};

}  // namespace

Result<std::unique_ptr<AddressSpace>> adopt_window(HandedOver& target, uint64_t more_pages) {
  Userfaultfd userfaultfd = Userfaultfd::adopt(std::move(target.userfaultfd), target.features);
  FARPAGE_TRY(extents, ExtentMap::create(target.window_address, target.window_bytes >> kPageShift,
                                         more_pages));
  auto window = std::make_unique<OtherWindow>(std::move(userfaultfd), std::move(extents));
  window->bind(target);
  return window;
}

bool tells_of_forks(const HandedOver& target) {
  return (target.features & UFFD_FEATURE_EVENT_FORK) != 0;
}

void bind_child(AddressSpace& space, HandedOver& child) {
  static_cast<OtherWindow&>(space).bind(child);
}

}  // namespace farpage::uffd
