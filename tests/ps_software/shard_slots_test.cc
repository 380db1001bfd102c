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

TEST_F(Slots, MarksOfFullQueuesComeBackInTheNextResultToTheirWorker) {
  packet_io.deliver(address(1), make_codes(1), /*congested=*/true);
  packet_io.deliver(address(1), make_codes(1, 1, 1, kCodeSlot + 1), /*congested=*/true);
  packet_io.deliver(address(5), make_codes(2), /*congested=*/true);  // somebody else's
  for (const unsigned worker : {0U, 2U}) packet_io.deliver(address(worker), make_codes(worker));
  const auto results = exchange({});
  ASSERT_EQ(results.size(), kWorkers);
  for (const Reply& result : results) {
    EXPECT_EQ(result.header.flags & wire::kFlagCongested, result.to == address(1) ? wire::kFlagCongested : 0);
  }
  const Bytes again = with_header(make_codes(1), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  EXPECT_EQ(single(from_worker(1, again)).header.flags, 0) << "was told";
  packet_io.deliver(address(1), again, /*congested=*/true);
  EXPECT_EQ(single(exchange({})).header.flags, wire::kFlagCongested);
}

TEST_F(Slots, ResultGoesToEveryWorker) {
  const auto results = complete();
  ASSERT_EQ(results.size(), kWorkers);
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    const Reply& result = results[worker];
    EXPECT_EQ(result.to, address(worker));
    EXPECT_EQ(result.type(), MessageType::kAggregate);
    EXPECT_EQ(result.header.worker_id, worker);
    EXPECT_EQ(result.header.contributions, kWorkers);
    EXPECT_EQ(result.header.flags, worker == kWorkers - 1 ? wire::kFlagLast : 0);
    EXPECT_EQ(result.header.payload_count, kCodes);
    EXPECT_EQ(result.header.slot, kCodeSlot);
    EXPECT_EQ(result.header.round, 1U);
    EXPECT_EQ(result.header.epoch, epoch);
    EXPECT_EQ(result.payload, Bytes(kCodes, 1 + 2 + 3));
  }
  EXPECT_EQ(job_counters().completed.get(), 1U);
  EXPECT_EQ(job_counters().partial.get(), 0U);
}

// Each worker may use another address of a server: results and all other answers leave from this address.
TEST_F(ShardTest, EveryWorkerIsAnsweredFromTheAddressThatItUses) {
  const auto at = [](unsigned worker) {
    io::Endpoint from = address(worker);
    from.own_ip = 0x0a0000f0 + worker;
    return from;
  };
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    const Reply welcome = single(say_hello(at(worker), make_hello(worker)));
    ASSERT_EQ(welcome.type(), MessageType::kWelcome);
    EXPECT_EQ(welcome.to.own_ip, at(worker).own_ip);
    epoch = welcome.header.epoch;
  }
  std::vector<Reply> results;
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    // Worker 1 asks at another address in between, or somebody in its name: the address at which it joined counts.
    io::Endpoint from = at(worker);
    from.own_ip.low += worker == 1 ? 9 : 0;
    results = exchange({{from, make_codes(worker)}});
  }
  ASSERT_EQ(results.size(), kWorkers);
  for (const Reply& result : results) EXPECT_EQ(result.to.own_ip, at(result.header.worker_id).own_ip);
  // A stranger is refused where it asked, and the worker is asked where it joined whether it lives.
  HelloMessage stranger = another_process(0);
  const auto replies = say_hello({0x0a000063, 9000, 0x0a0000ff}, stranger);
  ASSERT_EQ(replies.size(), 2U);
  for (const Reply& reply : replies) {
    const bool is_probe = reply.type() == MessageType::kProbe;
    EXPECT_EQ(reply.to.own_ip, is_probe ? at(0).own_ip : 0x0a0000ffU);
    EXPECT_EQ(reply.to == address(0), is_probe);
  }
}

