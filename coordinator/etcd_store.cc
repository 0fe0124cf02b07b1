#include "coordinator/etcd_store.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "coordinator/sqlite_store.h"
#include "coordinator/store_json.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;
using Records = std::map<std::string, std::string>;  // by key, without the prefix

constexpr char kSequence[] = "last_sequence";
constexpr char kJournal[] = "journal/";
constexpr char kJournalEnd[] = "journal/end";
constexpr size_t kRecordsPerAnswer = 500;  // records of one answer
// A leader may have told readers of events that it could not write: the next one does not use
// these numbers again.
constexpr uint64_t kSequenceGap = 1'000'000;

std::string part_key(const std::string& id, size_t part) {
  return fmt::format("{}parts/{}/{:06}", kJournal, id, part);
}

std::string key_of(const NodeId& id) {
  return "nodes/" + id.value;
}
std::string key_of(const RegionId& id) {
  return "regions/" + id.value;
}
std::string key_of(const ImageId& id) {
  return "images/" + id.value;
}
std::string key_of(uint64_t revocation) {
  return fmt::format("revocations/{:020}", revocation);
}
std::string key_of(const LeaseKey& key) {
  return fmt::format("leases/{}/{:05}/{}", key.region.value, key.slab.value, key.replica);
}

template <typename Id, typename Record>
std::string value_of(const Id&, const Record& record) {
  return encode(record);
}
std::string value_of(const LeaseKey& key, const Lease& lease) {
  return encode(key, lease);
}

template <typename Map>
void add_changes(const Map& records, std::vector<EtcdChange>& list) {
  for (const auto& [id, record] : records) {
    EtcdChange& change = list.emplace_back();
    change.key = key_of(id);
    if (record) change.value = value_of(id, *record);
  }
}

// Keys without the prefix.
std::vector<EtcdChange> list_of(const Changes& changes) {
  std::vector<EtcdChange> list;
  add_changes(changes.nodes, list);
  add_changes(changes.regions, list);
  add_changes(changes.leases, list);
  add_changes(changes.revocations, list);
  add_changes(changes.images, list);
  return list;
}

using Part = std::vector<EtcdChange>;

std::vector<Part> parts_of(std::vector<EtcdChange> list, const EtcdLimits& limits) {
  std::vector<Part> parts(1);
  size_t bytes = 0;
  for (EtcdChange& change : list) {
    const size_t more = change.key.size() + (change.value ? change.value->size() : 0);
    const bool is_full = parts.back().size() == limits.changes || bytes + more > limits.bytes;
    if (is_full && !parts.back().empty()) {
      parts.emplace_back();
      bytes = 0;
    }
    bytes += more;
    parts.back().push_back(std::move(change));
  }
  return parts;
}

std::string encode_part(const Part& part) {
  Json list = Json::array();
  for (const EtcdChange& change : part) {
    Json entry{{"key", change.key}};
    if (change.value) entry["value"] = *change.value;
    list.push_back(std::move(entry));
  }
  return list.dump();
}

tl::unexpected<Error> damaged(const std::string& key) {
  return fail(ErrorCode::kInvalid,
              fmt::format("the value of {} in etcd is damaged: restore a backup", key));
}

Result<Part> decode_part(const std::string& key, const std::string& text) {
  const Json list = Json::parse(text, nullptr, false);
  if (!list.is_array()) return damaged(key);
  Part part;
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("key") || !entry["key"].is_string())
      return damaged(key);
    EtcdChange& change = part.emplace_back();
    change.key = entry["key"].get<std::string>();
    if (!entry.contains("value")) continue;
    if (!entry["value"].is_string()) return damaged(key);
    change.value = entry["value"].get<std::string>();
  }
  return part;
}

std::string encode_end(const std::string& id, size_t parts) {
  return Json{{"id", id}, {"parts", parts}}.dump();
}

// The parts of the journal whose end is marked; none: there is no such journal.
Result<std::vector<Part>> journal_in(const Records& records) {
  const auto end = records.find(kJournalEnd);
  if (end == records.end()) return std::vector<Part>();
  const Json json = Json::parse(end->second, nullptr, false);
  if (!json.is_object() || !json.contains("id") || !json["id"].is_string() ||
      !json.contains("parts") || !json["parts"].is_number_unsigned())
    return damaged(kJournalEnd);
  std::vector<Part> parts;
  for (size_t i = 0; i < json["parts"].get<size_t>(); ++i) {
    const std::string key = part_key(json["id"].get<std::string>(), i);
    const auto found = records.find(key);
    if (found == records.end()) return damaged(key);
    FARPAGE_TRY(part, decode_part(key, found->second));
    parts.push_back(std::move(part));
  }
  return parts;
}

