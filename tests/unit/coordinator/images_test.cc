// Images: their state, their records in a store, their routes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "coordinator/api_json.h"
#include "coordinator/image_client.h"
#include "coordinator/sqlite_store.h"
#include "tests/unit/coordinator/test_service.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::coordinator {
namespace {

const ImageReader kReader{"host-1-1"};

ImageCreate create_of(const std::string& name, const std::string& base = "") {
  return {.name = ImageId{name},
          .base = ImageId{base},
          .bytes = 8 * kPageBytes,
          .replicas = 1,
          .slab_bytes = kMinSlabBytes};
}

class ImagesTest : public ServiceTest {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-images-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    restart();
    ASSERT_TRUE(client_->join(test_node("n1", 8)).has_value());
  }
  void TearDown() override {
    ServiceTest::TearDown();
    service_.reset();
    std::filesystem::remove_all(folder_);
  }
  // A coordinator that goes on with the same store.
  void restart() {
    if (service_) service_->stop();
    service_.reset();
    auto store = open_sqlite_store(folder_ / "state.db");
    ASSERT_TRUE(store.has_value()) << store.error().message();
    start(test_options(), std::move(*store));
    auto images = ImageClient::create(ClientOptions{service_->url(), "", Milliseconds(10000)});
    ASSERT_TRUE(images.has_value());
    images_ = std::move(*images);
  }
  ImageInfo create(const std::string& name, const std::string& base = "") {
    auto image = images_->create_image(create_of(name, base));
    EXPECT_TRUE(image.has_value()) << image.error().message();
    return image.value_or(ImageInfo{});
  }
  ImageInfo complete(const std::string& name, const std::string& base = "") {
    const ImageInfo image = create(name, base);
    EXPECT_TRUE(client_->lease_slabs(image.region, {SlabIndex{0}}).has_value());
    EXPECT_TRUE(images_->complete(image.name, {image.upload, 7, "abc0"}).has_value());
    return *images_->image(image.name);
  }
  // What is due is done.
  static void pass_ticks() { std::this_thread::sleep_for(test_options().tick_interval * 5); }
  ErrorCode code_of(const Status& status) {
    return status ? ErrorCode::kIo : status.error().code;  // kIo: no failure
  }

  std::filesystem::path folder_;
  std::unique_ptr<ImageClient> images_;
};

TEST_F(ImagesTest, IsUploadedCompletedReadAndRemoved) {
  const ImageInfo begun = create("vm");
  EXPECT_EQ(begun.state, ImageState::kUploading);
  EXPECT_EQ(begun.upload, 1U);
  EXPECT_EQ(begun.generations, 1U);
  ASSERT_TRUE(client_->lease_slabs(begun.region, {SlabIndex{0}, SlabIndex{1}}).has_value());
  ASSERT_TRUE(images_->checkpoint(begun.name, {1, 3, "77"}).has_value());
  EXPECT_EQ(images_->image(begun.name)->pages, 3U);
  EXPECT_EQ(images_->image(begun.name)->digest, "77");
  ASSERT_TRUE(images_->complete(begun.name, {1, 7, "abc0"}).has_value());
  EXPECT_TRUE(images_->complete(begun.name, {1, 7, "abc0"}).has_value()) << "its answer was lost";
  EXPECT_EQ(code_of(images_->complete(begun.name, {1, 8, "abc0"})), ErrorCode::kConflict);
  EXPECT_EQ(code_of(images_->checkpoint(begun.name, {1, 7, "abc0"})), ErrorCode::kConflict);

  const auto opened = images_->open(begun.name, kReader);
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ(opened->image.state, ImageState::kComplete);
  EXPECT_EQ(opened->image.readers, 1U);
  EXPECT_NE(opened->session_group, 0U);
  ASSERT_EQ(opened->regions.size(), 1U);
  ASSERT_EQ(opened->regions[0].leases.size(), 2U);
  EXPECT_FALSE(opened->regions[0].leases[0].rkeys.empty());
  ASSERT_TRUE(images_->close(begun.name, kReader).has_value());
  ASSERT_TRUE(images_->remove(begun.name, false).has_value());
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_TRUE(images_->images()->empty());
  EXPECT_TRUE(client_->regions()->empty());
}

