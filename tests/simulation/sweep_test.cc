// A thousand random topologies: no collapse, no starvation. --gtest_filter='*Sweep*/0' with THC_SIMULATION_SEED=n runs
// and prints one alone, with THC_SIMULATION_PRINT=1 a hundred.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "simulation/scenario.h"

namespace thc::simulation {
namespace {

constexpr std::uint64_t kSeeds = 1000;
constexpr std::uint64_t kParts = 10;
// Packets of a run, both ways: as many as fit the time of the tests.
constexpr double kPackets = 6000;
constexpr double kSteps = 4;
constexpr double kLongestStep = 5;  // seconds
constexpr double kCompetitorPackets = 10'000;
constexpr double kCodesPerPacket = 1024;
constexpr double kPacketBits = 8 * (kCodesPerPacket + 90);

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  bool chance(double chance) { return uniform(0, 1) < chance; }
  double uniform(double low, double high) { return std::uniform_real_distribution<>(low, high)(random_); }
  /// As likely between 1 and 10 as between 10 and 100.
  double over(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }

 private:
  std::mt19937_64 random_;
};

Scenario random_scenario(std::uint64_t seed) {
  Random random(seed);
  Scenario s{.name = "seed " + std::to_string(seed), .seed = seed};
  s.workers = static_cast<std::size_t>(random.over(1, 65));
  s.servers = static_cast<std::size_t>(random.over(1, 9));
  s.colocated = s.servers <= s.workers && random.chance(.5);
  s.rate_bps = random.over(1e6, 100e9);
  s.one_way_delay_s = random.over(10e-6, 300e-3);
  // Ten packets, or one of each worker, who all begin at once, up to a second.
  const double shortest_bytes = std::max(10.0, static_cast<double>(s.workers)) * 1'500;
  s.queue_bytes = static_cast<std::size_t>(random.over(shortest_bytes, std::max(s.rate_bps / 8, shortest_bytes + 1)));
  s.loss = random.chance(.5) ? 0 : random.over(1e-4, .05);
  s.mark_fraction = random.chance(.25) ? random.uniform(.05, .5) : 0;
  s.slow_host_factor = s.rate_bps >= 10e6 && random.chance(.125) ? .1 : 1;
  s.back_pressure = random.chance(.75);
  s.idle_s = random.over(1e-3, 1);
  s.jitter_s = random.over(10e-6, 10e-3);
  if (random.chance(.25)) {
    s.wake_s = random.over(1e-6, 50e-6);
    s.packet_s = random.over(1e-7, 2e-6);
  }
  s.steps = static_cast<std::size_t>(kSteps);
  // Some round trips of the packets that the way holds, as far as time allows.
  const double held = s.rate_bps * 2 * s.one_way_delay_s / kPacketBits;
  const double most = std::max(kPackets / 2 / kSteps / static_cast<double>(s.workers), 4.0);
  const double packets = std::clamp(held * random.over(1, 20), std::min(50.0, most), most);
  s.parameters = static_cast<std::size_t>(packets * kCodesPerPacket);
  s.parameters = std::max(std::min(s.parameters, static_cast<std::size_t>(static_cast<double>(s.parameters) *
                                                                          kLongestStep / ideal_of(s).step_s())),
                          static_cast<std::size_t>(2 * kCodesPerPacket));
  s.slots = s.workers * s.servers > 32 ? 512 : 0;  // each worker's slots for each server cost memory
  const Ideal ideal = ideal_of(s);
  s.straggler_s = random.chance(.125) ? random.uniform(0, 2) * ideal.step_s() : 0;
  const double running_s = kSteps * (3 * ideal.step_s() + s.idle_s);
  if (s.rate_bps * running_s / 12'000 < kCompetitorPackets && random.chance(.25)) {
    s.competitor = random.chance(.5) ? Competitor::kToServer : Competitor::kFromServer;
    s.growth = random.chance(.5) ? Growth::kNewReno : Growth::kCubic;
  }
  return s;
}

/// Rounds in which a window of ten packets has grown to a worker's packets for one server.
double slow_start_rounds(const Scenario& s) {
  const double packets = static_cast<double>(s.parameters) / kCodesPerPacket / static_cast<double>(s.servers);
  return std::max(std::log2(packets / 10), 0.0);
}

/// The rough duration of a step: the ideal, slow start, and the queue that a competitor fills, in each of some round
/// trips.
double expected_s(const Scenario& s) {
  const Ideal ideal = ideal_of(s);
  const double queue_s = 8 * static_cast<double>(s.queue_bytes) / (s.rate_bps * s.slow_host_factor);
  return ideal.step_s() + slow_start_rounds(s) * ideal.round_trip_s +
         (s.competitor == Competitor::kNone ? 0 : 4 * queue_s);
}

/// The number of times that a queue holds the first windows, which all workers send to a server, and all servers to a
/// worker, at once and before anybody knows the way's rate.
double room(const Scenario& s) {
  const auto queue_bytes = static_cast<double>(s.queue_bytes);
  return std::min(queue_bytes / (10.0 * 600 * static_cast<double>(s.workers)),
                  queue_bytes / (10.0 * 1100 * static_cast<double>(s.servers)));
}

/// Limits of a step's duration, as a multiple of the expected one and an addition; and the bytes that may be sent
/// beyond the needed ones, as a part. If the first windows drown in the queue, or packets get lost by chance, a step of
/// few packets is over some timeouts of up to .2 s later: no collapse, which would be minutes.
struct Bounds {
  double factor;
  double more_s;
  double excess;
};
Bounds bounds_of(const Scenario& s) {
  if (s.loss > 0) return {.factor = 10, .more_s = 2, .excess = 1};
  if (s.competitor != Competitor::kNone || room(s) < 4) return {.factor = 6, .more_s = 2, .excess = .6};
  return {.factor = 2, .more_s = 0, .excess = .25};
}

void print(const Scenario& s, const Outcome& o) {
  std::printf(
      "%s expected_s=%.4f first=%.2f median=%.2f worst=%.2f repeats=%.1f%% excess=%.1f%% dropped=%lu lost=%lu "
      "unanswered_ms=%u spread=%.1f%% own=%.2f tcp=%.2f events=%lu | %s | %s\n",
      s.name.c_str(), expected_s(s), o.step_s.empty() ? 0 : o.step_s[0] / expected_s(s), o.median_s() / expected_s(s),
      o.worst_s() / expected_s(s), 100 * o.repeated(), 100 * o.excess, static_cast<unsigned long>(o.dropped),
      static_cast<unsigned long>(o.lost), o.unanswered_ms, 100 * o.worst_spread, o.own_share, o.competitor_share,
      static_cast<unsigned long>(o.events), s.text().c_str(), o.problem.c_str());
}

void check(std::uint64_t seed, bool prints) {
  const Scenario s = random_scenario(seed);
  SCOPED_TRACE("THC_SIMULATION_SEED=" + std::to_string(seed) + ": " + s.text());
  const Outcome outcome = run(s);
  if (prints) print(s, outcome);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_EQ(outcome.rejoins, 0U);
  const Bounds bounds = bounds_of(s);
  EXPECT_LE(outcome.longest_s(), bounds.factor * expected_s(s) + bounds.more_s) << "expected " << expected_s(s);
  EXPECT_LE(outcome.excess, bounds.excess);
  if (room(s) >= 1) {
    EXPECT_LT(outcome.unanswered_ms, 10'000U) << "failover would leave a server that lives";
  }
  const bool alike = !s.colocated && s.slow_host_factor == 1 && s.straggler_s == 0;
  if (bounds.more_s == 0 && alike) {
    EXPECT_LE(outcome.worst_spread, .25) << "some workers starve";
  }
  if (outcome.own_share > .5) {
    EXPECT_GT(outcome.competitor_share, .02) << "the competitor starves";
  }
}

class Sweep : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Sweep, NoCollapse) {
  if (const char* seed = std::getenv("THC_SIMULATION_SEED"); seed != nullptr) {
    return check(std::strtoull(seed, nullptr, 10), true);
  }
  const bool prints = std::getenv("THC_SIMULATION_PRINT") != nullptr;
  for (std::uint64_t i = 0; i < kSeeds / kParts; ++i) check(GetParam() * kSeeds / kParts + i, prints);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Sweep, ::testing::Range(std::uint64_t{0}, kParts));

}  // namespace
}  // namespace thc::simulation