// Everything below `prefix` + `below`, as of one revision.
Result<Records> read_records(const EtcdClient& client, const std::string& prefix,
                             const std::string& below) {
  Records records;
  std::string from = prefix + below;
  const std::string end = end_of_prefix(from);
  int64_t revision = 0;
  while (true) {
    FARPAGE_TRY(page, client.range(from, end, kRecordsPerAnswer, revision));
    if (revision == 0) revision = page.revision;
    for (EtcdRecord& record : page.records)
      records.emplace(record.key.substr(prefix.size()), std::move(record.value));
    if (!page.more || page.records.empty()) return records;
    from = page.records.back().key + '\0';
  }
}

// Calls use(decoded) for each record whose key begins with `below`.
template <typename Decode, typename Use>
Status each_record(const Records& records, const std::string& below, Decode decode, Use use) {
  for (auto it = records.lower_bound(below); it != records.end() && it->first.starts_with(below);
       ++it) {
    auto record = decode(it->second);
    if (!record) return fail_with("etcd: " + it->first, record.error());
    use(std::move(*record));
  }
  return {};
}

Result<Snapshot> snapshot_of(const Records& records) {
  Snapshot snapshot;
  FARPAGE_TRY_VOID(each_record(records, "nodes/", decode_node_record, [&](NodeRecord node) {
    snapshot.nodes.push_back(std::move(node));
  }));
  FARPAGE_TRY_VOID(each_record(records, "regions/", decode_region_record, [&](RegionRecord region) {
    snapshot.regions.push_back(std::move(region));
  }));
  FARPAGE_TRY_VOID(each_record(
      records, "leases/", decode_lease_record,
      [&](std::pair<LeaseKey, Lease> lease) { snapshot.leases.insert(std::move(lease)); }));
  FARPAGE_TRY_VOID(each_record(
      records, "revocations/", decode_revocation,
      [&](Revocation revocation) { snapshot.revocations.push_back(std::move(revocation)); }));
  FARPAGE_TRY_VOID(each_record(records, "images/", decode_image_record, [&](ImageRecord image) {
    snapshot.images.push_back(std::move(image));
  }));
  if (const auto found = records.find(kSequence); found != records.end()) {
    const std::string& text = found->second;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), snapshot.last_sequence);
    if (error != std::errc() || end != text.data() + text.size()) return damaged(kSequence);
  }
  return snapshot;
}

class EtcdStore final : public Store {
 public:
  EtcdStore(std::shared_ptr<const EtcdClient> client, std::string prefix,
            std::shared_ptr<EtcdTerm> term, EtcdLimits limits)
      : client_(std::move(client)),
        prefix_(std::move(prefix)),
        term_(std::move(term)),
        limits_(limits) {}

  std::string_view kind() const override { return "etcd"; }
  Result<Snapshot> load() override;
  Status write(const Changes& changes) override;
  Result<std::string> copy() override {
    FARPAGE_TRY(snapshot, read_etcd_store(*client_, prefix_));
    return make_sqlite_file(snapshot);
  }

 private:
  // One transaction: the changes, whose keys have no prefix, and the sequence.
  Status commit(const Part& part);
  Status apply(const std::vector<Part>& parts);
  Status end_journal();

  const std::shared_ptr<const EtcdClient> client_;
  const std::string prefix_;
  const std::shared_ptr<EtcdTerm> term_;
  const EtcdLimits limits_;
  uint64_t sequence_ = 0;          // what the next transaction writes
  int64_t sequence_revision_ = 0;  // of its key, after the last one that is known to be executed
  uint64_t journals_ = 0;          // begun by this store
  bool journal_may_be_ended_ = false;  // its end may be marked, and it is not removed yet
};

Status EtcdStore::commit(const Part& part) {
  const std::string leader = prefix_ + kLeaderKey;
  const std::string sequence = prefix_ + kSequence;
  EtcdTransaction transaction;
  for (const EtcdChange& change : part) {
    EtcdChange& added = transaction.changes.emplace_back(change);
    added.key = prefix_ + change.key;
    if (!change.range_end.empty()) added.range_end = prefix_ + change.range_end;
  }
  transaction.changes.push_back({sequence, std::to_string(sequence_), {}, 0});
  transaction.or_read = {leader, sequence};
  while (term_->is_held()) {
    transaction.compare = {{leader, EtcdCompare::Of::kCreateRevision, term_->fence()},
                           {sequence, EtcdCompare::Of::kModRevision, sequence_revision_}};
    FARPAGE_TRY(outcome, client_->transact(transaction));
    if (outcome.done) {
      sequence_revision_ = outcome.revision;
      return {};
    }
    int64_t fence = 0;
    sequence_revision_ = 0;  // where there is no such key
    for (const EtcdRecord& record : outcome.read) {
      if (record.key == leader) fence = record.create_revision;
      // One of our own transactions, of which no answer had come, was executed.
      if (record.key == sequence) sequence_revision_ = record.mod_revision;
    }
    if (fence != term_->fence()) {
      log::warn("coordinator: leadership lost reason=\"its key in etcd is gone\"");
      term_->end();
    }
  }
  return fail(ErrorCode::kUnavailable, "this coordinator does not lead at the moment");
}

