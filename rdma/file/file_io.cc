#include "rdma/file/file_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"

namespace farpage::rdma::file {

Result<std::unique_ptr<FileIo>> FileIo::create(FileCore& core, std::shared_ptr<SessionGate> gate,
                                               uint32_t operations, size_t memory_bytes) {
  FARPAGE_TRY(memory, Mapping::anonymous(memory_bytes));
  std::unique_ptr<FileIo> io(new FileIo(core, std::move(gate), operations, std::move(memory)));
  FARPAGE_TRY_VOID(io->ring_.open(operations, tcp::TaskWork::kAtOnce));
  // It counts as locked memory: without that right the kernel looks the pages up each time.
  const iovec all{io->memory_.data(), io->memory_.size()};
  io->is_registered_ = io_uring_register_buffers(io->ring_.get(), &all, 1) == 0;
  return io;
}

FileIo::FileIo(FileCore& core, std::shared_ptr<SessionGate> gate, uint32_t operations,
               Mapping memory)
    : core_(core),
      gate_(std::move(gate)),
      memory_(std::move(memory)),
      requests_(operations),
      used_(memory_.size() >> kPageShift) {
  for (uint32_t i = operations; i > 0; --i) free_.push_back(i - 1);
}

FileIo::~FileIo() {
  for (const Request& request : requests_)
    if (request.active) core_.places().leave(request.place);
}

// First fit, from behind the last one on: most are short, and end in their order.
std::optional<uint32_t> FileIo::take_pages(uint32_t pages) {
  const auto size = static_cast<uint32_t>(used_.size());
  uint32_t found = 0;
  for (uint32_t i = 0, at = search_from_; i < size + pages; ++i, ++at) {
    if (at >= size) {
      at = 0;
      found = 0;
    }
    found = used_[at] != 0 ? 0 : found + 1;
    if (found < pages) continue;
    const uint32_t first = at + 1 - pages;
    std::fill_n(used_.begin() + first, pages, uint8_t{1});
    search_from_ = at + 1 == size ? 0 : at + 1;
    return first;
  }
  return std::nullopt;
}

std::span<std::byte> FileIo::memory_of(const Request& request) const {
  return memory_.bytes().subspan(size_t{request.first} << kPageShift,
                                 size_t{request.pages} << kPageShift);
}

FileIo::Began FileIo::begin(const Operation& operation, Instant deadline) {
  const auto pages = static_cast<uint32_t>(operation.local.size() >> kPageShift);
  if (free_.empty()) return Began::kNoRoom;
  const std::optional<uint32_t> first = take_pages(pages);
  if (!first) return Began::kNoRoom;
  const auto give_back = [&](Began why) {
    std::fill_n(used_.begin() + *first, pages, uint8_t{0});
    return why;
  };
  gate_->operations.fetch_add(1, std::memory_order_seq_cst);
  const bool fenced = gate_->fenced.load(std::memory_order_seq_cst);
  const std::optional<uint32_t> place = fenced ? std::nullopt : core_.places().enter(operation);
  if (!place) {
    gate_->operations.fetch_sub(1, std::memory_order_seq_cst);
    return give_back(fenced ? Began::kFenced : Began::kRefused);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Request& request = requests_[index];
  request = {.operation = operation,
             .deadline = deadline,
             .place = *place,
             .first = *first,
             .pages = pages,
             .active = true};
  ++in_flight_;
  const std::span<std::byte> memory = memory_of(request);
  const auto bytes = static_cast<unsigned>(memory.size());
  const bool reads = operation.kind == OperationKind::kRead;
  if (!reads) std::memcpy(memory.data(), operation.local.data(), memory.size());
  io_uring_sqe* const entry = ring_.next_entry();
  const int file = core_.descriptor();
  if (is_registered_) {
    reads ? io_uring_prep_read_fixed(entry, file, memory.data(), bytes, operation.remote.value, 0)
          : io_uring_prep_write_fixed(entry, file, memory.data(), bytes, operation.remote.value, 0);
  } else {
    reads ? io_uring_prep_read(entry, file, memory.data(), bytes, operation.remote.value)
          : io_uring_prep_write(entry, file, memory.data(), bytes, operation.remote.value);
  }
  entry->user_data = index;
  return Began::kYes;
}

void FileIo::submit() {
  if (io_uring_sq_ready(ring_.get()) == 0) return;
  const int code = io_uring_submit(ring_.get());  // what is left is submitted by the next call
  FARPAGE_CHECK(code >= 0 || code == -EBUSY || code == -EAGAIN || code == -EINTR || code == -ENOMEM,
                "io_uring_submit returned %d", code);
}

std::optional<Completion> FileIo::end(uint32_t index, int result) {
  Request& request = requests_.at(index);
  const std::span<std::byte> memory = memory_of(request);
  const Operation& operation = request.operation;
  CompletionStatus status = CompletionStatus::kOk;
  if (result != static_cast<int>(memory.size())) {
    status = CompletionStatus::kLocalError;
    tell(request, result);
  } else if (!core_.places().is_under(request.place, operation.generation)) {
    status = CompletionStatus::kRemoteAccess;  // the place was given back meanwhile
  } else if (operation.kind == OperationKind::kRead && !request.given_up) {
    std::memcpy(operation.local.data(), memory.data(), memory.size());
  }
  core_.places().leave(request.place);
  gate_->operations.fetch_sub(1, std::memory_order_seq_cst);
  std::fill_n(used_.begin() + request.first, request.pages, uint8_t{0});
  request.active = false;
  free_.push_back(index);
  --in_flight_;
  if (request.given_up) return std::nullopt;
  return Completion{operation.token, status};
}

void FileIo::tell(const Request& request, int result) const {
  const std::optional<uint64_t> held_back = core_.log().allow(SteadyClock::read());
  if (!held_back) return;
  log::warn("file: {} offset={} bytes={} reason=\"{}\" not_logged={}",
            request.operation.kind == OperationKind::kRead ? "read_failed" : "write_failed",
            request.operation.remote.value, request.operation.local.size(),
            result < 0 ? std::strerror(-result) : "the file is too short", *held_back);
}

std::optional<Instant> FileIo::first_deadline() const {
  std::optional<Instant> first;
  for (const Request& request : requests_)
    if (request.active && !request.given_up && (!first || request.deadline < *first))
      first = request.deadline;
  return first;
}

}  // namespace farpage::rdma::file
