// Ways that change, that others use, with hardly a queue, or for many workers. Each test prints its rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "simulation/scenario.h"

namespace thc::simulation {
namespace {

constexpr double kMbit = 1e6;

/// Three workers and a server of its own at 5 Mb/s, with 8 ms of round trip and a queue of 50 ms.
Scenario way(std::string name) {
  return {.name = std::move(name),
          .workers = 3,
          .rate_bps = 5 * kMbit,
          .one_way_delay_s = 4e-3,
          .queue_bytes = 31'250,
          .parameters = 150'000,
          .partitions = 3,
          .idle_s = .02,
          .jitter_s = 2e-3,
          .back_pressure = false,
          .wake_s = 100e-6};
}

Outcome print_row(const Scenario& scenario) {
  const double ideal_s = ideal_of(scenario).step_s();
  const Outcome outcome = run(scenario);
  std::printf("%-40s %7.3f s x", scenario.name.c_str(), ideal_s);
  for (const double step_s : outcome.step_s) std::printf(" %.2f", step_s / ideal_s);
  std::printf(" | repeats %.1f %% drops %lu lost %lu own %.2f tcp %.2f %s\n", 100 * outcome.repeated(),
              static_cast<unsigned long>(outcome.dropped), static_cast<unsigned long>(outcome.lost), outcome.own_share,
              outcome.competitor_share, outcome.problem.c_str());
  std::fflush(stdout);
  EXPECT_EQ(outcome.problem, "") << scenario.name;
  EXPECT_EQ(outcome.rejoins, 0U) << scenario.name;
  return outcome;
}

void expect_median(const Scenario& scenario, double factor) {
  const Outcome outcome = print_row(scenario);
  EXPECT_LE(outcome.median_s(), factor * ideal_of(scenario).step_s()) << scenario.name;
}

// The round trip grows from 8 to 100 ms at the begin of the third step.
void expect_found(Scenario scenario) {
  scenario.later_one_way_delay_s = 50e-3;
  const double ideal_s = ideal_of(scenario).step_s();
  const Outcome outcome = print_row(scenario);
  ASSERT_EQ(outcome.step_s.size(), scenario.steps);
  const double after_s = outcome.step_s[scenario.route_change_step];
  // A repeat that is lost again makes a step of a second a third longer.
  const double by_chance = scenario.loss > 0 ? 1.4 : 1;
  EXPECT_LE(after_s, 2 * by_chance * ideal_s) << scenario.name;
  std::vector<double> later(outcome.step_s.begin() + static_cast<std::ptrdiff_t>(scenario.route_change_step) + 1,
                            outcome.step_s.end());
  std::ranges::sort(later);
  EXPECT_LE(later[later.size() / 2], 1.4 * ideal_s) << scenario.name;
  EXPECT_LE(later.back(), 1.4 * by_chance * ideal_s) << scenario.name;
}

TEST(Ways, RouteChanges) {
  Scenario scenario = way("8 -> 100 ms, 5 Mb/s");
  scenario.steps = 10;
  expect_found(scenario);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    scenario.name = "8 -> 100 ms, 5 Mb/s, .2 %";
    scenario.loss = .004;
    scenario.steps = 17;
    scenario.seed = seed;
    expect_found(scenario);
  }
  scenario = way("8 -> 100 ms, 50 Mb/s");
  scenario.rate_bps = 50 * kMbit;
  scenario.queue_bytes = 312'500;
  scenario.parameters = 1'500'000;
  scenario.steps = 10;
  expect_found(scenario);
}

TEST(Ways, OthersUseThem) {
  for (const Growth growth : {Growth::kCubic, Growth::kNewReno}) {
    for (const Competitor competitor : {Competitor::kFromServer, Competitor::kToServer, Competitor::kBothWays}) {
      Scenario scenario = way(std::string(growth == Growth::kCubic ? "CUBIC" : "NewReno") +
                              (competitor == Competitor::kFromServer ? " from the server"
                               : competitor == Competitor::kToServer ? " to the server"
                                                                     : ", 3 up and 1 down"));
      scenario.competitor = competitor;
      scenario.growth = growth;
      scenario.steps = 8;
      const Outcome outcome = print_row(scenario);
      EXPECT_GE(outcome.own_share, .3) << scenario.name;
      EXPECT_GE(outcome.competitor_share, .1) << scenario.name;
    }
  }
}

TEST(Ways, ManyWorkersShareThem) {
  for (const double rate_bps : {5 * kMbit, 50 * kMbit}) {
    Scenario scenario = way("64 workers, server at " + std::to_string(static_cast<int>(rate_bps / kMbit)) + " Mb/s");
    scenario.workers = 64;
    scenario.rate_bps = 1e9;
    scenario.server_factor = rate_bps / scenario.rate_bps;
    scenario.queue_bytes = static_cast<std::size_t>(rate_bps / 160);
    scenario.one_way_delay_s = rate_bps < 10 * kMbit ? 40e-3 : 4e-3;
    scenario.parameters = rate_bps < 10 * kMbit ? 4'096 : 30'000;
    scenario.partitions = 1;
    scenario.steps = 6;
    scenario.slots = 512;
    expect_median(scenario, 2);
  }
}

TEST(Ways, HardlyAQueue) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const std::size_t policer_bytes : {3'000, 15'000}) {
      Scenario scenario = way("policer of " + std::to_string(policer_bytes / 1000) + " kB");
      scenario.policer_bytes = policer_bytes;
      scenario.seed = seed;
      expect_median(scenario, 2.5);
    }
    Scenario scenario = way("queue of 5 packets");
    scenario.queue_bytes = 5 * 1500;
    scenario.seed = seed;
    expect_median(scenario, 2.5);
    scenario.name = "queue of 5 packets, 40 ms";
    scenario.one_way_delay_s = 20e-3;
    expect_median(scenario, 2.5);
    scenario.one_way_delay_s = 4e-3;
    scenario.name = "queue of 5 packets, three servers";
    scenario.servers = 3;
    scenario.colocated = true;
    expect_median(scenario, 2.5);
  }
}

TEST(Ways, Slow) {
  for (const double rate_bps : {100e3, 200e3, 400e3}) {
    Scenario scenario = way("4 colocated at " + std::to_string(static_cast<int>(rate_bps / 1e3)) + " kb/s");
    scenario.workers = scenario.servers = 4;
    scenario.colocated = true;
    scenario.rate_bps = rate_bps;
    scenario.queue_bytes = 30'000;
    scenario.parameters = static_cast<std::size_t>(rate_bps * .12);
    scenario.partitions = 4;
    expect_median(scenario, 2);
  }
}

TEST(Ways, LossEachWay) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Scenario scenario = way("10 % each way");
    scenario.loss = .1;
    scenario.parameters = 60'000;
    scenario.seed = seed;
    expect_median(scenario, 2.5);
    scenario = way("5 % each way, 100 ms");
    scenario.loss = .05;
    scenario.one_way_delay_s = 50e-3;
    scenario.seed = seed;
    expect_median(scenario, 2.5);
  }
}

}  // namespace
}  // namespace thc::simulation
