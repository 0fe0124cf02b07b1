// The agents of any number of nodes, in process: they lend slabs as the agent API says, and can be
// told to be unreachable, to lose their answer, or to refuse.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/agent_client.h"

namespace farpage::coordinator {

// Threads: any. Must outlive the AgentClient objects that it returns.
class FakeAgents {
 public:
  enum class Mood { kGood, kUnreachable, kLosesAnswers, kRefuses };

  void set_mood(const std::string& url, Mood mood) {
    const std::lock_guard lock(mutex_);
    moods_[url] = mood;
  }
  // Lends the slab to a region that the coordinator does not know.
  void lend_to_stranger(const std::string& url, uint32_t slab) {
    const std::lock_guard lock(mutex_);
    Slab& lent = slabs_[{url, slab}];
    lent.lent = true;
    ++lent.generation;
    lent.holder = SlabLeaseRequest{RegionId{"stranger"}, SlabIndex{0}, 0};
  }
  size_t lent() const {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const auto& [key, slab] : slabs_) count += slab.lent ? 1 : 0;
    return count;
  }
  // The process that answers there; by default the first incarnation of test_node().
  void set_incarnation(const std::string& url, uint64_t incarnation) {
    const std::lock_guard lock(mutex_);
    incarnations_[url] = incarnation;
  }
  // Number of requests for a slab that another lease held.
  size_t double_lends() const {
    const std::lock_guard lock(mutex_);
    return double_lends_;
  }
  // Requests for a slab that was withdrawn.
  size_t lends_without_memory() const {
    const std::lock_guard lock(mutex_);
    return lends_without_memory_;
  }
  std::set<uint32_t> withdrawn(const std::string& url) const {
    const std::lock_guard lock(mutex_);
    const auto known = withdrawn_.find(url);
    return known == withdrawn_.end() ? std::set<uint32_t>{} : known->second;
  }
  void set_slab_bytes(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    slab_bytes_ = bytes;
  }

  // Each is URL and image, in their order.
  std::vector<std::pair<std::string, std::string>> image_repairs() const {
    const std::lock_guard lock(mutex_);
    return image_repairs_;
  }

  std::unique_ptr<AgentClient> client() { return std::make_unique<Caller>(*this); }

  static uint32_t rkey_of(uint32_t slab, uint32_t generation) {
    return 0xabc00000U + slab * 256 + generation;
  }

 private:
  struct Slab {
    bool lent = false;
    uint32_t generation = 0;
    SlabLeaseRequest holder;
  };
  static bool same(const SlabLeaseRequest& a, const SlabLeaseRequest& b) {
    return a.region == b.region && a.slab == b.slab && a.replica == b.replica;
  }
  static tl::unexpected<Error> failure_of(Mood mood) {
    if (mood == Mood::kUnreachable) return fail(ErrorCode::kUnavailable, "does not answer");
    if (mood == Mood::kRefuses) return fail(ErrorCode::kExhausted, "is leaving");
    return fail(ErrorCode::kTimedOut, "did not answer in time");
  }

  class Caller final : public AgentClient {
   public:
    explicit Caller(FakeAgents& agents) : agents_(agents) {}
    std::vector<Result<SlabLeaseReply>> lease(const std::string& url,
                                              std::span<const NodeSlabRequest> slabs) override {
      std::vector<Result<SlabLeaseReply>> replies;
      for (const NodeSlabRequest& slab : slabs)
        replies.push_back(agents_.lease(url, slab.node_slab, slab.lease));
      return replies;
    }
    Status revoke(const std::string& url, uint32_t slab, Generation generation) override {
      return agents_.revoke(url, slab, generation);
    }
    Result<rdma::QueuePairEndpoint> connect(const std::string& url,
                                            const rdma::QueuePairEndpoint& peer) override {
      return agents_.connect(url, peer);
    }
    Status add_slabs(const std::string& url, std::span<const uint32_t> slabs,
                     uint32_t /*in_all*/) override {
      return agents_.change(url, slabs, false);
    }
    Status withdraw_slabs(const std::string& url, std::span<const uint32_t> slabs) override {
      return agents_.change(url, slabs, true);
    }
    Status repair_image(const std::string& url, const ImageId& image) override {
      return agents_.repair_image(url, image);
    }
    Result<uint64_t> incarnation(const std::string& url) override {
      return agents_.incarnation(url);
    }

   private:
    FakeAgents& agents_;
  };

  Status repair_image(const std::string& url, const ImageId& image) {
    const std::lock_guard lock(mutex_);
    if (moods_[url] != Mood::kGood) return failure_of(moods_[url]);
    image_repairs_.emplace_back(url, image.value);
    return {};
  }

