// What the borrower's end packs of its WRITEs, and when.
#include "rdma/tcp/write_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "rdma/tcp/wire_pace.h"

namespace farpage::rdma::tcp {
namespace {

using PackedBytes = std::vector<std::byte>;

PackedBytes pages_of_text(size_t pages) {
  PackedBytes bytes(pages * kPageBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 50 * 7);
  return bytes;
}

PackedBytes pages_of_noise(size_t pages) {
  std::mt19937_64 random(1);
  PackedBytes bytes(pages * kPageBytes);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

PackedBytes unpacked(std::span<const std::byte> packed) {
  PackedBytes pages;
  while (!packed.empty()) {
    const size_t bytes = kPackedLengthBytes + packed_length(packed);
    pages.resize(pages.size() + kPageBytes);
    EXPECT_TRUE(unpack_page(packed.first(bytes), std::span(pages).last(kPageBytes)));
    packed = packed.subspan(bytes);
  }
  return pages;
}

TEST(WritePacker, PagesThatDoNotCompressGoAsTheyAreAmongOthers) {
  const auto packer = std::move(*WritePacker::create(PackWrites::kOnSlowWire));
  PackedBytes data = pages_of_text(6);
  const PackedBytes noise = pages_of_noise(1);
  std::memcpy(data.data() + 2 * kPageBytes, noise.data(), kPageBytes);
  std::memset(data.data() + 4 * kPageBytes, 0, kPageBytes);
  const auto packed = packer->pack(data);
  ASSERT_FALSE(packed.empty());
  EXPECT_LT(packed.size(), 2 * kPageBytes);
  EXPECT_EQ(unpacked(packed), data);
}

TEST(WritePacker, DataThatDoesNotShrinkOrIsNoWholePagesIsNotPacked) {
  const auto packer = std::move(*WritePacker::create(PackWrites::kOnSlowWire));
  EXPECT_TRUE(packer->pack(pages_of_noise(3)).empty());
  const PackedBytes text = pages_of_text(2);
  EXPECT_TRUE(packer->pack(std::span(text).first(kPageBytes + 1)).empty());
  EXPECT_TRUE(packer->pack(std::span(text).first(100)).empty());
  EXPECT_FALSE(packer->pack(text).empty());
}

TEST(WritePacker, OnceAskedForAlwaysItPacksTheLongestWriteOfNoise) {
  const auto packer = std::move(*WritePacker::create(PackWrites::kAlways));
  const PackedBytes data = pages_of_noise(kMaxOperationBytes / kPageBytes);
  const auto packed = packer->pack(data);
  EXPECT_EQ(packed.size(), 256 * kMaxPackedPageBytes);
  EXPECT_EQ(unpacked(packed), data);
}

TEST(WritePacker, WhereNothingCompressesOneWriteInSixtyFourIsTried) {
  const auto packer = std::move(*WritePacker::create(PackWrites::kOnSlowWire));
  const PackedBytes noise = pages_of_noise(8);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(packer->pack(noise).empty());
  const PackedBytes text = pages_of_text(8);
  int packed = 0;
  int before = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto form = packer->pack(text);
    if (form.empty()) {
      before += packed == 0 ? 1 : 0;
      continue;
    }
    ++packed;
    packer->release(form);
  }
  EXPECT_LT(before, 64);
  EXPECT_GT(packed, 1000) << "and once they compress again, all are";
}

TEST(WritePacker, WithoutRoomDataGoesAsItIs) {
  const auto packer = std::move(*WritePacker::create(PackWrites::kAlways));
  const PackedBytes noise = pages_of_noise(kMaxOperationBytes / kPageBytes);
  const auto first = packer->pack(noise);
  const auto second = packer->pack(noise);
  ASSERT_FALSE(second.empty());
  EXPECT_TRUE(packer->pack(pages_of_text(1)).empty());
  packer->release(first);
  EXPECT_FALSE(packer->pack(pages_of_text(1)).empty());
}

TEST(WritePacker, FormsStayAsTheyAreUntilTheyAreReleased) {
  const uint64_t seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto packer = std::move(*WritePacker::create(PackWrites::kAlways));
  struct Form {
    std::span<std::byte> packed;
    PackedBytes copy;
  };
  std::deque<Form> forms;
  int packed = 0;
  const PackedBytes text = pages_of_text(40);
  PackedBytes noise = pages_of_noise(40);
  for (int i = 0; i < 1000; ++i) {
    noise[random() % noise.size()] ^= std::byte{1};
    const PackedBytes& source = random() % 2 == 0 ? text : noise;
    const auto form = packer->pack(std::span(source).first((1 + random() % 40) * kPageBytes));
    if (!form.empty()) {
      forms.push_back({form, {form.begin(), form.end()}});
      ++packed;
    }
    for (size_t most = random() % 60; forms.size() > most; forms.pop_front()) {
      const Form& oldest = forms.front();
      ASSERT_TRUE(std::ranges::equal(oldest.packed, oldest.copy));
      packer->release(oldest.packed);
    }
  }
  EXPECT_GT(packed, 500);
}

// A WRITE of `bytes` bytes after the other, for which the wire needs so long each.
struct Wire {
  WirePace pace;
  WireUse use;
  void carry(int writes, size_t bytes, Nanoseconds each, bool idle) {
    for (int i = 0; i < writes; ++i) {
      pace.posted(bytes, idle);
      use.acknowledged_bytes += bytes;
      use.busy += each;
      if (pace.wants_look()) pace.look(use);
    }
  }
};

constexpr size_t kWriteBytes = size_t{64} << 10;

TEST(WirePace, WireOfOneGigabitIsSlowAndOneOfTenIsNot) {
  Wire wire;
  EXPECT_FALSE(wire.pace.is_slow());
  wire.carry(150, kWriteBytes, Nanoseconds(8 * kWriteBytes), false);
  EXPECT_TRUE(wire.pace.is_slow());
  wire.carry(100, kWriteBytes, Nanoseconds(kWriteBytes), false);
  EXPECT_FALSE(wire.pace.is_slow());
}

TEST(WirePace, RoundTripsAreNoWorkOfTheWire) {
  Wire wire;
  wire.use.round_trip = Milliseconds(1);
  const Nanoseconds each = Milliseconds(1) + Nanoseconds(kWriteBytes);
  wire.carry(200, kWriteBytes, each, true);
  EXPECT_FALSE(wire.pace.is_slow());
  wire.carry(200, kWriteBytes, each, false);
  EXPECT_TRUE(wire.pace.is_slow()) << "it had more to carry meanwhile";
}

TEST(WirePace, StallOfThePeerIsNoSlowWire) {
  Wire wire;
  for (int i = 0; i < 3; ++i) {
    wire.carry(4, kWriteBytes, Milliseconds(20), false);
    EXPECT_FALSE(wire.pace.is_slow());
    wire.carry(100, kWriteBytes, Nanoseconds(kWriteBytes), false);
  }
  for (int i = 0; i < 3; ++i) wire.carry(4, kWriteBytes, Milliseconds(20), false);
  EXPECT_TRUE(wire.pace.is_slow());
}

}  // namespace
}  // namespace farpage::rdma::tcp
