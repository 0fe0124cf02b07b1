#include "snapshot/snapshot_state.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/api_json.h"
#include "pager/kept_values.h"

namespace farpage::snapshot {
namespace {

using nlohmann::json;

constexpr char kVersion[] = "snapshot/version";
constexpr char kReader[] = "snapshot/reader";
constexpr char kStopping[] = "snapshot/stopping";
constexpr char kListeners[] = "snapshot/listener/";
constexpr char kImages[] = "snapshot/image/";
constexpr char kMaps[] = "snapshot/map/";
constexpr char kSessions[] = "snapshot/session/";
constexpr char kLastSession[] = "snapshot/last_session";
constexpr char kSessionMemory[] = "snapshot/memory/";
constexpr char kEvents[] = "snapshot/events/";
constexpr char kNotes[] = "snapshot/notes";

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

ListenerRecord listener_from(const json& value) {
  return {.descriptor = value.value("descriptor", -1),
          .path = value.value("path", ""),
          .image = value.value("image", "")};
}

Result<SessionRecord> session_from(const json& value) {
  SessionRecord session{.image = value.value("image", ""),
                        .pid = value.value("pid", 0),
                        .pidfd = value.value("pidfd", -1),
                        .userfaultfd = value.value("userfaultfd", -1),
                        .socket = value.value("socket", -1),
                        .lifeline = value.value("lifeline", SessionRecord{}.lifeline),
                        .regions = {},
                        .target = value.value("target", uint64_t{0}),
                        .is_served = value.value("is_served", false),
                        .ring = value.value("ring", -1),
                        .agent_lifeline = value.value("agent_lifeline", -1),
                        .staging_address = value.value("staging_address", uint64_t{0})};
  for (const auto& region : value.value("regions", std::vector<std::array<uint64_t, 4>>{}))
    session.regions.push_back(
        {.address = region[0], .bytes = region[1], .offset = region[2], .page_bytes = region[3]});
  return session;
}

// The path that a unix socket was bound to, or accepted at; empty: none.
std::string path_of(int descriptor) {
  sockaddr_un address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      address.sun_family != AF_UNIX || bytes <= sizeof(sa_family_t))
    return "";
  return {address.sun_path, ::strnlen(address.sun_path, sizeof address.sun_path)};
}

bool is_listener(int descriptor) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &value, &bytes) == 0 && value != 0;
}

}  // namespace

Result<SnapshotState> SnapshotState::create(StateStore& store) {
  const std::string version = std::to_string(kStateVersion);
  if (store.get(kVersion).value_or(version) != version)
    return fail(ErrorCode::kUnsupported, "the predecessor's state is of another build");
  FARPAGE_TRY_VOID(store.put(kVersion, version));
  FARPAGE_TRY(succession, pager::Succession::create(&store));
  return SnapshotState(store, std::move(succession));
}

Result<std::string> SnapshotState::reader(const std::string& name) const {
  if (const auto kept = store_->get(kReader)) return *kept;
  FARPAGE_TRY_VOID(store_->put(kReader, name));
  return name;
}

Status SnapshotState::put_listener(uint64_t number, const ListenerRecord& listener) const {
  return store_->put(kListeners + std::to_string(number),
                     dumped({{"descriptor", listener.descriptor},
                             {"path", listener.path},
                             {"image", listener.image}}));
}

Result<std::map<uint64_t, ListenerRecord>> SnapshotState::listeners() const {
  return pager::read_kept<ListenerRecord>(store_, kListeners, [](const json& value) {
    return Result<ListenerRecord>(listener_from(value));
  });
}

Status SnapshotState::put_stopping() const {
  return store_->put(kStopping, "1");
}

bool SnapshotState::is_stopping() const {
  return store_->get(kStopping).has_value();
}

Status SnapshotState::put_image(const coordinator::OpenedImage& image) const {
  return store_->put(kImages + image.image.name.value, coordinator::encode(image));
}

Result<std::vector<coordinator::OpenedImage>> SnapshotState::images() const {
  std::vector<coordinator::OpenedImage> found;
  for (const auto& [name, text] : store_->all(kImages)) {
    FARPAGE_TRY(image, coordinator::decode_opened_image(text));
    found.push_back(std::move(image));
  }
  return found;
}

Result<Mapping> SnapshotState::map_memory(const coordinator::OpenedImage& image,
                                          size_t bytes) const {
  return store_->memory(kMaps + image.regions.front().id.value, bytes);
}

Result<uint64_t> SnapshotState::next_session() const {
  const uint64_t number = std::stoull(store_->get(kLastSession).value_or("0")) + 1;
  FARPAGE_TRY_VOID(store_->put(kLastSession, std::to_string(number)));
  return number;
}

Status SnapshotState::put_session(uint64_t number, const SessionRecord& session) const {
  json regions = json::array();
  for (const GuestRegion& region : session.regions)
    regions.push_back({region.address, region.bytes, region.offset, region.page_bytes});
  return store_->put(kSessions + std::to_string(number),
                     dumped({{"image", session.image},
                             {"pid", session.pid},
                             {"pidfd", session.pidfd},
                             {"userfaultfd", session.userfaultfd},
                             {"socket", session.socket},
                             {"lifeline", session.lifeline},
                             {"regions", std::move(regions)},
                             {"target", session.target},
                             {"is_served", session.is_served},
                             {"ring", session.ring},
                             {"agent_lifeline", session.agent_lifeline},
                             {"staging_address", session.staging_address}}));
}

void SnapshotState::erase_session(uint64_t number) const {
  store_->drop_memory(kSessionMemory + std::to_string(number));
  store_->drop_memory(kEvents + std::to_string(number));
  store_->erase(kSessions + std::to_string(number));
}

Result<std::map<uint64_t, SessionRecord>> SnapshotState::sessions() const {
  return pager::read_kept<SessionRecord>(store_, kSessions, session_from);
}

Result<Mapping> SnapshotState::session_memory(uint64_t number, size_t bytes) const {
  return store_->memory(kSessionMemory + std::to_string(number), bytes);
}

Result<Mapping> SnapshotState::event_memory(uint64_t number, size_t bytes) const {
  return store_->memory(kEvents + std::to_string(number), bytes);
}

Result<Mapping> SnapshotState::notes(size_t bytes) const {
  return store_->memory(kNotes, bytes);
}

Result<std::vector<int>> SnapshotState::accepted_at(const std::string& path) const {
  FARPAGE_TRY(every, sessions());
  std::set<int> known;
  for (const auto& [number, session] : every) known.insert(session.socket);
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (!known.contains(descriptor) && path_of(descriptor) == path && !is_listener(descriptor))
      found.push_back(descriptor);
  }
  return found;
}

Result<std::set<int>> SnapshotState::descriptors() const {
  std::set<int> all = store_->descriptors();
  FARPAGE_TRY(every_listener, listeners());
  for (const auto& [number, listener] : every_listener) {
    all.insert(listener.descriptor);
    // A request that was not answered is over: who has sent it sees the end of its socket.
    if (listener.image.empty()) continue;
    FARPAGE_TRY(accepted, accepted_at(listener.path));
    all.insert(accepted.begin(), accepted.end());
  }
  FARPAGE_TRY(every_session, sessions());
  for (const auto& [number, session] : every_session) {
    all.insert(
        {session.pidfd, session.userfaultfd, session.socket, session.ring, session.agent_lifeline});
    all.insert(session.lifeline.begin(), session.lifeline.end());
  }
  all.erase(-1);
  return all;
}

}  // namespace farpage::snapshot
