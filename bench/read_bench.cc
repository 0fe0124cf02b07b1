#include "bench/read_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <thread>

#include "base/mapping.h"
#include "base/size.h"
#include "bench/content.h"
#include "bench/pace.h"
#include "bench/self_check.h"
#include "bench/slab_lease.h"
#include "bench/touch.h"
#include "bench/touch_order.h"

namespace farpage::bench {
namespace {

constexpr uint64_t kWarmUpOperations = 500;

// The end of a run: whichever limit is reached first.
struct Until {
  uint64_t operations = std::numeric_limits<uint64_t>::max();
  Instant end = Instant::max();

  bool is_over(uint64_t posted) const {
    return posted == operations || (end != Instant::max() && SteadyClock::read() >= end);
  }
};

// Posts the operations of one thread over one channel. Any failure ends the run.
class Pump {
 public:
  Pump(const ReadOptions& options, const coordinator::Lease& lease, rdma::Channel& channel,
       std::span<std::byte> buffer)
      : options_(options),
        lease_(lease),
        channel_(channel),
        buffer_(buffer),
        before_(options.seed),
        after_(~options.seed),
        random_(options.seed),
        slots_(options.depth),
        gathered_(options.depth),
        written_(lease.bytes / options.bytes) {}

  // Writes the whole slab once.
  Status fill() {
    for (uint64_t i = 0; i < written_.size(); ++i) {
      content_of(before_, i, bytes_of(0));
      FARPAGE_TRY_VOID(one_by_one(rdma::OperationKind::kWrite, i));
    }
    // The words that kOneWordAPage does not regenerate for each WRITE.
    for (size_t slot = 0; slot < slots_.size(); ++slot) content_of(after_, 0, bytes_of(slot));
    return {};
  }

  // The number of operations posted; all of them completed.
  Result<uint64_t> run(const Until& until, ReadResult* result) {
    uint64_t posted = 0;
    uint64_t completed = 0;
    bool over = false;
    while (!over || completed < posted) {
      // In one call, as the pager does: over TCP each call is a system call.
      gathered_.clear();
      for (size_t slot = 0; slot < slots_.size() && !over; ++slot) {
        if (slots_[slot].busy) continue;
        gather(slot);
        over = until.is_over(++posted);
      }
      FARPAGE_TRY_VOID(post_gathered());
      FARPAGE_TRY(done, take(result));
      completed += done;
    }
    return posted;
  }

  // Checks that exactly the words written by the WRITEs have changed.
  Status verify_writes() {
    std::vector<std::byte> expected(options_.bytes);
    for (uint64_t i = 0; i < written_.size(); ++i) {
      FARPAGE_TRY_VOID(one_by_one(rdma::OperationKind::kRead, i));
      content_of(written_[i] ? after_ : before_, written_[i] ? 0 : i, expected);
      if (written_[i]) make(i, expected);
      if (!std::ranges::equal(bytes_of(0), expected))
        return fail(ErrorCode::kConflict,
                    fmt::format("offset {} of the slab does not hold what was written there",
                                i * options_.bytes));
    }
    return {};
  }

 private:
  struct Slot {
    bool busy = false;
    uint64_t index = 0;  // of a piece of the slab
    Instant posted{0};
  };

  std::span<std::byte> bytes_of(size_t slot) const {
    return buffer_.subspan(slot * options_.bytes, options_.bytes);
  }
  std::span<uint64_t> words_of(std::span<std::byte> bytes) const {
    return {reinterpret_cast<uint64_t*>(bytes.data()), bytes.size() / sizeof(uint64_t)};
  }
  void content_of(const Content& content, uint64_t index, std::span<std::byte> bytes) const {
    content.fill_words(first_word_of(index), words_of(bytes));
  }
  // Calls `function(first word, words)` for the parts of a piece that are generated and checked.
  template <typename Function>
  void for_checked_parts(std::span<std::byte> bytes, Function function) const {
    const std::span<uint64_t> words = words_of(bytes);
    if (options_.check == ContentCheck::kEveryWord) return function(0, words);
    for (size_t i = 0; i < words.size(); i += Content::kWords) function(i, words.subspan(i, 1));
  }
  uint64_t first_word_of(uint64_t index) const { return index * options_.bytes / sizeof(uint64_t); }
  // Generates the data of a WRITE of the piece.
  void make(uint64_t index, std::span<std::byte> bytes) const {
    for_checked_parts(bytes, [&](size_t first, std::span<uint64_t> words) {
      after_.fill_words(first_word_of(index) + first, words);
    });
  }
  // Overwrites the result of an earlier READ, so that it cannot pass the next check.
  void spoil(std::span<std::byte> bytes) const {
    for_checked_parts(bytes, [](size_t, std::span<uint64_t> words) {
      for (uint64_t& word : words) word = ~word;
    });
  }
  bool holds(uint64_t index, std::span<std::byte> bytes) const {
    bool right = true;
    for_checked_parts(bytes, [&](size_t first, std::span<uint64_t> words) {
      right = before_.holds_words(first_word_of(index) + first, words) && right;
    });
    return right;
  }

