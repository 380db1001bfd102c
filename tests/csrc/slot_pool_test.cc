// The slot state machine, then schedules against an independent model of the table in docs/contributors/protocol.md.
#include "thc/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "thc/byte_order.h"
#include "thc/errors.h"

namespace thc {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint32_t kCodes = 64;
constexpr std::uint32_t kNormSlot = 0;
constexpr std::uint32_t kCodeSlot = 1;

LookupTable identity_table(unsigned bits) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  return LookupTable(bits, values);
}

LookupTable one_bit_table(std::uint16_t granularity) {
  return LookupTable(1, std::vector<std::uint16_t>{0, granularity});
}

SlotPool make_pool(unsigned workers, unsigned quorum, const LookupTable& table, unsigned value_bits = 8) {
  return SlotPool({.slots = 4,
                   .norm_slots = 1,
                   .codes_per_packet = kCodes,
                   .workers = workers,
                   .quorum = quorum,
                   .value_bits = value_bits},
                  table);
}

/// A contribution that owns its payload: 4-bit codes, code i = (first + i) mod 16.
struct Packet {
  Contribution fields;
  Bytes payload;

  Packet(std::uint32_t slot, std::uint32_t round, unsigned worker, unsigned first = 0, std::uint16_t count = kCodes) {
    fields.slot = slot;
    fields.round = round;
    fields.worker = static_cast<std::uint8_t>(worker);
    fields.count = count;
    payload.resize((count + 1) / 2);
    for (unsigned i = 0; i < count; ++i) {
      const unsigned code = (first + i) % 16;
      payload[i / 2] = static_cast<std::uint8_t>(payload[i / 2] | (i % 2 == 0 ? code << 4 : code));
    }
  }
  Packet& retransmit() {
    fields.retransmit = true;
    return *this;
  }
  Packet& position(std::uint16_t partition, std::uint16_t chunk) {
    fields.partition = partition;
    fields.chunk = chunk;
    return *this;
  }
};

SlotReply send(SlotPool& pool, const Packet& packet) {
  Contribution fields = packet.fields;
  fields.payload = packet.payload.data();
  return pool.contribute(fields);
}

SlotReply send_bytes(SlotPool& pool, std::uint32_t slot, unsigned worker, std::uint16_t count, const Bytes& payload) {
  Contribution fields{.slot = slot, .round = 1, .worker = static_cast<std::uint8_t>(worker), .count = count};
  fields.payload = payload.data();
  return pool.contribute(fields);
}

Bytes copy(std::span<const std::uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(SlotPool, RoundsWrapAround) {
  SlotPool pool = make_pool(2, 2, identity_table(4));
  for (const std::uint32_t round : {0xfffffffeU, 0xffffffffU, 0U, 1U, 2U}) {
    EXPECT_TRUE(pool.starts_over(kCodeSlot, round));
    EXPECT_EQ(send(pool, {kCodeSlot, round, 0, 3}).outcome, SlotOutcome::kAbsorbed) << round;
    EXPECT_EQ(send(pool, {kCodeSlot, round - 2, 1, 3}).outcome, SlotOutcome::kStraggler) << round;
    const SlotReply reply = send(pool, {kCodeSlot, round, 1, 4});
    EXPECT_EQ(reply.outcome, SlotOutcome::kCompleted) << round;
    EXPECT_EQ(reply.result[0], 7) << round;
  }
}

TEST(SlotPool, StartsOverWithAHigherRoundByWriting) {
  SlotPool pool = make_pool(2, 2, identity_table(4));
  send(pool, {kCodeSlot, 1, 0, 15});
  EXPECT_TRUE(pool.starts_over(kCodeSlot, 3));
  EXPECT_EQ(send(pool, {kCodeSlot, 3, 0, 1}).outcome, SlotOutcome::kAbsorbed);  // same version, never completed
  EXPECT_EQ(pool.slots_in_use(), 1U);
  EXPECT_FALSE(pool.starts_over(kCodeSlot, 3));
  EXPECT_FALSE(pool.starts_over(kCodeSlot, 2));
  const SlotReply reply = send(pool, {kCodeSlot, 3, 1, 1});
  EXPECT_EQ(reply.contributions, 2);
  EXPECT_EQ(reply.result[0], 2);
}

TEST(SlotPool, RefusesAnotherOrder) {
  SlotPool pool = make_pool(3, 2, identity_table(4));
  send(pool, Packet(kCodeSlot, 1, 0).position(7, 3));
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 1).position(8, 3)).outcome, SlotOutcome::kOrderMismatch);
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 1).position(7, 4)).outcome, SlotOutcome::kOrderMismatch);
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 1, 0, kCodes - 1).position(7, 3)).outcome, SlotOutcome::kOrderMismatch);
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 1).position(7, 3)).outcome, SlotOutcome::kCompleted);
  // A complete slot must not answer with the result of another partition either.
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 2).position(8, 3)).outcome, SlotOutcome::kOrderMismatch);
}

