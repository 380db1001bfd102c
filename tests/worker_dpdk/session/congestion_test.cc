// The congestion control alone, in the test's own time: a way of a rate, a delay and a queue stands behind it.
#include <gtest/gtest.h>

#include <deque>

#include "session/congestion/control.h"

namespace thc {
namespace {

constexpr std::size_t kPacketBytes = 500;
constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr Duration kFastSendTime{5};  // 100 MB/s: at no pace where nothing is lost

/// Sends whatever it may over a link, and hears of each packet after a round trip.
class Congestion : public ::testing::Test {
 protected:
  Congestion() { control.open(kPacketBytes, kMostBytes, {.server_tells_last = true}); }

  /// What the control lets go now.
  std::size_t send_all() {
    std::size_t bytes = 0;
    for (control.on_waiting(kPacketBytes, now); control.can_send(kPacketBytes); control.on_waiting(kPacketBytes, now)) {
      link_free_at = std::max(link_free_at, now) + send_time;
      under_way.push_back({control.on_sent(kPacketBytes, now), now, link_free_at + round_trip + wait});
      bytes += kPacketBytes;
    }
    return bytes;
  }

  /// The next result; `last`: its packet was the last one. Until then packets go when pacing lets them.
  void answer(bool last = true) {
    while (control.next_send() < under_way.front().answered_at) {
      now = control.next_send();
      send_all();
    }
    const Packet packet = under_way.front();
    under_way.pop_front();
    now = std::max(now, packet.answered_at);
    control.on_round_trip(elapsed(packet.sent_at, now), last);
    control.on_answered(packet.mark, kPacketBytes, now);
  }

  /// Results and packets for so many answers.
  void exchange(std::size_t answers) {
    for (std::size_t i = 0; i < answers; ++i) {
      send_all();
      answer();
    }
  }

  /// The next packet gets lost, which the result of its repeat tells.
  void lose() {
    const Packet packet = under_way.front();
    under_way.pop_front();
    control.on_lost(packet.mark, kPacketBytes);
  }

  /// All results, and nothing more is sent.
  void drain() {
    for (; !under_way.empty(); under_way.pop_front()) {
      now = std::max(now, under_way.front().answered_at);
      control.on_answered(under_way.front().mark, kPacketBytes, now);
    }
  }

  struct Packet {
    std::uint64_t mark;
    TimePoint sent_at;
    TimePoint answered_at;
  };