  rdma::Operation operation_of(rdma::OperationKind kind, uint64_t index, size_t slot) const {
    return {.kind = kind,
            .local = bytes_of(slot),
            .remote = RemoteAddress{lease_.address.value + index * options_.bytes},
            .key = lease_.rkeys.at(channel_.kind()),
            .generation = lease_.generation,
            .token = slot};
  }

  void gather(size_t slot_index) {
    Slot& slot = slots_[slot_index];
    slot.index = random_.below(written_.size());
    const std::span<std::byte> bytes = bytes_of(slot_index);
    if (options_.operation == rdma::OperationKind::kWrite) {
      make(slot.index, bytes);
    } else {
      spoil(bytes);
    }
    gathered_.push_back(operation_of(options_.operation, slot.index, slot_index));
    slot.busy = true;
  }

  Status post_gathered() {
    if (gathered_.empty()) return {};
    const Instant now = SteadyClock::read();
    for (const rdma::Operation& operation : gathered_) slots_[operation.token].posted = now;
    if (channel_.post(gathered_) != gathered_.size())
      return fail(ErrorCode::kUnavailable, "the channel did not take all: " + why_broken());
    return {};
  }

  Result<uint64_t> take(ReadResult* result) {
    std::array<rdma::Completion, 64> completions;
    const size_t count = channel_.wait(completions, kLook);
    const Instant now = SteadyClock::read();
    for (const rdma::Completion& completion : std::span(completions).first(count)) {
      FARPAGE_TRY_VOID(check_status(completion));
      Slot& slot = slots_[completion.token];
      slot.busy = false;
      if (options_.operation == rdma::OperationKind::kWrite) {
        written_[slot.index] = true;
      } else if (!holds(slot.index, bytes_of(completion.token))) {
        return fail(ErrorCode::kConflict,
                    fmt::format("a READ of offset {} of the slab brought something else",
                                slot.index * options_.bytes));
      }
      if (result == nullptr) continue;
      result->latency_ns.record(static_cast<uint64_t>((now - slot.posted).count()));
      result->completed_bytes += options_.bytes;
    }
    return count;
  }

  Status one_by_one(rdma::OperationKind kind, uint64_t index) {
    return perform(channel_, operation_of(kind, index, 0));
  }

  Status check_status(const rdma::Completion& completion) const {
    if (completion.status == rdma::CompletionStatus::kOk) return {};
    return fail(ErrorCode::kUnavailable,
                fmt::format("an operation ended with '{}' {}", rdma::to_string(completion.status),
                            why_broken()));
  }
  std::string why_broken() const { return channel_.why_broken(); }

