// Engines of one session: what one finds out and how one fails, and what becomes of the others.
#include "session/engine_group.h"

#include <gtest/gtest.h>

#include "engine_fixture.h"

namespace thc::testing {
namespace {

using wire::MessageType;

/// Two engines of a worker of two; the test plays a server of two shards.
class EngineGroupTest : public ::testing::Test {
 protected:
  EngineGroupTest() { start(config); }
  /// A session anew.
  void start(SessionConfig settings) {
    engines.clear();
    config = resolve(std::move(settings), 65507);
    group = std::make_unique<EngineGroup>(1, 2);
    for (std::uint32_t thread = 0; thread < 2; ++thread) {
      engines.push_back(std::make_unique<SessionEngine>(config, ios[thread], *group, thread, 99, now));
    }
  }
  void step() {
    for (const auto& engine : engines) {
      engine->step(now);
    }
  }
  void welcome(std::uint32_t shard, std::uint32_t window_bytes = 1U << 20, std::uint16_t shards = 2) {
    wire::Header header = make_header(MessageType::kWelcome, config);
    header.slot = shard;
    header.epoch = 5 + shard;
    header.round = 99;  // the nonce
    wire::WelcomePayload payload{};
    payload.slots = 10;
    payload.norm_slots = 2;
    payload.window_bytes = window_bytes;
    payload.shards = shards;
    payload.codes_multiple = std::uint16_t{1};
    arrive(shard, make_datagram(header, payload));
  }
  void arrive(std::uint32_t shard, const Datagram& datagram) {
    ios[shard].arriving.push_back({shard_address(shard), datagram});
    step();
  }
  void join(std::uint32_t window_bytes = 1U << 20) {
    step();
    welcome(0, window_bytes);
    step();
    welcome(1, window_bytes);
    ASSERT_TRUE(engines[0]->connected() && engines[1]->connected());
    ios[0].take_sent();
    ios[1].take_sent();
  }
  std::unique_ptr<Push> submit(std::uint16_t partition, std::size_t chunks) {
    auto push = std::make_unique<Push>(partition, config.codes_per_packet * chunks, config, 1);
    push->operation->divide(2);
    for (const auto& engine : engines) {
      engine->submit(push->operation, now);
    }
    step();
    return push;
  }
  /// Every coordinate 3, for each packet that this engine has sent.
  void answer(std::uint32_t shard) {
    for (const Datagram& codes : ios[shard].take_sent()) {
      wire::Header header = header_of(codes);
      header.message_type = static_cast<std::uint8_t>(MessageType::kAggregate);
      header.contributions = config.num_workers;
      Datagram datagram(sizeof(header) + header.payload_count, 3);
      std::memcpy(datagram.data(), &header, sizeof(header));
      arrive(shard, datagram);
    }
  }

