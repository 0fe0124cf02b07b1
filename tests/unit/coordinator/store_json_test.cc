#include "coordinator/store_json.h"

#include "tests/unit/coordinator/store_contract.h"

namespace farpage::coordinator {
namespace {

TEST(StoreJson, RecordsComeBackAsTheyWere) {
  const Changes changes = some_changes();
  NodeRecord node = *changes.nodes.begin()->second;
  node.lend_slabs = 3;
  node.join.labels = {{"zone", "a"}};
  EXPECT_EQ(encode(*decode_node_record(encode(node))), encode(node));
  EXPECT_EQ(decode_node_record(encode(node))->lend_slabs, 3U);
  const RegionRecord region{RegionId{"r"}, "name", 3, kMaxSlabBytes, ~uint32_t{0}, "zone", "batch"};
  EXPECT_EQ(encode(*decode_region_record(encode(region))), encode(region));
  for (const auto& [key, lease] : changes.leases) {
    const auto record = decode_lease_record(encode(key, *lease));
    ASSERT_TRUE(record.has_value()) << record.error().message();
    EXPECT_EQ(record->first, key);
    EXPECT_EQ(encode(record->first, record->second), encode(key, *lease));
  }
  Revocation revocation = *changes.revocations.begin()->second;
  revocation.generation = Generation{0};  // not known
  EXPECT_EQ(encode(*decode_revocation(encode(revocation))), encode(revocation));
  const ImageRecord image = *changes.images.begin()->second;
  EXPECT_EQ(encode(*decode_image_record(encode(image))), encode(image));
}

TEST(StoreJson, FieldsOfANewerCoordinatorAreIgnored) {
  const auto region = decode_region_record(
      R"({"id":"r","name":"n","replicas":1,"slab_bytes":2097152,"session_group":0,"newer":[1]})");
  ASSERT_TRUE(region.has_value()) << region.error().message();
  EXPECT_EQ(region->spread_by, "");
}

TEST(StoreJson, WhatIsNoRecordIsRefusedAndKeysAreNotQuoted) {
  for (const char* text : {"", "1", "{}", "[]", R"({"region":"r","lease":1})",
                           R"({"region":"r","lease":{"rkeys":{"tcp":"1234567"}}})"}) {
    EXPECT_FALSE(decode_node_record(text).has_value()) << text;
    EXPECT_FALSE(decode_region_record(text).has_value()) << text;
    EXPECT_FALSE(decode_revocation(text).has_value()) << text;
    EXPECT_FALSE(decode_image_record(text).has_value()) << text;
    const auto lease = decode_lease_record(text);
    ASSERT_FALSE(lease.has_value()) << text;
    EXPECT_EQ(lease.error().context.find("1234567"), std::string::npos);
  }
}

}  // namespace
}  // namespace farpage::coordinator
