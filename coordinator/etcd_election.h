// The election of a coordinator in etcd, and the keys that a cluster has there.
//
// The leader's key has its URL and is bound to a lease in etcd, which the leader renews. Its
// create_revision is the fence of the term: every transaction of the store compares it.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "coordinator/election.h"
#include "coordinator/etcd_client.h"

namespace farpage::coordinator {

// All keys of a cluster begin with this. Another form of the records gets another number.
inline constexpr char kEtcdPrefix[] = "/farpage/v1/";
inline constexpr char kLeaderKey[] = "leader";  // behind the prefix

struct ElectionTimes {
  Seconds lease{3};           // etcd grants at least 1.5 times its own --election-timeout
  Milliseconds renewal{500};  // between two renewals
  Milliseconds margin{500};   // a term is held until so long before the end of its lease
  Milliseconds pause{300};    // between two looks at the leader's key
};

// Threads: any. One of its own renews the lease.
class EtcdTerm final : public Term {
 public:
  // `began`: before the lease was granted.
  EtcdTerm(std::shared_ptr<const EtcdClient> client, EtcdLease lease, int64_t fence, Instant began,
           ElectionTimes times);
  ~EtcdTerm() override;
  EtcdTerm(const EtcdTerm&) = delete;
  EtcdTerm& operator=(const EtcdTerm&) = delete;

  bool is_held() const override;
  bool has_ended() const override;
  void resign() override;

  int64_t fence() const { return fence_; }
  // Its lease has ended, or the store has found another leader's key, or it is resigned.
  void end();

 private:
  void renew();

  const std::shared_ptr<const EtcdClient> client_;
  const EtcdLease lease_;
  const int64_t fence_;
  const ElectionTimes times_;
  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  Instant held_until_ FARPAGE_GUARDED_BY(mutex_);
  bool ended_ FARPAGE_GUARDED_BY(mutex_) = false;
  bool resigned_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::thread renewal_;
};

struct EtcdElected {
  std::shared_ptr<EtcdTerm> term;  // null: another one leads
  std::string leader;
};

// One attempt to lead. `url` of another coordinator is not checked: it may be empty.
Result<EtcdElected> elect(const std::shared_ptr<const EtcdClient>& client,
                          const std::string& prefix, const std::string& url, ElectionTimes times);

// With stores of etcd_store.h.
std::unique_ptr<Election> make_etcd_election(std::shared_ptr<const EtcdClient> client,
                                             std::string prefix = kEtcdPrefix,
                                             ElectionTimes times = {});

}  // namespace farpage::coordinator
