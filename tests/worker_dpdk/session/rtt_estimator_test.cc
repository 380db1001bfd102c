// The retransmission timeout, which follows round trips, and losses that round trips tell.
#include "session/rtt_estimator.h"

#include <gtest/gtest.h>

#include <array>

#include "session/loss_detector.h"

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
  for (int i = 0; i < 100; ++i) rtt.sample(Duration(30));
  EXPECT_EQ(rtt.timeout(0), kBounds.min);
  EXPECT_EQ(rtt.timeout(20), kBounds.max);
}

/// As over the internet, where every packet would be repeated otherwise.
TEST(RttEstimator, RoundTripsBeyondTheLargestBackOffAreWaitedFor) {
  RttEstimator rtt(kBounds);
  for (int i = 0; i < 100; ++i) rtt.sample(Duration(300'000));
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

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(RttEstimator, BackOffEndsWithAResultInTheUsualTime) {
  RttEstimator rtt;
  rtt.sample(Duration(1'000));
  const Duration timeout = rtt.timeout(0);
  for (int i = 0; i < 5; ++i) rtt.back_off(kStart + std::chrono::seconds(i));
  ASSERT_EQ(rtt.timeout(0), 32 * timeout);
  rtt.confirm(Duration(900));      // of an earlier copy
  rtt.confirm(timeout + timeout);  // round trips may have grown
  EXPECT_EQ(rtt.timeout(0), 32 * timeout);
  rtt.confirm(Duration(1'100));
  EXPECT_EQ(rtt.timeout(0), timeout);
}

TEST(LossDetector, APacketThatHasArrivedIsLostAgainAfterAsLongAsItHasWaited) {
  RttEstimator rtt;
  rtt.sample(Duration(1'000));
  LossDetector losses(rtt);
  losses.open(1);
  std::array<InFlight, 5> packets;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    packets[i] = {.first_sent_at = kStart, .sent_at = kStart, .number = i};
    losses.sent(packets[i], kStart);
  }
  const TimePoint noticed = kStart + Duration(50'000);
  packets[0].noticed_at = noticed;
  packets[0].seen_workers = 1;
  losses.noticed(packets[0], noticed);
  for (std::size_t i = 1; i < packets.size(); ++i) {
    losses.answered(packets[i], false, noticed);
    packets[i] = {.first_sent_at = noticed, .sent_at = noticed, .number = packets.size() + i};
    losses.sent(packets[i], noticed);  // others overtake it, round after round
    losses.answered(packets[i], false, noticed + Duration(1'000));
  }
  EXPECT_EQ(losses.loss_time(packets[0]), noticed + Duration(50'000));
  packets[0].racks = 2;  // a packet from the rack's server to its root can be lost
  EXPECT_LT(losses.loss_time(packets[0]), noticed + Duration(50'000));
}

}  // namespace
}  // namespace thc::testing
