#include "pager/options.h"

#include <charconv>

#include "base/size.h"
#include "pager/evict/eviction_batch.h"

namespace farpage::pager {

std::string_view to_string(ForkMode mode) {
  switch (mode) {
    case ForkMode::kRefuse:
      return "refuse";
    case ForkMode::kPullIn:
      return "pull-in";
    case ForkMode::kShare:
      return "share";
  }
  return "unknown";
}

std::optional<ForkMode> fork_mode_from(std::string_view name) {
  for (const ForkMode mode : {ForkMode::kRefuse, ForkMode::kPullIn, ForkMode::kShare})
    if (name == to_string(mode)) return mode;
  return std::nullopt;
}

Status validate_local(uint64_t local_bytes) {
  if (local_bytes >= kMinLocalBytes) return {};
  return fail(ErrorCode::kInvalid,
              "local: at least " + format_size(kMinLocalBytes) + " of memory must stay local");
}

Result<CompressedOption> parse_compressed(const std::string& text) {
  if (text == "off") return CompressedOption{};
  if (text == "auto") return CompressedOption{.enabled = true, .adaptive = true};
  CompressedOption option{.enabled = true};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, option.percent);
  const bool is_number = error == std::errc() && (rest == end || std::string(rest, end) == "%");
  if (!is_number || option.percent < 1 || option.percent > kMaxCompressedPercent)
    return fail(ErrorCode::kInvalid,
                "compressed: auto, off, or 1% to " + std::to_string(kMaxCompressedPercent) + "%");
  return option;
}

uint32_t pressing_percent(const PagerOptions& options) {
  const uint32_t high = options.high_water_percent;
  return options.resolve_in_thread ? (high + 100) / 2 : high;
}

void spare_flushes(PagerOptions& options) {
  options.workers = 1;
  options.pin_workers = false;  // other programs of this host have one worker each, too
  options.high_water_percent = 100;
  options.low_water_percent = 95;
  options.adaptive_water_marks = false;
  options.most_room_pages = EvictionBatch::kMaxPages;
}

Result<RepairRate> parse_repair_rate(const std::string& text) {
  if (text == "auto") return RepairRate{};
  if (text == "off") return RepairRate{.bytes_per_second = 0};
  if (text == "max") return RepairRate{.bytes_per_second = UINT64_MAX};
  const Result<uint64_t> size = parse_size(text);
  if (!size || *size == 0)
    return fail(ErrorCode::kInvalid,
                "repair-rate: '" + text + "' is not auto, max, off, or a size a second like 200M");
  return RepairRate{.bytes_per_second = *size};
}

Result<uint64_t> parse_scrub_rate(const std::string& text) {
  if (text == "off") return 0;
  const Result<uint64_t> size = parse_size(text);
  if (!size || *size == 0)
    return fail(ErrorCode::kInvalid,
                "scrub: '" + text + "' is neither off nor a size a second like 4M");
  return *size;
}

Status validate(const PagerOptions& options) {
  const auto invalid = [](const std::string& text) { return fail(ErrorCode::kInvalid, text); };
  FARPAGE_TRY_VOID(validate_local(options.local_bytes));
  if (options.replicas < 1 || options.replicas > coordinator::kMaxReplicas)
    return invalid("replicas: 1 to " + std::to_string(coordinator::kMaxReplicas));
  const uint64_t slab = options.slab_bytes;
  if (slab < coordinator::kMinSlabBytes || slab > coordinator::kMaxSlabBytes ||
      (slab & (slab - 1)) != 0)
    return invalid("slab: a power of two from 2M to 1G");
  if (options.workers > kMaxWorkers)
    return invalid("workers: at most " + std::to_string(kMaxWorkers));
  if (options.prefetch_depth > kMaxPrefetchDepth)
    return invalid("prefetch-depth: at most " + std::to_string(kMaxPrefetchDepth));
  if (options.low_water_percent < 1 || options.low_water_percent > options.high_water_percent ||
      options.high_water_percent > 100)
    return invalid("water marks: 1 <= low-water <= high-water <= 100 percent");
  if (options.compressed.percent < 1 || options.compressed.percent > kMaxCompressedPercent)
    return invalid("compressed: 1% to " + std::to_string(kMaxCompressedPercent) + "%");
  if (options.fault_deadline < Milliseconds(10)) return invalid("fault-deadline: at least 10 ms");
  if (options.channel.operation_timeout < Milliseconds(10))
    return invalid("operation-timeout: at least 10 ms");
  if (options.transports.empty()) return invalid("transport: name at least one");
  return {};
}

}  // namespace farpage::pager
