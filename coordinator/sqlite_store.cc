#include "coordinator/sqlite_store.h"

#include <fmt/format.h>

#include "coordinator/api_json.h"
#include "coordinator/sqlite_database.h"

namespace farpage::coordinator {
namespace {

constexpr int64_t kApplicationId = 0x66617270;  // "farp"
// 3: keys of 128 bits, as text. 4: one column for the keys of all transports. 5: images. 6: how
// much a node is to lend, by what a region is spread, and whose it is. A store of 4 or 5 becomes
// one of 6 when it is opened.
constexpr int64_t kSchemaVersion = 6;
constexpr int64_t kOldestSchema = 4;
constexpr int64_t kSchemaWithImages = 5;

constexpr char kSchema[] = R"(
CREATE TABLE meta(last_sequence INTEGER NOT NULL);
INSERT INTO meta VALUES(0);
CREATE TABLE nodes(id TEXT PRIMARY KEY, join_body TEXT NOT NULL, draining INTEGER NOT NULL);
CREATE TABLE regions(id TEXT PRIMARY KEY, name TEXT NOT NULL, replicas INTEGER NOT NULL,
  slab_bytes INTEGER NOT NULL, session_group INTEGER NOT NULL);
CREATE TABLE leases(region TEXT NOT NULL, slab INTEGER NOT NULL, replica INTEGER NOT NULL,
  node TEXT NOT NULL, node_slab INTEGER NOT NULL, address INTEGER NOT NULL, bytes INTEGER NOT NULL,
  generation INTEGER NOT NULL, lost INTEGER NOT NULL, rkeys TEXT NOT NULL,
  PRIMARY KEY(region, slab, replica)) WITHOUT ROWID;
CREATE TABLE revocations(id INTEGER PRIMARY KEY, node TEXT NOT NULL, incarnation INTEGER NOT NULL,
  agent_url TEXT NOT NULL, node_slab INTEGER NOT NULL, generation INTEGER NOT NULL,
  region TEXT NOT NULL, slab INTEGER NOT NULL, replica INTEGER NOT NULL);
)";

constexpr char kImages[] = R"(
CREATE TABLE images(id TEXT PRIMARY KEY, region TEXT NOT NULL, base TEXT NOT NULL,
  bytes INTEGER NOT NULL, complete INTEGER NOT NULL, upload INTEGER NOT NULL,
  pages INTEGER NOT NULL, digest TEXT NOT NULL);
)";

// lend_slabs: 0 where there is none.
constexpr char kPlaces[] = R"(
ALTER TABLE nodes ADD COLUMN lend_slabs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE regions ADD COLUMN spread_by TEXT NOT NULL DEFAULT '';
ALTER TABLE regions ADD COLUMN borrower TEXT NOT NULL DEFAULT '';
)";

// Values of leases.lost.
constexpr int64_t kHeld = 0;
constexpr int64_t kLost = 1;
constexpr int64_t kStale = 2;
constexpr int64_t kMoving = 3;

// SQLite's integers are signed; this keeps the 64 bits.
int64_t as_signed(uint64_t value) {
  return static_cast<int64_t>(value);
}

uint32_t u32(const Statement& row, int column) {
  return static_cast<uint32_t>(row.integer(column));
}

uint64_t u64(const Statement& row, int column) {
  return static_cast<uint64_t>(row.integer(column));
}

// Calls use(row) for each row.
template <typename Use>
Status each_row(const Database& database, std::string_view sql, Use use) {
  FARPAGE_TRY(statement, database.prepare(sql));
  while (true) {
    FARPAGE_TRY(row, statement.step());
    if (!row) return {};
    FARPAGE_TRY_VOID(use(statement));
  }
}

// Writes one table's changes: `put` binds the values of a record behind `put_sql`, `key` those of
// its key behind `remove_sql`.
template <typename Map, typename Put, typename Key>
Status write_table(const Database& database, const Map& changes, std::string_view put_sql,
                   std::string_view remove_sql, Put put, Key key) {
  if (changes.empty()) return {};
  FARPAGE_TRY(insert, database.prepare(put_sql));
  FARPAGE_TRY(remove, database.prepare(remove_sql));
  for (const auto& [id, value] : changes) {
    if (value) {
      put(insert, id, *value);
      FARPAGE_TRY_VOID(insert.run());
    } else {
      key(remove, id);
      FARPAGE_TRY_VOID(remove.run());
    }
  }
  return {};
}

