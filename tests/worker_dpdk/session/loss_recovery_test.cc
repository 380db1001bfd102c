// Rate and repetitions with packets that are lost, doubled or overtaken: workers and a server on links of a rate and a
// delay, in the test's own time.
#include <gtest/gtest.h>

#include <map>

#include "engine_fixture.h"

namespace thc::testing {
namespace {

struct Path {
  Faults faults;       // `reorder`: these packets are late by up to `late_by`
  Duration delay{50};  // one way
  Duration late_by{100};
  std::size_t packets_per_tick = 8;  // that the server handles
};

constexpr Duration kTick{10};

struct Outcome {
  double packets_per_us = 0;
  std::size_t sent = 0;
  std::size_t lost = 0;  // up and down
  std::size_t repeated = 0;
  bool exact = true;
};

// A job over such paths. Datagrams arrive by their times; the server takes so many a tick.
class SlowNetwork {
 public:
  SlowNetwork(const SessionConfig& config, MemoryServer& server, const Path& path, std::uint64_t seed)
      : server_(server), path_(path), random_(seed) {
    for (std::uint8_t worker = 0; worker < config.num_workers; ++worker) {
      SessionConfig own = config;
      own.worker_id = worker;
      ios.push_back(std::make_unique<MemoryIo>());
      states_.push_back(std::make_unique<SessionState>(1));
      engines.push_back(
          std::make_unique<SessionEngine>(resolve(own, 65507), *ios.back(), *states_.back(), worker + 1U, now));
    }
  }

  void tick() {
    now += kTick;
    for (std::size_t worker = 0; worker < ios.size(); ++worker) {
      for (auto& [at, datagram] : take(down_[worker], SIZE_MAX)) {
        ios[worker]->arriving.push_back({kServer, std::move(datagram)});
      }
      engines[worker]->step(now);
      for (const Datagram& datagram : ios[worker]->take_sent()) put(up_, datagram);
    }
    for (const auto& [at, datagram] : take(up_, path_.packets_per_tick)) {
      server_.handle(datagram, [&](std::uint8_t worker, const Datagram& answer) { put(down_[worker], answer); });
    }
  }

  TimePoint now{std::chrono::hours(1)};
  std::size_t lost = 0;
  std::vector<std::unique_ptr<MemoryIo>> ios;
  std::vector<std::unique_ptr<SessionEngine>> engines;

 private:
  using Queue = std::multimap<TimePoint, Datagram>;

  bool happens(double chance) { return std::uniform_real_distribution<>()(random_) < chance; }

  void put(Queue& queue, const Datagram& datagram) {
    if (happens(path_.faults.loss)) {
      ++lost;
      return;
    }
    const bool twice = happens(path_.faults.duplicate);
    for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
      TimePoint at = now + path_.delay;
      if (happens(path_.faults.reorder)) {
        at += Duration(std::uniform_int_distribution<std::int64_t>(0, path_.late_by.count())(random_));
      }
      queue.emplace(at, datagram);
    }
  }

  std::vector<std::pair<TimePoint, Datagram>> take(Queue& queue, std::size_t most) {
    std::vector<std::pair<TimePoint, Datagram>> taken;
    while (taken.size() < most && !queue.empty() && queue.begin()->first <= now) {
      auto node = queue.extract(queue.begin());
      taken.emplace_back(node.key(), std::move(node.mapped()));
    }
    return taken;
  }