TEST(SlotPool, NormsOfAnotherCountAreComparedAsFarAsBothGo) {
  const auto norms = [](std::initializer_list<std::uint8_t> words) {
    Bytes payload;
    for (const std::uint8_t word : words) payload.insert(payload.end(), 4, word);
    return payload;
  };
  for (const bool shorter_first : {true, false}) {
    SlotPool pool = make_pool(2, 2, identity_table(4));
    const Bytes shorter = norms({5, 1}), longer = norms({3, 7, 9});
    send_bytes(pool, kNormSlot, 0, shorter_first ? 2 : 3, shorter_first ? shorter : longer);
    const SlotReply reply = send_bytes(pool, kNormSlot, 1, shorter_first ? 3 : 2, shorter_first ? longer : shorter);
    EXPECT_EQ(reply.outcome, SlotOutcome::kCompleted);
    EXPECT_EQ(reply.count, shorter_first ? 2 : 3);
    EXPECT_EQ(copy(reply.result), shorter_first ? norms({5, 7}) : norms({5, 7, 9}));
    EXPECT_EQ(send_bytes(pool, kNormSlot, 0, 1, norms({1})).count, shorter_first ? 2 : 3) << "a replay is the same";
  }
}

TEST(SlotPool, WhoAbstainsIsAnsweredAndNeverAdded) {
  SlotPool pool = make_pool(3, 2, identity_table(4));
  const auto abstention = [](std::uint32_t round) {
    Packet packet(kCodeSlot, round, 2, 9);
    packet.fields.abstain = true;
    return packet;
  };
  // It begins no round, and does not close one.
  EXPECT_EQ(send(pool, abstention(1)).outcome, SlotOutcome::kDuplicate);
  const SlotReply unknown = send(pool, abstention(1).retransmit());
  EXPECT_EQ(unknown.outcome, SlotOutcome::kIncomplete);
  EXPECT_EQ(unknown.bitmap, 0U);
  EXPECT_EQ(pool.slots_in_use(), 0U);
  EXPECT_EQ(send(pool, Packet(kCodeSlot, 1, 0, 1)).outcome, SlotOutcome::kAbsorbed);
  EXPECT_EQ(send(pool, abstention(1)).outcome, SlotOutcome::kDuplicate);
  EXPECT_EQ(send(pool, abstention(1).retransmit()).bitmap, 0b001U);
  const SlotReply completed = send(pool, Packet(kCodeSlot, 1, 1, 1));
  EXPECT_EQ(completed.outcome, SlotOutcome::kCompleted);
  EXPECT_EQ(completed.contributions, 2U);
  const Bytes result = copy(completed.result);
  const SlotReply late = send(pool, abstention(1));
  EXPECT_EQ(late.outcome, SlotOutcome::kReplay);
  EXPECT_EQ(late.bitmap, 0b011U);
  EXPECT_EQ(copy(late.result), result);
  for (const std::uint32_t round : {2U, 3U}) {
    send(pool, Packet(kCodeSlot, round, 0));
    send(pool, Packet(kCodeSlot, round, 1));
  }
  EXPECT_EQ(send(pool, abstention(1)).outcome, SlotOutcome::kStraggler);
}

TEST(SlotPool, ChecksEveryField) {
  SlotPool pool = make_pool(2, 2, identity_table(4));
  EXPECT_EQ(send(pool, {4, 1, 0}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {0xffffffff, 1, 0}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 2}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 255}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 0, 0, 0}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 0, 0, kCodes + 1}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kNormSlot, 1, 0, 0, kCodes / 4 + 1}).outcome, SlotOutcome::kInvalid);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 0}).outcome, SlotOutcome::kAbsorbed);
}

TEST(SlotPool, FillsEightBitLanesExactly) {
  const LookupTable table = one_bit_table(51);  // 51 * 5 = 255
  SlotPool pool = make_pool(5, 5, table);
  const Bytes ones(kCodes / 8, 0xff);
  SlotReply reply;
  for (unsigned worker = 0; worker < 5; ++worker) reply = send_bytes(pool, kCodeSlot, worker, kCodes, ones);
  ASSERT_EQ(reply.outcome, SlotOutcome::kCompleted);
  EXPECT_TRUE(std::ranges::all_of(reply.result, [](std::uint8_t sum) { return sum == 255; }));
  EXPECT_THROW(make_pool(6, 6, table), ConfigurationError);
}

