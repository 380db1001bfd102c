// Injected faults have the asked rates, are the same for a seed, and never change a datagram.
#include "io/faulty_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "io/udp_io.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::uint32_t kLoopback = 0x7f000001;
constexpr std::uint32_t kCount = 20000;

using Arrivals = std::vector<std::uint32_t>;

/// Sends kCount numbered datagrams in batches, from or to the faulty end; checks contents, returns the numbers.
Arrivals run(const FaultConfig& config, bool from_faulty) {
  auto inner = make_udp_io({.local = {kLoopback, 0}});
  const Endpoint to = inner->local();
  FaultyIo receiver(std::move(inner), from_faulty ? FaultConfig{} : config);
  FaultyIo sender(make_udp_io({.local = {kLoopback, 0}}), from_faulty ? config : FaultConfig{});
  Arrivals arrivals;
  std::array<RxPacket, 40> packets;
  std::array<std::uint32_t, 100> payload{};
  const auto drain = [&] {
    for (std::size_t n = receiver.receive(packets); n > 0; n = receiver.receive(packets)) {
      for (std::size_t i = 0; i < n; ++i) {
        std::array<std::uint32_t, 101> words{};
        ASSERT_EQ(packets[i].size_bytes, sizeof words);
        std::memcpy(words.data(), packets[i].data, sizeof words);
        ASSERT_EQ(words[100], words[0] * 3) << "payload changed";
        arrivals.push_back(words[0]);
      }
    }
  };
  for (std::uint32_t i = 0; i < kCount; ++i) {
    payload[99] = i * 3;
    std::array<std::uint8_t, 4> header;
    std::memcpy(header.data(), &i, sizeof i);
    sender.send(to, header, {reinterpret_cast<const std::uint8_t*>(payload.data()), sizeof payload});
    sender.flush();  // payload changes next
    if (i % 32 == 31) drain();
  }
  sender.wait(std::chrono::microseconds(0));
  drain();
  return arrivals;
}

void expect_rate(std::uint64_t count, double rate) {
  const double expected = rate * kCount;
  EXPECT_NEAR(static_cast<double>(count), expected, 5 * std::sqrt(expected) + 1);
}

TEST(FaultyIoTest, WithoutRatesNothingHappens) {
  const Arrivals arrivals = run({}, true);
  ASSERT_EQ(arrivals.size(), kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(arrivals[i], i);
}

class FaultyDirectionTest : public testing::TestWithParam<bool> {};

TEST_P(FaultyDirectionTest, RatesAreKeptAndEveryArrivalIsAccountedFor) {
  const FaultConfig rates{.drop = 0.02, .duplicate = 0.01, .reorder = 0.03, .seed = 11};
  const Arrivals arrivals = run(rates, GetParam());
  std::vector<int> seen(kCount);
  std::uint32_t repeated = 0;
  std::uint32_t late = 0;  // and never seen before: held back, not doubled
  std::uint32_t highest = 0;
  for (const std::uint32_t number : arrivals) {
    ASSERT_LE(++seen[number], 2);
    repeated += seen[number] == 2 ? 1 : 0;
    late += seen[number] == 1 && number < highest ? 1 : 0;
    highest = std::max(highest, number);
  }
  expect_rate(static_cast<std::uint64_t>(std::ranges::count(seen, 0)), rates.drop);
  expect_rate(repeated, rates.duplicate);
  expect_rate(late, rates.reorder);
  EXPECT_EQ(run(rates, GetParam()), arrivals) << "the same seed must give the same faults";
}

INSTANTIATE_TEST_SUITE_P(Directions, FaultyDirectionTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "send" : "receive"; });

TEST(FaultyIoTest, RefusesRatesThatAreNoProbabilities) {
  EXPECT_THROW(FaultyIo(make_udp_io({.local = {kLoopback, 0}}), {.drop = 0.6, .duplicate = 0.6}), ConfigurationError);
  EXPECT_THROW(FaultyIo(make_udp_io({.local = {kLoopback, 0}}), {.drop = -0.1}), ConfigurationError);
}

}  // namespace
}  // namespace thc::io
