#include "pager/links/peer_state.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

TEST(WriteLimit, AdmitsUpToItsLimit) {
  WriteLimit limit;
  limit.posted(192);
  EXPECT_TRUE(limit.admits(64));
  EXPECT_FALSE(limit.admits(65));
}

TEST(WriteLimit, WhatTheChannelDidNotTakeIsNoFailure) {
  WriteLimit limit;
  limit.posted(256);
  limit.not_posted(64);
  EXPECT_EQ(limit.pages(), 256U);
  EXPECT_TRUE(limit.admits(64));
  EXPECT_FALSE(limit.admits(65));
}

TEST(WriteLimit, AFailureHalvesWhatWasInFlight) {
  WriteLimit limit;
  limit.posted(64);
  limit.failed(64);
  EXPECT_EQ(limit.pages(), 32U);
  EXPECT_TRUE(limit.admits(32));
}

TEST(WriteLimit, OnePageIsTriedHoweverOftenItFails) {
  WriteLimit limit;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(limit.admits(limit.pages()));
    limit.posted(limit.pages());
    limit.failed(limit.pages());
  }
  EXPECT_EQ(limit.pages(), 1U);
}

TEST(WriteLimit, GrowsBackWhenAsMuchHasPassedAsItsLimit) {
  WriteLimit limit;
  limit.posted(256);
  limit.failed(256);
  ASSERT_EQ(limit.pages(), 128U);
  limit.posted(128);
  limit.acknowledged(128);
  EXPECT_EQ(limit.pages(), 128U);
  limit.posted(128);
  limit.acknowledged(128);
  EXPECT_EQ(limit.pages(), 256U);
  limit.posted(256);
  limit.acknowledged(256);
  EXPECT_EQ(limit.pages(), 256U);
}

}  // namespace
}  // namespace farpage::pager
