#include "tests/contract/contract_suite.h"

#include <algorithm>
#include <array>

namespace farpage::rdma::contract {
namespace {

constexpr Nanoseconds kPatience = Seconds(20);  // far beyond every timeout; only ends a hang

uint64_t mix(uint64_t value) {  // splitmix64 (Steele, Lea, Flood 2014)
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

void PrintTo(const ContractCase& contract_case, std::ostream* stream) {
  *stream << contract_case.name;
}

std::string case_name(const ::testing::TestParamInfo<ContractCase>& info) {
  return info.param.name;
}

std::byte original_byte(uint64_t offset) {
  return static_cast<std::byte>(mix(offset / 8) >> (8 * (offset % 8)));
}

void fill_original(std::span<std::byte> bytes, uint64_t offset) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = original_byte(offset + i);
}

::testing::AssertionResult is_original(std::span<const std::byte> bytes, uint64_t offset) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != original_byte(offset + i))
      return ::testing::AssertionFailure() << "byte " << i << " of " << bytes.size()
                                           << " is not the one at offset " << offset + i;
  }
  return ::testing::AssertionSuccess();
}

void TransportContract::SetUp() {
  harness_ = GetParam().make();
  Result<Mapping> buffer = Mapping::anonymous(kBufferBytes);
  ASSERT_TRUE(buffer.has_value());
  buffer_ = std::move(*buffer);
  transport_ = harness_->make_transport();
  start_host();
}

void TransportContract::start_host() {
  Result<std::unique_ptr<MemoryHost>> host = harness_->make_host();
  ASSERT_TRUE(host.has_value()) << host.error().message();
  host_ = std::move(*host);
}

Slab& TransportContract::lend(size_t bytes, uint32_t generation) {
  auto slab = std::make_unique<Slab>();
  slab->memfd = create_memfd("farpage-contract", bytes).value();
  slab->memory = Mapping::shared(slab->memfd.get(), bytes).value();
  fill_original(slab->memory.bytes(), 0);
  slab->generation = {generation};
  Result<RemoteKey> key = host_->expose(slab->as_memory(), slab->generation, 0);
  EXPECT_TRUE(key.has_value()) << key.error().message();
  slab->key = key.value_or(RemoteKey{});
  slabs_.push_back(std::move(slab));
  return *slabs_.back();
}

ChannelOptions TransportContract::options() const {
  ChannelOptions options;
  options.buffer = buffer_.bytes();
  options.operation_timeout = harness_->operation_timeout();
  options.connect_timeout = Seconds(5);
  options.pack_writes = harness_->pack_writes();
  return options;
}

std::unique_ptr<Channel> TransportContract::connect(const ChannelOptions& options) {
  Result<std::unique_ptr<Channel>> channel =
      transport_->connect(host_->address(), options, harness_->exchange_with(*host_));
  EXPECT_TRUE(channel.has_value()) << channel.error().message();
  return channel ? std::move(*channel) : nullptr;
}

Operation TransportContract::read(const Slab& slab, uint64_t offset, std::span<std::byte> local,
                                  uint64_t token) {
  return {OperationKind::kRead, local, slab.at(offset), slab.key, slab.generation, token};
}

Operation TransportContract::write(const Slab& slab, uint64_t offset, std::span<std::byte> local,
                                   uint64_t token) {
  return {OperationKind::kWrite, local, slab.at(offset), slab.key, slab.generation, token};
}

CompletionStatus TransportContract::run(Channel& channel, const Operation& operation) {
  if (channel.post({&operation, 1}) != 1) return CompletionStatus::kFlushed;
  const auto done = drain(channel, 1);
  const auto found = done.find(operation.token);
  EXPECT_NE(found, done.end()) << "another token came back";
  return found == done.end() ? CompletionStatus::kFlushed : found->second;
}

CompletionStatus TransportContract::run_anew(std::unique_ptr<Channel>& channel,
                                             const Operation& operation) {
  if (!channel->usable()) {
    channel.reset();
    channel = connect();
  }
  return run(*channel, operation);
}

std::map<uint64_t, CompletionStatus> TransportContract::drain(Channel& channel, size_t count) {
  std::map<uint64_t, CompletionStatus> done;
  const Instant give_up = SteadyClock::read() + kPatience;
  while (done.size() < count && SteadyClock::read() < give_up) {
    std::array<Completion, 16> completions;
    const size_t stored = channel.wait(completions, Seconds(5));
    for (const Completion& completion : std::span(completions).first(stored)) {
      EXPECT_TRUE(done.emplace(completion.token, completion.status).second)
          << "token " << completion.token << " completed twice";
    }
  }
  EXPECT_EQ(done.size(), count) << "operations never completed";
  return done;
}

}  // namespace farpage::rdma::contract