/// The answers, byte for byte: tests/p4/switch.
TEST_F(Slots, CountsWhatBecomesOfPackets) {
  from_worker(0, make_codes(0));
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty());
  const Bytes again = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  EXPECT_EQ(single(from_worker(0, again)).reason(), ErrorReason::kIncomplete);
  EXPECT_EQ(job_counters().duplicates.get(), 2U);
  from_worker(1, make_codes(1));
  EXPECT_EQ(from_worker(2, make_codes(2)).size(), kWorkers);
  EXPECT_EQ(single(from_worker(1, make_codes(1))).type(), MessageType::kAggregate);
  EXPECT_EQ(job_counters().replays.get(), 1U);
  complete(2);
  complete(3);
  EXPECT_EQ(single(from_worker(2, make_codes(2, 1))).type(), MessageType::kStraggler);
  EXPECT_EQ(job_counters().stale.get(), 1U);
}

class QuorumOfTwo : public Slots {
 protected:
  QuorumOfTwo() { begin(); }

  void begin(const std::function<void(JobLimits&)>& change = [](JobLimits&) {}) {
    start(change);
    for (unsigned worker = 0; worker < kWorkers; ++worker) {
      HelloMessage hello = make_hello(worker);
      hello.payload.quorum = std::uint8_t{2};
      welcome = answer_to(worker, hello);
      epoch = welcome.header.epoch;
    }
  }
  static Bytes abstaining(Bytes codes, unsigned flags = 0) {
    return with_header(std::move(codes),
                       [&](auto& h) { h.flags = static_cast<std::uint8_t>(wire::kFlagAbstain | flags); });
  }

  Reply welcome;
};

TEST_F(QuorumOfTwo, WhoIsSilentForSecondsGetsNothingUntilItIsHeard) {
  EXPECT_EQ(complete(1, 2).size(), kWorkers);
  EXPECT_EQ(job_counters().partial.get(), 1U);
  now += Roster::kGone;
  EXPECT_EQ(complete(2, 2).size(), kWorkers) << "the time is not over";
  now += 1ms;
  for (const std::uint32_t round : {3U, 4U}) {
    const auto results = complete(round, 2);
    ASSERT_EQ(results.size(), 2U);
    EXPECT_EQ(results[0].to, address(0));
    EXPECT_EQ(results[1].to, address(1));
  }
  EXPECT_EQ(job_counters().withheld.get(), 2U);
  // It gets the results that it asks for, and all results from then on.
  EXPECT_EQ(single(from_worker(2, make_codes(2, 4))).payload, Bytes(kCodes, 3));
  EXPECT_EQ(single(from_worker(2, make_codes(2, 1))).type(), MessageType::kStraggler);
  EXPECT_EQ(complete(5, 2).size(), kWorkers);
  EXPECT_EQ(job_counters().withheld.get(), 2U);
}

TEST_F(QuorumOfTwo, AShardJudgesByWhatItHearsItself) {
  // Other shards of the job hear of worker 2 all the time; this shard does not, and only its slots are concerned.
  begin([](JobLimits& limits) { limits.share = {.shard = 0, .shards = 2}; });
  now += Roster::kGone + 1ms;
  EXPECT_EQ(complete(1, 2).size(), 2U);
  from_worker(2, with_header(make_codes(2), [](auto& h) { h.slot = kCodeSlot + 1; }));
  EXPECT_EQ(complete(2, 2).size(), 2U) << "a packet for a slot of another shard says nothing";
  from_worker(2, with_header(make_goodbye(2),
                             [](auto& h) { h.message_type = static_cast<std::uint8_t>(MessageType::kAlive); }));
  EXPECT_EQ(complete(3, 2).size(), kWorkers);
}

TEST_F(Slots, WithoutAQuorumSilentWorkersGetTheirResults) {
  from_worker(0, make_codes(0, 1, 1));
  now += Roster::kGone + 1ms;
  from_worker(1, make_codes(1, 1, 2));
  EXPECT_EQ(from_worker(2, make_codes(2, 1, 3)).size(), kWorkers);
}

