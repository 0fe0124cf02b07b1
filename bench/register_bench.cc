#include "bench/register_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/mapping.h"
#include "base/size.h"
#include "bench/content.h"
#include "bench/pace.h"
#include "bench/self_check.h"
#include "bench/slab_lease.h"

namespace farpage::bench {
namespace {

constexpr uint64_t kWarmUpLeases = 2;
// Slab 0 of the region belongs to the SlabLease.
constexpr SlabIndex kSlab{1};

uint64_t since(Instant start) {
  return static_cast<uint64_t>((SteadyClock::read() - start).count());
}

// Threads: one.
class Tenant {
 public:
  Tenant(const RegisterOptions& options, const SlabLease& first, rdma::Transport& transport,
         coordinator::Client& client, std::span<std::byte> buffer)
      : options_(options),
        first_(first),
        transport_(transport),
        client_(client),
        buffer_(buffer),
        words_(reinterpret_cast<uint64_t*>(buffer.data()), Content::kWords),
        content_(options.seed) {}

  // One lease, from the request to the return.
  Status lease(RegisterResult* result) {
    const Instant start = SteadyClock::read();
    FARPAGE_TRY(leases, client_.lease_slabs(first_.region(), {kSlab}));
    const uint64_t lease_ns = since(start);
    if (leases.size() != 1 || leases.front().bytes != options_.slab_bytes)
      return fail(ErrorCode::kInvalid, "the coordinator leased no slab of the size asked for");
    const coordinator::Lease& lease = leases.front();
    FARPAGE_TRY(channel, channel_to(lease));
    content_.fill(number_, words_);
    const Instant writing = SteadyClock::read();
    FARPAGE_TRY_VOID(perform(*channel, operation_of(rdma::OperationKind::kWrite, lease, 0)));
    const uint64_t write_ns = since(writing);
    FARPAGE_TRY_VOID(check(*channel, lease));
    const Instant giving_back = SteadyClock::read();
    FARPAGE_TRY_VOID(client_.release_slabs(first_.region(), {kSlab}));
    const uint64_t give_back_ns = since(giving_back);
    ++number_;
    if (result == nullptr) return {};
    result->lease_ns.record(lease_ns);
    result->usable_ns.record(lease_ns + write_ns);
    result->give_back_ns.record(give_back_ns);
    result->checked_bytes += 2 * kPageBytes;
    return {};
  }

 private:
  // The written page holds the content, and the next page is zeros although the slab was used
  // before.
  Status check(rdma::Channel& channel, const coordinator::Lease& lease) {
    std::ranges::fill(words_, ~uint64_t{0});
    FARPAGE_TRY_VOID(perform(channel, operation_of(rdma::OperationKind::kRead, lease, 0)));
    if (!content_.holds(number_, 0, words_))
      return fail(ErrorCode::kConflict, "a new slab did not hold what was written to it");
    FARPAGE_TRY_VOID(perform(channel, operation_of(rdma::OperationKind::kRead, lease, 1)));
    if (std::ranges::any_of(words_, [](uint64_t word) { return word != 0; }))
      return fail(ErrorCode::kConflict, "a new slab was not zero before it was written");
    return {};
  }

  // The channel to the node of this lease; connected on first use, outside the measured time.
  Result<rdma::Channel*> channel_to(const coordinator::Lease& lease) {
    std::unique_ptr<rdma::Channel>& channel = channels_[lease.node];
    if (channel) return channel.get();
    rdma::ChannelOptions options = options_.channel;
    options.buffer = buffer_;
    options.session = first_.new_session();
    FARPAGE_TRY(address, address_of(client_, lease, transport_.kind()));
    FARPAGE_TRY(made, connect_to(client_, lease, transport_, address, options));
    channel = std::move(made);
    return channel.get();
  }

  rdma::Operation operation_of(rdma::OperationKind kind, const coordinator::Lease& lease,
                               uint64_t page) const {
    return {.kind = kind,
            .local = buffer_,
            .remote = RemoteAddress{lease.address.value + page * kPageBytes},
            .key = lease.rkeys.at(transport_.kind()),
            .generation = lease.generation,
            .token = 0};
  }

  const RegisterOptions& options_;
  const SlabLease& first_;  // of the same region
  rdma::Transport& transport_;
  coordinator::Client& client_;
  const std::span<std::byte> buffer_;                 // one page
  const std::span<uint64_t, Content::kWords> words_;  // of the buffer
  const Content content_;
  uint64_t number_ = 0;  // of the lease; selects its content
  std::map<NodeId, std::unique_ptr<rdma::Channel>> channels_;
};

}  // namespace

Status validate(const RegisterOptions& options) {
  return validate_length(options.duration, options.iterations);
}

Result<RegisterResult> measure_leases(const RegisterOptions& options, rdma::Transport& transport,
                                      coordinator::Client& client) {
  FARPAGE_TRY_VOID(validate(options));
  FARPAGE_TRY(first, SlabLease::borrow(client, options.slab_bytes));
  FARPAGE_TRY(buffer, Mapping::anonymous(kPageBytes, true));
  Tenant tenant(options, *first, transport, client, buffer.bytes());
  for (uint64_t i = 0; i < kWarmUpLeases; ++i) FARPAGE_TRY_VOID(tenant.lease(nullptr));
  RegisterResult result;
  result.slab_bytes = options.slab_bytes;
  result.transport = transport.kind();
  {
    const Progress progress(options.progress,
                            fmt::format("register, {}", format_size(options.slab_bytes)),
                            {.operations = options.iterations, .time = options.duration},
                            [&result] { return result.give_back_ns.count(); });
    Pace pace({.touches = options.iterations, .duration = options.duration}, SteadyClock::read());
    while (pace.next(SteadyClock::read())) FARPAGE_TRY_VOID(tenant.lease(&result));
  }
  FARPAGE_TRY_VOID(check_transfer_claim({.measured_operations = result.lease_ns.count(),
                                         .completed_ok = result.give_back_ns.count(),
                                         .completed_bytes = result.checked_bytes,
                                         .operation_bytes = 2 * kPageBytes}));
  return result;
}

Report register_report(const std::vector<RegisterResult>& results) {
  Report report;
  report.benchmark = "register";
  report.configuration = {
      {"Time", "of the request to the coordinator and the node behind it; then one WRITE"},
      {"Content", "each slab is zero at first, and returns what was written"}};
  for (const RegisterResult& result : results) {
    const std::string size = format_size(result.slab_bytes);
    report.rows.push_back({"lease, " + size, result.slab_bytes, result.lease_ns});
    report.rows.push_back({"until first WRITE, " + size, result.slab_bytes, result.usable_ns});
    report.rows.push_back({"give back, " + size, result.slab_bytes, result.give_back_ns});
    report.counts.emplace_back("leases_" + size, result.give_back_ns.count());
    report.counts.emplace_back("bytes_checked_" + size, result.checked_bytes);
  }
  if (!results.empty())
    report.configuration.emplace_back("Transport",
                                      std::string(rdma::to_string(results.front().transport)));
  return report;
}

}  // namespace farpage::bench
