// NORM and CODES through a shard: results, replays, refusals, malformed packets, result memory, shares of shards.
#include "shard_fixture.h"

namespace thc::ps {
namespace {

using wire::ErrorReason;
using wire::MessageType;

class Slots : public ShardTest {
 protected:
  Slots() { join_all(); }

  /// Workers 0 .. n-1 contribute their number + 1; returns the answers to the last.
  std::vector<Reply> complete(std::uint32_t round = 1, unsigned workers = kWorkers) {
    std::vector<Reply> replies;
    for (unsigned worker = 0; worker < workers; ++worker) {
      EXPECT_TRUE(replies.empty());
      replies = from_worker(worker, make_codes(worker, round, static_cast<std::uint8_t>(worker + 1)));
    }
    return replies;
  }
};

TEST_F(Slots, ResultGoesToEveryWorker) {
  const auto results = complete();
  ASSERT_EQ(results.size(), kWorkers);
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    const Reply& result = results[worker];
    EXPECT_EQ(result.to, address(worker));
    EXPECT_EQ(result.type(), MessageType::kAggregate);
    EXPECT_EQ(result.header.worker_id, worker);
    EXPECT_EQ(result.header.contributions, kWorkers);
    EXPECT_EQ(result.header.flags, 0);
    EXPECT_EQ(result.header.payload_count, kCodes);
    EXPECT_EQ(result.header.slot, kCodeSlot);
    EXPECT_EQ(result.header.round, 1U);
    EXPECT_EQ(result.header.epoch, epoch);
    EXPECT_EQ(result.payload, Bytes(kCodes, 1 + 2 + 3));
  }
  EXPECT_EQ(job_counters().completed.get(), 1U);
  EXPECT_EQ(job_counters().partial.get(), 0U);
}

TEST_F(Slots, NormsGetTheirMaximum) {
  from_worker(0, make_norm(0, 0x20));
  from_worker(1, make_norm(1, 0x41));
  const auto results = from_worker(2, make_norm(2, 0x30));
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[1].type(), MessageType::kMaxNorm);
  EXPECT_EQ(results[1].payload, Bytes(4, 0x41));
}

TEST_F(Slots, RetransmissionIsToldWhoIsMissing) {
  from_worker(0, make_codes(0));
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty());
  const Bytes again = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  const Reply reply = single(from_worker(0, again));
  EXPECT_EQ(reply.reason(), ErrorReason::kIncomplete);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0b001U);
  EXPECT_EQ(reply.header.slot, kCodeSlot);
  EXPECT_EQ(reply.header.round, 1U);
  EXPECT_EQ(reply.header.payload_count, 0);
  EXPECT_EQ(job_counters().duplicates.get(), 2U);
}

TEST_F(Slots, LostResultIsReplayedToOneWorker) {
  complete();
  const Reply replay = single(from_worker(1, make_codes(1)));
  EXPECT_EQ(replay.to, address(1));
  EXPECT_EQ(replay.header.worker_id, 1);
  EXPECT_EQ(replay.payload, Bytes(kCodes, 6));
  EXPECT_EQ(job_counters().replays.get(), 1U);
}

TEST_F(Slots, StragglerIsToldSo) {
  complete(1);
  complete(2);
  complete(3);
  const Reply reply = single(from_worker(2, make_codes(2, 1)));
  EXPECT_EQ(reply.type(), MessageType::kStraggler);
  EXPECT_EQ(reply.header.round, 1U);
  EXPECT_TRUE(reply.payload.empty());
  EXPECT_EQ(job_counters().stale.get(), 1U);
}

TEST_F(Slots, OrderMismatchIsAnError) {
  from_worker(0, make_codes(0));
  const Bytes other = with_header(make_codes(1), [](auto& h) { h.partition = std::uint16_t{1}; });
  EXPECT_EQ(single(from_worker(1, other)).reason(), ErrorReason::kOrderMismatch);
}

TEST_F(Slots, QuorumResultSaysItIsPartial) {
  start();
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    HelloMessage hello = make_hello(worker);
    hello.payload.quorum = std::uint8_t{2};
    epoch = answer_to(worker, hello).header.epoch;
  }
  const auto results = complete(1, 2);
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[2].header.contributions, 2);
  EXPECT_EQ(results[2].header.flags, wire::kFlagPartial);
  EXPECT_EQ(results[2].payload, Bytes(kCodes, 3));
  EXPECT_EQ(job_counters().partial.get(), 1U);
  const Reply late = single(from_worker(2, make_codes(2)));
  EXPECT_EQ(late.payload, Bytes(kCodes, 3));
}

TEST_F(Slots, WorkersThatLeftGetNoResults) {
  from_worker(0, make_codes(0));
  from_worker(0, make_goodbye(0));
  from_worker(1, make_codes(1));
  const auto results = from_worker(2, make_codes(2));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].to, address(1));
}

