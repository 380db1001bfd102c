// Several workers and the real slot state machine: every worker gets exactly the sum, whatever the network does.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <tuple>

#include "engine_fixture.h"

namespace thc::testing {
namespace {

/// Pushes partitions of some sizes by every worker, several in flight; checks every aggregate.
void expect_exact_sums(Workers& workers, const std::vector<std::size_t>& sizes, unsigned steps = 1) {
  const SessionConfig& config = workers.engines[0]->config();
  for (unsigned step = 0; step < steps; ++step) {
    std::vector<std::vector<std::unique_ptr<Push>>> pushes(config.num_workers);
    for (std::size_t worker = 0; worker < pushes.size(); ++worker) {
      for (std::size_t p = 0; p < sizes.size(); ++p) {
        const std::uint64_t seed = (step * 100 + p) * 100 + worker;
        pushes[worker].push_back(std::make_unique<Push>(static_cast<std::uint16_t>(p), sizes[p], config, seed));
        workers.submit(worker, pushes[worker][p]->operation);
      }
    }
    ASSERT_TRUE(workers.run_until([&] {
      return std::all_of(pushes.begin(), pushes.end(), [](const auto& own) {
        return std::all_of(own.begin(), own.end(), [](const auto& push) { return push->operation->done(); });
      });
    })) << "nothing moves";
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      std::vector<const Push*> all;
      for (const auto& own : pushes) all.push_back(own[p].get());
      const auto expected = expected_aggregate(all, sizes[p], config);
      for (const Push* push : all) {
        ASSERT_FALSE(push->operation->failure()) << push->operation->failure()->message;
        ASSERT_EQ(push->aggregate, expected);
        for (const std::uint8_t contributions : push->contributions) ASSERT_EQ(contributions, config.num_workers);
      }
    }
  }
}

class Aggregation : public ::testing::TestWithParam<std::tuple<unsigned, unsigned, unsigned>> {};

TEST_P(Aggregation, ExactSumsOfAllSizes) {
  const auto [bits, value_bits, n] = GetParam();
  if (test_table(bits).value_bits_for(n) > value_bits) GTEST_SKIP() << "overflows";
  const SessionConfig config = resolve(test_config(bits, static_cast<std::uint8_t>(n), value_bits), 65507);
  MemoryServer server(pool_config(config), config.table);
  Workers workers(config, server);
  ASSERT_TRUE(workers.connect());
  expect_exact_sums(workers, {0, 1, 63, 64, 65, 127, 1024, 5001}, 3);
}

INSTANTIATE_TEST_SUITE_P(AllWidths, Aggregation,
                         ::testing::Combine(::testing::Values(1U, 2U, 3U, 4U, 8U), ::testing::Values(8U, 16U),
                                            ::testing::Values(1U, 2U, 4U, 8U)));

/// Seeds of disturbances, and shards of the server; norm slots are fewer than shards, so that some shards have none.
class Disturbed : public ::testing::TestWithParam<std::tuple<std::uint64_t, std::uint16_t>> {};

TEST_P(Disturbed, ExactSums) {
  const auto [seed, shards] = GetParam();
  const SessionConfig config = resolve(test_config(4, 4), 65507);
  MemoryServer server(pool_config(config, 23, 2), config.table, 1U << 13, shards);
  Workers workers(config, server, {.loss = 0.05, .duplicate = 0.05, .reorder = 0.05}, seed);
  ASSERT_TRUE(workers.connect());
  expect_exact_sums(workers, {1000, 0, 4097, 64, 1, 20'000}, 3);
  EXPECT_GT(workers.engines[0]->counters()[Count::kRetransmissions], 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Disturbed,
                         ::testing::Combine(::testing::Range(std::uint64_t{0}, std::uint64_t{5}),
                                            ::testing::Values(std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{3},
                                                              std::uint16_t{4}, std::uint16_t{7})));

TEST(Aggregation, MaximumOfNorms) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  MemoryServer server(pool_config(config), config.table);
  Workers workers(config, server);
  ASSERT_TRUE(workers.connect());
  std::vector<std::vector<float>> norms = {std::vector<float>(100, 1.5F), std::vector<float>(100, 0.25F)};
  norms[1][7] = 1e30F;
  norms[0][8] = kInfinity;
  norms[1][9] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> maxima(2, std::vector<float>(100));
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t worker = 0; worker < 2; ++worker) {
    operations.push_back(Operation::norms(0, norms[worker], maxima[worker], 16));
    workers.submit(worker, operations[worker]);
  }
  ASSERT_TRUE(workers.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  for (const auto& maximum : maxima) {
    EXPECT_EQ(maximum[0], 1.5F);
    EXPECT_EQ(maximum[7], 1e30F);
    EXPECT_EQ(maximum[8], kInfinity);
    EXPECT_NE(maximum[9], maximum[9]);
    EXPECT_EQ(maximum[99], 1.5F);
  }
}

class Restart : public ::testing::TestWithParam<std::uint16_t> {};

TEST_P(Restart, EndsInTheRightSumOrAnError) {
  unsigned completed = 0;
  std::uint64_t rejoins = 0;
  for (int turns = 0; turns < 30; ++turns) {
    const SessionConfig config = resolve(test_config(4, 2), 65507);
    MemoryServer server(pool_config(config), config.table, 1U << 20, GetParam());
    Workers workers(config, server);
    ASSERT_TRUE(workers.connect());
    std::vector<std::unique_ptr<Push>> pushes;
    for (std::size_t worker = 0; worker < 2; ++worker) {
      pushes.push_back(std::make_unique<Push>(std::uint16_t{0}, 64 * 100, config, worker));
      workers.submit(worker, pushes[worker]->operation);
    }
    for (int i = 0; i < turns; ++i) workers.turn();
    server.restart();
    ASSERT_TRUE(workers.run_until([&] { return pushes[0]->operation->done() && pushes[1]->operation->done(); }));
    const auto expected = expected_aggregate({pushes[0].get(), pushes[1].get()}, 64 * 100, config);
    for (const auto& push : pushes) {
      if (!push->operation->failure()) {
        EXPECT_EQ(push->aggregate, expected);
        ++completed;
      } else {
        EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kRestart) << push->operation->failure()->message;
      }
    }
    for (const auto& engine : workers.engines) rejoins += engine->counters()[Count::kRejoins];
  }
  EXPECT_GT(completed, 0U);
  EXPECT_GT(rejoins, 0U);
}

INSTANTIATE_TEST_SUITE_P(Shards, Restart, ::testing::Values(1, 2, 3));

TEST(Aggregation, LossTolerantSumsAreExactOrZero) {
  SessionConfig config = test_config(4, 3);
  config.loss_tolerant = true;
  config = resolve(config, 65507);
  MemoryServer server(pool_config(config), config.table);
  Workers workers(config, server, {.loss = 0.02});
  ASSERT_TRUE(workers.connect());
  std::vector<std::unique_ptr<Push>> pushes;
  constexpr std::size_t kCount = 64 * 500;
  for (std::size_t worker = 0; worker < 3; ++worker) {
    pushes.push_back(std::make_unique<Push>(std::uint16_t{0}, kCount, config, worker));
    workers.submit(worker, pushes[worker]->operation);
  }
  ASSERT_TRUE(workers.run_until([&] {
    return std::all_of(pushes.begin(), pushes.end(), [](const auto& push) { return push->operation->done(); });
  }));
  const auto expected = expected_aggregate({pushes[0].get(), pushes[1].get(), pushes[2].get()}, kCount, config);
  std::size_t zeros = 0;
  for (const auto& push : pushes) {
    ASSERT_FALSE(push->operation->failure()) << push->operation->failure()->message;
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool has = push->contributions[i / 64] != 0;
      zeros += has ? 0 : 1;
      ASSERT_EQ(push->aggregate[i], has ? expected[i] : 0);
    }
  }
  EXPECT_GT(zeros, 0U);
  EXPECT_LT(zeros, kCount);
}

}  // namespace
}  // namespace thc::testing
