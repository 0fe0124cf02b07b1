// A store in etcd: one key for each record, with the JSON of store_json.h as its value.
//
//   PREFIX nodes/ID, regions/ID, leases/REGION/SLAB/NUMBER, revocations/ID, images/ID
//   PREFIX last_sequence     the number of the latest event; every transaction writes it
//   PREFIX leader            coordinator/etcd_election.h
//   PREFIX journal/...       a change that needs several transactions, until it is applied
//
// Every transaction of a term compares two revisions: that of the leader's key, so that it fails
// when another coordinator leads; and that of last_sequence as this store has last written it, so
// that of its own transactions, executed late because etcd was slow, none comes after a later one.
//
// A change that is too long for one transaction is written to the journal first, in parts, then
// its end is marked, and then it is applied. load() applies a journal whose end is marked.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "coordinator/etcd_client.h"
#include "coordinator/etcd_election.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

struct EtcdLimits {
  size_t changes = 100;              // in one transaction, beside last_sequence
  size_t bytes = size_t{384} << 10;  // of keys and values; one record may have more
};

// load() must be the first call. copy() is a file of SQLite. Fails with kUnavailable when the term
// is not held, or etcd does not answer: the change may be written, or be written later; the next
// write, which must have it again, is right in each case.
std::unique_ptr<Store> make_etcd_store(std::shared_ptr<const EtcdClient> client, std::string prefix,
                                       std::shared_ptr<EtcdTerm> term, EtcdLimits limits = {});

// All records, as of one moment. No term is needed.
Result<Snapshot> read_etcd_store(const EtcdClient& client, const std::string& prefix);

// Writes them where there are none. kConflict: there are some, or a coordinator is running.
Status fill_etcd_store(const std::shared_ptr<const EtcdClient>& client, const std::string& prefix,
                       const Snapshot& snapshot);

}  // namespace farpage::coordinator