TEST_F(QuorumOfTwo, CodesWithoutAMaximumNormAreAnsweredAndNotAdded) {
  EXPECT_EQ(welcome.header.flags, wire::kFlagAbstain | wire::kFlagLast);
  EXPECT_TRUE(from_worker(2, abstaining(make_codes(2, 1, 7))).empty());
  EXPECT_EQ(single(from_worker(2, abstaining(make_codes(2, 1, 7), wire::kFlagRetransmit))).reason(),
            ErrorReason::kIncomplete);
  const auto results = complete(1, 2);
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[2].payload, Bytes(kCodes, 1 + 2));
  EXPECT_EQ(results[2].header.contributions, 2);
  EXPECT_EQ(single(from_worker(2, abstaining(make_codes(2, 1, 7)))).payload, Bytes(kCodes, 1 + 2));
  EXPECT_EQ(job_counters().abstained.get(), 3U);
  const std::uint64_t before = drops(Drop::kHeader);
  EXPECT_TRUE(from_worker(2, abstaining(make_norm(2, 1))).empty()) << "norms always count";
  EXPECT_EQ(drops(Drop::kHeader), before + 1);
}

TEST_F(Slots, NobodyAbstainsWithoutAQuorum) {
  const Bytes abstaining = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagAbstain; });
  EXPECT_TRUE(from_worker(0, abstaining).empty());
  EXPECT_EQ(drops(Drop::kHeader), 1U);
}

TEST_F(Slots, NormsOfAnotherCountGetTheMaximumOfWhatAllHave) {
  // Fingerprints tell workers by this that they average different gradients.
  const auto with_norms = [&](unsigned worker, std::uint16_t count, std::uint8_t first_byte) {
    Bytes packet = make_norm(worker, first_byte);
    packet.resize(sizeof(wire::Header) + 4 * std::size_t{count}, first_byte);
    return with_header(std::move(packet), [&](auto& h) { h.payload_count = count; });
  };
  from_worker(0, with_norms(0, 3, 0x20));
  from_worker(1, with_norms(1, 5, 0x41));
  const auto results = from_worker(2, with_norms(2, 2, 0x30));
  ASSERT_EQ(results.size(), kWorkers);
  for (const Reply& result : results) {
    EXPECT_EQ(result.header.payload_count, 3U);
    EXPECT_EQ(result.payload, Bytes(12, 0x41));
  }
}

class Epochs : public Slots {
 protected:
  static constexpr std::uint32_t kRounds = 1U << 30;
  Epochs() { begin(kRounds); }

  void begin(std::uint32_t rounds_per_epoch) {
    start([&](JobLimits& limits) { limits.rounds_per_epoch = rounds_per_epoch; });
    join_all();
  }
  Bytes in_epoch(std::uint32_t old, Bytes packet) const {
    return with_header(std::move(packet), [&](auto& h) { h.epoch = old; });
  }
  /// All workers are told of a new epoch, and resume in it.
  void take_new_epoch(const std::vector<Reply>& replies) {
    ASSERT_EQ(replies.size(), kWorkers);
    for (unsigned worker = 0; worker < kWorkers; ++worker) {
      EXPECT_EQ(replies[worker].to, address(worker));
      EXPECT_EQ(replies[worker].header.worker_id, worker);
      EXPECT_EQ(replies[worker].header.epoch, epoch);
      EXPECT_EQ(replies[worker].reason(), ErrorReason::kNewEpoch);
    }
    const std::uint32_t next = replies[0].as<wire::ErrorPayload>().job_value;
    EXPECT_NE(next, epoch);
    EXPECT_NE(next, 0U);
    epoch = next;
  }
};

