#include "snapshot/snapshot_pager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "base/log.h"
#include "base/pidfd.h"
#include "base/unix_socket.h"
#include "image/reader_name.h"
#include "rdma/session.h"

namespace farpage::snapshot {
namespace {

constexpr size_t kMapBufferBytes = size_t{image::PageReads::kMaxRunPages} * 16 << kPageShift;
constexpr Milliseconds kLook{500};
constexpr Milliseconds kLookAtPartial{5};
constexpr Seconds kLearnInterval{5};
constexpr char kRequestSocket[] = "control.sock";

}  // namespace

void SnapshotPager::Totals::add(const SessionCounts& counts) {
  cached += counts.faults_cached.get();
  read += counts.faults_read.get();
  joined += counts.faults_joined.get();
  zero += counts.faults_zero.get();
  own += counts.faults_own.get();
  lost += counts.faults_lost.get() + counts.huge_lost.load(std::memory_order_relaxed);
  huge += counts.faults_huge.load(std::memory_order_relaxed);
  removed += counts.removed_pages.get();
  replayed += counts.replayed_pages.load(std::memory_order_relaxed);
}

Result<std::unique_ptr<SnapshotPager>> SnapshotPager::create(
    SnapshotOptions options, coordinator::ImageClient& images, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore& store) {
  if (options.workers == 0)
    options.workers = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxSnapshotWorkers);
  FARPAGE_TRY(cache, PageCache::create(options.cache_bytes));
  FARPAGE_TRY(bell, Doorbell::create());
  FARPAGE_TRY(state, SnapshotState::create(store));
  FARPAGE_TRY(reader, state.reader(image::new_reader_name()));
  std::unique_ptr<SnapshotPager> made(
      new SnapshotPager(std::move(options), images, client, transports, std::move(cache),
                        std::move(bell), std::move(state), store, std::move(reader)));
  FARPAGE_TRY_VOID(made->take_over());
  return made;
}

SnapshotPager::SnapshotPager(SnapshotOptions options, coordinator::ImageClient& images,
                             coordinator::Client& client,
                             std::vector<std::unique_ptr<rdma::Transport>>& transports,
                             std::unique_ptr<PageCache> cache, Doorbell bell, SnapshotState state,
                             StateStore& store, std::string reader)
    : options_(std::move(options)),
      images_(images),
      client_(client),
      transports_(transports),
      cache_(std::move(cache)),
      bell_(std::move(bell)),
      state_(std::move(state)),
      store_(store),
      reader_{std::move(reader)},
      renewer_(std::make_unique<image::Renewer>("serve", images, reader_,
                                                [this](const coordinator::OpenedImage& opened) {
                                                  {
                                                    const MutexLock lock(mutex_);
                                                    refreshed_.push_back(opened);
                                                  }
                                                  bell_.ring();
                                                })) {}

SnapshotPager::~SnapshotPager() {
  // Nobody serves them any more. Without a userfaultfd they would read zeros.
  for (const auto& [number, session] : sessions_) send_signal(session->pidfd(), SIGKILL);
  shared_.workers.clear();  // their threads have the replayer place large pages
  shared_.replayer.reset();
  shared_.far.reset();
  renewer_.reset();             // which READs have woken until now
  if (is_taking_over_) return;  // another one tries
  for (const Listener& listener : listeners_) (void)::unlink(listener.path.c_str());
  for (const auto& [name, open] : open_) (void)images_.close(name, reader_);
}