TEST_F(Slots, QueuedResultSurvivesANewRoundInTheSameBurst) {
  // Round 1 completes and rounds 2 and 3 begin in one burst; round 3 writes where the queued result of round 1 lies.
  const auto replies = exchange({{address(0), make_codes(0, 1, 1)},
                                 {address(1), make_codes(1, 1, 2)},
                                 {address(2), make_codes(2, 1, 3)},
                                 {address(0), make_codes(0, 2, 9)},
                                 {address(0), make_codes(0, 3, 15)}});
  ASSERT_EQ(replies.size(), kWorkers);
  for (const Reply& reply : replies) EXPECT_EQ(reply.payload, Bytes(kCodes, 6));
}

TEST_F(Slots, QueuedResultSurvivesTheEndOfItsJob) {
  const auto replies = exchange({{address(0), make_codes(0)},
                                 {address(1), make_codes(1)},
                                 {address(2), make_codes(2)},
                                 {address(0), make_goodbye(0)},
                                 {address(1), make_goodbye(1)},
                                 {address(2), make_goodbye(2)}});
  ASSERT_EQ(replies.size(), kWorkers);
  EXPECT_EQ(replies[0].payload, Bytes(kCodes, 3));
}

TEST_F(Slots, QueuedResultSurvivesARestartInTheSameBurst) {
  // Worker 2 is silent; its slot completes at a replay for worker 0 before the restart clears it.
  complete();
  HelloMessage restarted = make_hello(2);
  restarted.payload.nonce = std::uint64_t{999};
  restarted.payload.cookie = single(from_worker(2, restarted.bytes())).as<wire::ChallengePayload>().cookie;
  for (int i = 0; i < 5; ++i) {
    say_hello(address(2), restarted);
    now += 200ms;
    shard->run_timers(now);
    packet_io.take_sent();
  }
  const auto replies = exchange({{address(0), make_codes(0)}, {address(2), restarted.bytes()}});
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[0].payload, Bytes(kCodes, 6));
  EXPECT_EQ(replies[1].type(), MessageType::kWelcome);
}

struct Spoiled {
  const char* name;
  Drop reason;
  std::function<void(wire::Header&)> spoil;
};

TEST_F(Slots, EveryMalformedFieldIsDroppedAndCounted) {
  const std::vector<Spoiled> cases{
      {"version", Drop::kVersion, [](auto& h) { h.version = std::uint8_t{1}; }},
      {"type of the server", Drop::kType, [](auto& h) { h.message_type = std::uint8_t{6}; }},
      {"unknown type", Drop::kType, [](auto& h) { h.message_type = std::uint8_t{200}; }},
      {"count 0", Drop::kLength, [](auto& h) { h.payload_count = std::uint16_t{0}; }},
      {"count too small", Drop::kLength, [](auto& h) { h.payload_count = std::uint16_t{kCodes - 2}; }},
      {"count too large", Drop::kLength, [](auto& h) { h.payload_count = std::uint16_t{kCodes + 1}; }},
      {"code bits 0", Drop::kLength, [](auto& h) { h.code_bits = std::uint8_t{0}; }},
      {"other code bits, same length", Drop::kHeader,
       [](auto& h) {
         h.code_bits = std::uint8_t{8};
         h.payload_count = std::uint16_t{kCodes / 2};
       }},
      {"value bits", Drop::kHeader, [](auto& h) { h.value_bits = std::uint8_t{16}; }},
      {"workers", Drop::kHeader, [](auto& h) { h.num_workers = std::uint8_t{2}; }},
      {"worker id", Drop::kHeader, [](auto& h) { h.worker_id = kWorkers; }},
      {"worker id 255", Drop::kHeader, [](auto& h) { h.worker_id = std::uint8_t{255}; }},
      {"flags", Drop::kHeader, [](auto& h) { h.flags = std::uint8_t{2}; }},
      {"contributions", Drop::kHeader, [](auto& h) { h.contributions = std::uint8_t{1}; }},
      {"switch pass", Drop::kHeader, [](auto& h) { h.switch_pass = std::uint8_t{1}; }},
      {"switch step", Drop::kHeader, [](auto& h) { h.switch_step = std::uint8_t{1}; }},
      {"switch state", Drop::kHeader, [](auto& h) { h.switch_state = std::uint16_t{1}; }},
      {"another worker's id", Drop::kSender, [](auto& h) { h.worker_id = std::uint8_t{1}; }},
      {"slot of norms", Drop::kSlot, [](auto& h) { h.slot = std::uint32_t{0}; }},
      {"slot behind the last", Drop::kSlot, [](auto& h) { h.slot = std::uint32_t{16}; }},
      {"slot 2^32 - 1", Drop::kSlot, [](auto& h) { h.slot = std::uint32_t{0xffffffff}; }},
  };
  for (const Spoiled& spoiled : cases) {
    const std::uint64_t before = drops(spoiled.reason);
    EXPECT_TRUE(from_worker(0, with_header(make_codes(0), spoiled.spoil)).empty()) << spoiled.name;
    EXPECT_EQ(drops(spoiled.reason), before + 1) << spoiled.name;
  }
  // None of them touched the slot.
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Slots, TruncatedAndPaddedPacketsAreDropped) {
  const Bytes packet = make_codes(0);
  for (std::size_t size = 0; size < packet.size(); ++size) {
    EXPECT_TRUE(from_worker(0, Bytes(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(size))).empty())
        << size;
  }
  Bytes longer = packet;
  longer.push_back(0);
  EXPECT_TRUE(from_worker(0, longer).empty());
  EXPECT_EQ(drops(Drop::kVersion), sizeof(wire::Header));
  EXPECT_EQ(drops(Drop::kLength), packet.size() - sizeof(wire::Header) + 1);
}