int64_t condition_of(const Lease& lease) {
  if (lease.lost) return kLost;
  if (lease.stale) return kStale;
  return lease.moving ? kMoving : kHeld;
}

void bind_lease(Statement& insert, const LeaseKey& key, const Lease& lease) {
  insert.bind(key.region.value).bind(key.slab.value).bind(key.replica).bind(lease.node.value);
  insert.bind(lease.node_slab).bind(as_signed(lease.address.value)).bind(as_signed(lease.bytes));
  insert.bind(lease.generation.value).bind(condition_of(lease)).bind(encode(lease.rkeys));
}

Result<std::pair<LeaseKey, Lease>> read_lease(const Statement& row) {
  Lease lease;
  lease.slab = SlabIndex{u32(row, 1)};
  set_number(lease, u32(row, 2));
  lease.node = NodeId{row.text(3)};
  lease.node_slab = u32(row, 4);
  lease.address = RemoteAddress{u64(row, 5)};
  lease.bytes = u64(row, 6);
  lease.generation = Generation{u32(row, 7)};
  lease.lost = row.integer(8) == kLost;
  lease.stale = row.integer(8) == kStale;
  lease.moving = row.integer(8) == kMoving;
  auto keys = decode_remote_keys(row.text(9));
  // The reason does not quote the text, which may be a key.
  if (!keys)
    return fail(ErrorCode::kInvalid,
                fmt::format("the keys of slab {} of region {} are damaged ({}): restore the file "
                            "from a copy, or move it away to start with an empty one",
                            lease.slab.value, row.text(0), keys.error().context));
  lease.rkeys = std::move(*keys);
  return std::pair{LeaseKey{RegionId{row.text(0)}, lease.slab, number_of(lease)}, lease};
}

void bind_revocation(Statement& insert, uint64_t id, const Revocation& revocation) {
  insert.bind(as_signed(id)).bind(revocation.node.value).bind(as_signed(revocation.incarnation));
  insert.bind(revocation.agent_url).bind(revocation.node_slab).bind(revocation.generation.value);
  insert.bind(revocation.asked.region.value).bind(revocation.asked.slab.value);
  insert.bind(revocation.asked.replica);
}

Revocation read_revocation(const Statement& row) {
  Revocation revocation;
  revocation.id = u64(row, 0);
  revocation.node = NodeId{row.text(1)};
  revocation.incarnation = u64(row, 2);
  revocation.agent_url = row.text(3);
  revocation.node_slab = u32(row, 4);
  revocation.generation = Generation{u32(row, 5)};
  revocation.asked = SlabLeaseRequest{RegionId{row.text(6)}, SlabIndex{u32(row, 7)}, u32(row, 8)};
  return revocation;
}

void bind_image(Statement& insert, const ImageId& id, const ImageRecord& image) {
  insert.bind(id.value).bind(image.region.value).bind(image.base.value);
  insert.bind(as_signed(image.bytes)).bind(image.state == ImageState::kComplete ? 1 : 0);
  insert.bind(as_signed(image.upload)).bind(as_signed(image.pages)).bind(image.digest);
}

ImageRecord read_image(const Statement& row) {
  ImageRecord image;
  image.id = ImageId{row.text(0)};
  image.region = RegionId{row.text(1)};
  image.base = ImageId{row.text(2)};
  image.bytes = u64(row, 3);
  image.state = row.integer(4) != 0 ? ImageState::kComplete : ImageState::kUploading;
  image.upload = u64(row, 5);
  image.pages = u64(row, 6);
  image.digest = row.text(7);
  return image;
}

class SqliteStore final : public Store {
 public:
  explicit SqliteStore(Database database) : database_(std::move(database)) {}

  std::string_view kind() const override { return "sqlite"; }
  Result<Snapshot> load() override;
  Status write(const Changes& changes) override;
  Result<std::string> copy() override { return database_.copy(); }

