// A real node, a real coordinator, and a real borrower over TCP, in one process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/fd.h"
#include "base/mapping.h"
#include "coordinator/agent_client.h"
#include "coordinator/memory_store.h"
#include "coordinator/service.h"
#include "fakes.h"
#include "node/node.h"
#include "rdma/tcp/tcp.h"

namespace farpage::node {
namespace {

class NodeCluster : public testing::Test {
 protected:
  NodeCluster() { start_coordinator(0); }
  ~NodeCluster() override { node_.reset(); }

  void start_coordinator(uint16_t port) {
    coordinator::ServiceOptions options;
    options.port = port;
    auto service = coordinator::Service::create(options, coordinator::make_memory_store(),
                                                coordinator::make_http_agent_client({}), clock_);
    ASSERT_TRUE(service.has_value()) << service.error().message();
    service_ = std::move(*service);
    auto client = coordinator::Client::create({service_->url(), ""});
    ASSERT_TRUE(client.has_value());
    client_ = std::move(*client);
  }

  void start_node() { start_node(service_->url()); }
  void start_node(const std::string& url) {
    SlabPoolOptions pool;
    pool.lend_bytes = 2 * kSlab;
    pool.slab_bytes = kSlab;
    auto made = SlabPool::create(pool);
    ASSERT_TRUE(made.has_value());
    auto host = rdma::make_tcp_memory_host({});
    ASSERT_TRUE(host.has_value()) << host.error().message();
    tcp_ = (*host)->address();
    std::vector<std::unique_ptr<rdma::MemoryHost>> hosts;
    hosts.push_back(std::move(*host));
    NodeOptions options;
    options.id = NodeId{"n1"};
    options.heartbeat_interval = Milliseconds(5);
    options.first_backoff = Milliseconds(5);
    options.longest_backoff = Milliseconds(20);
    options.on_joined = [this](const coordinator::NodeInfo&) {
      const std::lock_guard lock(mutex_);
      ++joins_;
      joined_.notify_all();
    };
    auto client = coordinator::Client::create({url, ""});
    ASSERT_TRUE(client.has_value());
    auto node = Node::create(options, std::move(*made), std::move(hosts), std::move(*client));
    ASSERT_TRUE(node.has_value()) << node.error().message();
    node_ = std::move(*node);
  }

  void wait_for_joins(int count) {
    std::unique_lock lock(mutex_);
    joined_.wait(lock, [&] { return joins_ >= count; });
  }

  coordinator::RegionInfo borrow(const std::string& name, uint64_t bytes) {
    auto region = client_->create_region({name, bytes, 1, kSlab});
    EXPECT_TRUE(region.has_value()) << (region ? "" : region.error().message());
    return region.value_or(coordinator::RegionInfo{});
  }

  // One READ or WRITE of a page at the start of the lease.
  rdma::CompletionStatus transfer(const coordinator::Lease& lease, rdma::OperationKind kind,
                                  std::span<std::byte> page) {
    rdma::ChannelOptions options;
    options.buffer = page;
    auto channel = transport_->connect(tcp_, options, {});
    EXPECT_TRUE(channel.has_value()) << (channel ? "" : channel.error().message());
    if (!channel) return rdma::CompletionStatus::kPeerGone;
    const rdma::Operation operation{
        kind, page, lease.address, lease.rkeys.at(rdma::TransportKind::kTcp), lease.generation, 1};
    EXPECT_EQ((*channel)->post({&operation, 1}), 1U);
    rdma::Completion completion;
    while ((*channel)->wait({&completion, 1}, Seconds(1)) == 0) {
    }
    return completion.status;
  }

