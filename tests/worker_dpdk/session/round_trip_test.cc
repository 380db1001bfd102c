// What ends back-off, and when a packet that has arrived is asked for again.
#include <gtest/gtest.h>

#include <array>

#include "session/loss_detector.h"
#include "session/rtt_estimator.h"

namespace thc {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(RttEstimator, BackOffEndsWithAResultInTheUsualTime) {
  RttEstimator rtt;
  rtt.sample(Duration(1'000));
  const Duration timeout = rtt.timeout(0);
  for (int i = 0; i < 5; ++i) {
    rtt.back_off(kStart + std::chrono::seconds(i));
  }
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
  packets[0].racks = 2;  // what the rack's server has sent up can be lost
  EXPECT_LT(losses.loss_time(packets[0]), noticed + Duration(50'000));
}

}  // namespace
}  // namespace thc
