// The retransmission timeout follows round trips, also longer ones than back-off goes to.
#include "session/rtt_estimator.h"

#include <gtest/gtest.h>

namespace thc::testing {
namespace {

constexpr RttBounds kBounds{
    .initial = Duration(20'000), .min = Duration(500), .max = Duration(200'000), .longest = Duration(2'000'000)};

TEST(RttEstimator, BeginsWithTheInitialTimeout) {
  const RttEstimator rtt(kBounds);
  EXPECT_EQ(rtt.timeout(0), kBounds.initial);
  EXPECT_EQ(rtt.timeout(2), 4 * kBounds.initial);
  EXPECT_EQ(rtt.timeout(200), kBounds.max);
}

TEST(RttEstimator, ShortRoundTripsLeaveTheLeastTimeout) {
  RttEstimator rtt(kBounds);
  for (int i = 0; i < 100; ++i) {
    rtt.sample(Duration(30));
  }
  EXPECT_EQ(rtt.timeout(0), kBounds.min);
  EXPECT_EQ(rtt.timeout(20), kBounds.max);
}

/// As over the internet, where every packet would be repeated otherwise.
TEST(RttEstimator, RoundTripsBeyondTheLargestBackOffAreWaitedFor) {
  RttEstimator rtt(kBounds);
  for (int i = 0; i < 100; ++i) {
    rtt.sample(Duration(300'000));
  }
  EXPECT_GE(rtt.timeout(0), Duration(300'000));
  EXPECT_LT(rtt.timeout(0), Duration(310'000));
  EXPECT_EQ(rtt.timeout(7), rtt.timeout(0));
  rtt.sample(Duration(60'000'000));  // another worker computed
  EXPECT_EQ(rtt.timeout(0), kBounds.longest);
}

TEST(RttEstimator, BackOffDoublesOnceATimeoutAndEndsWithARoundTrip) {
  RttEstimator rtt(kBounds);
  const TimePoint start{Duration(1'000'000)};
  rtt.back_off(start);
  rtt.back_off(start + Duration(1));
  EXPECT_EQ(rtt.timeout(0), 2 * kBounds.initial);
  rtt.back_off(start + 2 * kBounds.initial);
  EXPECT_EQ(rtt.timeout(0), 4 * kBounds.initial);
  EXPECT_TRUE(rtt.backed_off());
  rtt.sample(Duration(1'000));
  EXPECT_FALSE(rtt.backed_off());
  EXPECT_EQ(rtt.timeout(0), Duration(3'000));
}

}  // namespace
}  // namespace thc::testing