  const SteadyClock clock_;
  std::unique_ptr<coordinator::Service> service_;
  std::unique_ptr<coordinator::Client> client_;
  std::unique_ptr<rdma::Transport> transport_ = rdma::make_tcp_transport();
  rdma::TransportAddress tcp_;
  std::mutex mutex_;
  std::condition_variable joined_;
  int joins_ = 0;
  std::unique_ptr<Node> node_;
};

TEST_F(NodeCluster, BorrowerNeverSeesTheBytesOfTheFormerOne) {
  start_node();
  wait_for_joins(1);
  Result<Mapping> page = Mapping::anonymous(kPageBytes, true);
  ASSERT_TRUE(page.has_value());
  coordinator::Lease former;
  for (const char* name : {"first", "second", "third"}) {
    const coordinator::RegionInfo region = borrow(name, 2 * kSlab);
    ASSERT_EQ(region.leases.size(), 2U);
    for (const coordinator::Lease& lease : region.leases) {
      std::memset(page->data(), 0xFF, kPageBytes);
      ASSERT_EQ(transfer(lease, rdma::OperationKind::kRead, page->bytes()),
                rdma::CompletionStatus::kOk);
      EXPECT_TRUE(std::all_of(page->bytes().begin(), page->bytes().end(), [](std::byte b) {
        return b == std::byte{0};
      })) << name;
      std::memset(page->data(), 0xAB, kPageBytes);
      ASSERT_EQ(transfer(lease, rdma::OperationKind::kWrite, page->bytes()),
                rdma::CompletionStatus::kOk);
      former = lease;
    }
    ASSERT_TRUE(client_->delete_region(region.id).has_value());
    // The keys of a region are withdrawn with it.
    EXPECT_EQ(transfer(former, rdma::OperationKind::kRead, page->bytes()),
              rdma::CompletionStatus::kRemoteAccess);
  }
  EXPECT_EQ(service_->check(), "");
}

TEST_F(NodeCluster, Defect9ByteWrittenThroughTheLeaseIsTheByteInTheNodesMemory) {
  start_node();
  wait_for_joins(1);
  const coordinator::RegionInfo region = borrow("r", kSlab);
  ASSERT_EQ(region.leases.size(), 1U);
  Result<Mapping> page = Mapping::anonymous(kPageBytes, true);
  ASSERT_TRUE(page.has_value());
  std::memset(page->data(), 0x5A, kPageBytes);
  ASSERT_EQ(transfer(region.leases[0], rdma::OperationKind::kWrite, page->bytes()),
            rdma::CompletionStatus::kOk);
  // Node and test share an address space, so the test can read at the lease's address. It reads
  // through the kernel: the data server's thread wrote the page, and only a socket orders the two.
  const Fd memory(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::array<std::byte, kPageBytes> seen{};
  ASSERT_EQ(::pread(memory.get(), seen.data(), seen.size(),
                    static_cast<off_t>(region.leases[0].address.value)),
            static_cast<ssize_t>(seen.size()));
  EXPECT_EQ(std::memcmp(seen.data(), page->data(), kPageBytes), 0);
}

TEST_F(NodeCluster, RestartedCoordinatorGetsItsNodeBackAndOldLeasesGoOn) {
  start_node();
  wait_for_joins(1);
  const coordinator::RegionInfo region = borrow("r", kSlab);
  ASSERT_EQ(region.leases.size(), 1U);
  const uint16_t port = service_->port();
  service_.reset();
  Result<Mapping> page = Mapping::anonymous(kPageBytes, true);
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(transfer(region.leases[0], rdma::OperationKind::kWrite, page->bytes()),
            rdma::CompletionStatus::kOk);
  start_coordinator(port);  // with an empty store: it answers heartbeats with 410
  wait_for_joins(2);
  EXPECT_EQ(transfer(region.leases[0], rdma::OperationKind::kRead, page->bytes()),
            rdma::CompletionStatus::kOk);
  const auto nodes = client_->nodes();
  ASSERT_TRUE(nodes.has_value());
  ASSERT_EQ(nodes->size(), 1U);
  // The slab of the forgotten region stays lent; the other one can be leased.
  EXPECT_EQ(borrow("new", kSlab).leases.size(), 1U);
  EXPECT_EQ(node_->report().slabs.leased, 2U);
}

TEST_F(NodeCluster, NodeThatIsThereFirstJoinsWhenTheCoordinatorComes) {
  const uint16_t port = service_->port();
  const std::string url = service_->url();
  service_.reset();
  start_node(url);
  EXPECT_EQ(node_->membership(), Membership::kJoining);
  start_coordinator(port);
  wait_for_joins(1);
  EXPECT_EQ(client_->nodes()->size(), 1U);
}

TEST_F(NodeCluster, Defect7NodeThatLeftIsInNoListing) {
  start_node();
  wait_for_joins(1);
  ASSERT_EQ(client_->nodes()->size(), 1U);
  EXPECT_TRUE(node_->leave(Seconds(30)));
  EXPECT_EQ(client_->nodes()->size(), 0U);
  EXPECT_EQ(client_->create_region({"late", kSlab, 1, kSlab}).error().code, ErrorCode::kExhausted);
}

TEST_F(NodeCluster, LeavingWaitsForTheBorrower) {
  start_node();
  wait_for_joins(1);
  const coordinator::RegionInfo region = borrow("r", kSlab);
  ASSERT_EQ(region.leases.size(), 1U);
  std::thread borrower([&] {
    // Releases its lease once the coordinator shows the node as draining.
    while (client_->nodes()->at(0).state != coordinator::NodeState::kDraining)
      std::this_thread::yield();
    EXPECT_TRUE(client_->delete_region(region.id).has_value());
  });
  EXPECT_TRUE(node_->leave(Seconds(60)));
  borrower.join();
  EXPECT_EQ(client_->nodes()->size(), 0U);
}

}  // namespace
}  // namespace farpage::node
