#include <gtest/gtest.h>

#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd.h"

namespace farpage::uffd {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;
constexpr uint64_t kPages = 100;

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
    const auto event = decode(fault_at(kBase + 5 * 4096 + 123, c.flags), kBase, kPages);
    ASSERT_TRUE(event.has_value());
    const auto* fault = std::get_if<Fault>(&*event);
    ASSERT_NE(fault, nullptr);
    EXPECT_EQ(fault->page.value, 5U);
    EXPECT_EQ(fault->kind, c.kind);
    EXPECT_EQ(fault->thread, 77U);
  }
}

TEST(Decode, FaultOutsideTheWindowIsAStray) {
  for (const uint64_t address : {kBase - 1, kBase + kPages * 4096, uint64_t{0}, ~uint64_t{0}}) {
    const auto event = decode(fault_at(address, 0), kBase, kPages);
    ASSERT_TRUE(event.has_value());
    EXPECT_TRUE(std::holds_alternative<StrayFault>(*event)) << std::hex << address;
  }
}

TEST(Decode, UnmapIsCutToTheWindow) {
  uffd_msg message{};
  message.event = UFFD_EVENT_UNMAP;
  message.arg.remove.start = kBase - 0x10000;
  message.arg.remove.end = kBase + 3 * 4096;
  const auto event = decode(message, kBase, kPages);
  ASSERT_TRUE(event.has_value());
  const auto* unmapped = std::get_if<Unmapped>(&*event);
  ASSERT_NE(unmapped, nullptr);
  EXPECT_EQ(unmapped->run.first.value, 0U);
  EXPECT_EQ(unmapped->run.pages, 3U);
  message.arg.remove.end = kBase - 0x8000;
  EXPECT_FALSE(decode(message, kBase, kPages).has_value());
}

TEST(Decode, UnknownEventsAreNothing) {
  uffd_msg message{};
  message.event = 0xEE;
  EXPECT_FALSE(decode(message, kBase, kPages).has_value());
}

}  // namespace
}  // namespace farpage::uffd
