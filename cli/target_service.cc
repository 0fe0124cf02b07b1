#include "cli/target_service.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>

#include "uffd/other_process.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kNodePatience{5000};
constexpr Milliseconds kAliveCheck{20};

// The pages of a request, cut to the window; false: it lies outside.
bool run_of(const uffd::handover::Request& request, uint64_t window_address, uint64_t window_pages,
            uffd::PageRun& run) {
  if (request.address < window_address || request.address % kPageBytes != 0) return false;
  const uint64_t first = (request.address - window_address) >> kPageShift;
  const uint64_t pages = (request.bytes + kPageBytes - 1) >> kPageShift;
  if (first >= window_pages || pages > window_pages - first) return false;
  run = {PageIndex{first}, static_cast<uint32_t>(pages)};
  return true;
}

// Status of the reply: 0 or an errno.
int obey(uffd::handover::RequestKind kind, uffd::PageRun run, pager::Pager& pager) {
  using uffd::handover::RequestKind;
  switch (kind) {
    case RequestKind::kDiscard:
      pager.discard(run);
      return 0;
    case RequestKind::kForkBegin:
      return pager.begin_fork() ? 0 : EAGAIN;
    case RequestKind::kForkDone:
      pager.end_fork();
      return 0;
    case RequestKind::kColdHint:
      pager.evict_soon(run);
      return 0;
    case RequestKind::kWillNeedHint:
      pager.bring_in_soon(run);
      return 0;
    case RequestKind::kNormalAccess:
      pager.expect_access(run, pager::AccessPattern::kNormal);
      return 0;
    case RequestKind::kRandomAccess:
      pager.expect_access(run, pager::AccessPattern::kRandom);
      return 0;
    case RequestKind::kSequentialAccess:
      pager.expect_access(run, pager::AccessPattern::kSequential);
      return 0;
    case RequestKind::kPin:
      return pager.pin(run) ? 0 : ENOMEM;
    case RequestKind::kUnpin:
      pager.unpin(run);
      return 0;
  }
  return ENOSYS;
}

}  // namespace

TargetService::TargetService(uffd::HandoverServer& server, const pager::PagerOptions& options,
                             coordinator::Client& client,
                             std::vector<std::unique_ptr<rdma::Transport>>& transports)
    : server_(server),
      options_(options),
      client_(client),
      transports_(transports),
      acceptor_([this] { accept_targets(); }) {}

TargetService::~TargetService() {
  server_.stop();
}

void TargetService::accept_targets() {
  while (true) {
    Result<std::optional<uffd::HandedOver>> target = server_.accept();
    if (!target) {
      spdlog::error("run: accept_failed reason=\"{}\"", target.error().message());
      return;
    }
    if (!*target) return;
    const std::lock_guard lock(mutex_);
    Session& session = sessions_.emplace_back();
    session.report.program = (*target)->program;
    session.report.pid = (*target)->pid;
    session.thread = std::jthread([this, &session, handed = std::move(**target)]() mutable {
      serve(session, std::move(handed));
    });
  }
}

void TargetService::serve(Session& session, uffd::HandedOver target) {
  pager::PagerOptions options = options_;
  options.name = target.program + "-" + std::to_string(target.pid);
  Result<std::unique_ptr<uffd::AddressSpace>> space = uffd::adopt_window(target);
  Result<std::unique_ptr<pager::Pager>> pager =
      space ? pager::Pager::create(options, std::move(*space), client_, transports_, kNodePatience)
            : tl::unexpected(space.error());
  if (!pager) {
    (void)uffd::welcome(target, ENOMEM, pager.error().message());
    const std::lock_guard lock(mutex_);
    session.ended = true;
    ended_.notify_all();
    return;
  }
  pager::Pager& running = **pager;
  {
    const std::lock_guard lock(mutex_);
    session.pager = std::move(*pager);
  }
  spdlog::debug("run: target_started pid={} program={} window_bytes={} budget_bytes={}", target.pid,
                target.program, target.window_bytes, options.local_bytes);
  if (uffd::welcome(target, 0, "")) answer_requests(running, target.socket, target.window_address);
  wait_for_exit(running);
  std::unique_ptr<pager::Pager> finished;
  {
    const std::lock_guard lock(mutex_);
    session.report.stats = running.stats();
    finished = std::move(session.pager);
  }
  finished.reset();
  const std::lock_guard lock(mutex_);
  session.ended = true;
  ended_.notify_all();
}

void TargetService::answer_requests(pager::Pager& pager, const Fd& socket,
                                    uint64_t window_address) {
  while (true) {
    const Result<std::optional<uffd::handover::Request>> request = uffd::read_request(socket);
    if (!request) {
      spdlog::error("run: bad_request reason=\"{}\"", request.error().message());
      return;
    }
    if (!*request) return;
    uffd::PageRun run;
    const bool inside = run_of(**request, window_address, pager.space().pages(), run);
    const int status = inside ? obey((*request)->kind, run, pager) : EINVAL;
    if (!uffd::reply(socket, status)) return;
  }
}

void TargetService::wait_for_exit(pager::Pager& pager) {
  // The control socket is closed: by exit, by exec, or by a program that closes what it does not
  // know. Only the kernel's word that the memory is gone ends the pager, or its faults would never
  // end.
  while (!pager.target_gone() && pager.space().alive())
    (void)::poll(nullptr, 0, kAliveCheck.count());
}

void TargetService::wait_for_targets() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] {
    return std::all_of(sessions_.begin(), sessions_.end(),
                       [](const Session& session) { return session.ended; });
  });
}

std::vector<TargetReport> TargetService::reports() const {
  const std::lock_guard lock(mutex_);
  std::vector<TargetReport> reports;
  for (const Session& session : sessions_) {
    TargetReport report = session.report;
    if (session.pager) report.stats = session.pager->stats();
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace farpage::cli
