#include "share/share_pager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>

#include "base/log.h"
#include "base/pidfd.h"
#include "base/unix_socket.h"
#include "share/message.h"

namespace farpage::share {
namespace {

constexpr int kLookMs = 500;

std::string program_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  return std::getline(file, name) ? name : "unknown";
}

// To a process that may have ended, or may not read.
void answer(const Fd& socket, const std::string& line) {
  (void)::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Status check_peer(const ucred& peer) {
  if (peer.uid != 0 && peer.uid != ::geteuid())
    return fail(ErrorCode::kDenied,
                fmt::format("user {} is not the one of this farpage share", peer.uid));
  if (peer.pid <= 0)
    return fail(ErrorCode::kDenied,
                "the process is in another PID namespace, and cannot be watched");
  return {};
}

Status check_places(const std::vector<uffd::SharedClaim>& claims,
                    const std::vector<uffd::SharedFile>& files) {
  for (size_t i = 0; i < claims.size(); ++i) {
    const uint64_t bytes = files[claims[i].file].pages << kPageShift;
    if (claims[i].offset + claims[i].bytes > bytes)
      return fail(ErrorCode::kInvalid,
                  fmt::format("field 'regions[{}].size': ends behind the {} bytes of memory {}", i,
                              bytes, claims[i].file));
  }
  return {};
}

// With an offset of its own: SEEK_DATA moves it. A memfd can be opened anew; where a file cannot,
// its owner's offset moves.
Fd reopened(Fd file) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) return file;
  Fd again(::open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR | O_CLOEXEC));
  return again.valid() ? std::move(again) : std::move(file);
}