  MemoryServer& server_;
  const Path path_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SessionState>> states_;
  Queue up_;
  std::map<std::size_t, Queue> down_;
};

Outcome run(const Path& path, std::uint8_t workers, std::uint64_t seed = 1) {
  constexpr std::size_t kPackets = 30'000;
  const SessionConfig config = resolve(test_config(4, workers), 65507);
  MemoryServer server(pool_config(config, 1024, 128), config.table, 64U << 20);
  SlowNetwork network(config, server, path, seed);
  std::vector<Push> pushes;
  for (std::uint8_t worker = 0; worker < workers; ++worker) {
    pushes.emplace_back(std::uint16_t{0}, 64 * kPackets, config, worker);
  }
  for (int i = 0; i < 100'000 && !std::ranges::all_of(network.engines, [](auto& e) { return e->connected(); }); ++i) {
    network.tick();
  }
  network.lost = 0;
  const TimePoint start = network.now;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    network.engines[worker]->submit(pushes[worker].operation, network.now);
  }
  const auto done = [](const Push& push) { return push.operation->done(); };
  for (int i = 0; i < 4'000'000 && !std::ranges::all_of(pushes, done); ++i) network.tick();
  Outcome outcome{.lost = network.lost};
  outcome.packets_per_us = static_cast<double>(kPackets) / static_cast<double>(elapsed(start, network.now).count());
  std::vector<const Push*> all;
  for (const Push& push : pushes) all.push_back(&push);
  const auto expected = expected_aggregate(all, 64 * kPackets, config);
  for (std::size_t worker = 0; worker < workers; ++worker) {
    outcome.sent += network.engines[worker]->counters()[Count::kCodesSent];
    outcome.repeated += network.engines[worker]->counters()[Count::kRetransmissions];
    outcome.exact = outcome.exact && !pushes[worker].operation->failure() && pushes[worker].aggregate == expected;
  }
  return outcome;
}

/// A share of the rate without faults; sums must be exact.
class LossRecovery : public ::testing::TestWithParam<std::uint8_t> {
 protected:
  void run_with(const Faults& faults) {
    Path path{.faults = {}};
    const double lossless = run(path, GetParam()).packets_per_us;
    path.faults = faults;
    outcome = run(path, GetParam());
    EXPECT_TRUE(outcome.exact);
    share = outcome.packets_per_us / lossless;
  }
  double repeated_per_lost() const { return static_cast<double>(outcome.repeated) / static_cast<double>(outcome.lost); }
  /// When a packet of one worker is lost, the others do not know that it is not theirs.
  double spread() const { return GetParam() / 2.0; }

  Outcome outcome;
  double share = 0;
};

INSTANTIATE_TEST_SUITE_P(Workers, LossRecovery, ::testing::Values(std::uint8_t{2}, std::uint8_t{4}));

TEST_P(LossRecovery, OfOneInTenThousandCostsNothing) {
  run_with({.loss = 0.0001});
  EXPECT_GE(share, 0.95);
}

TEST_P(LossRecovery, OfOneInAThousand) {
  run_with({.loss = 0.001});
  EXPECT_GE(share, 0.90);
}

TEST_P(LossRecovery, OfOneInAHundred) {
  run_with({.loss = 0.01});
  EXPECT_GE(share, 0.75);
  EXPECT_LE(repeated_per_lost(), 2 * spread());
}

TEST_P(LossRecovery, OfThreeInAHundred) {
  run_with({.loss = 0.03});
  EXPECT_GE(share, 0.50);
  EXPECT_LE(repeated_per_lost(), 2 * spread());
}

TEST_P(LossRecovery, WhatIsLateIsNotRepeatedForLong) {
  run_with({.reorder = 0.25});
  EXPECT_GE(share, 0.90);
  EXPECT_LE(static_cast<double>(outcome.repeated), 0.02 * static_cast<double>(outcome.sent));
}

TEST_P(LossRecovery, WhatIsLateOrTwiceCausesNoStorm) {
  run_with({.loss = 0.01, .duplicate = 0.10, .reorder = 0.25});
  EXPECT_GE(share, 0.70);
  EXPECT_LE(repeated_per_lost(), 3 * spread());
}

TEST_P(LossRecovery, CopiesAreNoReasonToRepeat) {
  run_with({.duplicate = 0.25});
  EXPECT_EQ(outcome.repeated, 0U);
}

}  // namespace
}  // namespace thc::testing
