#include "criu/page_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"

namespace farpage::criu {
namespace {

// After a page could not be had from any replica.
constexpr Milliseconds kRetryPause{1000};

void add(std::atomic<uint64_t>& count, uint64_t more) {
  count.fetch_add(more, std::memory_order_relaxed);
}

}  // namespace

PageClient::PageClient(uint32_t number, Fd socket, std::string peer, std::span<std::byte> buffer,
                       const Environment& environment)
    : number_(number),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      buffer_(buffer),
      environment_(environment) {
  FARPAGE_CHECK(buffer.size() == kBufferBytes && number < 1U << 16, "%zu bytes, client %u",
                buffer.size(), number);
}

short PageClient::wanted_events() const {
  if (is_closed_) return 0;
  short events = 0;
  // One that has ended asking, or that is held, is only waited for until it closes its end.
  if (is_held_ || has_ended_asking_ || reader_.has_room()) events |= POLLIN;
  if (!chunks_.empty() && chunks_.front().missing == 0) events |= POLLOUT;
  return events;
}

void PageClient::receive() {
  if (is_closed_) return;
  // Then poll(2) tells of nothing but a broken connection.
  if ((wanted_events() & POLLIN) == 0) return close("the connection broke");
  std::array<std::byte, RequestReader::kMaxPartBytes> bytes;
  const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < 0) return close(::strerror(errno));
  if (got == 0) return close("the client has closed it");
  if (is_held_ || has_ended_asking_) return;
  const Status added = reader_.add(std::span(bytes).first(static_cast<size_t>(got)));
  if (added) return;
  log::warn("criu: bad_request client={} reason=\"{}\"", peer_, added.error().message());
  close("it does not speak the protocol");
}

bool PageClient::advance() {
  if (is_closed_) return false;
  bool moved = take_requests();
  moved = start_reads() || moved;
  return send() || moved;
}

bool PageClient::take_requests() {
  bool moved = false;
  while (!is_held_ && chunks_.size() < kChunks) {
    if (!answer_) {
      const auto request = reader_.next();
      if (!request || !begin(*request)) break;
    }
    if (answer_) add_chunk();
    moved = true;
  }
  return moved;
}

// False: nothing more is answered.
bool PageClient::begin(const PageRequest& request) {
  if (request.kind == PageRequest::Kind::kEnd) {
    Chunk end;
    end.header = encode_end();
    end.is_end = true;
    chunks_.push_back(std::move(end));
    has_ended_asking_ = true;
    return true;
  }
  add(environment_.counts.requests, 1);
  const auto place = environment_.index.find(request.process, request.address);
  if (!place) {
    hold(request, "the image has no such page: is it that of another checkpoint?");
    return false;
  }
  Answer answer{.request = request, .page = place->page};
  answer.left = answer.request.pages = std::min(request.pages, place->pages);
  answer_ = answer;
  return true;
}

void PageClient::add_chunk() {
  Answer& answer = *answer_;
  Chunk chunk;
  chunk.pages = static_cast<uint32_t>(std::min<uint64_t>(answer.left, kChunkPages));
  if (!answer.has_header) {
    chunk.header = encode_answer(*reader_.form(), answer.request);
    answer.has_header = true;
  }
  const std::span<std::byte> pages = pages_of(first_chunk_ + chunks_.size(), chunk);
  for (uint32_t i = 0; i < chunk.pages;) {
    if (!environment_.image.map()[answer.page + i].is_stored()) {
      std::memset(pages.data() + (size_t{i} << kPageShift), 0, kPageBytes);
      ++chunk.zero_pages;
      ++i;
      continue;
    }
    Part part;
    part.page = answer.page + i;
    part.run = environment_.image.run_at(part.page, chunk.pages - i);
    part.offset = i;
    i += part.run.pages;
    chunk.parts.push_back(part);
  }
  chunk.missing = chunk.parts.size();
  answer.page += chunk.pages;
  answer.left -= chunk.pages;
  if (answer.left == 0) answer_.reset();
  chunks_.push_back(std::move(chunk));
}

