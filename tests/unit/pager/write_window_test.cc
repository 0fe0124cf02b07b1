#include "pager/links/write_window.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

TEST(WriteWindow, AdmitsUpToItsLimit) {
  WriteWindow window;
  window.posted(192);
  EXPECT_TRUE(window.admits(64));
  EXPECT_FALSE(window.admits(65));
}

TEST(WriteWindow, WhatTheChannelDidNotTakeIsNoFailure) {
  WriteWindow window;
  window.posted(256);
  window.not_posted(64);
  EXPECT_EQ(window.pages(), 256U);
  EXPECT_TRUE(window.admits(64));
  EXPECT_FALSE(window.admits(65));
}

TEST(WriteWindow, AFailureHalvesWhatWasInFlight) {
  WriteWindow window;
  window.posted(64);
  window.failed(64);
  EXPECT_EQ(window.pages(), 32U);
  EXPECT_TRUE(window.admits(32));
}

TEST(WriteWindow, OnePageIsTriedHoweverOftenItFails) {
  WriteWindow window;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(window.admits(window.pages()));
    window.posted(window.pages());
    window.failed(window.pages());
  }
  EXPECT_EQ(window.pages(), 1U);
}

TEST(WriteWindow, GrowsBackWhenAsMuchHasPassedAsItsLimit) {
  WriteWindow window;
  window.posted(256);
  window.failed(256);
  ASSERT_EQ(window.pages(), 128U);
  window.posted(128);
  window.acknowledged(128);
  EXPECT_EQ(window.pages(), 128U);
  window.posted(128);
  window.acknowledged(128);
  EXPECT_EQ(window.pages(), 256U);
  window.posted(256);
  window.acknowledged(256);
  EXPECT_EQ(window.pages(), 256U);
}

}  // namespace
}  // namespace farpage::pager
