// AttachedTree: a program that was attached, and the processes beside it: those that descended from
// it already (farpage attach --children), and the children that any of them forks.
//
// A forked child is served by the pager from its first instruction, without an agent. Most end, or
// call exec, soon. One that lives for kLeastAge gets an agent, as a program does that is attached:
// its memory can leave from then on, it has a lifeline, and it can be given back.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/tended_attachment.h"
#include "inject/attachment.h"
#include "inject/mapping_watch.h"
#include "inject/process_tree.h"
#include "serve/watch.h"
#include "uffd/children_call.h"

namespace farpage::cli {

// Threads: the control thread, which runs `control`.
class AttachedTree {
 public:
  static constexpr Nanoseconds kLeastAge = std::chrono::seconds(1);
  // Called once, when the program itself has left; others may go on.
  using OnParted = std::function<void(Parting)>;

  AttachedTree(boost::asio::io_context& control, const Clock& clock, std::string handover_path,
               inject::AttachOptions options);
  ~AttachedTree();

  // The program. As Attachment::begin().
  Status attach(pid_t pid, OnParted on_parted);
  // A child of ours that waits for `execute`: InjectOptions::execute.
  Status attach_at_exec(pid_t pid, std::function<void()> execute, OnParted on_parted);
  const inject::Attachment& program() const { return *members_.front().attachment; }

  struct Descendants {
    size_t attached = 0;
    uint64_t far_bytes = 0;
    std::vector<Error> left_alone;  // why, of each of the others
  };
  // All that descend from the program now; this process, and what it has started, does not count.
  // One that has locked more than `most_locked_bytes` is left alone.
  Descendants attach_descendants(uint64_t most_locked_bytes);

  // No process is left.
  bool is_over() const { return members_.empty() && !may_have_children_; }
  // To every process that has an agent.
  void signal(int number) const;
  // The pager has ended: the processes end, too.
  const std::optional<Error>& failure() const { return failure_; }
  // Every process is as it was before, and is followed no more. kUnavailable: the pager has ended.
  // Other failures: what is_over() says.
  Status detach();

 private:
  static constexpr Nanoseconds kLook = std::chrono::seconds(1);  // for children
  static constexpr Nanoseconds kRetry = std::chrono::seconds(10);
  static constexpr int kMaxUnanswered = 5;

  struct Member {
    std::unique_ptr<inject::Attachment> attachment;
    std::optional<TendedAttachment> tended;
    bool parted = false;
  };

  Status attach_program(pid_t pid, const inject::AttachOptions& options, OnParted on_parted);
  void follow(std::unique_ptr<inject::Attachment> attachment);
  void tend(Member& member);
  void on_parted(Member& member, const Result<Parting>& parted);
  void note_parted(pid_t pid, Parting parting);
  void remove_parted();
  void watch_changes();
  void look_after(Nanoseconds pause);
  void look();
  Status ask();
  Status ask_patiently();
  bool is_member(pid_t pid) const;
  bool shares_memory(pid_t pid) const;
  // Processes that have been forked from a member, and are none.
  std::vector<inject::ProcessFacts> strangers() const;
  std::optional<Error> attach_descendant(pid_t pid, uint64_t most_locked_bytes);
  // To those that are at least so old. Returns why one could not get one, if any.
  std::optional<Error> give_agents(Nanoseconds least_age);
  std::optional<Error> give_agent(const inject::ProcessFacts& process);
  void fail_all(const Error& error);

  boost::asio::io_context& control_;
  const Clock& clock_;
  const std::string handover_path_;
  const inject::AttachOptions options_;
  inject::MappingWatch watch_;
  std::optional<serve::Watch> changes_;
  boost::asio::steady_timer timer_;
  OnParted on_program_parted_;
  std::list<Member> members_;  // the program first, until it has parted
  pid_t program_ = 0;
  std::vector<inject::MemoryLayout> layouts_;  // of all that were members
  // Those without an agent, as the pager has told last. Open here, too: if the pager ends, their
  // processes wait at a page that is away, and do not read zeros.
  std::vector<uffd::FoundChild> children_;
  bool may_have_children_ = true;
  int unanswered_ = 0;
  std::map<pid_t, Instant> failed_at_;  // that could not get an agent
  std::optional<Error> failure_;
  std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::cli
