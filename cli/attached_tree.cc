#include "cli/attached_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/pidfd.h"
#include "inject/agent_code.h"
#include "inject/process_files.h"
#include "inject/target_checks.h"

namespace farpage::cli {

using inject::Attachment;
using inject::ProcessFacts;
using inject::ProcessFiles;

AttachedTree::AttachedTree(boost::asio::io_context& control, const Clock& clock,
                           std::string handover_path, inject::AttachOptions options)
    : control_(control),
      clock_(clock),
      handover_path_(std::move(handover_path)),
      options_(std::move(options)),
      watch_(clock),
      timer_(control) {
  if (watch_.descriptor() >= 0) {
    changes_.emplace(control, watch_.descriptor());
    watch_changes();
  }
  look_after(kLook);
}

AttachedTree::~AttachedTree() = default;

// ---- members ----

Status AttachedTree::attach(pid_t pid, OnParted on_parted) {
  return attach_program(pid, options_, std::move(on_parted));
}

Status AttachedTree::attach_at_exec(pid_t pid, std::function<void()> execute, OnParted on_parted) {
  inject::AttachOptions options = options_;
  options.inject.execute = std::move(execute);
  return attach_program(pid, options, std::move(on_parted));
}

Status AttachedTree::attach_program(pid_t pid, const inject::AttachOptions& options,
                                    OnParted on_parted) {
  FARPAGE_TRY(attachment, Attachment::begin(pid, handover_path_, options, watch_, clock_));
  on_program_parted_ = std::move(on_parted);
  program_ = pid;
  follow(std::move(attachment));
  return {};
}

void AttachedTree::follow(std::unique_ptr<Attachment> attachment) {
  const auto facts = inject::facts_of(attachment->files());
  if (facts && facts->layout != inject::MemoryLayout() &&
      std::ranges::find(layouts_, facts->layout) == layouts_.end())
    layouts_.push_back(facts->layout);
  members_.emplace_back().attachment = std::move(attachment);
  may_have_children_ = true;  // until the pager says that there are none
  tend(members_.back());
}

void AttachedTree::tend(Member& member) {
  member.tended.emplace(
      control_, *member.attachment,
      [this, &member](const Result<Parting>& parted) { on_parted(member, parted); });
}

// The member is in use by its caller.
void AttachedTree::on_parted(Member& member, const Result<Parting>& parted) {
  if (!parted) {
    fail_all(parted.error());
    return;
  }
  member.parted = true;
  const pid_t pid = member.attachment->pid();
  log::debug("attach: parted pid={} executed={}", pid, *parted == Parting::kExecuted);
  boost::asio::post(control_, [this, here = std::weak_ptr(here_)] {
    if (!here.expired()) remove_parted();
  });
  note_parted(pid, *parted);
}

void AttachedTree::note_parted(pid_t pid, Parting parting) {
  if (pid != program_) return;
  program_ = 0;
  if (const OnParted call = std::exchange(on_program_parted_, nullptr)) call(parting);
}

void AttachedTree::remove_parted() {
  std::erase_if(members_, [](const Member& member) { return member.parted; });
  if (!members_.empty()) return;
  may_have_children_ = true;
  look();
}

void AttachedTree::watch_changes() {
  changes_->wait([this] {
    for (Member& member : members_) {
      if (!watch_.may_have_changed(member.attachment->pid()) || !member.tended) continue;
      member.attachment->note_change();
      member.tended->tend();
    }
    watch_changes();
  });
}

void AttachedTree::signal(int number) const {
  for (const Member& member : members_) send_signal(member.attachment->process().get(), number);
}

bool AttachedTree::is_member(pid_t pid) const {
  return std::ranges::any_of(members_,
                             [&](const Member& member) { return member.attachment->pid() == pid; });
}

bool AttachedTree::shares_memory(pid_t pid) const {
  return std::ranges::any_of(members_, [&](const Member& member) {
    return inject::share_memory(pid, member.attachment->pid());
  });
}

// ---- descendants ----

// A child that a member has forked meanwhile is served already, and gets its agent later.
std::optional<Error> AttachedTree::attach_descendant(pid_t pid, uint64_t most_locked_bytes) {
  Result<ProcessFiles> process = ProcessFiles::open(pid);
  if (!process) return std::nullopt;  // it has ended
  const auto facts = inject::facts_of(*process);
  const bool is_fork = facts && std::ranges::find(layouts_, facts->layout) != layouts_.end() &&
                       inject::has_registered_memory(*process);
  if (is_fork || shares_memory(pid)) return std::nullopt;
  const std::string name = process->described();
  Status fits = inject::check_target(*process, options_.inject.allow_seccomp);
  if (fits) fits = inject::check_locked_memory(*process, most_locked_bytes);
  if (fits) {
    auto attachment = Attachment::begin(pid, handover_path_, options_, watch_, clock_);
    if (attachment) {
      follow(std::move(*attachment));
      return std::nullopt;
    }
    fits = tl::unexpected(std::move(attachment).error());
  }
  if (!process->alive()) return std::nullopt;
  Error error = std::move(fits).error();
  if (error.context.find(name) == std::string::npos) error.context.insert(0, name + ": ");
  return error;
}

AttachedTree::Descendants AttachedTree::attach_descendants(uint64_t most_locked_bytes) {
  constexpr int kMaxRounds = 100;
  Descendants result;
  std::vector<pid_t> seen;
  for (int round = 0; round < kMaxRounds; ++round) {
    const size_t had = seen.size();
    const std::vector<ProcessFacts> processes = inject::all_processes();
    for (const pid_t pid : inject::descendants_of(program_, processes, ::getpid())) {
      if (std::ranges::find(seen, pid) != seen.end()) continue;
      seen.push_back(pid);
      if (auto why = attach_descendant(pid, most_locked_bytes))
        result.left_alone.push_back(std::move(*why));
    }
    if (seen.size() == had) break;
  }
  for (const Member& member : members_) {
    if (member.attachment->pid() == program_) continue;
    ++result.attached;
    result.far_bytes += member.attachment->far_bytes();
  }
  return result;
}

// ---- forked children ----

void AttachedTree::look_after(Nanoseconds pause) {
  timer_.expires_after(pause);
  timer_.async_wait([this, here = std::weak_ptr(here_)](boost::system::error_code error) {
    if (!error && !here.expired()) look();
  });
}

void AttachedTree::look() {
  if (failure_) return;
  if (Status asked = ask()) {
    (void)give_agents(kLeastAge);
  } else if (++unanswered_ == kMaxUnanswered) {
    fail_all(asked.error());
  }
  look_after(kLook);
}

Status AttachedTree::ask() {
  FARPAGE_TRY(children, uffd::ask_children(handover_path_));
  children_ = std::move(children);
  may_have_children_ = !children_.empty();
  unanswered_ = 0;
  return {};
}

// A successor of the pager may take a moment.
Status AttachedTree::ask_patiently() {
  Status asked = ask();
  for (int i = 1; !asked && i < kMaxUnanswered; ++i) asked = ask();
  return asked;
}

std::vector<ProcessFacts> AttachedTree::strangers() const {
  std::vector<ProcessFacts> found = inject::all_processes();
  std::erase_if(found, [&](const ProcessFacts& process) {
    return std::ranges::find(layouts_, process.layout) == layouts_.end() || is_member(process.pid);
  });
  return found;
}

std::optional<Error> AttachedTree::give_agents(Nanoseconds least_age) {
  std::optional<Error> failed;
  const bool any_is_old = std::ranges::any_of(
      children_, [&](const auto& child) { return Nanoseconds(child.age_ns) >= least_age; });
  if (!any_is_old) return failed;
  const std::vector<ProcessFacts> processes = strangers();
  std::erase_if(failed_at_, [&](const auto& entry) {
    return std::ranges::find(processes, entry.first, &ProcessFacts::pid) == processes.end();
  });
  for (const ProcessFacts& process : processes) {
    if (children_.empty()) break;
    const auto before = failed_at_.find(process.pid);
    if (process.age < least_age || (least_age.count() > 0 && before != failed_at_.end() &&
                                    clock_.now() - before->second < kRetry))
      continue;
    std::optional<Error> why = give_agent(process);
    if (!why) continue;
    const bool is_new = failed_at_.insert_or_assign(process.pid, clock_.now()).second;
    if (is_new)
      log::warn("attach: child_without_agent pid={} reason=\"{}\"", process.pid, why->message());
    failed = std::move(why);
  }
  return failed;
}

// Which child of the pager's it is, its agent finds out: probably one that is as old.
std::optional<Error> AttachedTree::give_agent(const ProcessFacts& process) {
  const Result<ProcessFiles> files = ProcessFiles::open(process.pid);
  if (!files || !inject::has_registered_memory(*files) || shares_memory(process.pid))
    return std::nullopt;
  const auto difference_of = [&](const uffd::FoundChild& child) {
    const Nanoseconds older = Nanoseconds(child.age_ns) - process.age;
    return older < Nanoseconds(0) ? -older : older;
  };
  std::ranges::sort(children_, {}, difference_of);
  const auto likely =
      std::span(children_).first(std::min<size_t>(children_.size(), inject::kMaxInherited));
  auto attachment =
      Attachment::begin_child(process.pid, likely, handover_path_, options_, watch_, clock_);
  if (!attachment) {
    if (!files->alive()) return std::nullopt;
    return std::move(attachment).error();
  }
  log::info("attach: child_attached pid={} program={} stood_us={}", process.pid,
            (*attachment)->name(), (*attachment)->stood().count() / 1000);
  std::erase_if(children_, [&](const uffd::FoundChild& child) {
    return child.number == (*attachment)->child();
  });
  follow(std::move(*attachment));
  return std::nullopt;
}

// ---- the end ----

// What is forked meanwhile is found in the next round.
Status AttachedTree::detach() {
  constexpr int kMaxRounds = 100;
  constexpr int kMaxFailures = 3;
  int failures = 0;
  std::optional<Error> failed;
  for (int round = 0; round < kMaxRounds; ++round) {
    for (auto member = members_.begin(); member != members_.end();) {
      member->tended.reset();
      const Status detached = member->parted ? Status() : member->attachment->detach();
      if (!detached && !parting_of(*member->attachment)) {
        tend(*member);
        if (detached.error().code == ErrorCode::kUnavailable) fail_all(detached.error());
        return detached;
      }
      if (const auto parting = detached ? std::nullopt : parting_of(*member->attachment))
        note_parted(member->attachment->pid(), *parting);
      member = members_.erase(member);
    }
    if (Status asked = ask_patiently(); !asked) {
      fail_all(asked.error());
      return fail(ErrorCode::kUnavailable, asked.error().message());
    }
    if (children_.empty()) return {};
    failed = give_agents(Nanoseconds(0));
    if (failed && members_.empty() && ++failures == kMaxFailures) break;
    // One that ends, or that the kernel has not made known yet.
    if (members_.empty()) ::usleep(10'000);
  }
  return fail(ErrorCode::kConflict,
              fmt::format("{} forked children are still served{}{}", children_.size(),
                          failed ? ": " : "", failed ? failed->message() : ""));
}

// Children without an agent have no lifeline.
void AttachedTree::fail_all(const Error& error) {
  if (failure_) return;
  failure_ = error;
  if (children_.empty()) return;
  for (const ProcessFacts& process : strangers()) {
    const Result<ProcessFiles> files = ProcessFiles::open(process.pid);
    if (!files || !inject::has_registered_memory(*files)) continue;
    log::error("attach: child_killed pid={}: its pager has ended", process.pid);
    send_signal(files->pidfd().get(), SIGKILL);
  }
}

}  // namespace farpage::cli
