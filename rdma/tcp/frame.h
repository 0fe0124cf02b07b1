// The frames of the TCP transport, one encode and one decode function each; docs/protocol-tcp.md
// has the layout. All numbers are little-endian; the first four bytes of every frame are its
// length.
//
// Frames are strictly ordered: Hello, Welcome, then Requests, answered in the order in which they
// were sent. So each side always knows which header comes next and how long it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tl/expected.hpp>

#include "base/strong.h"
#include "rdma/transport.h"

namespace farpage::rdma::tcp {

inline constexpr uint32_t kMagic = 0x47504146;  // "FAPG" on the wire
inline constexpr uint8_t kProtocolVersion = 2;  // 2: keys of 128 bits

inline constexpr size_t kHelloBytes = 28;
inline constexpr size_t kWelcomeBytes = 20;
inline constexpr size_t kRequestBytes = 56;  // and the data of a WRITE, as it is or packed
inline constexpr size_t kReplyBytes = 24;    // and the data of a READ

enum class WireStatus : uint16_t {
  kOk = 0,
  kRemoteAccess = 1,  // unknown or withdrawn rkey, wrong generation, out of bounds
  kVersion = 2,       // only in a Welcome: the node speaks another version
};

// Why a frame was rejected; the connection is then closed.
enum class FrameFault : uint8_t {
  kWrongMagic,
  kWrongVersion,
  kUnexpectedKind,
  kFrameBytes,  // the length does not fit the kind of frame
  kDataBytes,   // 0, over the cap, or not the frame's length
  kUnknownStatus,
  kReserved,     // a field that must be 0 is not
  kPackedPages,  // packed data is not what the header says (packed_pages.h)
};
std::string_view to_string(FrameFault fault);

template <typename T>
using Decoded = tl::expected<T, FrameFault>;

// First frame of the borrower. Before the answer, the previous connection of the same session is
// fenced: none of its frames, nor the rest of one, is applied any more. Hello and Welcome have the
// same layout in every version, so that a version mismatch can be reported.
struct Hello {
  uint8_t version = kProtocolVersion;
  uint32_t operations_in_flight = 0;  // the most that the borrower will have in flight
  uint64_t session = 0;               // ChannelOptions::session
  bool packs_writes = false;          // asks for packed WRITEs; malformed to older releases
};

// The node's answer.
struct Welcome {
  uint8_t version = kProtocolVersion;
  WireStatus status = WireStatus::kOk;
  uint32_t operation_bytes = 0;  // longest operation the node accepts
  bool packs_writes = false;     // it takes packed WRITEs; only if Hello has asked
};

struct Request {
  OperationKind kind = OperationKind::kRead;
  uint64_t token = 0;
  RemoteAddress address;
  RemoteKey key;
  Generation generation;
  uint32_t data_bytes = 0;  // to READ or to WRITE
  // 0: the data of a WRITE follows this header as it is; else as so many bytes (packed_pages.h).
  uint32_t packed_bytes = 0;
  // Behind this header.
  uint32_t bytes_behind() const {
    if (kind == OperationKind::kRead) return 0;
    return packed_bytes != 0 ? packed_bytes : data_bytes;
  }
};

struct Reply {
  WireStatus status = WireStatus::kOk;
  uint64_t token = 0;
  uint32_t data_bytes = 0;  // following this header: all of a READ that is kOk, else 0
};

std::array<std::byte, kHelloBytes> encode(const Hello& hello);
std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome);
std::array<std::byte, kRequestBytes> encode(const Request& request);
std::array<std::byte, kReplyBytes> encode(const Reply& reply);

// Does not check the version: see Hello.
Decoded<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes);
Decoded<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> bytes);
// 1 <= data_bytes <= kMaxOperationBytes; packed: whole pages, of 1 to kMaxPackedPageBytes each.
Decoded<Request> decode_request(std::span<const std::byte, kRequestBytes> bytes);
// data_bytes <= kMaxOperationBytes, and 0 unless kOk.
Decoded<Reply> decode_reply(std::span<const std::byte, kReplyBytes> bytes);

}  // namespace farpage::rdma::tcp