Status SnapshotPager::share(uint32_t session_group) {
  std::vector<image::PortOptions> ports{{"map", kMapBufferBytes, rdma::new_session(session_group)}};
  for (uint32_t i = 0; i < options_.workers && !options_.far; ++i)
    ports.push_back(
        {fmt::format("snapshot-{}", i), Worker::kBufferBytes, rdma::new_session(session_group)});
  for (uint32_t i = 0; i < options_.replay_threads && !options_.far; ++i)
    ports.push_back(
        {fmt::format("replay-{}", i), Replayer::kBufferBytes, rdma::new_session(session_group)});
  FARPAGE_TRY(links,
              image::ImageLinks::create(ports, options_.channel, client_, transports_, &store_));
  FARPAGE_TRY(notes,
              state_.notes((options_.workers + options_.replay_threads) * sizeof(PlacingNote)));
  shared_.notes = std::move(notes);
  const std::span notes_of_threads(reinterpret_cast<PlacingNote*>(shared_.notes.data()),
                                   options_.workers + options_.replay_threads);
  shared_.session_group = session_group;
  shared_.links = std::move(links);
  shared_.serving = std::make_unique<Serving>(*cache_, *shared_.links, options_.reads,
                                              options_.channel.poll_mode != rdma::PollMode::kEvent);
  if (!shared_.serving->can_poison)
    log::warn(
        "serve: no_poison: this kernel has no UFFDIO_POISON (6.6): where a page is lost, its "
        "VMM as a whole gets SIGBUS");
  if (!options_.far) return make_threads(notes_of_threads);
  FARPAGE_TRY(far, FarGuests::create(*options_.far, session_group, client_, transports_, store_,
                                     state_, [this] { bell_.ring(); }));
  shared_.far = std::move(far);
  return {};
}

Status SnapshotPager::make_threads(std::span<PlacingNote> notes_of_threads) {
  for (uint32_t i = 0; i < options_.workers; ++i) {
    FARPAGE_TRY(worker,
                Worker::create(*shared_.serving, shared_.links->port(1 + i), notes_of_threads[i],
                               [this](const std::shared_ptr<Session>& session) {
                                 {
                                   const MutexLock lock(mutex_);
                                   ended_.push_back(session->number());
                                 }
                                 bell_.ring();
                               }));
    shared_.workers.push_back(std::move(worker));
  }
  std::vector<pager::LinkPort*> replay_ports;
  for (uint32_t i = 0; i < options_.replay_threads; ++i)
    replay_ports.push_back(&shared_.links->port(1 + options_.workers + i));
  FARPAGE_TRY(replayer, Replayer::create(*shared_.serving, replay_ports,
                                         notes_of_threads.subspan(options_.workers)));
  shared_.replayer = std::move(replayer);
  return {};
}

Result<SnapshotPager::OpenImage*> SnapshotPager::open(const ImageId& name) {
  if (const auto known = open_.find(name); known != open_.end()) return &known->second;
  FARPAGE_TRY(opened, images_.open(name, reader_));
  if (!shared_.links) FARPAGE_TRY_VOID(share(opened.session_group));
  if (opened.session_group != shared_.session_group)
    return fail(ErrorCode::kConflict,
                "the images of this cluster have another session group now: start farpage serve "
                "anew");
  image::PageReads reads(*shared_.links, shared_.links->port(0), options_.reads,
                         shared_.serving->read_counts);
  FARPAGE_TRY(loaded, image::Image::load(opened, *shared_.links, reads, [&](size_t bytes) {
                return state_.map_memory(opened, bytes);
              }));
  FARPAGE_TRY_VOID(state_.put_image(opened));
  return add(std::move(loaded), opened);
}

SnapshotPager::OpenImage* SnapshotPager::add(std::unique_ptr<image::Image> image,
                                             const coordinator::OpenedImage& opened) {
  OpenImage open;
  open.opened = opened;
  open.served = std::make_shared<ServedImage>();
  for (const image::Generation& generation : image->generations()) {
    const auto [known, is_new] = stores_.try_emplace(generation.region, next_store_);
    next_store_ += is_new ? 1 : 0;
    open.served->stores.push_back(known->second);
  }
  const ImageId name = image->info().name;
  open.served->image = std::move(image);
  load_recorded(open);
  log::info("serve: image_opened image={} pages={} generations={} digest={} recorded_pages={}",
            name.value, open.served->image->pages(), open.served->stores.size(),
            open.served->image->info().digest, open.recorded ? open.recorded->size() : 0);
  renewer_->refresh(*open.served->image, opened, *shared_.links);
  return &open_.emplace(name, std::move(open)).first->second;
}

