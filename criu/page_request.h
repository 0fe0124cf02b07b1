// The protocol between `criu lazy-pages --page-server` and a page server: requests and answers are
// one struct, and the pages follow the answer. Nothing says where a message ends but its form.
//
//   narrow, 24 bytes (criu 3 to 4.1)      wide, 32 bytes (criu 4.2)
//     u32 command, u32 pages                u32 command, u32 unused, u64 pages
//     u64 address                           u64 address
//     u64 process                           u64 process
//
// All in the order of bytes of the machine. The low 16 bits of the command say what it is, the high
// ones are flags. A client asks any number of times before it takes an answer, and is answered in
// that order; an answer may have fewer pages than were asked for.
// Source: criu 3.17.1 and 4.2, criu/page-xfer.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace farpage::criu {

enum class MessageForm : uint8_t { kNarrow, kWide };

// criu asks for 4 MiB at most. A client of the wide form is known by its first request: there the
// number of pages is where the narrow form has the address, which is never in the first page.
inline constexpr uint64_t kMaxRequestPages = 4095;

struct PageRequest {
  enum class Kind : uint8_t {
    kPages,  // `pages` pages of the process from the address on
    kEnd,    // the client has all it wants; the answer is a status
  };
  Kind kind = Kind::kPages;
  uint64_t pages = 0;
  uint64_t address = 0;
  uint64_t process = 0;
  bool operator==(const PageRequest&) const = default;
};

// Threads: one. Invariant: however the bytes are cut into parts, the requests are the same.
class RequestReader {
 public:
  static constexpr size_t kMaxWaiting = 1024;
  static constexpr size_t kMaxPartBytes = 4096;

  // What the client has sent, at most kMaxPartBytes, where has_room(). kInvalid names what is
  // wrong: what was complete before can still be taken, and nothing more is to be added. What
  // follows the end is ignored.
  Status add(std::span<const std::byte> bytes);
  bool has_room() const { return waiting_.size() - taken_ < kMaxWaiting; }
  std::optional<PageRequest> next();
  // Of the answers; nullopt before the first request.
  std::optional<MessageForm> form() const { return form_; }

 private:
  Result<size_t> take_one(std::span<const std::byte> bytes);

  std::optional<MessageForm> form_;
  std::vector<std::byte> partial_;
  std::vector<PageRequest> waiting_;
  size_t taken_ = 0;  // of those that wait
  bool ended_ = false;
};

// What goes before the pages.
std::vector<std::byte> encode_answer(MessageForm form, const PageRequest& answered);
// The answer to kEnd: all is well.
std::vector<std::byte> encode_end();

}  // namespace farpage::criu
