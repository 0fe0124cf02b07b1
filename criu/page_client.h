// PageClient: one connection of criu lazy-pages: takes its requests, reads the pages of the image,
// and sends them in the order of the requests.
//
// A client whose page cannot be had is left without an answer: what waits for the page in the
// restored program waits on. If its connection ended, criu would end, too, and the kernel would
// give the program zeros in place of all pages that have not come.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "criu/address_index.h"
#include "criu/page_request.h"
#include "image/image.h"
#include "image/page_reads.h"

namespace farpage::criu {

// Any thread reads them.
struct ServedCounts {
  std::atomic<uint64_t> clients{0};
  std::atomic<uint64_t> broken_clients{0};  // whose connection ended without a request for the end
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> pages{0};       // sent
  std::atomic<uint64_t> zero_pages{0};  // of those: stored nowhere
  std::atomic<uint64_t> failed_reads{0};
};

// Threads: one, that of the reads. Invariants:
//  1. answers are in the order of the requests, and have the pages that were asked for, from the
//     first one on;
//  2. no byte is sent that was not checked by PageReads, or is a zero of the image's map;
//  3. a buffer belongs to one chunk until its READs have ended and its bytes are sent.
class PageClient {
 public:
  // Parts of an answer that are read at once. One is sent while others are read.
  static constexpr size_t kChunks = 4;
  static constexpr uint32_t kChunkPages = image::PageReads::kMaxRunPages;
  static constexpr size_t kBufferBytes = kChunks * (size_t{kChunkPages} << kPageShift);

  struct Environment {
    const image::Image& image;
    const AddressIndex& index;
    image::PageReads& reads;
    ServedCounts& counts;
  };

  // `number` is in the tokens of its READs: below 2^16. The environment outlives it, the buffer
  // (kBufferBytes of the port's) belongs to it. The socket does not block.
  PageClient(uint32_t number, Fd socket, std::string peer, std::span<std::byte> buffer,
             const Environment& environment);

  // Of a READ of a client: its number.
  static uint32_t client_of(uint64_t token) { return static_cast<uint32_t>(token >> 16); }

  // Begins answers, starts READs, sends what is ready. True: something moved.
  bool advance();
  // Takes requests: poll(2) has told of the socket.
  void receive();
  void arrived(const image::PageReads::Done& done);

  int fd() const { return socket_.get(); }
  // Events of poll(2) for which it waits; 0: for READs alone.
  short wanted_events() const;
  // Its connection is over, and none of its READs is outstanding.
  bool has_ended() const { return is_closed_ && outstanding_ == 0; }
  // It was answered its request for the end.
  bool was_served() const { return was_served_; }
  uint32_t number() const { return number_; }
  const std::string& peer() const { return peer_; }

 private:
  enum class Step : uint8_t { kWaiting, kReading, kDone };
  // Pages of a chunk that come with one READ.
  struct Part {
    Step step = Step::kWaiting;
    uint64_t page = 0;
    image::StoredRun run;
    uint32_t offset = 0;  // in the chunk, in pages
  };
  struct Chunk {
    std::vector<std::byte> header;  // of the answer that begins with it, or empty
    uint32_t pages = 0;
    uint64_t zero_pages = 0;
    std::vector<Part> parts;
    size_t missing = 0;  // parts that are not done
    size_t sent_bytes = 0;
    bool is_end = false;  // the answer to the request for the end
    Instant not_before{0};
  };
  // A request that is being cut into chunks.
  struct Answer {
    PageRequest request;
    uint64_t page = 0;  // of the image: the next one
    uint64_t left = 0;
    bool has_header = false;
  };

  size_t buffer_of(size_t number) const { return (number % kChunks) * (kBufferBytes / kChunks); }
  std::span<std::byte> pages_of(size_t number, const Chunk& chunk) const {
    return buffer_.subspan(buffer_of(number), size_t{chunk.pages} << kPageShift);
  }
  bool take_requests();
  bool begin(const PageRequest& request);
  void add_chunk();
  bool start_reads();
  bool send();
  Result<bool> send_chunk(size_t number, Chunk& chunk);
  void close(const char* why);
  void hold(const PageRequest& request, const char* why);

  const uint32_t number_;
  Fd socket_;
  const std::string peer_;
  const std::span<std::byte> buffer_;
  const Environment environment_;
  RequestReader reader_;
  std::optional<Answer> answer_;
  std::deque<Chunk> chunks_;  // the first one is sent first
  size_t first_chunk_ = 0;    // its number
  size_t outstanding_ = 0;    // READs
  bool is_closed_ = false;
  bool is_held_ = false;           // no further request is answered
  bool has_ended_asking_ = false;  // the end was asked for
  bool was_served_ = false;
  bool is_lost_logged_ = false;
};

}  // namespace farpage::criu