  const ReadOptions& options_;
  const coordinator::Lease& lease_;
  rdma::Channel& channel_;
  const std::span<std::byte> buffer_;
  const Content before_;  // of the filled slab
  const Content after_;   // of the WRITEs
  Random random_;
  std::vector<Slot> slots_;
  std::vector<rdma::Operation> gathered_;  // to be posted
  std::vector<bool> written_;              // whether a WRITE wrote this piece of the slab
};

Result<ReadResult> run_pump(const ReadOptions& options, Pump& pump) {
  ReadResult result;
  FARPAGE_TRY_VOID(pump.fill());
  FARPAGE_TRY_VOID(pump.run({.operations = kWarmUpOperations}, nullptr));
  const Progress progress(options.progress, "read",
                          {.operations = options.iterations, .time = options.duration},
                          [&result] { return result.latency_ns.count(); });
  const Instant start = SteadyClock::read();
  const Until until = options.duration.count() > 0 ? Until{.end = start + options.duration}
                                                   : Until{.operations = options.iterations};
  FARPAGE_TRY(posted, pump.run(until, &result));
  result.elapsed = SteadyClock::read() - start;
  if (options.operation == rdma::OperationKind::kWrite) FARPAGE_TRY_VOID(pump.verify_writes());
  FARPAGE_TRY_VOID(check_transfer_claim({.measured_operations = posted,
                                         .completed_ok = result.latency_ns.count(),
                                         .completed_bytes = result.completed_bytes,
                                         .operation_bytes = options.bytes}));
  return result;
}

}  // namespace

Status validate(const ReadOptions& options) {
  const auto invalid = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  FARPAGE_TRY_VOID(validate_length(options.duration, options.iterations));
  if (options.depth < 1 || options.depth > kMaxDepth)
    return invalid(fmt::format("--depth: 1 to {}", kMaxDepth));
  if (options.depth > options.channel.operations_in_flight)
    return invalid(fmt::format("--depth: at most --max-send-wr, which is {}",
                               options.channel.operations_in_flight));
  if (!std::has_single_bit(options.bytes) || options.bytes < sizeof(uint64_t) ||
      options.bytes > kMaxOperationBytes)
    return invalid("--bytes: a power of two from 8 to 1M");
  return {};
}

Result<ReadResult> measure_reads(const ReadOptions& options, rdma::Transport& transport,
                                 coordinator::Client& client) {
  FARPAGE_TRY_VOID(validate(options));
  FARPAGE_TRY(slab, SlabLease::borrow(client, options.slab_bytes));
  const uint64_t whole_pages = (options.depth * options.bytes + kPageBytes - 1) >> kPageShift;
  FARPAGE_TRY(buffer, Mapping::anonymous(whole_pages << kPageShift, true));
  rdma::ChannelOptions channel_options = options.channel;
  channel_options.buffer = buffer.bytes();
  channel_options.session = slab->new_session();
  FARPAGE_TRY(channel, slab->connect(transport, channel_options));
  if (channel->limits().operation_bytes < options.bytes)
    return fail(ErrorCode::kInvalid,
                fmt::format("--bytes: {} carries at most {} at once",
                            rdma::to_string(channel->kind()), channel->limits().operation_bytes));
  std::optional<Result<ReadResult>> result;
  std::thread([&] {
    if (options.pin) pin_this_thread(0);
    Pump pump(options, slab->lease(), *channel, buffer.bytes());
    result = run_pump(options, pump);
  }).join();
  if (*result) (**result).transport = channel->kind();
  return std::move(*result);
}

Report read_report(const ReadOptions& options, const std::vector<ReadResult>& results) {
  const bool read = options.operation == rdma::OperationKind::kRead;
  Report report;
  report.benchmark = "read";
  report.configuration = {
      {"Operation", read ? "READ" : "WRITE"},
      {"Depth",
       fmt::format("{} in flight, {} wait{}", options.depth,
                   rdma::to_string(options.channel.poll_mode), options.pin ? ", pinned" : "")},
      {"Memory", fmt::format("one slab of {}, random order, seed {}",
                             format_size(options.slab_bytes), options.seed)},
      {"Content", read ? "checked on every READ" : "slab read back and checked"}};
  for (const ReadResult& result : results) {
    const std::string name(rdma::to_string(result.transport));
    report.rows.push_back({name, options.bytes, result.latency_ns});
    const double seconds = static_cast<double>(result.elapsed.count()) / 1e9;
    report.figures.emplace_back(name + "_operations_per_s",
                                static_cast<double>(result.latency_ns.count()) / seconds);
    report.figures.emplace_back(name + "_MB_per_s",
                                static_cast<double>(result.completed_bytes) / 1e6 / seconds);
    report.counts.emplace_back(name + "_bytes_checked", result.completed_bytes);
  }
  return report;
}

}  // namespace farpage::bench