TEST_F(ImagesTest, CompleteOneDoesNotGrowNorIsCreatedAgain) {
  const ImageInfo image = complete("vm");
  EXPECT_EQ(client_->lease_slabs(image.region, {SlabIndex{1}}).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(client_->lease_slabs(image.region, {SlabIndex{0}}).has_value()) << "it has that one";
  EXPECT_EQ(images_->create_image(create_of("vm")).error().code, ErrorCode::kConflict);
}

TEST_F(ImagesTest, LaterUploadTakesOverAndTheEarlierOneIsRefused) {
  const ImageInfo first = create("vm");
  const ImageInfo second = create("vm");
  EXPECT_EQ(second.upload, 2U);
  EXPECT_EQ(second.region, first.region);
  EXPECT_EQ(code_of(images_->checkpoint(first.name, {first.upload, 1, "11"})),
            ErrorCode::kConflict);
  EXPECT_EQ(code_of(images_->complete(first.name, {first.upload, 1, "11"})), ErrorCode::kConflict);
  EXPECT_TRUE(images_->checkpoint(first.name, {second.upload, 1, "11"}).has_value());
  ImageCreate other = create_of("vm");
  other.bytes *= 2;
  EXPECT_EQ(images_->create_image(other).error().code, ErrorCode::kConflict);
}

TEST_F(ImagesTest, RegionEndsWithItsImageAlone) {
  const ImageInfo image = complete("vm");
  EXPECT_EQ(code_of(client_->delete_region(image.region)), ErrorCode::kConflict);
  EXPECT_EQ(code_of(client_->release_slabs(image.region, {SlabIndex{0}})), ErrorCode::kConflict);
  for (int i = 0; i < 5; ++i) {
    clock_.advance(Seconds(61));
    ASSERT_TRUE(client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 7, {}}).has_value());
  }
  // A region without an image would have ended.
  const auto other = client_->create_region(test_region(1));
  ASSERT_TRUE(other.has_value());
  clock_.advance(Seconds(61));
  ASSERT_TRUE(sees(EventKind::kRegionDeleted));
  EXPECT_EQ(images_->image(image.name)->lost_leases, 0U);
  EXPECT_EQ(client_->regions()->size(), 1U);
  EXPECT_EQ(client_->regions()->at(0).image, image.name);
}

TEST_F(ImagesTest, KeysAreInTheAnswerToOpenAndNowhereElse) {
  const ImageInfo image = complete("vm");
  ASSERT_TRUE(images_->open(image.name, kReader).has_value());
  const std::string key = rdma::to_text(RemoteKey{FakeAgents::rkey_of(0, 1)});
  const RawAnswer opened = raw_request(port(), "POST", "/v1/images/vm/open", R"({"reader":"r"})");
  EXPECT_EQ(opened.status, 200);
  EXPECT_NE(opened.body.find(key), std::string::npos);
  for (const std::string path :
       {"/v1/images", "/v1/images/vm", "/v1/regions", "/v1/events", "/v1/cluster", "/metrics"}) {
    const auto body = client_->get(path);
    ASSERT_TRUE(body.has_value()) << path;
    EXPECT_EQ(body->find("rkey"), std::string::npos) << path;
  }
  const auto region = client_->get("/v1/regions/" + image.region.value);
  ASSERT_TRUE(region.has_value());
  EXPECT_EQ(region->find(key), std::string::npos);
}

TEST_F(ImagesTest, BaseStaysWhileAnImageIsMadeOfIt) {
  create("uploading");
  EXPECT_EQ(images_->create_image(create_of("a", "uploading")).error().code, ErrorCode::kConflict);
  EXPECT_EQ(images_->create_image(create_of("a", "nobody")).error().code, ErrorCode::kNotFound);
  complete("base");
  EXPECT_EQ(complete("diff", "base").generations, 2U);
  const Status refused = images_->remove(ImageId{"base"}, true);
  ASSERT_EQ(code_of(refused), ErrorCode::kConflict);
  EXPECT_NE(refused.error().context.find("'diff'"), std::string::npos) << refused.error().context;
  const auto opened = images_->open(ImageId{"diff"}, kReader);
  ASSERT_TRUE(opened.has_value());
  ASSERT_EQ(opened->regions.size(), 2U);
  EXPECT_EQ(opened->regions[1].image, ImageId{"base"});
  EXPECT_EQ(opened->regions[1].leases.size(), 1U);
  ASSERT_TRUE(images_->close(ImageId{"diff"}, kReader).has_value());
  EXPECT_TRUE(images_->remove(ImageId{"diff"}, false).has_value());
  EXPECT_TRUE(images_->remove(ImageId{"base"}, false).has_value());
}

