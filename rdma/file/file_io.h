// FileIo: an io_uring, and memory of its own for the bytes of its operations.
//
// The memory is its own because an operation that was given up (its time is over) goes on in the
// kernel: the caller's buffer is used for something else by then.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mapping.h"
#include "rdma/file/file_core.h"
#include "rdma/tcp/ring.h"
#include "rdma/transport.h"

namespace farpage::rdma::file {

// Threads: one at a time. The core outlives it.
class FileIo {
 public:
  static Result<std::unique_ptr<FileIo>> create(FileCore& core, std::shared_ptr<SessionGate> gate,
                                                uint32_t operations, size_t memory_bytes);
  // What the kernel has not completed goes on, in memory that it keeps.
  ~FileIo();

  // Whole pages, at most as many as the memory has.
  enum class Began : uint8_t { kYes, kNoRoom, kRefused, kFenced };
  Began begin(const Operation& operation, Instant deadline);
  // What was begun.
  void submit();
  // Calls `done` with the completion of each operation that has ended and was not given up.
  template <typename Done>
  void take(Done&& done) {
    if (in_flight_ == 0) return;
    submit();
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(ring_.get(), &entry) == 0) {
      const auto index = static_cast<uint32_t>(entry->user_data);
      const int result = entry->res;
      io_uring_cqe_seen(ring_.get(), entry);
      if (const std::optional<Completion> completion = end(index, result)) done(*completion);
    }
  }
  // All that is in flight: `done` is called with each token.
  template <typename Done>
  void give_up(Done&& done) {
    for (Request& request : requests_) {
      if (!request.active || request.given_up) continue;
      request.given_up = true;
      done(request.operation.token);
    }
  }
  // Of what was not given up; nullopt: nothing is in flight.
  std::optional<Instant> first_deadline() const;

  uint32_t in_flight() const { return in_flight_; }
  // Readable when something has completed.
  int descriptor() { return ring_.get()->ring_fd; }

 private:
  struct Request {
    Operation operation;
    Instant deadline{0};
    uint32_t place = 0;
    uint32_t first = 0;  // page of the memory
    uint32_t pages = 0;
    bool active = false;
    bool given_up = false;
  };

  FileIo(FileCore& core, std::shared_ptr<SessionGate> gate, uint32_t operations, Mapping memory);
  std::optional<uint32_t> take_pages(uint32_t pages);
  std::span<std::byte> memory_of(const Request& request) const;
  std::optional<Completion> end(uint32_t index, int result);
  void tell(const Request& request, int result) const;

  FileCore& core_;
  const std::shared_ptr<SessionGate> gate_;
  const Mapping memory_;
  bool is_registered_ = false;
  std::vector<Request> requests_;
  std::vector<uint32_t> free_;  // requests
  std::vector<uint8_t> used_;   // pages of the memory
  uint32_t search_from_ = 0;
  uint32_t in_flight_ = 0;
  tcp::Ring ring_;
};

}  // namespace farpage::rdma::file