void SnapshotPager::load_recorded(OpenImage& open) {
  if (options_.recorded_set.empty()) return;
  const coordinator::ImageInfo& info = open.served->image->info();
  open.recorded_path = options_.recorded_set;
  if (!options_.request_folder.empty())
    open.recorded_path += fmt::format("/{}.{}", info.name.value, info.digest);
  auto known = RecordedSet::load(open.recorded_path, info.digest, open.served->image->pages());
  if (!known && known.error().code != ErrorCode::kNotFound)
    log::warn("serve: recorded_set_ignored image={} reason=\"{}\"", info.name.value,
              known.error().message());
  open.recorded = known ? std::move(*known) : RecordedSet(info.digest, open.served->image->pages());
}

// What fails before the first guest is taken over changes nothing.
Status SnapshotPager::take_over() {
  const Instant start = SteadyClock::read();
  is_taking_over_ = true;
  FARPAGE_TRY(images, state_.images());
  FARPAGE_TRY(sessions, state_.sessions());
  FARPAGE_TRY(listeners, state_.listeners());
  for (const coordinator::OpenedImage& opened : images) {
    if (!shared_.links) FARPAGE_TRY_VOID(share(opened.session_group));
    FARPAGE_TRY(image, image::Image::resume(opened, *shared_.links, [&](size_t bytes) {
                  return state_.map_memory(opened, bytes);
                }));
    (void)add(std::move(image), opened);
  }
  take_over_sessions(sessions);
  if (shared_.far) shared_.far->end_succession();
  for (const auto& [number, listener] : listeners)
    if (const Status taken = take_over_listener(number, listener); !taken)
      log::error("serve: not_taken_over socket={} reason=\"{}\"", listener.path,
                 taken.error().message());
  is_taking_over_ = false;
  if (images.empty()) return {};
  const size_t taken = guests() - waiting_.size();
  log::info("serve: taken_over sessions={} connected={} images={} in_ms={}", taken, waiting_.size(),
            images.size(), (SteadyClock::read() - start).count() / 1'000'000);
  return {};
}

// None is served before all have what the notes say of them: threads that serve write new ones.
void SnapshotPager::take_over_sessions(const std::map<uint64_t, SessionRecord>& records) {
  const std::span notes(reinterpret_cast<const PlacingNote*>(shared_.notes.data()),
                        shared_.notes.size() / sizeof(PlacingNote));
  struct Known {
    // Until it is killed.
    Fd userfaultfd;
    Fd process;
    Status taken;
    std::shared_ptr<Session> session;  // null: it is a guest with a budget, or was not taken
  };
  std::map<uint64_t, Known> known;
  for (const auto& [number, record] : records) {
    Fd userfaultfd(::fcntl(record.userfaultfd, F_DUPFD_CLOEXEC, 0));
    Fd process(::fcntl(record.pidfd, F_DUPFD_CLOEXEC, 0));
    if (record.target != 0) {
      known.emplace(number, Known{std::move(userfaultfd), std::move(process),
                                  resume_far(number, record), nullptr});
      continue;
    }
    Result<std::shared_ptr<Session>> session = session_of(number, record);
    if (session) (*session)->take_over(notes);
    known.emplace(number, Known{std::move(userfaultfd), std::move(process),
                                session ? Status() : tl::unexpected(session.error()),
                                session ? *session : nullptr});
  }
  for (auto& [number, each] : known) {
    Status taken = each.taken;
    if (taken && each.session != nullptr) {
      const auto image = open(ImageId{records.at(number).image});
      taken = image ? serve(each.session, **image) : tl::unexpected(image.error());
    }
    if (taken) continue;
    log::error("serve: not_taken_over session={} pid={} reason=\"{}\": the VMM is killed", number,
               records.at(number).pid, taken.error().message());
    send_signal(each.process.get(), SIGKILL);
    state_.erase_session(number);
  }
}

FarParts SnapshotPager::far_parts(uint64_t number, const OpenImage& image,
                                  const SessionRecord& record) {
  return {.number = number,
          .served = image.served,
          .opened = &image.opened,
          .regions = record.regions,
          .userfaultfd = Fd(record.userfaultfd),
          .pidfd = Fd(record.pidfd),
          .pid = record.pid,
          .socket = Fd(record.socket),
          .lifeline = Lifeline::adopt(record.lifeline)};
}