TEST_F(Slots, MoreCodesOrNormsThanTheJobHasAreDropped) {
  Bytes codes = with_header(make_codes(0), [](auto& h) { h.payload_count = std::uint16_t{kCodes + 2}; });
  codes.push_back(0);
  EXPECT_TRUE(from_worker(0, codes).empty());
  Bytes norms = with_header(make_norm(0, 1), [](auto& h) { h.payload_count = std::uint16_t{kCodes / 4 + 1}; });
  norms.resize(sizeof(wire::Header) + kCodes + 4);
  EXPECT_TRUE(from_worker(0, norms).empty());
  EXPECT_EQ(drops(Drop::kLength), 2U);
}

TEST_F(Slots, NormsWithASignBitAreDropped) {
  for (const std::uint8_t first_byte : {0x80, 0xff}) {
    EXPECT_TRUE(from_worker(0, make_norm(0, first_byte)).empty());
  }
  EXPECT_EQ(drops(Drop::kSign), 2U);
  from_worker(0, make_norm(0, 0x20));
  from_worker(1, make_norm(1, 0x7f));  // NaN
  EXPECT_EQ(from_worker(2, make_norm(2, 0x10)).size(), kWorkers);
}

TEST_F(Slots, CountsMustBeMultiplesOfWhatWelcomeSays) {
  start([](JobLimits& limits) { limits.codes_multiple = 32; });
  EXPECT_EQ(join(0).as<wire::WelcomePayload>().codes_multiple, 32);
  const auto with_count = [](Bytes packet, std::uint16_t count, std::size_t payload_bytes) {
    packet.resize(sizeof(wire::Header) + payload_bytes);
    return with_header(std::move(packet), [&](auto& h) { h.payload_count = count; });
  };
  for (const std::uint16_t count : {2, 16, 34, 62}) {
    EXPECT_TRUE(from_worker(0, with_count(make_codes(0), count, count / 2)).empty());
  }
  for (const std::uint16_t count : {1, 7, 12}) {  // norms: 32 * 8 / 32
    EXPECT_TRUE(from_worker(0, with_count(make_norm(0, 1), count, std::size_t{count} * 4)).empty());
  }
  EXPECT_EQ(drops(Drop::kLength), 7U);
  from_worker(0, with_count(make_codes(0), 32, 16));
  from_worker(0, with_count(make_norm(0, 1), 8, 32));
  shard->run_timers(now);
  EXPECT_EQ(shard->jobs()[0].slots_in_use.get(), 2U);
}

TEST_F(Slots, PacketsFromAnotherAddressAreDropped) {
  EXPECT_TRUE(exchange({{address(7), make_codes(0)}}).empty());
  EXPECT_EQ(drops(Drop::kSender), 1U);
}

TEST(ShardShare, DealsEverySlotToOneShard) {
  for (std::uint16_t shards = 1; shards <= 5; ++shards) {
    for (std::uint32_t slots = 0; slots < 40; ++slots) {
      std::uint32_t sum = 0;
      for (std::uint16_t shard = 0; shard < shards; ++shard) {
        const ShardShare share{shard, shards};
        sum += share.count(slots);
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
          if (share.owns(slot)) {
            EXPECT_LT(share.local(slot), share.count(slots));
          }
        }
      }
      EXPECT_EQ(sum, slots);
    }
  }
}

TEST_F(Slots, ShardTakesItsOwnSlotsOnly) {
  start([](JobLimits& limits) { limits.share = {.shard = 1, .shards = 3}; });
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    HelloMessage hello = make_hello(worker);
    hello.header.slot = std::uint32_t{1};
    const Reply welcome = answer_to(worker, hello);
    EXPECT_EQ(welcome.as<wire::WelcomePayload>().shards, 3);
    EXPECT_EQ(welcome.as<wire::WelcomePayload>().slots, 16U);
    epoch = welcome.header.epoch;
  }
  for (std::uint32_t slot = 2; slot < 16; ++slot) {
    std::size_t answers = 0;
    for (unsigned worker = 0; worker < kWorkers; ++worker) {
      answers += from_worker(worker, make_codes(worker, 1, 1, slot)).size();
    }
    EXPECT_EQ(answers, slot % 3 == 1 ? kWorkers : 0U) << slot;
  }
  EXPECT_TRUE(from_worker(0, make_norm(0, 1)).empty()) << "norm slot 0 is of shard 0";
}

}  // namespace
}  // namespace thc::ps
