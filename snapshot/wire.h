// The message by which a VMM hands its memory over, as Firecracker sends it: a JSON array with one
// object for each region of the guest's memory, and with it one descriptor, the userfaultfd. The
// stream has no other frame: the message ends where the array does.
//
//   [{"base_host_virt_addr": 140062213218304, "size": 134217728, "offset": 0,
//     "page_size": 4096, "page_size_kib": 4096}]
//
// The versions differ in the last two fields: v1.1 has none of them; page_size_kib came next, with
// KiB or, by a mistake that stayed, with bytes; then page_size, with bytes. Others are ignored.
// Source: docs/snapshotting/handling-page-faults-on-snapshot-resume.md of Firecracker.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/strong.h"

namespace farpage::snapshot {

inline constexpr size_t kMaxMessageBytes = size_t{64} << 10;
inline constexpr size_t kMaxRegions = 64;

// Of hugetlb memory, which is placed as a whole.
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// `bytes` of the VMM's memory from `address` on are those of the image from `offset` on.
struct GuestRegion {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint64_t page_bytes = kPageBytes;  // or kHugePageBytes

  bool operator==(const GuestRegion&) const = default;
};

// One to kMaxRegions regions of whole pages, 4 KiB or all of 2 MiB, sorted by address; neither
// their addresses nor their offsets overlap. kInvalid names what is wrong; kUnsupported: other
// pages.
Result<std::vector<GuestRegion>> decode_regions(std::string_view message);

// kInvalid: the region lies outside of an image of this name with so many pages.
Status check_region(const GuestRegion& region, uint64_t pages, const std::string& image);

// A request for a socket, on which guests are restored from the image.
struct SocketRequest {
  ImageId image;
  std::string socket;  // a name (http/json_reader.h)
};

// {"image": NAME, "socket": NAME}. kInvalid names what is wrong.
inline constexpr size_t kMaxRequestBytes = 4096;
Result<SocketRequest> decode_socket_request(std::string_view request);

// Finds the end of a JSON array in a stream of bytes.
class ArrayEnd {
 public:
  // False: this is no array. The bytes behind its end must be blanks.
  bool take(std::string_view bytes);
  bool found() const { return found_; }
  size_t length() const { return length_; }  // of the array, with what is before it

 private:
  static constexpr uint32_t kMaxDepth = 16;
  bool take(char c);

  uint32_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool found_ = false;
  size_t length_ = 0;
};

// A VMM that has connected and not yet sent all. The message is looked at, and stays in the socket:
// whoever gets that after this process was killed finds it there, with its descriptor. Or it is no
// VMM, and has a request. Threads: one.
class Handover {
 public:
  Handover(Fd socket, const ucred& peer);

  // Looks at what has arrived; never blocks. True: all is there. A failure ends it: kInvalid,
  // kUnavailable (the VMM has closed the socket), kExhausted (more than kMaxMessageBytes).
  Result<bool> read();
  // An object has come in place of the array, and no descriptor: then read() is never true.
  bool is_request() const { return !descriptor_.valid() && text_.starts_with('{'); }
  // A part has come, so the socket is always readable, and poll(2) is no way to wait for the rest.
  bool is_partial() const { return !text_.empty(); }

  int fd() const { return socket_.get(); }
  const ucred& peer() const { return peer_; }
  std::string_view message() const { return std::string_view(text_).substr(0, end_.length()); }
  Fd take_descriptor() { return std::move(descriptor_); }
  Fd take_socket() { return std::move(socket_); }

 private:
  Fd socket_;
  ucred peer_;
  std::string text_;
  ArrayEnd end_;
  Fd descriptor_;
};

}  // namespace farpage::snapshot