 private:
  Status write_all(const Changes& changes);
  Database database_;
};

Result<Snapshot> SqliteStore::load() {
  Snapshot snapshot;
  FARPAGE_TRY_VOID(
      each_row(database_, "SELECT last_sequence FROM meta", [&](const Statement& row) -> Status {
        snapshot.last_sequence = u64(row, 0);
        return {};
      }));
  FARPAGE_TRY_VOID(each_row(database_, "SELECT join_body, draining, lend_slabs FROM nodes",
                            [&](const Statement& row) -> Status {
                              auto join = decode_node_join(row.text(0));
                              if (!join)
                                return fail_with("store " + database_.path() + ": a node",
                                                 join.error());
                              NodeRecord& node = snapshot.nodes.emplace_back();
                              node.join = std::move(*join);
                              node.service = NodeService(row.integer(1));
                              if (row.integer(2) != 0) node.lend_slabs = u32(row, 2);
                              return {};
                            }));
  FARPAGE_TRY_VOID(each_row(
      database_,
      "SELECT id, name, replicas, slab_bytes, session_group, spread_by, borrower FROM regions",
      [&](const Statement& row) -> Status {
        snapshot.regions.push_back(RegionRecord{RegionId{row.text(0)}, row.text(1), u32(row, 2),
                                                u64(row, 3), u32(row, 4), row.text(5),
                                                row.text(6)});
        return {};
      }));
  FARPAGE_TRY_VOID(each_row(database_,
                            "SELECT region, slab, replica, node, node_slab, address, bytes, "
                            "generation, lost, rkeys FROM leases",
                            [&](const Statement& row) -> Status {
                              auto lease = read_lease(row);
                              if (!lease)
                                return fail_with("store " + database_.path() + ": a lease",
                                                 lease.error());
                              snapshot.leases.insert(std::move(*lease));
                              return {};
                            }));
  FARPAGE_TRY_VOID(each_row(database_,
                            "SELECT id, node, incarnation, agent_url, node_slab, generation, "
                            "region, slab, replica FROM revocations",
                            [&](const Statement& row) -> Status {
                              snapshot.revocations.push_back(read_revocation(row));
                              return {};
                            }));
  FARPAGE_TRY_VOID(each_row(
      database_, "SELECT id, region, base, bytes, complete, upload, pages, digest FROM images",
      [&](const Statement& row) -> Status {
        snapshot.images.push_back(read_image(row));
        return {};
      }));
  return snapshot;
}

Status SqliteStore::write_all(const Changes& changes) {
  FARPAGE_TRY_VOID(write_table(
      database_, changes.nodes,
      "REPLACE INTO nodes(id, join_body, draining, lend_slabs) VALUES(?,?,?,?)",
      "DELETE FROM nodes WHERE id=?",
      [](Statement& insert, const NodeId& id, const NodeRecord& record) {
        insert.bind(id.value).bind(encode(record.join)).bind(static_cast<int64_t>(record.service));
        insert.bind(record.lend_slabs.value_or(0));
      },
      [](Statement& remove, const NodeId& id) { remove.bind(id.value); }));
  FARPAGE_TRY_VOID(write_table(
      database_, changes.regions, "REPLACE INTO regions VALUES(?,?,?,?,?,?,?)",
      "DELETE FROM regions WHERE id=?",
      [](Statement& insert, const RegionId& id, const RegionRecord& record) {
        insert.bind(id.value).bind(record.name).bind(record.replicas);
        insert.bind(as_signed(record.slab_bytes)).bind(record.session_group);
        insert.bind(record.spread_by).bind(record.borrower);
      },
      [](Statement& remove, const RegionId& id) { remove.bind(id.value); }));
  FARPAGE_TRY_VOID(
      write_table(database_, changes.leases, "REPLACE INTO leases VALUES(?,?,?,?,?,?,?,?,?,?)",
                  "DELETE FROM leases WHERE region=? AND slab=? AND replica=?", bind_lease,
                  [](Statement& remove, const LeaseKey& key) {
                    remove.bind(key.region.value).bind(key.slab.value).bind(key.replica);
                  }));
  FARPAGE_TRY_VOID(write_table(database_, changes.revocations,
                               "REPLACE INTO revocations VALUES(?,?,?,?,?,?,?,?,?)",
                               "DELETE FROM revocations WHERE id=?", bind_revocation,
                               [](Statement& remove, uint64_t id) { remove.bind(as_signed(id)); }));
  FARPAGE_TRY_VOID(
      write_table(database_, changes.images, "REPLACE INTO images VALUES(?,?,?,?,?,?,?,?)",
                  "DELETE FROM images WHERE id=?", bind_image,
                  [](Statement& remove, const ImageId& id) { remove.bind(id.value); }));
  FARPAGE_TRY(meta, database_.prepare("UPDATE meta SET last_sequence=?"));
  return meta.bind(as_signed(changes.last_sequence)).run();
}

