#include "rdma/endpoint.h"

#include <gtest/gtest.h>

#include "rdma/transport.h"

namespace farpage::rdma {
namespace {

TEST(TransportKind, EveryNameLeadsBackToItsKind) {
  for (const TransportKind kind :
       {TransportKind::kVerbs, TransportKind::kShm, TransportKind::kTcp, TransportKind::kLoop})
    EXPECT_EQ(transport_kind_from(to_string(kind)), kind);
  EXPECT_EQ(transport_kind_from(to_string(TransportKind::kFile)), std::nullopt)
      << "no node has the file of a borrower";
  EXPECT_EQ(transport_kind_from("rdma"), std::nullopt);
  EXPECT_EQ(transport_kind_from(""), std::nullopt);
}

TEST(PollMode, EveryNameLeadsBackToItsMode) {
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent})
    EXPECT_EQ(poll_mode_from(to_string(mode)), mode);
  EXPECT_EQ(poll_mode_from("sleepy"), std::nullopt);
}

TEST(CompletionStatus, EveryStatusHasItsName) {
  EXPECT_EQ(to_string(CompletionStatus::kOk), "ok");
  EXPECT_EQ(to_string(CompletionStatus::kRemoteAccess), "remote_access");
  EXPECT_EQ(to_string(CompletionStatus::kLocalError), "local_error");
  EXPECT_EQ(to_string(CompletionStatus::kPeerGone), "peer_gone");
  EXPECT_EQ(to_string(CompletionStatus::kTimedOut), "timed_out");
  EXPECT_EQ(to_string(CompletionStatus::kFlushed), "flushed");
}

TEST(Gid, IsWrittenAsAnIpv6Address) {
  for (const char* gid : {"::ffff:10.77.0.1", "fe80::5054:ff:fe00:1",
                          "::", "fe80:0000:0000:0000:5054:00ff:fe00:0001"})
    EXPECT_TRUE(is_gid(gid)) << gid;
  const std::string with_nul("::1\0x", 5);
  for (const std::string& text :
       {std::string(""), std::string("10.77.0.1"), std::string("fe80"), std::string("fe80::1%eth0"),
        std::string(" ::1"), std::string("::1 "), std::string("1:2:3:4:5:6:7:8:9"),
        std::string(1000, ':'), with_nul})
    EXPECT_FALSE(is_gid(text)) << text;
}

}  // namespace
}  // namespace farpage::rdma
