// A thousand random topologies: no collapse, no starvation. THC_SIMULATION_SEED=n runs and prints that one alone.
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
// Of the packets of a run, both ways: what fits the time of the tests.
constexpr double kPackets = 8000;
constexpr double kSteps = 4;
constexpr double kLongestStep = 5;  // seconds
constexpr double kCompetitorPackets = 20'000;
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
  s.queue_bytes = static_cast<std::size_t>(random.over(15'000, std::max(s.rate_bps / 8, 15'001.0)));
  s.loss = random.chance(.5) ? 0 : random.over(1e-4, .05);
  s.mark_fraction = random.chance(.25) ? random.uniform(.05, .5) : 0;
  s.slow_host_factor = s.rate_bps >= 10e6 && random.chance(.125) ? .1 : 1;
  s.back_pressure = random.chance(.75);
  s.idle_s = random.over(1e-3, 1);
  if (random.chance(.25)) {
    s.wake_s = random.over(1e-6, 50e-6);
    s.packet_s = random.over(1e-7, 2e-6);
  }
  s.steps = static_cast<std::size_t>(kSteps);
  // Some round trips of what the way holds, as far as there is time for.
  const double held = s.rate_bps * 2 * s.one_way_delay_s / kPacketBits;
  const double most = std::max(kPackets / 2 / kSteps / static_cast<double>(s.workers), 4.0);
  const double packets = std::clamp(held * random.over(1, 20), std::min(50.0, most), most);
  s.parameters = static_cast<std::size_t>(packets * kCodesPerPacket);
  s.parameters = std::max(std::min(s.parameters, static_cast<std::size_t>(static_cast<double>(s.parameters) * kLongestStep /
                                                                          ideal_of(s).step_s())),
                          static_cast<std::size_t>(2 * kCodesPerPacket));
  s.slots = s.workers * s.servers > 32 ? 512 : 0;  // what each worker has for each server costs memory
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

void check(std::uint64_t seed, bool print) {
  const Scenario s = random_scenario(seed);
  const Outcome outcome = run(s);
  const Ideal ideal = ideal_of(s);
  const double reference_s = ideal.step_s() + slow_start_rounds(s) * ideal.round_trip_s;
  if (print) {
    std::printf(
        "seed %4lu ref %8.4f first %6.2f median %6.2f worst %6.2f repeats%% %6.2f drops %6lu lost %5lu spread%% %5.1f "
        "own %.2f tcp %.2f ev %7lu | %s | %s\n",
        static_cast<unsigned long>(seed), reference_s, outcome.step_s.empty() ? 0 : outcome.step_s[0] / reference_s,
        outcome.median_s() / reference_s, outcome.worst_s() / reference_s, 100 * outcome.repeated(),
        static_cast<unsigned long>(outcome.dropped + outcome.dropped_by_hosts),
        static_cast<unsigned long>(outcome.lost), 100 * outcome.worst_spread, outcome.own_share,
        outcome.competitor_share, static_cast<unsigned long>(outcome.events), s.text().c_str(),
        outcome.problem.c_str());
  }
  EXPECT_EQ(outcome.problem, "") << "seed " << seed << ": " << s.text();
}

class Sweep : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Sweep, NoCollapse) {
  if (const char* seed = std::getenv("THC_SIMULATION_SEED"); seed != nullptr) {
    return check(std::strtoull(seed, nullptr, 10), true);
  }
  const bool print = std::getenv("THC_SIMULATION_PRINT") != nullptr;
  for (std::uint64_t i = 0; i < kSeeds / kParts; ++i) {
    check(GetParam() * kSeeds / kParts + i, print);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Sweep, ::testing::Range(std::uint64_t{0}, kParts));

}  // namespace
}  // namespace thc::simulation