TEST(SlotPool, SendsSixteenBitLanesBigEndian) {
  const LookupTable table = one_bit_table(0x3ffc);  // * 4 = 0xfff0
  SlotPool pool = make_pool(4, 4, table, 16);
  const Bytes half(kCodes / 8, 0x55);
  SlotReply reply;
  for (unsigned worker = 0; worker < 4; ++worker) reply = send_bytes(pool, kCodeSlot, worker, kCodes, half);
  ASSERT_EQ(reply.outcome, SlotOutcome::kCompleted);
  ASSERT_EQ(reply.result.size(), 2 * kCodes);
  for (unsigned i = 0; i < kCodes; ++i) {
    EXPECT_EQ(reply.result[2 * i], i % 2 == 1 ? 0xff : 0) << i;
    EXPECT_EQ(reply.result[2 * i + 1], i % 2 == 1 ? 0xf0 : 0) << i;
  }
  const Bytes first = copy(reply.result);
  const SlotReply replay = send_bytes(pool, kCodeSlot, 0, kCodes, half);
  EXPECT_EQ(copy(replay.result), first) << "the byte order must not be turned twice";
}

TEST(SlotPool, ResetForgetsRounds) {
  SlotPool pool = make_pool(2, 2, identity_table(4));
  send(pool, {kCodeSlot, 9, 0, 5});
  EXPECT_EQ(pool.slots_in_use(), 1U);
  pool.reset();
  EXPECT_EQ(pool.slots_in_use(), 0U);
  EXPECT_EQ(send(pool, {kCodeSlot, 1, 0, 0}).outcome, SlotOutcome::kAbsorbed);
  const SlotReply reply = send(pool, {kCodeSlot, 1, 1, 0});
  ASSERT_EQ(reply.outcome, SlotOutcome::kCompleted);
  for (std::size_t i = 0; i < reply.result.size(); ++i) EXPECT_EQ(reply.result[i], 2 * (i % 16)) << "of code " << i;
}

TEST(SlotPool, RefusesBadConfigurations) {
  const LookupTable table = identity_table(4);
  const SlotPoolConfig good{
      .slots = 4, .norm_slots = 1, .codes_per_packet = kCodes, .workers = 2, .quorum = 2, .value_bits = 8};
  const auto refused = [&](auto&& change) {
    SlotPoolConfig config = good;
    change(config);
    EXPECT_THROW(SlotPool(config, table), ConfigurationError);
  };
  refused([](SlotPoolConfig& c) { c.workers = 0; });
  refused([](SlotPoolConfig& c) { c.workers = 65; });
  refused([](SlotPoolConfig& c) { c.quorum = 0; });
  refused([](SlotPoolConfig& c) { c.quorum = 3; });
  refused([](SlotPoolConfig& c) { c.value_bits = 32; });
  refused([](SlotPoolConfig& c) { c.codes_per_packet = 63; });
  refused([](SlotPoolConfig& c) { c.codes_per_packet = 32769; });
  refused([](SlotPoolConfig& c) { c.norm_slots = 5; });
  EXPECT_EQ(SlotPool::memory_bytes(good), 4 * (64 + 2 * 64U));
}

/// The table of docs/contributors/protocol.md over a list of all rounds ever begun, with sums of plain integers.
class Model {
 public:
  Model(unsigned workers, unsigned quorum) : workers_(workers), quorum_(quorum) {}

  SlotOutcome contribute(const Contribution& c, unsigned first) {
    if (c.worker >= workers_) return SlotOutcome::kInvalid;
    if (rounds_.empty() || c.round > rounds_.rbegin()->first) {
      rounds_[c.round] = {.partition = c.partition, .sum = std::vector<unsigned>(c.count), .seen = {}};
    } else if (!alive(c.round)) {
      return SlotOutcome::kStraggler;
    }
    Round& round = rounds_[c.round];
    if (round.partition != c.partition) return SlotOutcome::kOrderMismatch;
    const bool counted = std::ranges::find(round.seen, c.worker) != round.seen.end();
    if (round.seen.size() == quorum_) return SlotOutcome::kReplay;
    if (counted) return c.retransmit ? SlotOutcome::kIncomplete : SlotOutcome::kDuplicate;
    round.seen.push_back(c.worker);
    for (unsigned i = 0; i < c.count; ++i) round.sum[i] += (first + i) % 16;
    return round.seen.size() == quorum_ ? SlotOutcome::kCompleted : SlotOutcome::kAbsorbed;
  }

