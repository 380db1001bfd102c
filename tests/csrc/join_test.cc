#include "thc/join.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace thc {
namespace {

using std::chrono_literals::operator""ms;

constexpr std::uint64_t kNonce = 0x1122334455667788;
constexpr std::uint32_t kShard = 3;
constexpr Join::TimePoint kStart{1000ms};

Hello make_hello() {
  std::vector<std::uint16_t> values(16);
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  return {.job_id = 7,
          .worker_id = 2,
          .nonce = kNonce,
          .cookie = 0,
          .run = 99,
          .config = {.num_workers = 4,
                     .value_bits = 8,
                     .quorum = 4,
                     .settings_hash = 5,
                     .codes_per_packet = 1024,
                     .slots_asked = 0,
                     .table = LookupTable(4, values)}};
}

Join make_join(Join::Pace pace = {20ms, 500ms}) { return {make_hello(), kShard, pace, kStart}; }

wire::HelloPayload payload_of(const Join::Message& message) {
  wire::HelloPayload payload;
  std::memcpy(&payload, message.payload.data(), sizeof(payload));
  return payload;
}

/// A server's answer to the header of a HELLO.
wire::Header answer(const wire::Header& hello) {
  wire::Header header = hello;
  header.epoch = 10;
  return header;
}

/// Times of HELLOs until `end`, since kStart.
std::vector<std::chrono::milliseconds> hellos_until(Join& join, std::chrono::milliseconds end) {
  std::vector<std::chrono::milliseconds> times;
  for (std::chrono::milliseconds t{0}; t < end; t += 10ms) {
    if (!join.is_hello_due(kStart + t)) continue;
    join.say_hello(kStart + t);
    times.push_back(t);
  }
  return times;
}

TEST(Join, HelloIsWhatAServerParses) {
  Join join = make_join();
  const Join::Message message = join.say_hello(kStart);
  EXPECT_EQ(message.header.slot, kShard);
  EXPECT_EQ(message.header.epoch, 0U);
  std::vector<std::uint8_t> datagram(sizeof(message.header));
  std::memcpy(datagram.data(), &message.header, sizeof(message.header));
  datagram.insert(datagram.end(), message.payload.begin(), message.payload.end());
  const ParsedHello parsed = parse_hello(datagram, 1472);
  ASSERT_TRUE(std::holds_alternative<Hello>(parsed));
  const Hello& hello = std::get<Hello>(parsed);
  EXPECT_EQ(hello.job_id, 7);
  EXPECT_EQ(hello.worker_id, 2);
  EXPECT_EQ(hello.nonce, kNonce);
  EXPECT_EQ(hello.cookie, 0U);
  EXPECT_EQ(hello.run, 99U);
  EXPECT_EQ(difference(hello.config, make_hello().config), std::nullopt);
}

TEST(Join, AnEvenPaceStaysEven) {
  Join join = make_join({100ms, 100ms});
  EXPECT_EQ(hellos_until(join, 500ms), (std::vector{0ms, 100ms, 200ms, 300ms, 400ms}));
}

TEST(Join, AVerdictIsAskedForSoonAndOften) {
  Join join = make_join();
  hellos_until(join, 700ms);  // the next one would be at 1120 ms
  join.await_verdict(kStart + 700ms);
  EXPECT_EQ(join.next_hello(), kStart + 900ms);
  join.say_hello(kStart + 900ms);
  EXPECT_EQ(join.next_hello(), kStart + 1100ms);
}

TEST(Join, AVerdictDelaysNoHello) {
  Join join = make_join();
  join.say_hello(kStart);
  join.await_verdict(kStart);
  EXPECT_EQ(join.next_hello(), kStart + 20ms);
}

TEST(Join, AnotherProcessHasForgottenAll) {
  Join join = make_join();
  const wire::Header before = join.say_hello(kStart).header;
  join.take_challenge({}, wire::ChallengePayload{.cookie = std::uint64_t{17}});
  join.take_welcome(answer(before));
  join.begin_again(kNonce + 1, 100);
  EXPECT_FALSE(join.joined());
  EXPECT_EQ(join.epoch(), 0U);
  ASSERT_TRUE(join.is_hello_due(kStart));
  const Join::Message message = join.say_hello(kStart);
  EXPECT_EQ(payload_of(message).nonce, kNonce + 1);
  EXPECT_EQ(payload_of(message).run, 100U);
  EXPECT_EQ(payload_of(message).cookie, 0U);
  EXPECT_FALSE(join.is_awaited(answer(before)));
  EXPECT_TRUE(join.is_news(answer(message.header)));  // in any epoch
}

}  // namespace
}  // namespace thc