Status SqliteStore::write(const Changes& changes) {
  FARPAGE_TRY_VOID(database_.execute("BEGIN IMMEDIATE"));
  Status status = write_all(changes);
  if (status) status = database_.execute("COMMIT");
  if (!status) {
    // Report the first failure.
    const Status ignored = database_.execute("ROLLBACK");
    static_cast<void>(ignored);
  }
  return status;
}

Status prepare_schema(const Database& database) {
  FARPAGE_TRY(application, database.pragma("application_id"));
  FARPAGE_TRY(version, database.pragma("user_version"));
  FARPAGE_TRY(objects, database.prepare("SELECT count(*) FROM sqlite_master"));
  FARPAGE_TRY_VOID(objects.step());
  const bool empty = objects.integer(0) == 0;
  FARPAGE_TRY_VOID(objects.step());
  if (empty && application == 0)
    return database.execute(
        fmt::format("BEGIN IMMEDIATE;{}{}{}PRAGMA application_id={};PRAGMA user_version={};COMMIT;",
                    kSchema, kImages, kPlaces, kApplicationId, kSchemaVersion));
  if (application != kApplicationId)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("store {} belongs to another program: name another file", database.path()));
  if (version >= kOldestSchema && version < kSchemaVersion)
    return database.execute(fmt::format("BEGIN IMMEDIATE;{}{}PRAGMA user_version={};COMMIT;",
                                        version < kSchemaWithImages ? kImages : "", kPlaces,
                                        kSchemaVersion));
  if (version < kSchemaVersion)
    return fail(ErrorCode::kInvalid,
                fmt::format("store {} has schema {}, this farpage knows {}: it cannot read the "
                            "addresses and keys of an older one. End the programs that borrow, "
                            "and move the file away to start with an empty one",
                            database.path(), version, kSchemaVersion));
  if (version != kSchemaVersion)
    return fail(ErrorCode::kInvalid,
                fmt::format("store {} has schema {}, this farpage knows {}: use the farpage that "
                            "wrote it, or another file",
                            database.path(), version, kSchemaVersion));
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path) {
  FARPAGE_TRY(database, Database::open(path));
  // The order matters: with the exclusive mode set before the first access, WAL needs no shared
  // memory file, and the first read takes the lock until close.
  FARPAGE_TRY_VOID(
      database.execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; "
                       "PRAGMA synchronous=FULL;"));
  FARPAGE_TRY_VOID(prepare_schema(database));
  FARPAGE_TRY(check, database.prepare("PRAGMA quick_check"));
  FARPAGE_TRY(row, check.step());
  if (!row || check.text(0) != "ok")
    return fail(ErrorCode::kInvalid,
                fmt::format("store {} is damaged: restore it from a copy, or move it away to start "
                            "with an empty one",
                            path));
  FARPAGE_TRY_VOID(check.run());
  return std::make_unique<SqliteStore>(std::move(database));
}

Result<std::string> make_sqlite_file(const Snapshot& snapshot) {
  FARPAGE_TRY(database, Database::in_memory("a copy of the store"));
  FARPAGE_TRY_VOID(prepare_schema(database));
  SqliteStore store(std::move(database));
  FARPAGE_TRY_VOID(store.write(changes_of(snapshot)));
  return store.copy();
}

}  // namespace farpage::coordinator
