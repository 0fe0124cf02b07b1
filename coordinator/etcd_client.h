// EtcdClient: etcd's v3 API over its JSON gateway (/v3/kv/range, /v3/kv/txn, /v3/lease/...).
//
// A request goes to the member that answered last, and on to the others when it does not answer or
// reports that the cluster cannot serve now. So a transaction may be executed more than once, and
// one whose answer was lost may be executed later: the caller's comparisons must allow for that.
// Reads are linearizable.
//
// Threads: any. Failures: kUnavailable: no member answered in time; what was asked may have been
// done, or may still be. kNotFound: the lease does not exist. kInvalid: etcd refuses the request.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "http/caller.h"

namespace farpage::coordinator {

struct EtcdRecord {
  std::string key;
  std::string value;
  int64_t create_revision = 0;
  int64_t mod_revision = 0;
  int64_t lease = 0;
};

struct EtcdRange {
  std::vector<EtcdRecord> records;  // by key
  bool more = false;                // the limit left some off
  int64_t revision = 0;             // of the whole store, when it was read
};

// One comparison of a transaction: the revision of that key; 0 when it does not exist.
struct EtcdCompare {
  enum class Of : uint8_t { kCreateRevision, kModRevision };
  std::string key;
  Of of = Of::kModRevision;
  int64_t revision = 0;
};

// One change of a transaction.
struct EtcdChange {
  std::string key;
  std::optional<std::string> value;  // nullopt: remove it
  std::string range_end{};           // a removal of [key, range_end)
  int64_t lease = 0;                 // the value ends with it; 0: none
};

struct EtcdTransaction {
  std::vector<EtcdCompare> compare;
  std::vector<EtcdChange> changes;   // when all comparisons hold; at most 128 (--max-txn-ops)
  std::vector<std::string> or_read;  // keys, when one does not
};

struct EtcdOutcome {
  bool done = false;
  int64_t revision = 0;
  std::vector<EtcdRecord> read;  // of or_read, those that exist
};

struct EtcdLease {
  int64_t id = 0;
  Seconds time_to_live{0};
};

// The end of the range of all keys that begin with `prefix`.
std::string end_of_prefix(std::string prefix);

class EtcdClient {
 public:
  // `urls`: http://host:port of the members, with commas between. kInvalid.
  static Result<std::unique_ptr<EtcdClient>> create(const std::string& urls);

  // Keys of [key, range_end), or that one key when `range_end` is empty. `limit` 0: all.
  // `revision` 0: the latest state.
  Result<EtcdRange> range(const std::string& key, const std::string& range_end, size_t limit = 0,
                          int64_t revision = 0) const;
  Result<EtcdOutcome> transact(const EtcdTransaction& transaction) const;
  Result<EtcdLease> grant(Seconds time_to_live) const;
  // What it lasts from now. kNotFound: it has ended.
  Result<Seconds> keep_alive(int64_t lease) const;
  Status revoke(int64_t lease) const;

 private:
  explicit EtcdClient(std::vector<http::Caller> members) : members_(std::move(members)) {}
  Result<std::string> post(const std::string& path, const std::string& body) const;

  const std::vector<http::Caller> members_;
  mutable std::atomic<size_t> latest_{0};  // the member that answered last
};

}  // namespace farpage::coordinator
