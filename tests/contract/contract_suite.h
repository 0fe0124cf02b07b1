// The contract of every transport, as one test suite over a small harness. A program that links the
// object library farpage_contract_suite and instantiates the suite runs it:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract,
//                            ::testing::Values(ContractCase{"tcp", [] { return ...; }}),
//                            case_name);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "rdma/memory_host.h"
#include "rdma/transport.h"

namespace farpage::rdma::contract {

// One transport under test.
class Harness {
 public:
  virtual ~Harness() = default;

  // A new host; the previous one no longer exists (a restart).
  virtual Result<std::unique_ptr<MemoryHost>> make_host() = 0;
  virtual std::unique_ptr<Transport> make_transport() = 0;
  // The exchange passed to connect(). By default none is needed.
  virtual QueuePairExchange exchange_with(MemoryHost& /*host*/) { return {}; }
  // Ends the host in a way that its peers cannot tell from a crash.
  virtual void kill_host(std::unique_ptr<MemoryHost> host) { host.reset(); }

  // Each operation carries the generation and the host checks it; else only the rkey does.
  virtual bool checks_generation() const { return true; }
  // The host counts the operations it serves (it cannot when a NIC serves them).
  virtual bool counts_operations() const { return true; }
  // Operations of a long test; fewer for a slow transport.
  virtual int long_test_operations() const { return 4000; }
  virtual PackWrites pack_writes() const { return PackWrites::kNever; }
  virtual Nanoseconds operation_timeout() const { return Seconds(10); }
};

struct ContractCase {
  std::string name;
  std::function<std::unique_ptr<Harness>()> make;
};
void PrintTo(const ContractCase& contract_case, std::ostream* stream);
std::string case_name(const ::testing::TestParamInfo<ContractCase>& info);

// Memory of a node; each page has different content.
struct Slab {
  Fd memfd;
  Mapping memory;
  RemoteKey key;
  Generation generation;

  RemoteAddress at(uint64_t offset) const {
    return {reinterpret_cast<uintptr_t>(memory.data()) + offset};
  }
  SlabMemory as_memory() const { return {memory.bytes(), memfd.get()}; }
};

class TransportContract : public ::testing::TestWithParam<ContractCase> {
 protected:
  static constexpr size_t kBufferBytes = size_t{4} << 20;
  static constexpr size_t kSlabBytes = size_t{1} << 20;

  void SetUp() override;

  void start_host();
  // A new slab, lent under `generation`.
  Slab& lend(size_t bytes, uint32_t generation = 1);

  ChannelOptions options() const;
  std::unique_ptr<Channel> connect() { return connect(options()); }
  std::unique_ptr<Channel> connect(const ChannelOptions& options);

  std::span<std::byte> local(size_t offset, size_t bytes) const {
    return buffer_.bytes().subspan(offset, bytes);
  }
  static Operation read(const Slab& slab, uint64_t offset, std::span<std::byte> local,
                        uint64_t token = 1);
  static Operation write(const Slab& slab, uint64_t offset, std::span<std::byte> local,
                         uint64_t token = 1);

  // Posts one operation and waits for it.
  static CompletionStatus run(Channel& channel, const Operation& operation);
  // run(); reconnects first if the channel has failed.
  CompletionStatus run_anew(std::unique_ptr<Channel>& channel, const Operation& operation);
  // Waits for `count` completions; each token must come once.
  static std::map<uint64_t, CompletionStatus> drain(Channel& channel, size_t count);

  std::unique_ptr<Harness> harness_;
  Mapping buffer_;
  std::vector<std::unique_ptr<Slab>> slabs_;  // outlive the hosts that lend them
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MemoryHost> host_;
};

// The byte of a slab at `offset` before any WRITE.
std::byte original_byte(uint64_t offset);
void fill_original(std::span<std::byte> bytes, uint64_t offset);
// Whether `bytes` equal the original content from `offset` on.
::testing::AssertionResult is_original(std::span<const std::byte> bytes, uint64_t offset);

}  // namespace farpage::rdma::contract