  Result<SlabLeaseReply> lease(const std::string& url, uint32_t slab,
                               const SlabLeaseRequest& request) {
    const std::lock_guard lock(mutex_);
    const Mood mood = moods_[url];
    if (mood == Mood::kUnreachable || mood == Mood::kRefuses) return failure_of(mood);
    if (withdrawn_[url].contains(slab)) {
      ++lends_without_memory_;
      return fail(ErrorCode::kNotFound, "the slab has no memory");
    }
    Slab& lent = slabs_[{url, slab}];
    if (lent.lent && !same(lent.holder, request)) {
      ++double_lends_;
      return fail(ErrorCode::kConflict, "the slab is lent");
    }
    if (!lent.lent) {
      lent.lent = true;
      ++lent.generation;
      lent.holder = request;
    }
    if (mood == Mood::kLosesAnswers) return failure_of(mood);
    SlabLeaseReply reply;
    reply.address = RemoteAddress{0x7f0000000000 + slab * slab_bytes_};
    reply.bytes = slab_bytes_;
    reply.rkeys[rdma::TransportKind::kTcp] = RemoteKey{rkey_of(slab, lent.generation)};
    reply.generation = Generation{lent.generation};
    return reply;
  }

  Status revoke(const std::string& url, uint32_t slab, Generation generation) {
    const std::lock_guard lock(mutex_);
    const Mood mood = moods_[url];
    if (mood == Mood::kUnreachable) return failure_of(mood);
    Slab& lent = slabs_[{url, slab}];
    if (lent.generation != generation.value)
      return fail(ErrorCode::kConflict, "another generation");
    lent.lent = false;
    if (mood == Mood::kLosesAnswers) return failure_of(mood);
    return {};
  }

  Status change(const std::string& url, std::span<const uint32_t> slabs, bool withdraw) {
    const std::lock_guard lock(mutex_);
    const Mood mood = moods_[url];
    if (mood == Mood::kUnreachable || mood == Mood::kRefuses) return failure_of(mood);
    for (const uint32_t slab : slabs)
      if (withdraw && slabs_[{url, slab}].lent) return fail(ErrorCode::kConflict, "it is leased");
    for (const uint32_t slab : slabs)
      withdraw ? (void)withdrawn_[url].insert(slab) : (void)withdrawn_[url].erase(slab);
    if (mood == Mood::kLosesAnswers) return failure_of(mood);
    return {};
  }

  Result<rdma::QueuePairEndpoint> connect(const std::string& url,
                                          const rdma::QueuePairEndpoint& peer) {
    const std::lock_guard lock(mutex_);
    const Mood mood = moods_[url];
    if (mood != Mood::kGood) return failure_of(mood);
    rdma::QueuePairEndpoint node = peer;
    node.qpn = peer.qpn + 1;
    return node;
  }

  Result<uint64_t> incarnation(const std::string& url) {
    const std::lock_guard lock(mutex_);
    const Mood mood = moods_[url];
    if (mood != Mood::kGood) return failure_of(mood);
    const auto known = incarnations_.find(url);
    return known == incarnations_.end() ? 1 : known->second;
  }

  mutable std::mutex mutex_;
  std::map<std::string, Mood> moods_;
  std::map<std::string, uint64_t> incarnations_;
  std::map<std::pair<std::string, uint32_t>, Slab> slabs_;
  std::map<std::string, std::set<uint32_t>> withdrawn_;
  std::vector<std::pair<std::string, std::string>> image_repairs_;
  size_t double_lends_ = 0;
  size_t lends_without_memory_ = 0;
  uint64_t slab_bytes_ = kMinSlabBytes;
};

// A node of `slabs` slabs of kMinSlabBytes, reachable over tcp.
inline NodeJoin test_node(const std::string& id, uint32_t slabs, uint64_t incarnation = 1) {
  NodeJoin node;
  node.id = NodeId{id};
  node.incarnation = incarnation;
  node.agent_url = "http://" + id + ":7071";
  node.slab_bytes = kMinSlabBytes;
  node.capacity_bytes = slabs * kMinSlabBytes;
  node.version = "test";
  node.transports = {{rdma::TransportKind::kTcp, "10.0.0.1:7072"}};
  return node;
}

inline RegionCreate test_region(uint32_t slabs, uint32_t replicas = 1) {
  RegionCreate region;
  region.name = "test";
  region.bytes = slabs * kMinSlabBytes;
  region.replicas = replicas;
  region.slab_bytes = kMinSlabBytes;
  return region;
}

inline rdma::QueuePairEndpoint test_endpoint() {
  rdma::QueuePairEndpoint endpoint;
  endpoint.qpn = 77;
  endpoint.psn = 12345;
  endpoint.gid = "::ffff:10.0.0.9";
  endpoint.gid_index = 1;
  endpoint.mtu_bytes = 1024;
  endpoint.max_rd_atomic = 16;
  endpoint.max_dest_rd_atomic = 16;
  return endpoint;
}

}  // namespace farpage::coordinator
