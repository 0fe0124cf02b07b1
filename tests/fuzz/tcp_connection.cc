// What a borrower sends to a node's data port: the answers, the slab and the end of the connection
// are the same however the bytes are cut, and no byte outside the slab is written.
//
// Keys are random and addresses this process's, so an input has 0 for them: a request with handle 0
// gets the key, and its address is an offset in the slab.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "rdma/limits.h"
#include "rdma/tcp/connection.h"
#include "tests/fuzz/fuzz_target.h"

using farpage::Fd;
using farpage::Generation;
using farpage::kPageBytes;
using farpage::RemoteKey;
using farpage::rdma::KeyTable;
using farpage::rdma::SessionFences;
using farpage::rdma::tcp::Connection;
using farpage::rdma::tcp::DataCounters;

namespace {

constexpr size_t kSlabBytes = 16 * kPageBytes;
constexpr size_t kGuardBytes = kPageBytes;
constexpr std::byte kGuard{0xA5};
constexpr size_t kHelloBytes = farpage::rdma::tcp::kHelloBytes;
constexpr size_t kRequestBytes = farpage::rdma::tcp::kRequestBytes;

struct Served {
  std::vector<std::byte> slab;
  std::vector<std::byte> replies;
  bool ended = false;
  uint64_t malformed = 0;
  bool operator==(const Served&) const = default;
};

class Node {
 public:
  Node() : memory_(kSlabBytes + 2 * kGuardBytes, kGuard) {
    std::memset(slab().data(), 0, kSlabBytes);
    key_ = keys_.insert({slab(), -1}, Generation{1}).value();
  }

  Served serve(std::span<const std::byte> input, size_t part) {
    const std::vector<std::byte> stream = with_key(input);
    Connection connection(Fd(), keys_, fences_, counters_);
    Served served;
    for (size_t at = 0; at < stream.size() && !served.ended;) {
      const std::span<std::byte> space = connection.receive_space();
      const size_t bytes = std::min({part, stream.size() - at, space.size()});
      FUZZ_EXPECT(bytes > 0);
      std::memcpy(space.data(), stream.data() + at, bytes);
      connection.received(bytes);
      at += bytes;
      // As DataServer: a full batch is sent, then the rest is served.
      bool some = true;
      while (some && !served.ended) {
        served.ended = !connection.serve() || connection.close_after_replies();
        some = connection.has_replies();
        while (connection.has_replies()) take(connection, served.replies);
      }
    }
    served.slab.assign(slab().begin(), slab().end());
    served.malformed = counters_.malformed.load();
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    FUZZ_EXPECT(std::ranges::all_of(std::span(memory_).first(kGuardBytes), is_guard));
    FUZZ_EXPECT(std::ranges::all_of(std::span(memory_).last(kGuardBytes), is_guard));
    return served;
  }

 private:
  std::span<std::byte> slab() { return std::span(memory_).subspan(kGuardBytes, kSlabBytes); }

  static void take(Connection& connection, std::vector<std::byte>& replies) {
    const msghdr* message = connection.replies();
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; ++i) {
      const auto* data = static_cast<const std::byte*>(message->msg_iov[i].iov_base);
      replies.insert(replies.end(), data, data + message->msg_iov[i].iov_len);
      bytes += message->msg_iov[i].iov_len;
    }
    connection.sent(bytes);
  }

  template <typename T>
  static T at(std::span<const std::byte> bytes, size_t offset) {
    T value{};
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  }
  template <typename T>
  static void put(std::span<std::byte> bytes, size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  }

  // The offsets are those of docs/protocol-tcp.md.
  std::vector<std::byte> with_key(std::span<const std::byte> input) {
    std::vector<std::byte> stream(input.begin(), input.end());
    size_t frame = kHelloBytes;
    while (frame + kRequestBytes <= stream.size()) {
      const std::span<std::byte> header = std::span(stream).subspan(frame, kRequestBytes);
      if (at<uint32_t>(header, 12) == 0) {
        put(header, 12, key_.value);
        put(header, 20, key_.secret[0]);
        put(header, 28, key_.secret[1]);
        put(header, 44, at<uint64_t>(header, 44) + reinterpret_cast<uintptr_t>(slab().data()));
      }
      frame += std::max<size_t>(at<uint32_t>(header, 0), kRequestBytes);
    }
    return stream;
  }

  std::vector<std::byte> memory_;
  KeyTable keys_;
  SessionFences fences_;
  DataCounters counters_;
  RemoteKey key_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const Served whole = Node().serve(bytes, SIZE_MAX);
  for (const size_t part : {1U, 7U, 57U, 4097U}) FUZZ_EXPECT(Node().serve(bytes, part) == whole);
  return 0;
}