TEST_F(Epochs, ARoundNeverComesTwiceInAnEpoch) {
  const Bytes recorded = make_codes(0, 5, 15);
  EXPECT_EQ(complete(5).size(), kWorkers);
  std::uint32_t round = 5;
  for (int quarter = 1; quarter <= 4; ++quarter) {  // around all 32 bits
    round += kRounds - 1;
    EXPECT_EQ(complete(round).size(), kWorkers);
    take_new_epoch(from_worker(0, make_codes(0, ++round)));
    EXPECT_EQ(complete(round).size(), kWorkers) << "what was refused is sent again";
  }
  EXPECT_EQ(round, 5U);  // again; without epochs the recording would be of this round, or of the next one
  const std::uint32_t completed = 4 * 2 + 1;
  EXPECT_EQ(job_counters().completed.get(), completed);
  const Bytes once_more = with_header(recorded, [](auto& h) { h.round = std::uint32_t{6}; });
  EXPECT_EQ(single(from_worker(0, once_more)).reason(), ErrorReason::kNewEpoch);
  EXPECT_EQ(complete(6)[0].payload, Bytes(kCodes, 1 + 2 + 3)) << "only what was sent in this epoch";
}

TEST_F(Epochs, SlotsStayAsTheyAre) {
  begin(8);
  complete(1);
  from_worker(0, make_codes(0, 2, 1));
  // Another slot goes ahead and ends the epoch: round 2 here has one contribution, and the result of round 1 is kept.
  const std::uint32_t old = epoch;
  from_worker(1, make_codes(1, 1, 1, kCodeSlot + 1));
  take_new_epoch(from_worker(1, make_codes(1, 9, 1, kCodeSlot + 1)));
  EXPECT_EQ(single(from_worker(2, make_codes(2, 1))).payload, Bytes(kCodes, 6)) << "a replay";
  const Bytes again = with_header(make_codes(0, 2, 1), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  EXPECT_EQ(single(from_worker(0, again)).as<wire::ErrorPayload>().worker_bitmap, 0b001U);
  EXPECT_EQ(single(from_worker(1, in_epoch(old, make_codes(1, 2, 9)))).reason(), ErrorReason::kNewEpoch);
  from_worker(1, make_codes(1, 2, 2));
  EXPECT_EQ(from_worker(2, make_codes(2, 2, 3))[0].payload, Bytes(kCodes, 6));
}

TEST_F(Epochs, NormsAndCodesEndAnEpochEach) {
  begin(8);
  const auto norm = [&](unsigned worker, std::uint32_t round) {
    return with_header(make_norm(worker, 1), [&](auto& h) { h.round = round; });
  };
  EXPECT_TRUE(from_worker(0, norm(0, 100)).empty());
  EXPECT_TRUE(from_worker(0, make_codes(0, 1)).empty()) << "streams of their own, with rounds of their own";
  take_new_epoch(from_worker(0, norm(0, 108)));
  EXPECT_TRUE(from_worker(0, norm(0, 108)).empty());
  EXPECT_TRUE(from_worker(0, make_codes(0, 8)).empty()) << "the new epoch has rounds of its own";
}

TEST_F(Epochs, WhoHasNotHeardOfANewEpochIsStillKnown) {
  begin(8);
  const std::uint32_t old = epoch;
  from_worker(0, make_codes(0, 1));
  take_new_epoch(from_worker(0, make_codes(0, 9)));
  EXPECT_EQ(single(from_worker(1, in_epoch(old, make_codes(1, 1)))).reason(), ErrorReason::kNewEpoch);
  EXPECT_TRUE(exchange({{address(7), in_epoch(old, make_codes(1, 1))}}).empty()) << "a stranger is told nothing";
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    from_worker(worker, in_epoch(worker == 0 ? epoch : old, make_goodbye(worker)));
  }
  EXPECT_EQ(changes().back(), JobChange::kLeft);
}

