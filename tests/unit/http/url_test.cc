#include "http/url.h"

#include <gtest/gtest.h>

namespace farpage::http {
namespace {

TEST(Url, TakesHostAndPort) {
  EXPECT_EQ(parse_url("http://10.0.0.1:7070")->host, "10.0.0.1");
  EXPECT_EQ(parse_url("http://node-1.lan:65535/")->port, 65535);
  EXPECT_EQ(parse_url("http://[::1]:80")->host, "::1");
}

TEST(Url, RefusesEverythingElse) {
  for (const char* url :
       {"", "http://", "http://h", "http://h:", "http://h:0", "http://h:65536", "http://h:1/x",
        "http://:1", "https://h:1", "http://u@h:1", "http://h:1x", "http://[::1:80", "http://h h:1",
        "http://h:-1", "http://h:+1", "http://h:01", "http://::1:80", "http://h\n:1"})
    EXPECT_FALSE(parse_url(url).has_value()) << url;
}

TEST(Url, ListHasEachOnce) {
  const auto list = parse_urls("http://a:1,http://[::1]:2/");
  ASSERT_TRUE(list.has_value());
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ(to_text((*list)[0]), "http://a:1");
  EXPECT_EQ(to_text((*list)[1]), "http://[::1]:2");
  for (const char* urls : {"", ",", "http://a:1,", "http://a:1,,http://b:1",
                           "http://a:1 ,http://b:1", "http://a:1,http://a:1/"})
    EXPECT_FALSE(parse_urls(urls).has_value()) << urls;
}

TEST(Url, KnowsLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "128.0.0.1"})
    EXPECT_FALSE(is_loopback(host)) << host;
}

}  // namespace
}  // namespace farpage::http
