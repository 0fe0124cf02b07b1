#include "cli/spill.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "cli/secrets.h"
#include "coordinator/client.h"
#include "pager/links/cluster_room.h"
#include "serve/served_state.h"

namespace farpage::cli {
namespace {

using nlohmann::json;

constexpr char kRecord[] = "spill";

Result<std::unique_ptr<rdma::OpenFile>> take_over(const serve::OtherRecord& record,
                                                  rdma::FileOptions options) {
  const json text = json::parse(record.text, nullptr, false);
  const auto key = text.is_object() ? rdma::remote_key_from(text.value("key", "")) : std::nullopt;
  if (!key || record.descriptors.size() != 1)
    return fail(ErrorCode::kInvalid, "the predecessor's state: the spill file is malformed");
  options.bytes = text.value("bytes", uint64_t{0});
  return rdma::OpenFile::take_over(options, {record.descriptors.front(), *key});
}

}  // namespace

Result<SpillSettings> parse_spill(const std::string& text) {
  constexpr std::string_view kSize = ",size=";
  const size_t comma = text.rfind(kSize);
  const Result<uint64_t> bytes = comma == std::string::npos
                                     ? fail(ErrorCode::kInvalid, "no size")
                                     : parse_size(text.substr(comma + kSize.size()));
  if (!bytes || comma == 0 || *bytes == 0)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("--spill: '{}' is not FOLDER,size=SIZE, such as /var/tmp,size=20G", text));
  return SpillSettings{text.substr(0, comma), *bytes};
}

Result<std::unique_ptr<rdma::OpenFile>> open_spill(const SpillSettings& settings,
                                                   uint64_t slab_bytes, StateStore* state) {
  const rdma::FileOptions options{
      .folder = settings.folder, .bytes = settings.bytes, .slab_bytes = slab_bytes};
  FARPAGE_TRY(served, serve::ServedState::create(state));
  FARPAGE_TRY(records, served.others());
  if (const auto kept = records.find(kRecord); kept != records.end())
    return take_over(kept->second, options);
  Result<std::unique_ptr<rdma::OpenFile>> made = rdma::OpenFile::make(options);
  if (!made) return fail_with("--spill", made.error());
  if (!served.keeps()) return made;
  FARPAGE_TRY(heirloom, (*made)->leave());
  const json text = {{"key", rdma::to_text(heirloom.key)}, {"bytes", settings.bytes}};
  FARPAGE_TRY_VOID(served.put_other(kRecord, {{heirloom.descriptor}, text.dump()}));
  return made;
}

std::optional<uint64_t> limit_of_program(const RunSettings& settings) {
  std::optional<uint64_t> least;
  const auto note = [&](uint64_t bytes) { least = std::min(least.value_or(bytes), bytes); };
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) note(limit.rlim_cur);
  }
  if (settings.window_bytes != RunSettings{}.window_bytes) note(settings.window_bytes);
  return least;
}

std::string room_warning(const Room& room, uint64_t limit_bytes) {
  if (room.all() >= limit_bytes) return {};
  return fmt::format(
      "farpage: the program may use {}, and there is room for {}: {} here (--local), {} on nodes "
      "that is free now, {} in a file (--spill)\n",
      format_size(limit_bytes), format_size(room.all()), format_size(room.local_bytes),
      format_size(room.free_bytes), format_size(room.spill_bytes));
}

void warn_of_room(const RunSettings& settings) {
  const std::optional<uint64_t> limit = limit_of_program(settings);
  if (!limit || *limit <= settings.local_bytes()) return;
  const Result<std::string> token = read_token(settings.token_file);
  if (!token) return;
  const auto client = coordinator::Client::create({.url = settings.coordinator, .token = *token});
  if (!client) return;
  const Result<pager::ClusterRoom> cluster = pager::room_of(**client);
  if (!cluster) return;
  Room room{.local_bytes = settings.local_bytes(),
            .free_bytes = (cluster->free_bytes + cluster->disk_free_bytes) /
                          static_cast<uint64_t>(settings.pager.replicas)};
  if (!settings.spill.empty())
    if (const auto spill = parse_spill(settings.spill)) room.spill_bytes = spill->bytes;
  fmt::print(stderr, "{}", room_warning(room, *limit));
}

}  // namespace farpage::cli
