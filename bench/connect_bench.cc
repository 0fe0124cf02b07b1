#include "bench/connect_bench.h"

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "base/mapping.h"
#include "bench/content.h"
#include "bench/pace.h"
#include "bench/self_check.h"
#include "bench/slab_lease.h"
#include "bench/touch.h"
#include "bench/touch_order.h"

namespace farpage::bench {
namespace {

constexpr uint64_t kWarmUpConnections = 3;
constexpr uint64_t kPages = 64;  // of the slab, with content

// Threads: one.
class Dialler {
 public:
  Dialler(const ConnectOptions& options, const SlabLease& slab, rdma::Transport& transport,
          rdma::TransportAddress address, coordinator::Client& client, std::span<std::byte> buffer)
      : slab_(slab),
        transport_(transport),
        address_(std::move(address)),
        client_(client),
        words_(reinterpret_cast<uint64_t*>(buffer.data()), Content::kWords),
        channel_options_(options.channel),
        content_(options.seed),
        random_(options.seed) {
    channel_options_.buffer = buffer;
  }

  Status fill() {
    FARPAGE_TRY(channel, dial());
    for (uint64_t page = 0; page < kPages; ++page) {
      content_.fill(page, words_);
      FARPAGE_TRY_VOID(perform(*channel, operation_of(rdma::OperationKind::kWrite, page)));
    }
    return {};
  }

  // Connects one channel, does its first READ, and closes it.
  Status connect(ConnectResult* result) {
    const uint64_t page = random_.below(kPages);
    for (uint64_t& word : words_) word = ~word;
    const Instant start = SteadyClock::read();
    FARPAGE_TRY(channel, dial());
    const Instant connected = SteadyClock::read();
    FARPAGE_TRY_VOID(perform(*channel, operation_of(rdma::OperationKind::kRead, page)));
    const Instant read = SteadyClock::read();
    if (!content_.holds(page, 0, words_))
      return fail(ErrorCode::kConflict,
                  fmt::format("a first READ of page {} of the slab brought something else", page));
    if (result == nullptr) return {};
    result->handshake_ns.record(static_cast<uint64_t>((connected - start).count()));
    result->first_read_ns.record(static_cast<uint64_t>((read - start).count()));
    result->read_bytes += kPageBytes;
    return {};
  }

 private:
  Result<std::unique_ptr<rdma::Channel>> dial() {
    channel_options_.session = slab_.new_session();
    return connect_to(client_, slab_.lease(), transport_, address_, channel_options_);
  }
  rdma::Operation operation_of(rdma::OperationKind kind, uint64_t page) const {
    return {.kind = kind,
            .local = channel_options_.buffer,
            .remote = RemoteAddress{slab_.lease().address.value + page * kPageBytes},
            .key = slab_.lease().rkeys.at(transport_.kind()),
            .generation = slab_.lease().generation,
            .token = 0};
  }

  const SlabLease& slab_;
  rdma::Transport& transport_;
  const rdma::TransportAddress address_;
  coordinator::Client& client_;
  const std::span<uint64_t, Content::kWords> words_;  // of the buffer
  rdma::ChannelOptions channel_options_;
  const Content content_;
  Random random_;
};

Result<ConnectResult> dial_all(const ConnectOptions& options, Dialler& dialler) {
  ConnectResult result;
  FARPAGE_TRY_VOID(dialler.fill());
  for (uint64_t i = 0; i < kWarmUpConnections; ++i) FARPAGE_TRY_VOID(dialler.connect(nullptr));
  const Progress progress(options.progress, "connect",
                          {.operations = options.iterations, .time = options.duration},
                          [&result] { return result.first_read_ns.count(); });
  Pace pace({.touches = options.iterations, .duration = options.duration}, SteadyClock::read());
  uint64_t dialled = 0;
  for (; pace.next(SteadyClock::read()); ++dialled) FARPAGE_TRY_VOID(dialler.connect(&result));
  FARPAGE_TRY_VOID(check_transfer_claim({.measured_operations = dialled,
                                         .completed_ok = result.first_read_ns.count(),
                                         .completed_bytes = result.read_bytes,
                                         .operation_bytes = kPageBytes}));
  return result;
}

}  // namespace

Status validate(const ConnectOptions& options) {
  return validate_length(options.duration, options.iterations);
}

Result<ConnectResult> measure_connects(const ConnectOptions& options, rdma::Transport& transport,
                                       coordinator::Client& client) {
  FARPAGE_TRY_VOID(validate(options));
  FARPAGE_TRY(slab, SlabLease::borrow(client, options.slab_bytes));
  FARPAGE_TRY(address, address_of(client, slab->lease(), transport.kind()));
  FARPAGE_TRY(buffer, Mapping::anonymous(kPageBytes, true));
  std::optional<Result<ConnectResult>> result;
  std::thread([&] {
    if (options.pin) pin_this_thread(0);
    Dialler dialler(options, *slab, transport, address, client, buffer.bytes());
    result = dial_all(options, dialler);
  }).join();
  if (*result) (**result).transport = transport.kind();
  return std::move(*result);
}

Report connect_report(const ConnectOptions& options, const std::vector<ConnectResult>& results) {
  Report report;
  report.benchmark = "connect";
  report.configuration = {
      {"Time", "address known; handshake and registration of a page, then the first READ"},
      {"Wait", fmt::format("{}{}", rdma::to_string(options.channel.poll_mode),
                           options.pin ? ", pinned" : "")},
      {"Content", "checked on every READ"}};
  for (const ConnectResult& result : results) {
    const std::string name(rdma::to_string(result.transport));
    report.rows.push_back({"channel, " + name, 0, result.handshake_ns});
    report.rows.push_back({"until first READ, " + name, kPageBytes, result.first_read_ns});
    report.counts.emplace_back(name + "_connections", result.first_read_ns.count());
    report.counts.emplace_back(name + "_bytes_checked", result.read_bytes);
  }
  return report;
}

}  // namespace farpage::bench
