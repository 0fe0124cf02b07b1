#include "rdma/endpoint.h"

#include <gtest/gtest.h>

namespace farpage::rdma {
namespace {

TEST(TransportKind, NamesGoBothWays) {
  for (const TransportKind kind :
       {TransportKind::kVerbs, TransportKind::kShm, TransportKind::kTcp, TransportKind::kLoop}) {
    EXPECT_EQ(transport_kind_from(to_string(kind)), kind);
  }
  for (const char* name : {"", "TCP", "tcp ", "rdma", "unknown"})
    EXPECT_FALSE(transport_kind_from(name).has_value()) << name;
}

TEST(Gid, AcceptsEveryNotationOfAnIpv6Address) {
  for (const char* gid : {"fe80::5054:ff:fe00:1", "::ffff:10.77.0.1", "::", "2001:db8::1",
                          "fe80:0000:0000:0000:5054:00ff:fe00:0001"})
    EXPECT_TRUE(is_gid(gid)) << gid;
}

TEST(Gid, RefusesEverythingElse) {
  for (const char* gid : {"", "10.77.0.1", "fe80::1::2", "fe80::12345", "fe80::1%eth0", " ::1",
                          "[::1]", "::1/64", "zz::1", "::ffff:10.77.0.256",
                          "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000"})
    EXPECT_FALSE(is_gid(gid)) << gid;
  EXPECT_FALSE(is_gid(std::string_view("::1\0", 4)));
}

}  // namespace
}  // namespace farpage::rdma
