#include "coordinator/etcd_election.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "coordinator/etcd_store.h"
#include "http/json_reader.h"
#include "http/url.h"

namespace farpage::coordinator {
namespace {

std::string url_in(const std::string& value) {
  const auto document = http::parse_json_object(value);
  if (!document) return {};
  http::JsonReader reader(**document, http::UnknownFields::kIgnore);
  return reader.text_or_empty("url", http::kMaxUrlBytes);
}

class EtcdElection final : public Election {
 public:
  EtcdElection(std::shared_ptr<const EtcdClient> client, std::string prefix, ElectionTimes times)
      : client_(std::move(client)), prefix_(std::move(prefix)), times_(times) {}

  Result<Campaign> campaign(const std::string& url) override {
    FARPAGE_TRY(elected, elect(client_, prefix_, url, times_));
    if (!elected.term) return Campaign{nullptr, nullptr, std::move(elected.leader)};
    auto store = make_etcd_store(client_, prefix_, elected.term);
    return Campaign{std::move(elected.term), std::move(store), url};
  }
  Milliseconds pause() const override { return times_.pause; }

 private:
  const std::shared_ptr<const EtcdClient> client_;
  const std::string prefix_;
  const ElectionTimes times_;
};

}  // namespace

EtcdTerm::EtcdTerm(std::shared_ptr<const EtcdClient> client, EtcdLease lease, int64_t fence,
                   Instant began, ElectionTimes times)
    : client_(std::move(client)),
      lease_(lease),
      fence_(fence),
      times_(times),
      held_until_(began + lease.time_to_live - times.margin),
      renewal_([this] { renew(); }) {}

EtcdTerm::~EtcdTerm() {
  resign();
}

bool EtcdTerm::is_held() const {
  const MutexLock lock(mutex_);
  return !ended_ && SteadyClock::read() < held_until_;
}

bool EtcdTerm::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void EtcdTerm::end() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

void EtcdTerm::resign() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(resigned_, true)) return;
  }
  end();
  renewal_.join();
  // Without an answer the lease ends by itself.
  static_cast<void>(client_->revoke(lease_.id));
}

void EtcdTerm::renew() {
  MutexLock lock(mutex_);
  while (!changed_.wait_for(lock, times_.renewal,
                            [this]() FARPAGE_REQUIRES(mutex_) { return ended_; })) {
    lock.unlock();
    const Instant asked = SteadyClock::read();
    const Result<Seconds> left = client_->keep_alive(lease_.id);
    if (!left && left.error().code == ErrorCode::kNotFound) {
      log::warn("coordinator: leadership lost reason=\"its lease in etcd has ended\"");
      end();
    }
    lock.lock();
    if (left) held_until_ = asked + *left - times_.margin;
  }
}

Result<EtcdElected> elect(const std::shared_ptr<const EtcdClient>& client,
                          const std::string& prefix, const std::string& url, ElectionTimes times) {
  const std::string key = prefix + kLeaderKey;
  FARPAGE_TRY(known, client->range(key, ""));
  if (!known.records.empty()) return EtcdElected{nullptr, url_in(known.records[0].value)};
  const Instant began = SteadyClock::read();
  FARPAGE_TRY(lease, client->grant(times.lease));
  EtcdTransaction take;
  take.compare = {{key, EtcdCompare::Of::kCreateRevision, 0}};
  take.changes = {{key, nlohmann::json{{"url", url}}.dump(), {}, lease.id}};
  take.or_read = {key};
  const auto taken = client->transact(take);
  int64_t fence = 0;
  std::string leader;
  if (taken && taken->done) {
    fence = taken->revision;
  } else if (taken && !taken->read.empty()) {
    // Ours, when the answer of a first attempt was lost.
    const EtcdRecord& record = taken->read[0];
    if (record.lease == lease.id) fence = record.create_revision;
    leader = url_in(record.value);
  }
  if (fence == 0) {
    static_cast<void>(client->revoke(lease.id));  // else it ends by itself
    if (!taken) return tl::unexpected(taken.error());
    return EtcdElected{nullptr, std::move(leader)};
  }
  return EtcdElected{std::make_shared<EtcdTerm>(client, lease, fence, began, times), url};
}

std::unique_ptr<Election> make_etcd_election(std::shared_ptr<const EtcdClient> client,
                                             std::string prefix, ElectionTimes times) {
  return std::make_unique<EtcdElection>(std::move(client), std::move(prefix), times);
}

}  // namespace farpage::coordinator