Status EtcdStore::apply(const std::vector<Part>& parts) {
  for (const Part& part : parts) FARPAGE_TRY_VOID(commit(part));
  return end_journal();
}

Status EtcdStore::end_journal() {
  FARPAGE_TRY_VOID(commit({{kJournal, std::nullopt, end_of_prefix(kJournal), 0}}));
  journal_may_be_ended_ = false;
  return {};
}

Result<Snapshot> EtcdStore::load() {
  FARPAGE_TRY(sequence, client_->range(prefix_ + kSequence, ""));
  if (!sequence.records.empty()) sequence_revision_ = sequence.records[0].mod_revision;
  FARPAGE_TRY(records, read_records(*client_, prefix_, ""));
  FARPAGE_TRY(parts, journal_in(records));
  if (const auto journal = records.lower_bound(kJournal);
      journal != records.end() && journal->first.starts_with(kJournal)) {
    FARPAGE_TRY(before, snapshot_of(records));
    sequence_ = before.last_sequence;
    FARPAGE_TRY_VOID(apply(parts));
    FARPAGE_TRY(applied, read_records(*client_, prefix_, ""));
    records = std::move(applied);
  }
  FARPAGE_TRY(snapshot, snapshot_of(records));
  if (snapshot.last_sequence != 0) snapshot.last_sequence += kSequenceGap;
  sequence_ = snapshot.last_sequence;
  return snapshot;
}

Status EtcdStore::write(const Changes& changes) {
  sequence_ = changes.last_sequence;
  const std::vector<Part> parts = parts_of(list_of(changes), limits_);
  if (parts.size() == 1 && !journal_may_be_ended_) return commit(parts[0]);
  const std::string id = fmt::format("{:020}-{:06}", term_->fence(), ++journals_);
  for (size_t i = 0; i < parts.size(); ++i)
    FARPAGE_TRY_VOID(commit({{part_key(id, i), encode_part(parts[i]), {}, 0}}));
  journal_may_be_ended_ = true;
  FARPAGE_TRY_VOID(commit({{kJournalEnd, encode_end(id, parts.size()), {}, 0}}));
  return apply(parts);
}

}  // namespace

std::unique_ptr<Store> make_etcd_store(std::shared_ptr<const EtcdClient> client, std::string prefix,
                                       std::shared_ptr<EtcdTerm> term, EtcdLimits limits) {
  return std::make_unique<EtcdStore>(std::move(client), std::move(prefix), std::move(term), limits);
}

Result<Snapshot> read_etcd_store(const EtcdClient& client, const std::string& prefix) {
  FARPAGE_TRY(records, read_records(client, prefix, ""));
  FARPAGE_TRY(parts, journal_in(records));
  for (Part& part : parts) {
    for (EtcdChange& change : part) {
      if (change.value)
        records[change.key] = std::move(*change.value);
      else
        records.erase(change.key);
    }
  }
  return snapshot_of(records);
}

Status fill_etcd_store(const std::shared_ptr<const EtcdClient>& client, const std::string& prefix,
                       const Snapshot& snapshot) {
  // The term keeps coordinators away.
  FARPAGE_TRY(elected, elect(client, prefix, "", {}));
  if (!elected.term)
    return fail(ErrorCode::kConflict,
                fmt::format("a coordinator is running on this etcd{}{}: stop all of them first",
                            elected.leader.empty() ? "" : ", at ", elected.leader));
  FARPAGE_TRY(found, client->range(prefix, end_of_prefix(prefix), 2));
  if (found.records.size() > 1)
    return fail(ErrorCode::kConflict,
                fmt::format("this etcd has the state of a cluster below {}: remove it first, with "
                            "etcdctl del --prefix {}",
                            prefix, prefix));
  const auto store = make_etcd_store(client, prefix, elected.term);
  if (const auto loaded = store->load(); !loaded) return tl::unexpected(loaded.error());
  return store->write(changes_of(snapshot));
}

}  // namespace farpage::coordinator