Status SnapshotPager::resume_far(uint64_t number, const SessionRecord& record) {
  FARPAGE_TRY(image, open(ImageId{record.image}));
  FarParts parts = far_parts(number, *image, record);
  if (!shared_.far)
    return fail(ErrorCode::kUnsupported, "it has a budget, and --local is missing now");
  return shared_.far->resume(std::move(parts), record);
}

Status SnapshotPager::take_over_listener(uint64_t number, const ListenerRecord& listener) {
  OpenImage* image = nullptr;
  if (!listener.image.empty()) {
    FARPAGE_TRY(opened, open(ImageId{listener.image}));
    image = opened;
    FARPAGE_TRY(accepted, state_.accepted_at(listener.path));
    for (const int descriptor : accepted) {
      Fd socket(descriptor);
      const auto peer = peer_credentials(socket.get());
      // A session that has ended has left its socket, too, if the predecessor was killed just then.
      if (!peer || !check_peer(*peer)) continue;
      const auto process = peer_process(socket.get(), peer->pid);
      if (!process || has_ended(process->get())) continue;
      waiting_.push_back({std::make_unique<Handover>(std::move(socket), *peer), image,
                          SteadyClock::read() + kHandoverTimeout});
    }
  }
  if (listener.descriptor >= 0)
    listeners_.push_back({number, Fd(listener.descriptor), listener.path, image});
  return {};
}

Result<std::shared_ptr<Session>> SnapshotPager::session_of(uint64_t number,
                                                           const SessionRecord& record) {
  FARPAGE_TRY(image, open(ImageId{record.image}));
  Fd pidfd(record.pidfd);
  Fd socket(record.socket);
  Lifeline lifeline = Lifeline::adopt(record.lifeline);
  FARPAGE_TRY(memory, uffd::GuestMemory::adopt(Fd(record.userfaultfd)));
  return Session::create({.number = number,
                          .served = image->served,
                          .regions = record.regions,
                          .memory = std::move(memory),
                          .pidfd = std::move(pidfd),
                          .pid = record.pid,
                          .socket = std::move(socket),
                          .lifeline = std::move(lifeline)},
                         state_, image->recorded.has_value());
}

Result<Fd> SnapshotPager::bind(const std::string& path) const {
  FARPAGE_TRY(fd, listen_at_path(path, "socket"));
  if (options_.allowed_uid &&
      ::chown(path.c_str(), *options_.allowed_uid, static_cast<gid_t>(-1)) != 0) {
    auto failed =
        fail_errno("giving " + path + " to user " + std::to_string(*options_.allowed_uid));
    (void)::unlink(path.c_str());
    return failed;
  }
  return fd;
}

Status SnapshotPager::listen(const std::string& path, const ImageId& image) {
  if (listeners_.size() >= kMaxListeners)
    return fail(ErrorCode::kExhausted, "there are " + std::to_string(kMaxListeners) + " sockets");
  FARPAGE_TRY(open, this->open(image));
  return listen_at(path, open);
}

Status SnapshotPager::listen_for_requests() {
  return listen_at(options_.request_folder + "/" + kRequestSocket, nullptr);
}

Status SnapshotPager::listen_at(const std::string& path, OpenImage* image) {
  FARPAGE_TRY(fd, bind(path));
  const uint64_t number = state_.next_listener();
  FARPAGE_TRY_VOID(
      state_.put_listener(number, {.descriptor = fd.get(),
                                   .path = path,
                                   .image = image == nullptr ? "" : image->served->image->name()}));
  listeners_.push_back({number, std::move(fd), path, image});
  return {};
}

