#include "criu/page_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "base/timespec.h"
#include "image/reader_name.h"
#include "rdma/session.h"
#include "rdma/tcp/socket.h"

namespace farpage::criu {
namespace {

constexpr Milliseconds kLook{500};
constexpr Nanoseconds kNap = std::chrono::microseconds(50);

}  // namespace

Result<std::unique_ptr<PageServer>> PageServer::create(
    PageServerOptions options, coordinator::ImageClient& images, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  std::unique_ptr<PageServer> made(
      new PageServer(std::move(options), images, image::new_reader_name()));
  FARPAGE_TRY_VOID(made->open(client, transports));
  FARPAGE_TRY_VOID(made->listen());
  return made;
}

PageServer::PageServer(PageServerOptions options, coordinator::ImageClient& images,
                       std::string reader)
    : options_(std::move(options)),
      images_(images),
      reader_{std::move(reader)},
      numbers_(kMaxClients, false),
      on_arrived_([this](const image::PageReads::Done& done) {
        const uint32_t number = PageClient::client_of(done.token);
        const auto client = std::find_if(clients_.begin(), clients_.end(), [&](const auto& each) {
          return each->number() == number;
        });
        FARPAGE_CHECK(client != clients_.end(), "READ of client %u, which is gone", number);
        (*client)->arrived(done);
      }) {}

PageServer::~PageServer() {
  if (!renewer_) return;  // the image was not opened
  renewer_.reset();
  (void)images_.close(options_.image, reader_);
}

Status PageServer::open(coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY(opened, images_.open(options_.image, reader_));
  renewer_.emplace("criu", images_, reader_, nullptr);
  renewer_->add(options_.image);
  FARPAGE_TRY(links,
              image::ImageLinks::create({{"page-server", kMaxClients * PageClient::kBufferBytes,
                                          rdma::new_session(opened.session_group)}},
                                        options_.channel, client, transports));
  links_ = std::move(links);
  reads_ =
      std::make_unique<image::PageReads>(*links_, links_->port(0), options_.reads, read_counts_);
  FARPAGE_TRY(image, image::Image::load(opened, *links_, *reads_));
  image_ = std::move(image);
  renewer_->refresh(*image_, opened, *links_);
  const Status read = read_index();
  if (!read) return fail_with("image '" + options_.image.value + "'", read.error());
  log::info("criu: image_opened image={} processes={} ranges={} pages={} digest={}", image_->name(),
            index_->processes(), index_->ranges().size(), index_->indexed_pages(),
            image_->info().digest);
  return {};
}

Status PageServer::read_index() {
  FARPAGE_TRY(first, read_pages(0, 1));
  FARPAGE_TRY(pages, AddressIndex::pages_of(first, image_->pages()));
  FARPAGE_TRY(bytes, read_pages(0, pages));
  FARPAGE_TRY(index, AddressIndex::decode(bytes, image_->pages()));
  index_ = std::move(index);
  return {};
}

Result<std::vector<std::byte>> PageServer::read_pages(uint64_t first, uint64_t pages) {
  std::vector<std::byte> bytes(pages << kPageShift);
  for (uint64_t done = 0; done < pages;) {
    if (!image_->map()[first + done].is_stored()) {
      ++done;
      continue;
    }
    const auto most =
        static_cast<uint32_t>(std::min<uint64_t>(pages - done, image::PageReads::kMaxRunPages));
    const image::StoredRun run = image_->run_at(first + done, most);
    const auto landing = reads_->port().buffer().first(size_t{run.pages} << kPageShift);
    bool lost = false;
    reads_->start(*image_, first + done, run, landing, 0);
    reads_->finish([&](const image::PageReads::Done& end) {
      lost = end.outcome == image::ReadOutcome::kLost;
    });
    if (lost) return fail(ErrorCode::kUnavailable, "its index cannot be read from any replica");
    std::memcpy(bytes.data() + (done << kPageShift), landing.data(), landing.size());
    done += run.pages;
  }
  return bytes;
}

Status PageServer::listen() {
  FARPAGE_TRY(fd, rdma::tcp::listen_on(options_.listen.host, options_.listen.port));
  // A client that is gone when it would be accepted.
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl");
  FARPAGE_TRY(port, rdma::tcp::port_of(fd.get()));
  listener_ = std::move(fd);
  port_ = port;
  return {};
}

Status PageServer::run(int stop) {
  for (bool stopped = false; !stopped;) {
    FARPAGE_TRY_VOID(turn(stop, stopped));
    if (!options_.once || ended_ == 0) continue;
    if (counts_.broken_clients.load(std::memory_order_relaxed) > 0)
      return fail(ErrorCode::kUnavailable, "the client ended before it had all of its pages");
    return {};
  }
  return {};
}

Status PageServer::drain() {
  listener_.reset();
  for (bool stopped = false; !clients_.empty();) FARPAGE_TRY_VOID(turn(-1, stopped));
  return {};
}

bool PageServer::accepts() const {
  const bool had_its_client = options_.once && counts_.clients.load() > 0;
  return listener_.valid() && !had_its_client && clients_.size() < kMaxClients;
}

Status PageServer::turn(int stop, bool& stopped) {
  const bool moved = advance();
  // A wait for a READ that is the only thing under way.
  const bool reading = reads_->outstanding() > 0;
  const bool waited = !moved && reading && reads_->wait_a_little();
  const Nanoseconds timeout = moved || waited ? Nanoseconds(0)
                              : reading       ? kNap
                                              : Nanoseconds(kLook);
  const int listener = accepts() ? listener_.get() : -1;
  std::vector<pollfd> polled{{stop, POLLIN, 0}, {listener, POLLIN, 0}};
  for (const auto& client : clients_) polled.push_back({client->fd(), client->wanted_events(), 0});
  const timespec time = timespec_of(timeout);
  if (::ppoll(polled.data(), polled.size(), &time, nullptr) < 0 && errno != EINTR)
    return fail_errno("poll");
  stopped = polled[0].revents != 0;
  for (size_t i = 0; i < clients_.size(); ++i)
    if ((polled[i + 2].revents & ~POLLOUT) != 0) clients_[i]->receive();
  if (polled[1].revents != 0) FARPAGE_TRY_VOID(accept());
  take_ended();
  return {};
}

bool PageServer::advance() {
  bool moved = reads_->progress(on_arrived_);
  for (const auto& client : clients_) moved = client->advance() || moved;
  return moved;
}

void PageServer::take_ended() {
  std::erase_if(clients_, [this](const std::unique_ptr<PageClient>& client) {
    if (!client->has_ended()) return false;
    if (client->was_served()) log::info("criu: client_served client={}", client->peer());
    numbers_[client->number()] = false;
    ++ended_;
    return true;
  });
}

Status PageServer::accept() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    // One that left at once, or a shortage that may pass.
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
      log::warn("criu: not_accepted reason=\"{}\"", ::strerror(errno));
    return {};
  }
  rdma::tcp::tune(socket.get());
  const auto free = std::find(numbers_.begin(), numbers_.end(), false);
  *free = true;
  const auto number = static_cast<uint32_t>(free - numbers_.begin());
  std::string peer = rdma::tcp::peer_name(socket.get());
  log::info("criu: client_connected client={}", peer);
  counts_.clients.fetch_add(1, std::memory_order_relaxed);
  clients_.push_back(std::make_unique<PageClient>(
      number, std::move(socket), std::move(peer),
      links_->port(0).buffer().subspan(number * PageClient::kBufferBytes, PageClient::kBufferBytes),
      PageClient::Environment{*image_, *index_, *reads_, counts_}));
  return {};
}

std::string PageServer::stats() const {
  const auto get = [](const std::atomic<uint64_t>& count) {
    return count.load(std::memory_order_relaxed);
  };
  return fmt::format(
      R"({{"clients": {}, "broken_clients": {}, "requests": {}, "pages": {}, "zero_pages": {}, )"
      R"("failed_reads": {}, "read_bytes": {}, "read_retries": {}, "wrong_pages": {}}})",
      get(counts_.clients), get(counts_.broken_clients), get(counts_.requests), get(counts_.pages),
      get(counts_.zero_pages), get(counts_.failed_reads), get(read_counts_.read_bytes),
      get(read_counts_.retries), get(read_counts_.wrong_pages));
}

}  // namespace farpage::criu