TEST_F(Epochs, ARestartedJobDoesNotGoOnFromTheEpochsBefore) {
  begin(8);
  const std::uint32_t old = epoch;
  from_worker(0, make_codes(0, 1));
  take_new_epoch(from_worker(0, make_codes(0, 9)));
  from_worker(2, make_goodbye(2));
  now += Roster::kAsking;
  HelloMessage newcomer = another_process(2);
  epoch = answer_to(2, newcomer).header.epoch;
  for (unsigned worker = 0; worker < 2; ++worker) EXPECT_NE(answer_to(worker, make_hello(worker)).header.epoch, old);
  EXPECT_EQ(single(from_worker(0, in_epoch(old, make_codes(0, 1)))).reason(), ErrorReason::kStaleEpoch);
}

TEST_F(Epochs, SurvivorsOfARestartAreToldSoInWhicheverEpochTheyAre) {
  begin(1);
  std::vector<std::uint32_t> epochs{epoch};
  from_worker(0, make_codes(0, 1));
  for (std::uint32_t round = 2; round <= 5; ++round) {
    take_new_epoch(from_worker(0, make_codes(0, round)));
    from_worker(0, make_codes(0, round));
    epochs.push_back(epoch);
  }
  from_worker(2, make_goodbye(2));
  now += Roster::kAsking;
  HelloMessage newcomer = another_process(2);
  ASSERT_EQ(answer_to(2, newcomer).type(), MessageType::kWelcome);
  for (const std::uint32_t old : epochs) {  // `unknown_job` would have it join again, and wait for rounds that are over
    EXPECT_EQ(single(from_worker(1, in_epoch(old, make_codes(1, 5)))).reason(), ErrorReason::kStaleEpoch);
  }
  EXPECT_EQ(single(from_worker(1, in_epoch(1, make_codes(1, 5)))).reason(), ErrorReason::kUnknownJob);
}

TEST_F(Epochs, WithoutALimitRoundsWrapAround) {
  begin(0);
  for (const std::uint32_t round : {1U, 0x30000000U, 0x60000001U, 0x90000000U, 0xc0000001U, 0xf0000000U, 1U}) {
    EXPECT_EQ(complete(round).size(), kWorkers) << round;
  }
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
  HelloMessage restarted = another_process(2);
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
      {"flag of a checksum that is lost", Drop::kHeader, [](auto& h) { h.switch_state = std::uint16_t{0x8000}; }},
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
  // No packet touched the slot.
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
  for (const std::uint8_t first_byte : {0x80, 0xff}) EXPECT_TRUE(from_worker(0, make_norm(0, first_byte)).empty());
  EXPECT_EQ(drops(Drop::kSign), 2U);
  from_worker(0, make_norm(0, 0x20));
  from_worker(1, make_norm(1, 0x7f));  // NaN
  EXPECT_EQ(from_worker(2, make_norm(2, 0x10)).size(), kWorkers);
}

TEST_F(Slots, CountsMustBeMultiplesOfWhatWelcomeSays) {
  start([](JobLimits& limits) { limits.codes_multiple = 32; });
  EXPECT_EQ(join(0).as<wire::WelcomePayload>().codes_multiple, 32);
  const auto answers_to = [&](Bytes packet, std::uint16_t count, std::size_t payload_bytes) {
    packet.resize(sizeof(wire::Header) + payload_bytes);
    return from_worker(0, with_header(std::move(packet), [&](auto& h) { h.payload_count = count; })).size();
  };
  for (const std::uint16_t count : {2, 16, 34, 62}) EXPECT_EQ(answers_to(make_codes(0), count, count / 2), 0U);
  for (const std::uint16_t count : {1, 7, 12}) EXPECT_EQ(answers_to(make_norm(0, 1), count, 4U * count), 0U);
  EXPECT_EQ(drops(Drop::kLength), 7U);
  answers_to(make_codes(0), 32, 16);
  answers_to(make_norm(0, 1), 8, 32);  // norms: 32 * 8 / 32
  shard->run_timers(now);
  EXPECT_EQ(shard->jobs()[0].slots_in_use.get(), 2U);
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