Status SnapshotPager::check_peer(const ucred& peer) const {
  const bool allowed = peer.uid == 0 || peer.uid == ::geteuid() ||
                       (options_.allowed_uid && peer.uid == *options_.allowed_uid);
  if (!allowed)
    return fail(ErrorCode::kDenied, fmt::format("a process of user {}: see --allow-uid", peer.uid));
  // It must be killed where nobody serves it any more (lifeline.h).
  if (::geteuid() != 0 && peer.uid != ::geteuid())
    return fail(
        ErrorCode::kDenied,
        fmt::format("a process of user {}, which user {} may not kill: run farpage serve as "
                    "root, or as the user of the VMM",
                    peer.uid, ::geteuid()));
  if (peer.pid <= 0)
    return fail(ErrorCode::kDenied, "a process of another pid namespace, which cannot be watched");
  return {};
}

void SnapshotPager::accept_all(Listener& listener) {
  while (true) {
    Fd socket(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    const auto peer = peer_credentials(socket.get());
    const Status allowed = peer ? check_peer(*peer) : Status(tl::unexpected(peer.error()));
    const bool room = waiting_.size() + asking_.size() < kMaxHandovers;
    if (!allowed || !room) {
      ++totals_.refused;
      log::warn("serve: refused socket={} pid={} reason=\"{}\"", listener.path,
                peer ? peer->pid : 0,
                allowed ? "too many are connecting" : allowed.error().message());
      continue;
    }
    const Instant until = SteadyClock::read() + kHandoverTimeout;
    if (listener.image == nullptr) {
      asking_.push_back({std::move(socket), *peer, true, until});
    } else {
      auto handover = std::make_unique<Handover>(std::move(socket), *peer);
      waiting_.push_back({std::move(handover), listener.image, until});
    }
  }
}

Result<std::shared_ptr<Session>> SnapshotPager::begin(Handover& handover, OpenImage& image) {
  FARPAGE_TRY(regions, decode_regions(handover.message()));
  FARPAGE_TRY(pidfd, peer_process(handover.fd(), handover.peer().pid));
  FARPAGE_TRY(memory, uffd::GuestMemory::adopt(handover.take_descriptor()));
  FARPAGE_TRY(lifeline, Lifeline::create(memory.fd()));
  FARPAGE_TRY(number, state_.next_session());
  FARPAGE_TRY(session, Session::create({.number = number,
                                        .served = image.served,
                                        .regions = std::move(regions),
                                        .memory = std::move(memory),
                                        .pidfd = std::move(pidfd),
                                        .pid = handover.peer().pid,
                                        .socket = handover.take_socket(),
                                        .lifeline = std::move(lifeline)},
                                       state_, image.recorded.has_value()));
  Status served = state_.put_session(number, session->record());
  if (served) served = serve(session, image);
  if (served) return session;
  // It has done nothing wrong, and would wait for pages, or read zeros.
  send_signal(session->pidfd(), SIGKILL);
  state_.erase_session(number);
  return tl::unexpected(std::move(served.error()));
}

// What FarGuests::begin() refuses is killed: it has done nothing wrong, and would wait for pages.
Status SnapshotPager::begin_far(Handover& handover, OpenImage& image) {
  FARPAGE_TRY(regions, decode_regions(handover.message()));
  const uint64_t pages = image.served->image->pages();
  for (const GuestRegion& region : regions) {
    FARPAGE_TRY_VOID(check_region(region, pages, image.served->image->name()));
    if (region.page_bytes != kPageBytes)
      return fail(ErrorCode::kUnsupported, "with --local, pages of 2 MiB are not served");
  }
  FARPAGE_TRY(pidfd, peer_process(handover.fd(), handover.peer().pid));
  FARPAGE_TRY(memory, uffd::GuestMemory::adopt(handover.take_descriptor()));
  FARPAGE_TRY(lifeline, Lifeline::create(memory.fd()));
  FARPAGE_TRY(number, state_.next_session());
  return shared_.far->begin({.number = number,
                             .served = image.served,
                             .opened = &image.opened,
                             .regions = std::move(regions),
                             .userfaultfd = std::move(memory).release(),
                             .pidfd = std::move(pidfd),
                             .pid = handover.peer().pid,
                             .socket = handover.take_socket(),
                             .lifeline = std::move(lifeline)});
}

void SnapshotPager::take_far_changes() {
  if (!shared_.far) return;
  bool has_ended = false;
  for (const FarChange& change : shared_.far->turn()) {
    switch (change.kind) {
      case FarChange::Kind::kHasAgent:
        ++totals_.started;
        log::info("serve: session_started session={} pid={} image={} local_bytes={}", change.number,
                  change.pid, change.image, options_.far->pager.local_bytes);
        break;
      case FarChange::Kind::kRefused:
        ++totals_.refused;
        log::warn("serve: refused pid={} image={} reason=\"{}\": the VMM is killed", change.pid,
                  change.image, change.text);
        break;
      case FarChange::Kind::kEnded:
        ++totals_.ended;
        has_ended = true;
        log::info("serve: session_ended session={} pid={} image={} {}", change.number, change.pid,
                  change.image, change.text);
        break;
    }
  }
  if (has_ended) write_stats();
}

// Gives it a worker. Its record is put.
Status SnapshotPager::serve(const std::shared_ptr<Session>& session, const OpenImage& image) {
  FARPAGE_TRY_VOID(session->tie());
  const auto worker =
      std::min_element(shared_.workers.begin(), shared_.workers.end(),
                       [](const auto& a, const auto& b) { return a->sessions() < b->sessions(); });
  FARPAGE_TRY_VOID((*worker)->add(session));
  sessions_.emplace(session->number(), session);
  replay(session, image);
  return {};
}

// One that is ready, or too late, has no handover any more.
void SnapshotPager::go_on(Waiting& waiting) {
  Handover& handover = *waiting.handover;
  const Result<bool> complete = handover.read();
  Status status;
  if (complete && handover.is_request()) {
    asking_.push_back({handover.take_socket(), handover.peer(), false, waiting.until});
  } else if (!complete) {
    status = tl::unexpected(complete.error());
  } else if (!*complete) {
    if (SteadyClock::read() < waiting.until) return;
    status = fail(ErrorCode::kTimedOut, "the message, or its descriptor, did not come");
  } else if (shared_.far) {
    status = begin_far(handover, *waiting.image);
  } else {
    const auto session = begin(handover, *waiting.image);
    if (session) {
      ++totals_.started;
      log::info("serve: session_started session={} pid={} image={}", (*session)->number(),
                (*session)->pid(), (*session)->image().name());
    } else {
      status = tl::unexpected(session.error());
    }
  }
  if (!status) {
    ++totals_.refused;
    log::warn("serve: refused pid={} image={} reason=\"{}\"", handover.peer().pid,
              waiting.image->served->image->name(), status.error().message());
  }
  waiting.handover.reset();
}

void SnapshotPager::replay(const std::shared_ptr<Session>& session, const OpenImage& image) {
  if (image.recorded)
    shared_.replayer->add(session, image.recorded->in_order(), Replayer::Urgency::kSoon);
  if (!options_.prefetch_all) return;
  std::vector<uint32_t> all;
  const image::PageMap& map = session->image().map();
  for (uint64_t page = 0; page < map.pages(); ++page)
    if (map[page].is_stored()) all.push_back(static_cast<uint32_t>(page));
  shared_.replayer->add(session, std::move(all), Replayer::Urgency::kWhenIdle);
}

// True: it is over. The request ends with a line break.
bool SnapshotPager::answer(Asking& asking) {
  std::array<char, 1024> part;
  while (true) {
    const ssize_t got = ::recv(asking.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return SteadyClock::read() >= asking.until;
    if (got <= 0) return true;
    asking.text.append(part.data(), static_cast<size_t>(got));
    const size_t end = asking.text.find('\n');
    if (end == std::string::npos && asking.text.size() < kMaxRequestBytes) continue;
    Answer reply = answer_to(asking, asking.text.substr(0, end));
    (void)::send(asking.socket.get(), reply.text.data(), reply.text.size(),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (reply.when_sent) when_sent_.push_back(std::move(reply.when_sent));
    return true;
  }
}

Answer SnapshotPager::answer_to(const Asking& asking, const std::string& request) {
  if (options_.answer_others)
    if (auto known = options_.answer_others(request, asking.peer, guests())) return *known;
  if (asking.may_ask_for_sockets) return {answer_to_socket_request(request) + "\n"};
  ++totals_.refused;
  log::warn("serve: refused pid={} reason=\"its message is no array of regions\"", asking.peer.pid);
  return {"{\"error\": \"no request that is known here\"}\n"};
}

std::string SnapshotPager::answer_to_socket_request(const std::string& request) {
  const auto answered = [&]() -> Result<std::string> {
    FARPAGE_TRY(asked, decode_socket_request(request));
    if (asked.socket == kRequestSocket)
      return fail(ErrorCode::kInvalid, "this socket takes the requests: choose another name");
    const std::string path = options_.request_folder + "/" + asked.socket;
    FARPAGE_TRY_VOID(listen(path, asked.image));
    return path;
  }();
  if (answered) return nlohmann::json{{"socket", *answered}}.dump();
  log::warn("serve: request_refused reason=\"{}\"", answered.error().message());
  return nlohmann::json{{"error", answered.error().message()}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SnapshotPager::OpenImage& SnapshotPager::image_of(const Session& session) {
  const MutexLock lock(mutex_);
  return open_.at(session.image().info().name);
}

void SnapshotPager::learn(const Session& session) {
  OpenImage& image = image_of(session);
  if (!image.recorded) return;
  if (std::exchange(learned_[session.number()], session.touch_count()) == session.touch_count())
    return;
  if (!image.recorded->add(session.touches())) return;
  if (const Status published = image.recorded->publish(image.recorded_path); !published)
    log::warn("serve: recorded_set_not_published image={} reason=\"{}\"", session.image().name(),
              published.error().message());
}

void SnapshotPager::learn_of_all() {
  learned_at_ = SteadyClock::read();
  if (options_.recorded_set.empty()) return;
  for (const auto& [number, session] : sessions_) learn(*session);
}

void SnapshotPager::take_ended() {
  std::vector<uint64_t> ended;
  {
    const MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (const uint64_t number : ended) {
    const auto at = sessions_.find(number);
    if (at == sessions_.end()) continue;
    const Session& session = *at->second;
    learn(session);
    Totals of_it;
    of_it.add(at->second->counts());
    log::info(
        "serve: session_ended session={} pid={} image={} cached={} read={} joined={} zero={} "
        "own={} huge={} lost={} replayed={}",
        number, session.pid(), session.image().name(), of_it.cached, of_it.read, of_it.joined,
        of_it.zero, of_it.own, of_it.huge, of_it.lost, of_it.replayed);
    totals_.add(at->second->counts());
    ++totals_.ended;
    state_.erase_session(number);
    sessions_.erase(at);
    learned_.erase(number);
  }
  if (!ended.empty()) write_stats();
}

std::string SnapshotPager::stats() const {
  Totals sum = totals_;
  for (const auto& [number, session] : sessions_) sum.add(session->counts());
  nlohmann::json json{{"sessions",
                       {{"started", sum.started},
                        {"ended", sum.ended},
                        {"refused", sum.refused},
                        {"now", guests() - waiting_.size()}}},
                      {"faults",
                       {{"cached", sum.cached},
                        {"read", sum.read},
                        {"joined", sum.joined},
                        {"zero", sum.zero},
                        {"own", sum.own},
                        {"huge", sum.huge},
                        {"lost", sum.lost}}},
                      {"removed_pages", sum.removed},
                      {"replayed_pages", sum.replayed}};
  const PageCache::Counts cache = cache_->counts();
  json["cache"] = {
      {"pages", cache.pages}, {"frames", cache_->frames()}, {"evicted", cache.evicted}};
  if (shared_.far) json["far"] = shared_.far->stats();
  if (shared_.serving) {
    const image::ReadCounts& reads = shared_.serving->read_counts;
    json["reads"] = {{"operations", reads.reads.load()},
                     {"bytes", reads.read_bytes.load()},
                     {"retries", reads.retries.load()},
                     {"wrong_pages", reads.wrong_pages.load()}};
    const LatencySummary fault = shared_.serving->fault_ns.summary();
    json["fault_ns"] = {{"count", fault.count},
                        {"p50", fault.p50_ns},
                        {"p99", fault.p99_ns},
                        {"max", fault.max_ns}};
  }
  return json.dump();
}

void SnapshotPager::write_stats() const {
  if (options_.stats_file.empty()) return;
  const std::string next = options_.stats_file + ".next";
  std::ofstream file(next, std::ios::trunc);
  file << stats() << "\n";
  file.close();
  if (!file || std::rename(next.c_str(), options_.stats_file.c_str()) != 0)
    log::warn("serve: stats_not_written file={}", options_.stats_file);
}

void SnapshotPager::take_refreshed() {
  std::vector<coordinator::OpenedImage> refreshed;
  {
    const MutexLock lock(mutex_);
    refreshed.swap(refreshed_);
  }
  for (coordinator::OpenedImage& opened : refreshed) {
    Status done = state_.put_image(opened);
    if (done && shared_.far) done = shared_.far->refresh(opened);
    const ImageId name = opened.image.name;
    open_.at(name).opened = std::move(opened);
    if (done) continue;
    log::warn("serve: not_refreshed image={} reason=\"{}\" (trying again)", name.value,
              done.error().message());
    renewer_->refresh_again(name);
  }
}

// Waits for something, and does it. `stop` is -1: nothing stops it.
Status SnapshotPager::turn(int stop, bool& stopped) {
  std::vector<pollfd> polled{{stop, POLLIN, 0}, {bell_.fd(), POLLIN, 0}};
  for (const Listener& listener : listeners_) polled.push_back({listener.fd.get(), POLLIN, 0});
  bool any_partial = false;
  for (const Waiting& waiting : waiting_) {
    const bool is_partial = waiting.handover->is_partial();
    any_partial = any_partial || is_partial;
    if (!is_partial) polled.push_back({waiting.handover->fd(), POLLIN, 0});
  }
  for (const Asking& asking : asking_) polled.push_back({asking.socket.get(), POLLIN, 0});
  if (shared_.far)
    for (const int pidfd : shared_.far->pidfds()) polled.push_back({pidfd, POLLIN, 0});
  const Milliseconds look = any_partial ? kLookAtPartial : kLook;
  const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(look.count()));
  if (ready < 0 && errno != EINTR) return fail_errno("poll");
  stopped = (polled[0].revents & POLLIN) != 0;
  (void)bell_.wait(Milliseconds(0));
  take_ended();
  take_far_changes();
  take_refreshed();
  for (Waiting& waiting : waiting_) go_on(waiting);
  std::erase_if(waiting_, [](const Waiting& waiting) { return waiting.handover == nullptr; });
  std::erase_if(asking_, [this](Asking& asking) { return answer(asking); });
  for (const auto& call : std::exchange(when_sent_, {})) call();
  // A request may add a listener.
  const size_t listeners = listeners_.size();
  for (size_t i = 0; i < listeners; ++i) accept_all(listeners_[i]);
  if (SteadyClock::read() - learned_at_ > kLearnInterval) learn_of_all();
  return {};
}

Status SnapshotPager::run(int stop) {
  for (bool stopped = false; !stopped;) FARPAGE_TRY_VOID(turn(stop, stopped));
  learn_of_all();
  write_stats();
  return {};
}

// A VMM that has connected has no other pager: it would wait forever.
void SnapshotPager::stop_accepting() {
  (void)state_.put_stopping();
  for (Listener& listener : listeners_) {
    accept_all(listener);
    (void)::unlink(listener.path.c_str());
    const std::string image =
        listener.image == nullptr ? "" : listener.image->served->image->name();
    (void)state_.put_listener(listener.number, {-1, listener.path, image});
  }
  listeners_.clear();
  asking_.clear();
}

Status SnapshotPager::drain() {
  for (bool stopped = false; guests() > 0;) FARPAGE_TRY_VOID(turn(-1, stopped));
  learn_of_all();
  write_stats();
  return {};
}

}  // namespace farpage::snapshot