bool PageClient::start_reads() {
  bool moved = false;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.missing == 0 ||
        (chunk.not_before > Instant{0} && SteadyClock::read() < chunk.not_before))
      continue;
    for (size_t p = 0; p < chunk.parts.size(); ++p) {
      Part& part = chunk.parts[p];
      if (part.step != Step::kWaiting) continue;
      if (!environment_.reads.has_room()) return moved;
      const size_t number = first_chunk_ + i;
      const uint64_t token = uint64_t{number_} << 16 | (number % kChunks) << 8 | p;
      part.step = Step::kReading;
      ++outstanding_;
      environment_.reads.start(
          environment_.image, part.page, part.run,
          pages_of(number, chunk)
              .subspan(size_t{part.offset} << kPageShift, size_t{part.run.pages} << kPageShift),
          token);
      moved = true;
    }
  }
  return moved;
}

void PageClient::arrived(const image::PageReads::Done& done) {
  --outstanding_;
  const size_t place = (done.token >> 8) & 0xff;
  const size_t index = (place + kChunks - first_chunk_ % kChunks) % kChunks;
  FARPAGE_CHECK(index < chunks_.size(), "READ %llu of a chunk that is gone",
                static_cast<unsigned long long>(done.token));
  Chunk& chunk = chunks_[index];
  Part& part = chunk.parts.at(done.token & 0xff);
  if (done.outcome == image::ReadOutcome::kOk) {
    part.step = Step::kDone;
    --chunk.missing;
    return;
  }
  part.step = Step::kWaiting;
  chunk.not_before = SteadyClock::read() + kRetryPause;
  add(environment_.counts.failed_reads, 1);
  if (std::exchange(is_lost_logged_, true)) return;
  log::error(
      "criu: page_lost image={} client={} page={}: the client waits, and is answered if the page "
      "can be read again",
      environment_.image.name(), peer_, part.page);
}

bool PageClient::send() {
  bool moved = false;
  while (!is_closed_ && !chunks_.empty() && chunks_.front().missing == 0) {
    Chunk& chunk = chunks_.front();
    const Result<bool> all = send_chunk(first_chunk_, chunk);
    if (!all) {
      close(all.error().context.c_str());
      break;
    }
    if (!*all) break;
    add(environment_.counts.pages, chunk.pages);
    add(environment_.counts.zero_pages, chunk.zero_pages);
    was_served_ = was_served_ || chunk.is_end;
    chunks_.pop_front();
    ++first_chunk_;
    moved = true;
  }
  return moved;
}

// True: all of it is sent.
Result<bool> PageClient::send_chunk(size_t number, Chunk& chunk) {
  const std::span<std::byte> pages = pages_of(number, chunk);
  while (chunk.sent_bytes < chunk.header.size() + pages.size()) {
    std::array<iovec, 2> parts;
    size_t count = 0;
    const size_t of_header = std::min(chunk.sent_bytes, chunk.header.size());
    if (of_header < chunk.header.size())
      parts[count++] = {chunk.header.data() + of_header, chunk.header.size() - of_header};
    const size_t of_pages = chunk.sent_bytes - of_header;
    if (of_pages < pages.size())
      parts[count++] = {pages.data() + of_pages, pages.size() - of_pages};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0) return fail(ErrorCode::kUnavailable, ::strerror(errno));
    chunk.sent_bytes += static_cast<size_t>(sent);
  }
  return true;
}

void PageClient::hold(const PageRequest& request, const char* why) {
  log::error("criu: not_answered client={} process={} address={:#x} pages={} reason=\"{}\"", peer_,
             request.process, request.address, request.pages, why);
  is_held_ = true;
}

void PageClient::close(const char* why) {
  if (!was_served_) {
    add(environment_.counts.broken_clients, 1);
    log::warn("criu: client_gone client={} reason=\"{}\"", peer_, why);
  }
  is_closed_ = true;
  socket_.reset();
}

}  // namespace farpage::criu