  TimePoint now{std::chrono::hours(1)};
  SessionConfig config = test_config(4, 2);
  std::unique_ptr<EngineGroup> group;
  std::array<MemoryIo, 2> ios;
  std::vector<std::unique_ptr<SessionEngine>> engines;
};

TEST_F(EngineGroupTest, OthersSayHelloWhenTheFirstKnowsTheShards) {
  step();
  EXPECT_EQ(ios[0].take_sent().size(), 1U);
  EXPECT_TRUE(ios[1].take_sent().empty());
  EXPECT_EQ(engines[1]->next_timer(), TimePoint::max()) << "it is woken";
  welcome(0);
  const auto hello = ios[1].take_sent();
  ASSERT_EQ(hello.size(), 1U);
  EXPECT_EQ(header_of(hello[0]).slot, 1U);
  EXPECT_EQ(ios[1].sent_to, shard_address(1));
  EXPECT_TRUE(ios[0].take_sent().empty()) << "shard 1 is not its own";
  EXPECT_TRUE(engines[0]->connected());
  EXPECT_FALSE(engines[1]->connected());
  welcome(1);
  EXPECT_TRUE(engines[1]->connected());
}

TEST_F(EngineGroupTest, WithoutShardsItIsConnectedWhenItKnowsThat) {
  step();
  welcome(0, 1U << 20, 1);
  EXPECT_TRUE(engines[0]->connected());
  EXPECT_TRUE(engines[1]->connected()) << "in the step that it is woken for";
  EXPECT_TRUE(ios[1].take_sent().empty());
}

TEST_F(EngineGroupTest, AnOperationIsDoneWhenAllEnginesHaveLeftIt) {
  join();
  const auto push = submit(0, 6);
  EXPECT_EQ(ios[0].sent.size(), 3U);
  EXPECT_EQ(ios[1].sent.size(), 3U);
  answer(1);
  EXPECT_FALSE(push->operation->done());
  answer(0);
  ASSERT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
  EXPECT_EQ(push->aggregate, std::vector<std::uint8_t>(64 * 6, 3));
}

TEST_F(EngineGroupTest, TheWindowIsDivided) {
  const std::uint32_t packet_bytes = sizeof(wire::Header) + 32;
  join(4 * packet_bytes);
  const auto push = submit(0, 100);
  EXPECT_EQ(ios[0].sent.size(), 2U);
  EXPECT_EQ(ios[1].sent.size(), 2U);
}

TEST_F(EngineGroupTest, TheFirstFailureEndsAllWithTheSameWords) {
  join();
  const auto half = submit(0, 6);
  answer(0);
  const auto open = submit(1, 6);
  wire::Header header = header_of(ios[1].take_sent().front());
  header.message_type = static_cast<std::uint8_t>(MessageType::kError);
  wire::ErrorPayload payload{};
  payload.reason = static_cast<std::uint16_t>(wire::ErrorReason::kDraining);
  arrive(1, make_datagram(header, payload));
  step();
  for (const auto& engine : engines) {
    ASSERT_TRUE(engine->failure());
    EXPECT_NE(engine->failure()->message.find("shutting down"), std::string::npos);
  }
  const auto late = submit(2, 1);
  step();
  for (const Push* push : {half.get(), open.get(), late.get()}) {
    ASSERT_TRUE(push->operation->done());
    ASSERT_TRUE(push->operation->failure());
    EXPECT_EQ(push->operation->failure()->message, group->failure()->message);
  }
  engines[0]->end({Failure::Kind::kTransport, "the session is closed"});
  EXPECT_EQ(engines[0]->failure()->message, group->failure()->message);
}

TEST_F(EngineGroupTest, WhoSaysHelloTellsThatNobodyAnswers) {
  step();
  now += config.connect_timeout;
  engines[1]->step(now);
  EXPECT_FALSE(engines[1]->failure()) << "it has asked nobody";
  step();
  step();
  ASSERT_TRUE(engines[0]->failure() && engines[1]->failure());
  EXPECT_EQ(engines[1]->failure()->kind, Failure::Kind::kDeadline);
  EXPECT_NE(engines[1]->failure()->message.find("server 10.0.0.1:48865 did not answer HELLO"), std::string::npos)
      << engines[1]->failure()->message;
}

// As behind a firewall that opens the first port only.
TEST_F(EngineGroupTest, TheShardThatDoesNotAnswerIsNamed) {
  step();
  welcome(0);
  now += config.connect_timeout;
  step();
  ASSERT_TRUE(engines[1]->failure());
  const std::string& message = engines[1]->failure()->message;
  EXPECT_NE(message.find("server 10.0.0.1:48866 did not answer HELLO"), std::string::npos) << message;
  EXPECT_NE(message.find("10.0.0.1:48865 did"), std::string::npos) << message;
  EXPECT_NE(message.find("ports 48865 to 48866"), std::string::npos) << message;
}

// Packets that get through to one shard are not too large for the way to the other.
TEST_F(EngineGroupTest, ADeadlineThinksOfThePacketSizeOnlyWhenNoEngineHadResults) {
  SessionConfig large = test_config(4, 2);
  large.codes_per_packet = 8192;
  for (const bool answered : {false, true}) {
    start(large);
    join();
    const auto push = submit(0, 2);
    if (answered) {
      answer(0);
    }
    now += config.operation_timeout;
    engines[1]->step(now);
    ASSERT_TRUE(engines[1]->failure());
    const std::string& message = engines[1]->failure()->message;
    EXPECT_EQ(message.find("smaller MTU") == std::string::npos, answered) << message;
  }
}

TEST_F(EngineGroupTest, AllSayGoodbyeToTheirShards) {
  join();
  for (std::uint32_t thread = 0; thread < 2; ++thread) {
    engines[thread]->end({Failure::Kind::kTransport, "the session is closed"});
    const auto sent = ios[thread].take_sent();
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(header_of(sent[0]).message_type, static_cast<std::uint8_t>(MessageType::kGoodbye));
    EXPECT_EQ(header_of(sent[0]).slot, thread);
    EXPECT_EQ(header_of(sent[0]).epoch, 5 + thread);
  }
}

}  // namespace
}  // namespace thc::testing
