// A slab and a borrower's buffer for tests of single transports.
#pragma once

#include <array>
#include <cstring>
#include <memory>

#include "base/fd.h"
#include "base/mapping.h"
#include "rdma/memory_host.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// Page p is filled with byte p + 1.
struct TestSlab {
  explicit TestSlab(size_t pages)
      : memfd(create_memfd("farpage-test", pages * kPageBytes).value()),
        memory(Mapping::shared(memfd.get(), pages * kPageBytes).value()) {
    for (size_t p = 0; p < pages; ++p)
      std::memset(memory.data() + p * kPageBytes, static_cast<int>(p + 1), kPageBytes);
  }
  void lend_on(MemoryHost& host, uint32_t generation_ = 1) {
    generation = {generation_};
    key = host.expose({memory.bytes(), memfd.get()}, generation, 0).value();
  }
  Operation read(size_t page, std::span<std::byte> local, uint64_t token = 1) const {
    const auto base = reinterpret_cast<uintptr_t>(memory.data());
    return {OperationKind::kRead, local, {base + page * kPageBytes}, key, generation, token};
  }
  Operation write(size_t page, std::span<std::byte> local, uint64_t token = 1) const {
    Operation operation = read(page, local, token);
    operation.kind = OperationKind::kWrite;
    return operation;
  }

  Fd memfd;
  Mapping memory;
  RemoteKey key;
  Generation generation;
};

struct TestBorrower {
  explicit TestBorrower(size_t pages = 64)
      : buffer(Mapping::anonymous(pages * kPageBytes).value()) {
    options.buffer = buffer.bytes();
    // Timeout tests set their own; no other test may time out on a busy machine.
    options.operation_timeout = Seconds(30);
    options.connect_timeout = Seconds(30);
  }
  std::span<std::byte> page(size_t index, size_t bytes = kPageBytes) const {
    return buffer.bytes().subspan(index * kPageBytes, bytes);
  }

  Mapping buffer;
  ChannelOptions options;
};

// One completion, however long it takes (at most the channel's own timeout).
inline Completion wait_one(Channel& channel) {
  std::array<Completion, 1> done{Completion{~uint64_t{0}, CompletionStatus::kLocalError}};
  (void)channel.wait(done, Seconds(40));
  return done[0];
}

inline CompletionStatus run(Channel& channel, const Operation& operation) {
  if (channel.post({&operation, 1}) != 1) return CompletionStatus::kFlushed;
  return wait_one(channel).status;
}

}  // namespace farpage::rdma