  congestion::Control control;
  TimePoint now{std::chrono::hours(1)};
  TimePoint link_free_at{};
  Duration send_time{50};  // 10 MB/s
  Duration round_trip{10'000};
  Duration wait{0};  // for other workers
  std::deque<Packet> under_way;
};

TEST_F(Congestion, BeginsWithTenPackets) { EXPECT_EQ(send_all(), 10 * kPacketBytes); }

TEST_F(Congestion, LargePacketsBeginWithWhatTenOfEthernetHave) {
  control.open(8'192, kMostBytes, {.server_tells_last = true});
  EXPECT_EQ(control.window_bytes(), std::size_t{2 * 8'192});
}

TEST_F(Congestion, OnTheOwnHostAllMayBeUnderWay) {
  control.open(kPacketBytes, kMostBytes, {.server_tells_last = true, .is_own_host = true});
  EXPECT_EQ(send_all(), kMostBytes / kPacketBytes * kPacketBytes);
  exchange(100);
  for (int i = 0; i < 100; ++i) lose();
  exchange(100);
  EXPECT_EQ(control.window_bytes(), kMostBytes);
  EXPECT_EQ(control.next_send(), TimePoint::max()) << "at no pace";
}

TEST_F(Congestion, ALeafOnTheOwnHostHasAWayBehindIt) {
  control.open(kPacketBytes, kMostBytes, {.is_own_host = true});
  EXPECT_EQ(send_all(), 10 * kPacketBytes);
}

TEST_F(Congestion, DoublesUntilDeliveryGrowsNoMore) {
  exchange(100);
  EXPECT_GE(control.window_bytes(), 40 * kPacketBytes);
  exchange(20'000);
  const std::size_t product = 10 * 10'000;  // bytes a microsecond, microseconds
  EXPECT_GE(control.window_bytes(), product);
  EXPECT_LE(control.pipe_bytes(), 5 * product) << "no queue beyond some round trips";
}

TEST_F(Congestion, AFastLinkThatLosesNothingTakesAWindowAtOnce) {
  send_time = kFastSendTime;
  exchange(20'000);
  drain();
  now += std::chrono::seconds(1);
  EXPECT_GT(send_all(), std::size_t{64 * 1024});
  for (int i = 0; i < 100; ++i) {
    lose();
    send_all();
    answer();
  }
  drain();
  now += std::chrono::seconds(1);
  EXPECT_LE(send_all(), std::size_t{64 * 1024}) << "paced after losses";
}

TEST_F(Congestion, WhatWentWithoutAPaceIsNotOwedWhenTheLinkGetsSlow) {
  send_time = kFastSendTime;
  exchange(20'000);
  send_time = Duration(5'000);
  for (int i = 0; i < 20'000; ++i) {
    send_all();
    ASSERT_FALSE(under_way.empty()) << "waits for " << elapsed(now, control.next_send()).count() << " us";
    answer();
  }
}

TEST_F(Congestion, SendsNoLongBursts) {
  send_time = Duration(100);
  exchange(20'000);
  drain();
  now += std::chrono::seconds(1);
  EXPECT_LE(send_all(), std::size_t{64 * 1024});
  EXPECT_GT(control.next_send(), now);
  EXPECT_LT(control.next_send(), now + Duration(1'000));
}

TEST_F(Congestion, AWayThatGrowsLongerIsMeasuredAnew) {
  exchange(20'000);
  round_trip = Duration(100'000);
  const std::size_t product = 10 * 100'000;
  ASSERT_LT(control.window_bytes(), product);
  for (const TimePoint end = now + std::chrono::seconds(5); now < end;) exchange(1);
  EXPECT_GE(control.window_bytes(), product);
}

TEST_F(Congestion, ManyWorkersBeginWithFewPacketsEach) {
  control.open(kPacketBytes, kMostBytes, {.server_tells_last = true, .workers = 64});
  EXPECT_EQ(control.window_bytes(), 4 * kPacketBytes);
}

TEST_F(Congestion, KeepsItsWindowWhileNothingIsSent) {
  exchange(20'000);
  drain();
  const std::size_t before = control.window_bytes();
  now += std::chrono::seconds(100);
  send_all();
  EXPECT_EQ(control.window_bytes(), before);
}

TEST_F(Congestion, LossWithoutAQueueShrinksNothing) {
  exchange(100);
  const std::size_t before = control.window_bytes();
  for (int i = 0; i < 5; ++i) {
    send_all();
    lose();
    for (int k = 0; k < 60; ++k) {
      send_all();
      answer();
    }
  }
  EXPECT_GE(control.window_bytes(), before);
}

TEST_F(Congestion, LossWithAQueueShrinksOnceForAWindow) {
  exchange(20'000);  // there is a queue by now
  send_all();
  const std::size_t before = control.window_bytes();
  const std::size_t packets = under_way.size();
  lose();
  for (std::size_t i = 1; i < packets; ++i) {
    if (i == packets / 2) lose();
    send_all();
    answer();
  }
  EXPECT_LT(control.window_bytes(), before);
  EXPECT_GE(static_cast<double>(control.window_bytes()), 0.6 * static_cast<double>(before));
}

TEST_F(Congestion, MuchLossShrinksWithoutAQueue) {
  exchange(300);
  const std::size_t before = control.window_bytes();
  send_time = Duration(1);
  for (int i = 0; i < 10; ++i) {
    send_all();
    for (std::size_t k = under_way.size(); k > 0; --k) k % 2 == 0 ? lose() : answer();
  }
  EXPECT_LT(control.window_bytes(), before);
}

TEST_F(Congestion, MarksShrinkTheWindow) {
  exchange(20'000);
  const std::size_t before = control.window_bytes();
  for (std::size_t i = 3 * before / kPacketBytes; i > 0; --i) {
    control.on_marked();
    send_all();
    answer();
  }
  EXPECT_LE(static_cast<double>(control.window_bytes()), 0.85 * static_cast<double>(before));
}

// Results of packets that were not the last ones come when others have sent theirs, which is no queue.
TEST_F(Congestion, ASlowWorkerIsNoCongestion) {
  exchange(300);
  const std::size_t before = control.window_bytes();
  wait = Duration(200'000);
  for (int i = 0; i < 20; ++i) {
    send_all();
    for (std::size_t k = under_way.size(); k > 0; --k) answer(false);
  }
  EXPECT_GE(control.window_bytes(), before);
}

// The worker whose packets are last sets the pace. Four windows that all double meet in the server's queue of results.
TEST_F(Congestion, AWindowThatNobodyWaitedForDoesNotGrow) {
  for (int i = 0; i < 20'000; ++i) {
    send_all();
    answer(false);
  }
  EXPECT_LE(control.window_bytes(), 40 * kPacketBytes) << "one doubling after twenty packets";
  exchange(2'000);
  EXPECT_GE(control.window_bytes(), 160 * kPacketBytes) << "now this worker is the last one";
}

TEST_F(Congestion, AWorkerThatAQuorumGoesOnWithoutMayGrow) {
  control.open(kPacketBytes, kMostBytes, {.server_tells_last = true, .awaits_all = false});
  for (int i = 0; i < 2'000; ++i) {
    send_all();
    answer(false);
  }
  EXPECT_GE(control.window_bytes(), 160 * kPacketBytes);
}

TEST_F(Congestion, WhatIsSentAgainCountsAsUnderWay) {
  const std::size_t sent = send_all();
  control.on_sent(kPacketBytes, now);
  EXPECT_EQ(control.pipe_bytes(), sent + kPacketBytes);
  EXPECT_FALSE(control.can_send(kPacketBytes));
}

TEST_F(Congestion, ANoticeEmptiesThePipeButGrowsNothing) {
  for (int i = 0; i < 20; ++i) {
    send_all();
    now += Duration(20'000);
    control.on_answered(under_way.back().mark, 0, now);
    under_way.clear();
    EXPECT_EQ(control.pipe_bytes(), 0U);
  }
  EXPECT_EQ(control.window_bytes(), 10 * kPacketBytes);
}

TEST_F(Congestion, SilenceShrinksTheWindow) {
  exchange(1'000);
  const std::size_t before = control.window_bytes();
  control.on_timeout();
  EXPECT_EQ(control.window_bytes(), before) << "one timeout may be a slow worker's";
  control.on_timeout();
  EXPECT_LT(control.window_bytes(), before);
}

}  // namespace
}  // namespace thc
