#include "serve/served_state.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "pager/kept_values.h"
#include "uffd/extent_map.h"

namespace farpage::serve {
namespace {

using nlohmann::json;

constexpr char kVersion[] = "serve/version";
constexpr char kUpgrade[] = "serve/upgrade";
constexpr char kListener[] = "serve/listener";
constexpr char kRuns[] = "serve/run/";
constexpr char kTargets[] = "serve/target/";
constexpr char kOthers[] = "serve/other/";
constexpr char kAnswers[] = "serve/answers/";
constexpr char kExtents[] = "serve/extents/";

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

RunRecord run_from(const json& value) {
  RunRecord run{
      .program = value.value("program", ""),
      .socket = value.value("socket", -1),
      .listener = value.value("listener", -1),
      .local_bytes = value.value("local_bytes", uint64_t{0}),
      .fork = pager::fork_mode_from(value.value("fork", "")).value_or(pager::ForkMode::kRefuse),
      .exit_status = {}};
  if (value.contains("exit_status")) run.exit_status = value.value("exit_status", 0);
  return run;
}

ServedRecord served_from(const json& value) {
  return ServedRecord{.run = value.value("run", uint64_t{0}),
                      .program = value.value("program", ""),
                      .pid = value.value("pid", 0),
                      .parent = value.value("parent", uint64_t{0}),
                      .fork = value.value("fork", uint64_t{0}),
                      .hello = value.value("hello", true),
                      .welcome = value.value("welcome", false),
                      .forked = value.value("forked", false),
                      .fork_request = value.value("fork_request", uint64_t{0}),
                      .may_fork = value.value("may_fork", false),
                      .child = value.value("child", uint64_t{0}),
                      .socket = value.value("socket", -1),
                      .lifeline = value.value("lifeline", -1),
                      .child_socket = value.value("child_socket", -1),
                      .userfaultfd = value.value("userfaultfd", -1),
                      .ring = value.value("ring", -1),
                      .window_address = value.value("window_address", uint64_t{0}),
                      .window_bytes = value.value("window_bytes", uint64_t{0}),
                      .staging_address = value.value("staging_address", uint64_t{0}),
                      .more_pages = value.value("more_pages", uint64_t{0}),
                      .features = value.value("features", uint64_t{0}),
                      .attached = value.value("attached", false)};
}

}  // namespace

ServedRecord child_record(uint64_t number_of_parent, const ServedRecord& parent, int socket,
                          int userfaultfd) {
  return {.run = parent.run,
          .program = parent.program,
          .parent = number_of_parent,
          .fork = parent.fork_request,
          .hello = false,
          .socket = socket,
          .userfaultfd = userfaultfd,
          .window_address = parent.attached ? uffd::ExtentMap::kNoWindow : parent.window_address,
          .window_bytes = parent.window_bytes,
          .more_pages = parent.more_pages,
          .features = parent.features,
          .attached = parent.attached};
}

Result<ServedState> ServedState::create(StateStore* store) {
  FARPAGE_TRY(succession, pager::Succession::create(store));
  if (store != nullptr) {
    const std::string version = std::to_string(pager::kStateVersion);
    if (store->get(kVersion).value_or(version) != version)
      return fail(ErrorCode::kUnsupported, "the predecessor's state is of another build");
    FARPAGE_TRY_VOID(store->put(kVersion, version));
  }
  return ServedState(store, std::move(succession));
}

Status put_upgrade(StateStore& store, const std::string& binary) {
  return store.put(kUpgrade, binary);
}

std::string upgrade_in(const StateStore& store) {
  return store.get(kUpgrade).value_or("");
}

Status ServedState::put_upgrade(const std::string& binary) const {
  return store_ == nullptr ? Status() : serve::put_upgrade(*store_, binary);
}

Status ServedState::put_listener(int descriptor) const {
  return store_ == nullptr ? Status() : store_->put(kListener, std::to_string(descriptor));
}

std::optional<int> ServedState::listener() const {
  if (store_ == nullptr) return std::nullopt;
  const auto kept = store_->get(kListener);
  if (!kept) return std::nullopt;
  return std::stoi(*kept);
}

Status ServedState::put(uint64_t number, const RunRecord& run) const {
  if (store_ == nullptr) return {};
  json value = {{"program", run.program},
                {"socket", run.socket},
                {"listener", run.listener},
                {"local_bytes", run.local_bytes},
                {"fork", std::string(pager::to_string(run.fork))}};
  if (run.exit_status) value["exit_status"] = *run.exit_status;
  return store_->put(kRuns + std::to_string(number), dumped(value));
}

void ServedState::erase_run(uint64_t number) const {
  if (store_ != nullptr) store_->erase(kRuns + std::to_string(number));
}

Result<std::map<uint64_t, RunRecord>> ServedState::runs() const {
  return pager::read_kept<RunRecord>(
      store_, kRuns, [](const json& value) { return Result<RunRecord>(run_from(value)); });
}

Status ServedState::put(uint64_t number, const ServedRecord& target) const {
  if (store_ == nullptr) return {};
  return store_->put(kTargets + std::to_string(number),
                     dumped({{"run", target.run},
                             {"program", target.program},
                             {"pid", target.pid},
                             {"parent", target.parent},
                             {"fork", target.fork},
                             {"hello", target.hello},
                             {"welcome", target.welcome},
                             {"forked", target.forked},
                             {"fork_request", target.fork_request},
                             {"may_fork", target.may_fork},
                             {"child", target.child},
                             {"socket", target.socket},
                             {"lifeline", target.lifeline},
                             {"child_socket", target.child_socket},
                             {"userfaultfd", target.userfaultfd},
                             {"ring", target.ring},
                             {"window_address", target.window_address},
                             {"window_bytes", target.window_bytes},
                             {"staging_address", target.staging_address},
                             {"more_pages", target.more_pages},
                             {"features", target.features},
                             {"attached", target.attached}}));
}

void ServedState::erase_target(uint64_t number) const {
  if (store_ == nullptr) return;
  store_->erase(kTargets + std::to_string(number));
  store_->drop_memory(kExtents + std::to_string(number));
  store_->drop_memory(kAnswers + std::to_string(number));
}

Result<std::map<uint64_t, ServedRecord>> ServedState::targets() const {
  return pager::read_kept<ServedRecord>(
      store_, kTargets, [](const json& value) { return Result<ServedRecord>(served_from(value)); });
}

Status ServedState::put_other(const std::string& name, const OtherRecord& record) const {
  if (store_ == nullptr) return {};
  return store_->put(kOthers + name,
                     dumped({{"descriptors", record.descriptors}, {"text", record.text}}));
}

void ServedState::erase_other(const std::string& name) const {
  if (store_ != nullptr) store_->erase(kOthers + name);
}

Result<std::map<std::string, OtherRecord>> ServedState::others() const {
  std::map<std::string, OtherRecord> found;
  if (store_ == nullptr) return found;
  for (const auto& [name, value] : store_->all(kOthers)) {
    const json record = json::parse(value, nullptr, false);
    if (!record.is_object()) return fail(ErrorCode::kInvalid, "the kept record " + name);
    found.emplace(name.substr(sizeof kOthers - 1),
                  OtherRecord{record.at("descriptors").get<std::vector<int>>(),
                              record.at("text").get<std::string>()});
  }
  return found;
}

Result<Mapping> ServedState::answers(uint64_t number) const {
  return succession_.memory(kAnswers + std::to_string(number), kPageBytes);
}

Result<Mapping> ServedState::extents(uint64_t number) const {
  return succession_.memory(kExtents + std::to_string(number), uffd::ExtentMap::kKeptBytes);
}

Result<std::set<int>> ServedState::descriptors() const {
  std::set<int> all;
  if (store_ != nullptr) all = store_->descriptors();
  if (const auto descriptor = listener()) all.insert(*descriptor);
  FARPAGE_TRY(every_run, runs());
  for (const auto& [number, run] : every_run) all.insert({run.socket, run.listener});
  FARPAGE_TRY(every_target, targets());
  for (const auto& [number, target] : every_target)
    all.insert(
        {target.socket, target.lifeline, target.child_socket, target.userfaultfd, target.ring});
  FARPAGE_TRY(every_other, others());
  for (const auto& [name, other] : every_other)
    all.insert(other.descriptors.begin(), other.descriptors.end());
  all.erase(-1);
  return all;
}

}  // namespace farpage::serve
