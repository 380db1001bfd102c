#include "thc/join.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace thc {
namespace {

using std::chrono_literals::operator""ms;
using wire::ErrorReason;
using wire::MessageType;

constexpr std::uint64_t kNonce = 0x1122334455667788;
constexpr std::uint32_t kShard = 3;
constexpr std::uint32_t kEpoch = 0xabcdef;
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

/// What a server makes of the header of a HELLO.
wire::Header answer(const wire::Header& hello, std::uint32_t epoch = kEpoch) {
  wire::Header header = hello;
  header.epoch = epoch;
  return header;
}

wire::ChallengePayload challenge(std::uint64_t cookie) {
  wire::ChallengePayload payload{};
  payload.cookie = cookie;
  return payload;
}

/// The times at which HELLO is said until `end`, since kStart.
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

TEST(Join, HelloIsSaidEverMoreRarely) {
  Join join = make_join();
  EXPECT_EQ(hellos_until(join, 2000ms),
            (std::vector{0ms, 20ms, 60ms, 140ms, 300ms, 620ms, 1120ms, 1620ms}));  // half a second at most
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

TEST(Join, ACookieIsSaidAtOnceAndOnce) {
  Join join = make_join();
  join.say_hello(kStart);
  wire::Header header{};
  header.flags = static_cast<std::uint8_t>(wire::kFlagChecksum | wire::kFlagLast);
  const auto second = join.take_challenge(header, challenge(17));
  ASSERT_TRUE(second);
  EXPECT_EQ(payload_of(*second).cookie, 17U);
  EXPECT_EQ(payload_of(*second).nonce, kNonce);
  EXPECT_EQ(second->header.flags, wire::kFlagChecksum);  // as the server takes it
  EXPECT_EQ(join.next_hello(), kStart + 20ms);           // as before
  EXPECT_FALSE(join.take_challenge({}, challenge(18)));
  EXPECT_EQ(payload_of(join.say_hello(kStart + 20ms)).cookie, 18U);  // the last one is kept
  EXPECT_TRUE(join.take_challenge({}, challenge(19)));               // one for every HELLO that was due
}

TEST(Join, AWelcomeJoins) {
  Join join = make_join();
  wire::Header welcome = answer(join.say_hello(kStart).header);
  ASSERT_TRUE(join.is_news(welcome));
  EXPECT_FALSE(join.joined());
  join.take_welcome(welcome);
  EXPECT_TRUE(join.joined());
  EXPECT_EQ(join.epoch(), kEpoch);
  EXPECT_FALSE(join.takes_abstentions());
  EXPECT_FALSE(join.is_hello_due(Join::TimePoint::max() - 1ms));
  EXPECT_EQ(join.next_hello(), Join::TimePoint::max());
  EXPECT_FALSE(join.is_awaited(welcome));  // a second one
  EXPECT_FALSE(join.is_news(welcome));
  const wire::Header goodbye = join.notice(MessageType::kGoodbye);
  EXPECT_EQ(goodbye.epoch, kEpoch);
  EXPECT_EQ(goodbye.slot, kShard);
  EXPECT_EQ(goodbye.message_type, static_cast<std::uint8_t>(MessageType::kGoodbye));
  EXPECT_EQ(goodbye.round, 0U);
}

TEST(Join, WelcomeSaysWhetherTheServerTakesAbstentions) {
  Join join = make_join();
  wire::Header welcome = answer(join.say_hello(kStart).header);
  welcome.flags = wire::kFlagAbstain;
  join.take_welcome(welcome);
  EXPECT_TRUE(join.takes_abstentions());
}

TEST(Join, AnswersToOthersAreNotAwaited) {
  Join join = make_join();
  const wire::Header welcome = answer(join.say_hello(kStart).header);
  for (const auto& change : std::vector<void (*)(wire::Header&)>{
           [](wire::Header& h) { h.round = std::uint32_t{1}; },
           [](wire::Header& h) { h.partition = std::uint16_t{1}; },
           [](wire::Header& h) { h.chunk = std::uint16_t{1}; },
           [](wire::Header& h) { h.slot = std::uint32_t{0}; },
       }) {
    wire::Header other = welcome;
    change(other);
    EXPECT_FALSE(join.is_awaited(other));
    EXPECT_FALSE(join.is_news(other));
  }
  EXPECT_TRUE(repeats_nonce(welcome, kNonce));
  EXPECT_FALSE(repeats_nonce(welcome, kNonce + (std::uint64_t{1} << 32)));
}

TEST(Join, ALateWelcomeOfALostEpochIsNoNews) {
  Join join = make_join();
  const wire::Header hello = join.say_hello(kStart).header;
  join.take_welcome(answer(hello, 10));
  join.lose(kStart + 1000ms);
  EXPECT_FALSE(join.joined());
  EXPECT_EQ(join.next_hello(), kStart + 1000ms);
  join.say_hello(kStart + 1000ms);
  EXPECT_EQ(join.next_hello(), kStart + 1020ms);  // fast again
  EXPECT_FALSE(join.is_news(answer(hello, 10)));
  EXPECT_TRUE(join.is_awaited(answer(hello, 10)));
  ASSERT_TRUE(join.is_news(answer(hello, 11)));
  join.take_welcome(answer(hello, 11));
  join.renew(12);
  EXPECT_EQ(join.epoch(), 12U);
  join.lose(kStart + 2000ms);
  for (const std::uint32_t lost : {10U, 11U, 12U}) {
    EXPECT_FALSE(join.is_news(answer(hello, lost)));
  }
  EXPECT_TRUE(join.is_news(answer(hello, 13)));
}

TEST(Join, AnotherProcessHasForgottenAll) {
  Join join = make_join();
  const wire::Header before = join.say_hello(kStart).header;
  join.take_challenge({}, challenge(17));
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
  EXPECT_TRUE(join.is_news(answer(message.header)));  // in whatever epoch
}

TEST(Join, ContestsAreAboutWhatAnotherProcessHas) {
  EXPECT_TRUE(is_contest(ErrorReason::kDuplicateWorker));
  EXPECT_TRUE(is_contest(ErrorReason::kOtherTraining));
  EXPECT_FALSE(is_contest(ErrorReason::kTooManyJobs));
  EXPECT_FALSE(is_contest(ErrorReason::kConfigMismatch));
}

TEST(Forbearance, LastsThreeSeconds) {
  Forbearance forbearance;
  EXPECT_FALSE(forbearance.has_begun());
  EXPECT_FALSE(forbearance.is_over(Join::TimePoint::max() - 1ms));
  forbearance.begin(kStart);
  EXPECT_TRUE(forbearance.has_begun());
  EXPECT_FALSE(forbearance.is_over(kStart + 2999ms));
  EXPECT_TRUE(forbearance.is_over(kStart + 3000ms));
  EXPECT_EQ(forbearance.end(), kStart + 3000ms);
  forbearance.stop();
  EXPECT_FALSE(forbearance.is_over(kStart + 3000ms));
}

}  // namespace
}  // namespace thc