TEST_F(ImagesTest, ThereAreAtMostSixteenGenerations) {
  ASSERT_TRUE(client_->join(test_node("n2", 16)).has_value());
  std::string base;
  for (uint32_t i = 1; i <= kMaxGenerations; ++i) {
    const std::string name = "g" + std::to_string(i);
    ASSERT_EQ(complete(name, base).generations, i);
    base = name;
  }
  const auto one_more = images_->create_image(create_of("one-more", base));
  ASSERT_FALSE(one_more.has_value());
  EXPECT_EQ(one_more.error().code, ErrorCode::kExhausted);
}

TEST_F(ImagesTest, IsNotRemovedWhileItIsReadUnlessForced) {
  complete("vm");
  ASSERT_TRUE(images_->open(ImageId{"vm"}, kReader).has_value());
  const Status refused = images_->remove(ImageId{"vm"}, false);
  ASSERT_EQ(code_of(refused), ErrorCode::kConflict);
  EXPECT_NE(refused.error().context.find("'host-1-1'"), std::string::npos);
  EXPECT_TRUE(images_->remove(ImageId{"vm"}, true).has_value());
  EXPECT_EQ(images_->renew(ImageId{"vm"}, kReader).error().code, ErrorCode::kNotFound);
}

TEST_F(ImagesTest, ReaderThatDoesNotRenewItselfIsNone) {
  complete("vm");
  ASSERT_TRUE(images_->open(ImageId{"vm"}, kReader).has_value());
  ASSERT_TRUE(images_->open(ImageId{"vm"}, {"other"}).has_value());
  clock_.advance(Seconds(40));
  ASSERT_TRUE(images_->renew(ImageId{"vm"}, kReader).has_value());
  clock_.advance(Seconds(40));
  while (images_->image(ImageId{"vm"})->readers != 1) std::this_thread::yield();
  EXPECT_EQ(code_of(images_->remove(ImageId{"vm"}, false)), ErrorCode::kConflict);
}

TEST_F(ImagesTest, IsThereAfterARestartOfTheCoordinator) {
  complete("base");
  complete("diff", "base");
  const ImageInfo begun = create("begun");
  ASSERT_TRUE(images_->checkpoint(begun.name, {1, 5, "55"}).has_value());
  const auto before = images_->open(ImageId{"diff"}, kReader);
  restart();
  const auto images = images_->images();
  ASSERT_TRUE(images.has_value());
  ASSERT_EQ(images->size(), 3U);
  EXPECT_EQ(images_->image(begun.name)->pages, 5U);
  EXPECT_EQ(images_->image(begun.name)->digest, "55");
  EXPECT_EQ(create("begun").upload, 2U);
  const auto after = images_->open(ImageId{"diff"}, kReader);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->session_group, before->session_group);
  EXPECT_EQ(after->regions[1].leases[0].rkeys, before->regions[1].leases[0].rkeys);
  EXPECT_EQ(after->image.digest, "abc0");
}

TEST_F(ImagesTest, LostLeaseIsSeenAndPreventsItsCompletion) {
  const ImageInfo image = create("vm");
  ASSERT_TRUE(client_->lease_slabs(image.region, {SlabIndex{0}}).has_value());
  agents_.set_incarnation("http://n1:7071", 2);
  ASSERT_TRUE(client_->join(test_node("n1", 8, 2)).has_value());
  EXPECT_EQ(images_->image(image.name)->lost_leases, 1U);
  EXPECT_EQ(code_of(images_->complete(image.name, {1, 7, "abc0"})), ErrorCode::kConflict);
}

