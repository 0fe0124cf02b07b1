#include "inject/attachment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/log.h"
#include "base/maps_line.h"
#include "base/pidfd.h"
#include "base/unix_socket.h"
#include "inject/target_checks.h"

namespace farpage::inject {
namespace {

namespace handover = uffd::handover;
using handover::RequestKind;

// 0: the pager has closed the connection.
template <typename Message>
Result<size_t> receive(const Fd& socket, Message& message) {
  ssize_t got = 0;
  do {
    got = ::recv(socket.get(), &message, sizeof message, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno != ECONNRESET) return fail_errno("receiving an answer of the pager");
  return got < 0 ? size_t{0} : static_cast<size_t>(got);
}

tl::unexpected<Error> pager_gone() {
  return fail(ErrorCode::kUnavailable, "the pager has closed the connection; its log says why");
}

std::vector<AddressRange> own_ranges(const InjectedAgent& agent) {
  return {{agent.ring_address, agent.ring_address + agent.ring_bytes},
          {agent.staging_address, agent.staging_address + agent.staging_bytes},
          {agent.code_address, agent.code_address + agent.code_bytes}};
}

}  // namespace

Attachment::Attachment(ProcessFiles process, InjectedAgent agent, Fd userfaultfd,
                       const AttachOptions& options, MappingWatch& watch, const Clock& clock)
    : options_(options),
      clock_(clock),
      process_(std::move(process)),
      agent_(std::move(agent)),
      userfaultfd_(uffd::Userfaultfd::adopt(std::move(userfaultfd), agent_.features)),
      watch_(watch),
      mappings_(process_, own_ranges(agent_), {.min_bytes = options.least_bytes}),
      settled_(options.least_bytes) {
  watch_.watch(agent_.pid);
}

Attachment::~Attachment() {
  watch_.forget(process_.pid());
}

Result<std::unique_ptr<Attachment>> Attachment::begin(pid_t pid, const std::string& handover_path,
                                                      const AttachOptions& options,
                                                      MappingWatch& watch, const Clock& clock) {
  return begin_with(pid, {}, handover_path, options, watch, clock);
}

Result<std::unique_ptr<Attachment>> Attachment::begin_child(
    pid_t pid, std::span<const uffd::FoundChild> children, const std::string& handover_path,
    const AttachOptions& options, MappingWatch& watch, const Clock& clock) {
  if (children.empty()) return fail(ErrorCode::kConflict, "the pager serves no child");
  return begin_with(pid, children, handover_path, options, watch, clock);
}

Result<std::unique_ptr<Attachment>> Attachment::begin_with(
    pid_t pid, std::span<const uffd::FoundChild> children, const std::string& handover_path,
    const AttachOptions& options, MappingWatch& watch, const Clock& clock) {
  InjectOptions inject_options = options.inject;
  for (const uffd::FoundChild& child : children)
    inject_options.inherited.push_back({child.descriptor.get(), child.features});
  FARPAGE_TRY(process, ProcessFiles::open(pid));
  FARPAGE_TRY(agent, farpage::inject::inject(pid, inject_options));
  const uint64_t child = children.empty() ? 0 : children[agent.inherited].number;
  Result<Fd> userfaultfd = agent.userfaultfd.duplicate();
  if (!userfaultfd) {
    (void)withdraw(agent);
    return tl::unexpected(std::move(userfaultfd.error()));
  }
  std::unique_ptr<Attachment> attachment(new Attachment(
      std::move(process), std::move(agent), std::move(*userfaultfd), options, watch, clock));
  attachment->sweep_at_ = clock.now() + kSweep;
  Status begun = attachment->hand_over(handover_path, child);
  const bool handed = begun.has_value();
  if (begun) begun = attachment->look();
  if (begun) {
    attachment->agent_.held.reset();
    return attachment;
  }
  if (attachment->agent_.held) {
    send_signal(attachment->process().get(), SIGKILL);
  } else if (handed) {
    (void)attachment->detach();
  } else {
    attachment->socket_.reset();
    if (const Status left = withdraw(attachment->agent_); !left)
      return fail(begun.error().code, begun.error().message() + "; and: " + left.error().message());
  }
  return tl::unexpected(std::move(begun.error()));
}

Status Attachment::hand_over(const std::string& path, uint64_t child) {
  FARPAGE_TRY(socket, connect_to_path(path, SOCK_SEQPACKET));
  socket_ = std::move(socket);
  handover::Hello hello;
  hello.window_address = agent_.staging_address;
  hello.window_bytes = agent_.staging_bytes;
  hello.features = agent_.features;
  hello.ring_bytes = agent_.ring_bytes;
  hello.pid = agent_.pid;
  hello.attached_pid = agent_.pid;
  hello.extent_bytes = options_.extent_bytes;
  hello.child = child_ = child;
  std::strncpy(hello.program, process_.name().c_str(), sizeof hello.program - 1);
  const std::array descriptors{userfaultfd_.fd(), agent_.ring.get()};
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  if (send_with_descriptors(socket_.get(), bytes, descriptors) != sizeof hello)
    return fail_errno("handing the program over to the pager");
  handover::Welcome welcome;
  FARPAGE_TRY(got, receive(socket_, welcome));
  if (got != sizeof welcome) return pager_gone();
  welcome.reason[sizeof welcome.reason - 1] = '\0';
  if (welcome.status != 0)
    return fail(ErrorCode::kConflict, std::string("the pager refuses: ") + welcome.reason);
  const handover::Request lifeline{.kind = RequestKind::kLifeline};
  if (send_with_descriptor(socket_.get(), std::as_bytes(std::span(&lifeline, 1)),
                           agent_.lifeline.get()) != sizeof lifeline)
    return fail_errno("handing the lifeline over to the pager");
  return {};
}

Status Attachment::ask(RequestKind kind, AddressRange range) {
  const handover::Request request{
      .kind = kind, .address = range.begin, .bytes = range.bytes(), .number = ++requests_};
  if (::send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
    return pager_gone();
  handover::Reply reply;
  do {  // one to an earlier request: from a pager that has taken a dead one's place
    FARPAGE_TRY(got, receive(socket_, reply));
    if (got == 0) return pager_gone();
    if (got == sizeof(handover::Welcome)) continue;
    if (got != sizeof reply || reply.magic != handover::kMagic)
      return fail(ErrorCode::kIo, "the pager has sent what is no answer");
  } while (reply.number != request.number);
  if (reply.status == 0) return {};
  return fail(reply.status == ENOMEM ? ErrorCode::kExhausted : ErrorCode::kIo,
              fmt::format("the pager refuses {:#x}-{:#x}: {}", range.begin, range.end,
                          std::strerror(reply.status)));
}

// The pager registers it, at a moment without untold changes. The range may be gone or changed by
// then: what is there is found by the next look. kExhausted: it stays local.
Status Attachment::take_in(AddressRange range) {
  FARPAGE_TRY_VOID(ask(RequestKind::kAddExtent, range));
  return ask(RequestKind::kAdoptPresent, range);
}

// The kernel joins neighbours that are equal, so a part that was left behind is one mapping with
// the rest once it is registered, and anything else, such as a stack of a thread, is not. That
// stays registered: it may be a part of a mapping with pages that are away, whose flags have been
// changed. Of memory that is in no extent nothing leaves.
Result<bool> Attachment::join(AddressRange small) {
  if (!userfaultfd_.register_range(small.begin, small.bytes())) return false;
  FARPAGE_TRY(maps, process_.read("maps"));
  bool is_joined = false;
  for_each_line(maps, [&](std::string_view line) {
    const std::optional<MapsLine> mapping = parse_maps_line(line);
    if (mapping && mapping->begin <= small.begin && small.end <= mapping->end)
      is_joined = mapping->end - mapping->begin > small.bytes();
  });
  return is_joined;
}

Status Attachment::look() {
  FARPAGE_TRY(ranges, mappings_.look());
  std::vector<AddressRange> chosen = settled_.choose(ranges);
  for (const AddressRange& small : settled_.behind_taken(mappings_.small())) {
    FARPAGE_TRY(is_joined, join(small));
    if (is_joined) chosen.push_back(small);
  }
  for (const AddressRange& range : chosen) {
    Status taken = take_in(range);
    if (taken) continue;
    if (taken.error().code != ErrorCode::kExhausted) return taken;
    log::warn("attach: not_taken_in range={:#x}-{:#x} reason=\"{}\"", range.begin, range.end,
              taken.error().message());
  }
  look_at_ = settled_.unsettled() ? clock_.now() + kSettle : Instant{0};
  if (const auto until = mappings_.unjudged_until()) look_at_ = std::max(look_at_, *until);
  return {};
}

Status Attachment::sweep() {
  for (const AddressRange& range : settled_.taken()) {
    // Another mapping may have taken the place of the one that was there.
    Status taken = take_in(range);
    if (!taken && taken.error().code != ErrorCode::kExhausted) return taken;
  }
  sweep_at_ = clock_.now() + kSweep;
  return {};
}

void Attachment::note_change() {
  if (look_at_.count() == 0) look_at_ = clock_.now() + kSettle;
}

Result<Nanoseconds> Attachment::tend() {
  if (!process_.alive()) return fail(ErrorCode::kUnavailable, "the program has ended");
  if (watch_.may_have_changed(agent_.pid)) note_change();
  const bool looks = look_at_.count() != 0 && clock_.now() >= look_at_;
  if (looks) FARPAGE_TRY_VOID(look());
  // Not between an announced change and the look at it: a stack may lie by now where a range was
  // taken.
  if (clock_.now() >= sweep_at_ && (looks || look_at_.count() == 0)) FARPAGE_TRY_VOID(sweep());
  Instant next = look_at_.count() != 0 ? look_at_ : sweep_at_;
  if (!watch_.announces()) next = std::min(next, clock_.now() + MappingWatch::kScanInterval);
  return std::max(Nanoseconds(next - clock_.now()), Nanoseconds(0));
}

uint64_t Attachment::far_bytes() const {
  uint64_t bytes = 0;
  for (const AddressRange& range : settled_.taken()) bytes += range.bytes();
  return bytes;
}

// All private mappings, whatever their access is now. Mappings may change meanwhile, so until
// nothing is registered any more.
Status Attachment::unregister_all() {
  constexpr int kMaxRounds = 100;
  for (int round = 0; round < kMaxRounds; ++round) {
    FARPAGE_TRY(text, process_.read("smaps"));
    bool any = false;
    MapsLine mapping;
    for_each_line(text, [&](std::string_view line) {
      if (const auto next = parse_maps_line(line)) mapping = *next;
      if (!line.starts_with("VmFlags:") || line.find(" um") == std::string_view::npos) return;
      if (mapping.begin == agent_.staging_address) return;
      // Fails where it has changed meanwhile.
      (void)userfaultfd_.unregister_range(mapping.begin, mapping.end - mapping.begin);
      any = true;
    });
    if (!any) return {};
  }
  return fail(ErrorCode::kTimedOut,
              "the program changes its mappings faster than they can be released");
}

Status Attachment::detach() {
  FARPAGE_TRY_VOID(ask(RequestKind::kBringBack, {0, kPageBytes}));
  FARPAGE_TRY_VOID(unregister_all());
  const handover::Request leave{.kind = RequestKind::kLeave};
  if (::send(socket_.get(), &leave, sizeof leave, MSG_NOSIGNAL) != sizeof leave)
    return pager_gone();
  handover::Reply nothing;
  FARPAGE_TRY(got, receive(socket_, nothing));  // 0: it has left this memory
  if (got != 0) return fail(ErrorCode::kIo, "the pager does not leave the program");
  return withdraw(agent_);
}

}  // namespace farpage::inject
