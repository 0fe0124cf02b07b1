#include "pager/links/cluster_room.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/size.h"

namespace farpage::pager {
namespace {

constexpr Seconds kBetweenRoomLooks{1};

}  // namespace

Result<ClusterRoom> room_of(coordinator::Client& client) {
  FARPAGE_TRY(body, client.get("/v1/cluster"));
  const nlohmann::json answer = nlohmann::json::parse(body, nullptr, false);
  const auto bytes = answer.is_object() ? answer.find("bytes") : answer.end();
  const auto number = [&](const char* name) -> const uint64_t* {
    const auto found = bytes->find(name);
    return found == bytes->end() ? nullptr : found->get_ptr<const uint64_t*>();
  };
  if (bytes == answer.end() || !bytes->is_object() || number("total") == nullptr ||
      number("free") == nullptr)
    return fail(ErrorCode::kUnavailable, "/v1/cluster is not answered by a coordinator");
  const uint64_t* disk = number("spill_free");  // an older coordinator has none
  return ClusterRoom{*number("total"), std::min(*number("free"), *number("total")),
                     disk == nullptr ? 0 : *disk};
}

void ClusterRoomWatch::look(coordinator::Client& client, Instant now) {
  if (!is_due_ || now < next_) return;
  is_due_ = false;
  next_ = now + kBetweenRoomLooks;
  const Result<ClusterRoom> room = room_of(client);
  if (!room) return;
  if (!room->is_nearly_full(kWarnPercent)) {
    said_ = false;
  } else if (!std::exchange(said_, true)) {
    log::warn("pager: cluster_nearly_full free={} of={}", format_size(room->free_bytes),
              format_size(room->total_bytes));
  }
}

}  // namespace farpage::pager