TEST_F(ImagesTest, AreRepairedWhenTheyAreComplete) {
  const ImageInfo image = create("vm");
  ASSERT_TRUE(client_->lease_slabs(image.region, {SlabIndex{0}}).has_value());
  ASSERT_TRUE(client_->join(test_node("n2", 8)).has_value());
  ASSERT_TRUE(client_->drain_node(NodeId{"n1"}).has_value());
  const Lease held = images_->open(image.name, kReader)->regions[0].leases[0];
  const RepairBegin begin{SlabIndex{0}, {name_of(held)}, {}};
  const auto early = client_->begin_repair(image.region, begin);
  ASSERT_EQ(early.error().code, ErrorCode::kConflict);
  EXPECT_NE(early.error().context.find("still being uploaded"), std::string::npos);
  ASSERT_TRUE(images_->complete(image.name, {1, 7, "abc0"}).has_value());
  EXPECT_TRUE(client_->begin_repair(image.region, begin).has_value());
}

// What was replaced can be read until all readers have heard of it, also when the coordinator
// starts again meanwhile.
TEST_F(ImagesTest, ReadersHearOfRepairsBeforeTheOldReplicaEnds) {
  const ImageInfo image = complete("vm");
  ASSERT_TRUE(client_->join(test_node("n2", 8)).has_value());
  const auto opened = images_->open(image.name, kReader);
  EXPECT_EQ(images_->renew(image.name, kReader)->leases_version, opened->leases_version);
  ASSERT_TRUE(client_->drain_node(NodeId{"n1"}).has_value());
  const Lease old = opened->regions[0].leases[0];
  const auto begun = client_->begin_repair(image.region, {SlabIndex{0}, {name_of(old)}, {}});
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
  EXPECT_EQ(images_->renew(image.name, kReader)->leases_version, opened->leases_version);
  ASSERT_TRUE(
      client_->complete_repair(image.region, {SlabIndex{0}, name_of(begun->filling)}).has_value());
  EXPECT_NE(images_->renew(image.name, kReader)->leases_version, opened->leases_version);
  const auto again = images_->open(image.name, kReader);
  ASSERT_EQ(again->regions[0].leases.size(), 1U);
  EXPECT_EQ(name_of(again->regions[0].leases[0]), name_of(begun->filling));
  const auto lent_by_n1 = [this] {
    const auto node = client_->node(NodeId{"n1"});
    return node->total_slabs - node->free_slabs;
  };
  clock_.advance(kReaderGrace - Milliseconds(1));
  pass_ticks();
  EXPECT_EQ(lent_by_n1(), 1U);
  restart();
  pass_ticks();
  EXPECT_EQ(lent_by_n1(), 1U) << "the new one does not know how long it has been";
  EXPECT_NE(images_->renew(image.name, kReader)->leases_version, opened->leases_version);
  clock_.advance(kReaderGrace);
  while (lent_by_n1() != 0) std::this_thread::yield();
}

TEST_F(ImagesTest, WrongBodiesAreRefusedWithTheirField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"name":"vm","bytes":4097})", "bytes"},
      {R"({"name":"vm","bytes":0})", "bytes"},
      {R"({"name":"vm","bytes":2199023255552})", "bytes"},
      {R"({"name":"a/b","bytes":4096})", "name"},
      {R"({"name":"vm","bytes":4096,"base":""})", "base"},
      {R"({"name":"vm","bytes":4096,"replicas":4})", "replicas"},
      {R"({"name":"vm","bytes":4096,"slab_bytes":3000000})", "slab_bytes"},
      {R"({"name":"vm","bytes":4096,"sparse":true})", "sparse"},
  };
  for (const auto& [body, field] : cases) {
    const RawAnswer answer = raw_request(port(), "POST", "/v1/images", body);
    EXPECT_EQ(answer.status, 422) << body;
    EXPECT_NE(answer.body.find(std::string("\"field\":\"") + field), std::string::npos)
        << body << " " << answer.body;
  }
  create("vm");
  EXPECT_EQ(raw_request(port(), "PUT", "/v1/images/vm/checkpoint",
                        R"({"upload":1,"pages":1,"digest":"XY"})")
                .status,
            422);
  EXPECT_EQ(raw_request(port(), "POST", "/v1/images/vm/open", R"({"reader":"a b"})").status, 422);
  EXPECT_EQ(raw_request(port(), "DELETE", "/v1/images/vm?force=perhaps").status, 400);
}

}  // namespace
}  // namespace farpage::coordinator