Result<std::vector<uffd::SharedFile>> adopt_files(std::vector<Fd>& descriptors) {
  std::vector<uffd::SharedFile> files;
  for (size_t i = 1; i < descriptors.size(); ++i) {
    FARPAGE_TRY(file, uffd::adopt_shared_file(std::move(descriptors[i])));
    file.descriptor = reopened(std::move(file.descriptor));
    for (const uffd::SharedFile& other : files)
      if (other.is_same(file)) return fail(ErrorCode::kInvalid, "one memfd was sent twice");
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

void kill_processes(const std::vector<int>& pidfds) {
  for (const int process : pidfds) send_signal(process, SIGKILL);
  for (const int process : pidfds) (void)has_ended(process, kForeverLong);
}

// ---- the beginning ----

Result<std::unique_ptr<SharePager>> SharePager::create(ShareOptions options, pager::Engine& engine,
                                                       const serve::ServedState& state) {
  FARPAGE_TRY_VOID(uffd::check_kernel_for_shared());
  std::unique_ptr<SharePager> pager(new SharePager(std::move(options), engine, state));
  FARPAGE_TRY_VOID(pager->listen());
  FARPAGE_TRY_VOID(pager->take_over());
  return pager;
}

SharePager::SharePager(ShareOptions options, pager::Engine& engine, const serve::ServedState& state)
    : options_(std::move(options)),
      state_(state),
      host_{engine, state, options_.local_bytes, options_.processes} {}

SharePager::~SharePager() {
  if (listener_.valid()) (void)::unlink(options_.socket.c_str());
}

Status SharePager::listen() {
  if (const auto listener = state_.listener()) {
    stopping_ = *listener < 0;
    listener_ = Fd(*listener);
    return {};
  }
  FARPAGE_TRY(listener, listen_at_path(options_.socket, "--socket"));
  listener_ = std::move(listener);
  return state_.put_listener(listener_.get());
}

Status SharePager::take_over() {
  FARPAGE_TRY(numbers, SharedGroup::numbers(state_));
  std::set<uint64_t> resumed;
  for (const uint64_t number : numbers) {
    std::vector<SharedGroup::Peer> peers;
    auto group = SharedGroup::resume(host_, number, peers);
    if (group && !*group) {
      log::info("share: released memory={}", number);
      served_any_ = true;
      FARPAGE_TRY_VOID(SharedGroup::forget(state_, number));
      continue;
    }
    if (group) {
      resumed.insert(number);
      log::info("share: taken_over memory={} processes={}", number, (*group)->peers().size());
      groups_.push_back(std::move(*group));
      served_any_ = true;
      continue;
    }
    log::error("share: not_taken_over memory={} reason=\"{}\": its processes are killed", number,
               group.error().message());
    std::vector<int> processes;
    processes.reserve(peers.size());
    for (const SharedGroup::Peer& peer : peers) processes.push_back(peer.process.get());
    kill_processes(processes);
    FARPAGE_TRY_VOID(SharedGroup::forget(state_, number));
  }
  host_.engine.end_succession(resumed);
  if (stopping_) stop();  // its predecessor was told to
  return {};
}

// ---- newcomers ----

void SharePager::accept_all() {
  while (true) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    const auto peer = peer_credentials(socket.get());
    Status allowed = peer ? check_peer(*peer) : Status(tl::unexpected(peer.error()));
    if (allowed && arrivals_.size() >= kMaxArrivals)
      allowed = fail(ErrorCode::kExhausted, "too many processes are connecting");
    if (allowed) {
      arrivals_.emplace_back(std::move(socket), *peer, SteadyClock::read());
    } else {
      answer(socket, error_line(allowed.error()));
      log::warn("share: refused pid={} reason=\"{}\"", peer ? peer->pid : 0,
                allowed.error().message());
    }
  }
}

// One that is taken in, or refused, has no socket any more.
void SharePager::go_on(Arrival& arrival) {
  const Result<bool> complete = arrival.read(SteadyClock::read());
  if (complete && !*complete) return;
  Result<SharedGroup*> group = tl::unexpected(complete ? Error{} : complete.error());
  if (complete) group = take_in(arrival);
  if (group) {
    welcome(**group, arrival.peer().pid);
    return;
  }
  log::warn("share: refused pid={} reason=\"{}\"", arrival.peer().pid, group.error().message());
  answer(arrival.take_socket(), error_line(group.error()));
}

Result<SharedGroup*> SharePager::take_in(Arrival& arrival) {
  std::vector<Fd> descriptors = arrival.take_descriptors();
  if (descriptors.size() < 2)
    return fail(ErrorCode::kInvalid,
                fmt::format("{} descriptors came: send the userfaultfd and one or more memfds with "
                            "the message (SCM_RIGHTS)",
                            descriptors.size()));
  FARPAGE_TRY(userfaultfd, uffd::adopt_shared_userfaultfd(std::move(descriptors[0])));
  FARPAGE_TRY(files, adopt_files(descriptors));
  FARPAGE_TRY(claims, decode_regions(arrival.line(), files.size()));
  FARPAGE_TRY_VOID(check_places(claims, files));
  const pid_t pid = arrival.peer().pid;
  FARPAGE_TRY(process, peer_process(arrival.fd(), pid));
  const auto known =
      std::ranges::find_if(groups_, [&](const Group& group) { return group->has_any(files); });
  if (known != groups_.end() && !(*known)->has_all(files))
    return fail(ErrorCode::kConflict,
                "some of the memfds are shared by others already, and some are not: the first "
                "process must send all of them");
  if (known != groups_.end()) FARPAGE_TRY_VOID((*known)->check_sizes(files));
  for (size_t i = 0; i < claims.size(); ++i)
    for (const Group& group : groups_)
      if ((known == groups_.end() || group != *known) &&
          group->has_mapped(pid, claims[i].address, claims[i].address + claims[i].bytes))
        return fail(
            ErrorCode::kConflict,
            fmt::format("field 'regions[{}].base_host_virt_addr': the process has handed other "
                        "memory over at this address: map this one elsewhere",
                        i));
  const bool late = known != groups_.end() && (*known)->is_served();
  FARPAGE_TRY_VOID(uffd::check_claims(pid, files, claims,
                                      late ? uffd::Touched::kRefused : uffd::Touched::kAllowed));
  HandedOver handed{.socket = {},
                    .process = std::move(process),
                    .pid = pid,
                    .program = program_of(pid),
                    .userfaultfd = std::move(userfaultfd),
                    .files = {},
                    .claims = std::move(claims)};
  for (const uffd::SharedFile& file : files)
    handed.files.push_back({Fd(), file.device, file.inode, file.pages});
  SharedGroup* group = known != groups_.end() ? known->get() : nullptr;
  if (group == nullptr) {
    FARPAGE_TRY(made, SharedGroup::create(host_, std::move(files)));
    groups_.push_back(std::move(made));
    group = groups_.back().get();
  }
  handed.socket = arrival.take_socket();
  if (const Status joined = group->join(handed); !joined) {
    arrival = Arrival(std::move(handed.socket), arrival.peer(), SteadyClock::read());
    if (group->peers().empty()) end(*group);
    return tl::unexpected(joined.error());
  }
  // It has mapped the memory anew: check_claims() has seen that the former mappings are no more.
  const uint32_t member = group->peers().back().member;
  std::vector<SharedGroup::Peer>& peers = group->peers();
  for (size_t i = peers.size(); i-- > 0;)
    if (peers[i].pid == pid && peers[i].member != member) group->leave(peers[i]);
  return group;
}

void SharePager::welcome(SharedGroup& group, pid_t newcomer) {
  const bool was_served = group.is_served();
  if (const Status served = group.serve_if_complete(); !served) {
    refuse(group, served.error());
    return;
  }
  if (!group.is_served()) {
    log::info("share: waiting memory={} pid={} processes={} of={}", group.number(), newcomer,
              group.peers().size(), options_.processes);
    return;
  }
  served_any_ = true;
  const std::string line = accepted_line(group.pages(), group.peers().size());
  for (const SharedGroup::Peer& peer : group.peers()) {
    if (was_served && peer.pid != newcomer) continue;
    answer(peer.socket, line);
    log::info("share: process_joined memory={} pid={} program={} pages={} processes={}",
              group.number(), peer.pid, peer.program, group.pages(), group.peers().size());
  }
}

// None of its processes is served: they have their answer, and their faults wait for nobody.
void SharePager::refuse(SharedGroup& group, const Error& why) {
  for (const SharedGroup::Peer& peer : group.peers()) {
    log::warn("share: refused pid={} reason=\"{}\"", peer.pid, why.message());
    answer(peer.socket, error_line(why));
  }
  end(group);
}

// ---- the end ----

void SharePager::look_after() {
  for (auto at = groups_.begin(); at != groups_.end();) {
    SharedGroup& group = **at++;
    for (size_t i = group.peers().size(); i-- > 0;) {
      const SharedGroup::Peer& peer = group.peers()[i];
      if (!has_ended(peer.process.get()) && group.is_alive(peer)) continue;
      log::info("share: process_ended memory={} pid={}", group.number(), peer.pid);
      group.leave(peer);
    }
    if (group.peers().empty()) {
      end(group);
    } else if (group.is_late(SteadyClock::read())) {
      refuse(group, {ErrorCode::kTimedOut,
                     fmt::format("only {} of {} processes have come (--processes)",
                                 group.peers().size(), options_.processes),
                     0});
    }
  }
}

void SharePager::end(SharedGroup& group) {
  if (group.is_served() && options_.on_end) options_.on_end(group.report());
  std::erase_if(groups_, [&](const Group& each) { return each.get() == &group; });
}

void SharePager::stop() {
  stopping_ = true;
  (void)::unlink(options_.socket.c_str());
  (void)state_.put_listener(-1);
  listener_.reset();
  for (Arrival& arrival : arrivals_)
    answer(arrival.take_socket(), error_line({ErrorCode::kUnavailable, "farpage share ends", 0}));
  arrivals_.clear();
  for (auto at = groups_.begin(); at != groups_.end();) {
    SharedGroup& group = **at++;
    if (!group.is_served()) {
      refuse(group, {ErrorCode::kUnavailable, "farpage share ends", 0});
      continue;
    }
    if (const Status released = group.release(); !released) {
      log::error(
          "share: not_released memory={} reason=\"{}\": it is served until its processes end; the "
          "next signal kills them",
          group.number(), released.error().message());
      continue;
    }
    log::info("share: released memory={} processes={}", group.number(), group.peers().size());
    for (const SharedGroup::Peer& peer : group.peers()) answer(peer.socket, released_line());
    end(group);
  }
}

void SharePager::kill_all() {
  std::vector<int> processes;
  for (const Group& group : groups_)
    for (const SharedGroup::Peer& peer : group->peers()) processes.push_back(peer.process.get());
  kill_processes(processes);
  while (!groups_.empty()) end(*groups_.front());
}

Status SharePager::run(int signals) {
  while (true) {
    const bool ended = groups_.empty() && arrivals_.empty() && served_any_ && !options_.stay;
    if (ended || (stopping_ && groups_.empty())) return {};
    std::vector<pollfd> polled{{signals, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Arrival& arrival : arrivals_) polled.push_back({arrival.fd(), POLLIN, 0});
    for (const Group& group : groups_)
      for (const SharedGroup::Peer& peer : group->peers())
        polled.push_back({peer.process.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), kLookMs) < 0 && errno != EINTR)
      return fail_errno("poll");
    signalfd_siginfo signal{};
    if (::read(signals, &signal, sizeof signal) == sizeof signal) {
      log::info("share: signal={}", signal.ssi_signo);
      if (stopping_) {
        kill_all();
        return fail(ErrorCode::kUnavailable, "the processes that share memory were killed");
      }
      stop();
    }
    look_after();
    if (listener_.valid()) accept_all();
    for (Arrival& arrival : arrivals_) go_on(arrival);
    std::erase_if(arrivals_, [](const Arrival& arrival) { return arrival.fd() < 0; });
  }
}

}  // namespace farpage::share