  Bytes result(std::uint32_t round) const {
    const auto& sum = rounds_.at(round).sum;
    return {sum.begin(), sum.end()};
  }

  std::uint64_t bitmap(std::uint32_t round) const {
    std::uint64_t workers = 0;
    for (const unsigned worker : rounds_.at(round).seen) workers |= std::uint64_t{1} << worker;
    return workers;
  }

 private:
  struct Round {
    std::uint16_t partition;
    std::vector<unsigned> sum;
    std::vector<unsigned> seen;
  };
  /// Begun, and no later round of the same parity was.
  bool alive(std::uint32_t round) const {
    if (!rounds_.contains(round)) return false;
    return std::ranges::none_of(rounds_, [&](const auto& r) { return r.first > round && r.first % 2 == round % 2; });
  }

  unsigned workers_;
  unsigned quorum_;
  std::map<std::uint32_t, Round> rounds_;
};

void expect_same(SlotPool& pool, Model& model, const Packet& packet, unsigned first) {
  const SlotReply reply = send(pool, packet);
  const SlotOutcome expected = model.contribute(packet.fields, first);
  ASSERT_EQ(reply.outcome, expected) << "round " << packet.fields.round << " worker " << int{packet.fields.worker};
  if (expected == SlotOutcome::kInvalid || expected == SlotOutcome::kStraggler) return;
  ASSERT_EQ(reply.bitmap, model.bitmap(packet.fields.round));
  ASSERT_EQ(reply.contributions, std::popcount(reply.bitmap));
  if (expected == SlotOutcome::kCompleted || expected == SlotOutcome::kReplay) {
    ASSERT_EQ(copy(reply.result), model.result(packet.fields.round));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(reply.result.data()) % 64, 0U);
  }
}

/// One of 2 workers x 4 rounds x 2 partitions x flag.
Packet numbered_packet(unsigned number) {
  Packet packet(kCodeSlot, number / 2 % 4 + 1, number % 2, number % 2 + 3 * (number / 2 % 4), 5);
  packet.position(number / 8 % 2, 0);
  packet.fields.retransmit = number / 16 % 2 == 1;
  return packet;
}

unsigned first_code(unsigned number) { return number % 2 + 3 * (number / 2 % 4); }

class SlotPoolSchedules : public ::testing::TestWithParam<unsigned> {};

TEST_P(SlotPoolSchedules, EverySequenceOfFourPacketsAgreesWithTheModel) {
  const unsigned quorum = GetParam();
  constexpr unsigned kPackets = 32;
  SlotPool pool = make_pool(2, quorum, identity_table(4));
  std::vector<Packet> packets;
  for (unsigned i = 0; i < kPackets; ++i) packets.push_back(numbered_packet(i));
  for (unsigned sequence = 0; sequence < kPackets * kPackets * kPackets * kPackets; ++sequence) {
    pool.reset();
    Model model(2, quorum);
    for (unsigned rest = sequence, step = 0; step < 4; ++step, rest /= kPackets) {
      expect_same(pool, model, packets[rest % kPackets], first_code(rest % kPackets));
    }
    if (HasFatalFailure()) FAIL() << "sequence " << sequence << ", quorum " << quorum;
  }
}

TEST_P(SlotPoolSchedules, LongRandomSchedulesAgreeWithTheModel) {
  const unsigned quorum = GetParam();
  std::mt19937 random(quorum);
  for (int trial = 0; trial < 200; ++trial) {
    SlotPool pool = make_pool(4, quorum, identity_table(4));
    Model model(4, quorum);
    std::uint32_t frontier = 1;
    for (int step = 0; step < 400; ++step) {
      if (random() % 16 == 0) frontier += random() % 3;
      const std::uint32_t round = frontier > 3 ? frontier - random() % 4 : frontier;
      const unsigned worker = random() % 5;  // 4: out of range
      const unsigned first = round * 7 + worker;
      Packet packet(kCodeSlot, round, worker, first, 9);
      packet.position(random() % 20 == 0 ? 1 : 0, 0);
      packet.fields.retransmit = random() % 2 == 0;
      ASSERT_NO_FATAL_FAILURE(expect_same(pool, model, packet, first)) << "trial " << trial << " step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quorums, SlotPoolSchedules, ::testing::Values(1U, 2U));

}  // namespace
}  // namespace thc
