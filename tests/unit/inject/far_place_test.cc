#include "inject/far_place.h"

#include <gtest/gtest.h>

#include <string>

namespace farpage::inject {
namespace {

constexpr std::string_view kMaps =
    "555500000000-555500100000 r-xp 00000000 08:01 7 /bin/program\n"
    "555500200000-555500300000 rw-p 00000000 00:00 0 [heap]\n"
    "7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n"
    "7f0000500000-7f0000501000 rw-p 00000000 00:00 0 \n"
    "7f1000000000-7f1000021000 rw-p 00000000 00:00 0 [stack]\n"
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

TEST(FarPlace, IsBelowWhatTheKernelHasPlaced) {
  EXPECT_EQ(far_place(kMaps), 0x7ef000000000U) << "64 GiB below, in whole 2 MiB";
}

TEST(FarPlace, IsAboveWhatIsBelow) {
  const std::string full = "000000400000-7ee000000000 ---p 00000000 00:00 0 \n" +
                           std::string(kMaps.substr(kMaps.find("7f0000001000")));
  EXPECT_EQ(far_place(full), 0x7ef000000000U);
  const std::string fuller = "000000400000-7ee000100000 ---p 00000000 00:00 0 \n" +
                             std::string(kMaps.substr(kMaps.find("7f0000001000")));
  EXPECT_EQ(far_place(fuller), 0U) << "64 GiB below is too near to what is there";
  EXPECT_EQ(far_place(""), 0U);
}

}  // namespace
}  // namespace farpage::inject
