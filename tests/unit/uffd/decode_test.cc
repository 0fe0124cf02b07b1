#include <gtest/gtest.h>

#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;
constexpr uint64_t kPages = 100;
constexpr uint64_t kExtent = kBase - 0x100000;

const ExtentMap& extents() {
  static const std::unique_ptr<ExtentMap> map = [] {
    auto made = ExtentMap::create(kBase, kPages, 1000);
    EXPECT_TRUE(made && (*made)->add(kExtent, kExtent + 10 * 4096));
    return std::move(*made);
  }();
  return *map;
}

uffd_msg fault_at(uint64_t address, uint64_t flags) {
  uffd_msg message{};
  message.event = UFFD_EVENT_PAGEFAULT;
  message.arg.pagefault.address = address;
  message.arg.pagefault.flags = flags;
  message.arg.pagefault.feat.ptid = 77;
  return message;
}

TEST(Decode, FaultsCarryPageKindAndThread) {
  struct Case {
    uint64_t flags;
    FaultKind kind;
  };
  for (const Case& c :
       {Case{0, FaultKind::kMissingRead},
        {UFFD_PAGEFAULT_FLAG_WRITE, FaultKind::kMissingWrite},
        {UFFD_PAGEFAULT_FLAG_WP, FaultKind::kWriteProtected},
        {UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE, FaultKind::kWriteProtected}}) {
    const auto event = decode(fault_at(kBase + 5 * 4096 + 123, c.flags), extents());
    ASSERT_TRUE(event.has_value());
    const auto* fault = std::get_if<Fault>(&*event);
    ASSERT_NE(fault, nullptr);
    EXPECT_EQ(fault->page.value, 5U);
    EXPECT_EQ(fault->kind, c.kind);
    EXPECT_EQ(fault->thread, 77U);
  }
}

TEST(Decode, AFaultInAnExtentHasItsPageNumber) {
  const auto event = decode(fault_at(kExtent + 3 * 4096 + 8, 0), extents());
  ASSERT_TRUE(event.has_value());
  const auto* fault = std::get_if<Fault>(&*event);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->page.value, kPages + 3);
}

TEST(Decode, FaultInNoExtentIsAStray) {
  for (const uint64_t address : {kBase - 1, kBase + kPages * 4096, uint64_t{0}, ~uint64_t{0},
                                 kExtent - 1, kExtent + 10 * 4096}) {
    const auto event = decode(fault_at(address, 0), extents());
    ASSERT_TRUE(event.has_value());
    EXPECT_TRUE(std::holds_alternative<StrayFault>(*event)) << std::hex << address;
  }
}

TEST(Decode, UnmapIsCutToTheExtents) {
  uffd_msg message{};
  message.event = UFFD_EVENT_UNMAP;
  message.arg.remove.start = kExtent + 8 * 4096;
  message.arg.remove.end = kBase + 3 * 4096;
  const auto event = decode(message, extents());
  ASSERT_TRUE(event.has_value());
  const auto* unmapped = std::get_if<Unmapped>(&*event);
  ASSERT_NE(unmapped, nullptr);
  ASSERT_EQ(unmapped->runs.size(), 2U);
  EXPECT_EQ(unmapped->runs[0].first.value, kPages + 8);
  EXPECT_EQ(unmapped->runs[0].pages, 2U);
  EXPECT_EQ(unmapped->runs[1].first.value, 0U);
  EXPECT_EQ(unmapped->runs[1].pages, 3U);
  message.arg.remove.start = kExtent + 10 * 4096;
  message.arg.remove.end = kBase - 0x8000;
  EXPECT_FALSE(decode(message, extents()).has_value());
}

TEST(Decode, UnknownEventsAreNothing) {
  uffd_msg message{};
  message.event = 0xEE;
  EXPECT_FALSE(decode(message, extents()).has_value());
}

}  // namespace
}  // namespace farpage::uffd
