#include "base/host_port.h"

#include <gtest/gtest.h>

namespace farpage {
namespace {

TEST(HostPort, GoesBothWays) {
  for (const char* text :
       {"127.0.0.1:7070", "node-1.example:0", "[::1]:65535", "[fe80::1%eth0]:1"}) {
    const auto place = host_port_from(text);
    ASSERT_TRUE(place.has_value()) << text;
    EXPECT_EQ(to_text(*place), text);
  }
  EXPECT_EQ(host_port_from("[::1]:80"), (HostPort{"::1", 80}));
}

TEST(HostPort, OtherTextIsRefused) {
  for (const char* text : {"", ":", ":80", "host", "host:", "host:65536", "host:8x", "host:-1",
                           "host:+1", "::1:80", "[::1:80", "[]:80", "http://h:80", "a b:80"})
    EXPECT_FALSE(host_port_from(text).has_value()) << text;
}

}  // namespace
}  // namespace farpage
