// HELLO, WELCOME, GOODBYE, admission, expiry, restart.
#include <set>

#include "shard_fixture.h"

namespace thc::ps {
namespace {

using wire::ConfigField;
using wire::ErrorReason;
using wire::MessageType;

class Joining : public ShardTest {
 protected:
  /// The answer to a HELLO with something changed.
  Reply answer(const std::function<void(HelloMessage&)>& change, unsigned worker = 0) {
    HelloMessage hello = make_hello(worker);
    change(hello);
    return answer_to(worker, hello);
  }
};

TEST_F(Joining, WelcomeTellsSlotsWindowShardsAndEpoch) {
  const Reply welcome = join(0);
  const auto payload = welcome.as<wire::WelcomePayload>();
  EXPECT_EQ(payload.slots, 16U);
  EXPECT_EQ(payload.norm_slots, 2U);
  EXPECT_EQ(payload.shards, 1);
  EXPECT_EQ(payload.window_bytes, MemoryIo::kReceiveBufferBytes / 2 / kWorkers);
  EXPECT_NE(welcome.header.epoch, 0U);
  EXPECT_EQ(welcome.header.worker_id, 0);
  EXPECT_EQ(welcome.to, address(0));
}

TEST_F(Joining, GrantsNoMoreSlotsThanTheServerHas) {
  EXPECT_EQ(answer([](auto& h) { h.payload.slots = std::uint32_t{1000}; }).as<wire::WelcomePayload>().slots, 16U);
}

TEST_F(Joining, GrantsFewerSlotsWhenAsked) {
  const auto payload = answer([](auto& h) { h.payload.slots = std::uint32_t{2}; }).as<wire::WelcomePayload>();
  EXPECT_EQ(payload.slots, 2U);
  EXPECT_EQ(payload.norm_slots, 1U);
}

TEST_F(Joining, RepeatedHelloResetsNothing) {
  join_all();
  from_worker(0, make_codes(0));
  const std::uint32_t before = epoch;
  EXPECT_EQ(join(0).header.epoch, before);
  from_worker(1, make_codes(1));
  EXPECT_EQ(from_worker(2, make_codes(2)).size(), kWorkers);
}

class Moving : public Joining {
 protected:
  static constexpr io::Endpoint kMoved{0x0a00ee01, 6000};

  Moving() { join_all(); }

  /// The HELLO of a worker that is in the job and hears nothing.
  HelloMessage hello_again(unsigned worker = 1) const {
    HelloMessage hello = make_hello(worker);
    hello.header.epoch = epoch;
    return hello;
  }
  ErrorReason refusal(const HelloMessage& hello) { return single(say_hello(kMoved, hello)).reason(); }
};

TEST_F(Moving, AWorkerGoesOnFromAnotherAddress) {
  from_worker(1, make_codes(1));
  from_worker(0, make_codes(0));
  EXPECT_TRUE(exchange({{kMoved, make_codes(1)}}).empty());
  const Reply challenge = single(exchange({{kMoved, hello_again().bytes()}}));
  EXPECT_EQ(challenge.type(), MessageType::kChallenge);
  EXPECT_EQ(challenge.to, kMoved);
  const Reply welcome = single(say_hello(kMoved, hello_again()));
  EXPECT_EQ(welcome.type(), MessageType::kWelcome);
  EXPECT_EQ(welcome.header.epoch, epoch);
  EXPECT_NE(welcome.header.flags & wire::kFlagRetransmit, 0) << "results may have gone to the old address";
  EXPECT_EQ(single(say_hello(kMoved, hello_again())).header.flags & wire::kFlagRetransmit, 0);
  EXPECT_EQ(drops(Drop::kSender), 1U);
  EXPECT_TRUE(from_worker(1, make_codes(1)).empty());
  EXPECT_EQ(drops(Drop::kSender), 2U) << "packets of the old address do not count any more";
  const auto results = from_worker(2, make_codes(2));
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[1].to, kMoved);
  const Bytes again = with_header(make_codes(1), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  EXPECT_EQ(single(exchange({{kMoved, again}})).type(), MessageType::kAggregate) << "what was lost before";
}

TEST_F(Moving, OnlyTheProcessItselfMovesAWorker) {
  HelloMessage hello = hello_again();
  hello.payload.cookie = std::uint64_t{1};
  EXPECT_EQ(single(exchange({{kMoved, hello.bytes()}})).type(), MessageType::kChallenge);
  const auto is_unknown = [&](const std::function<void(HelloMessage&)>& change) {
    hello = hello_again();
    change(hello);
    return refusal(hello) == ErrorReason::kUnknownJob;
  };
  EXPECT_TRUE(is_unknown([](auto& h) { h.payload.nonce = std::uint64_t{5}; }));
  EXPECT_TRUE(is_unknown([](auto& h) { h.payload.run = std::uint64_t{5}; }));
  EXPECT_TRUE(is_unknown([](auto& h) { h.header.epoch = h.header.epoch + 1; }));
  EXPECT_TRUE(is_unknown([](auto& h) { h.header.job_id = std::uint16_t{8}; }));
  EXPECT_EQ(shard->jobs()[1].job_plus_one.get(), 0U) << "it starts no job";
  from_worker(1, make_codes(1));
  EXPECT_EQ(drops(Drop::kSender), 0U) << "it is where it was";
}

TEST_F(Moving, AServerThatDrainsKeepsItsWorkers) {
  shard->drain(now);
  EXPECT_EQ(single(say_hello(kMoved, hello_again())).type(), MessageType::kWelcome);
}

TEST_F(Moving, AWorkerOfBeforeARestartHearsOfIt) {
  const HelloMessage survivor = hello_again();
  from_worker(2, make_goodbye(2));
  now += 5s;
  HelloMessage restarted = another_process(2);
  EXPECT_EQ(answer_to(2, restarted).type(), MessageType::kWelcome);
  EXPECT_EQ(refusal(survivor), ErrorReason::kStaleEpoch);
}

TEST_F(Joining, MismatchNamesTheField) {
  join(0);
  const auto mismatch = [&](const std::function<void(HelloMessage&)>& change) {
    const Reply reply = answer(change, 1);
    EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch);
    return reply.field();
  };
  std::vector<std::uint16_t> other(16);
  for (std::uint16_t i = 0; i < 16; ++i) other[i] = static_cast<std::uint16_t>(i == 15 ? 17 : i);
  EXPECT_EQ(mismatch([](auto& h) { h.header.num_workers = std::uint8_t{4}; }), ConfigField::kNumWorkers);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.arithmetic = std::uint32_t{0x020000}; }), ConfigField::kArithmetic);
  EXPECT_EQ(mismatch([](auto& h) { h.use_table(1, {0, 15}); }), ConfigField::kCodeBits);
  EXPECT_EQ(mismatch([](auto& h) { h.header.value_bits = std::uint8_t{16}; }), ConfigField::kValueBits);
  EXPECT_EQ(mismatch([&](auto& h) { h.use_table(4, other); }), ConfigField::kGranularity);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.codes_per_packet = std::uint16_t{128}; }), ConfigField::kCodesPerPacket);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.quorum = std::uint8_t{2}; }), ConfigField::kQuorum);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.slots = std::uint32_t{8}; }), ConfigField::kSlots);
}

TEST_F(Joining, WhoWaitsForAWorkerThatWasRefusedIsTold) {
  join(0);
  join(1);
  const auto notice = [&] {
    from_worker(0, make_codes(0));
    const Bytes again = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; });
    const Reply reply = single(from_worker(0, again));
    EXPECT_EQ(reply.reason(), ErrorReason::kIncomplete);
    return reply;
  };
  EXPECT_EQ(notice().field(), ConfigField::kNone);
  answer([](auto& h) { h.payload.codes_per_packet = std::uint16_t{128}; }, 2);
  EXPECT_EQ(notice().field(), ConfigField::kCodesPerPacket);
  EXPECT_EQ(notice().as<wire::ErrorPayload>().job_value, 128U);
  answer([](auto& h) { h.payload.codes_per_packet = std::uint16_t{128}; }, 0);
  EXPECT_EQ(notice().field(), ConfigField::kNone) << "a stranger who is not missing";
  answer([](auto& h) { h.payload.codes_per_packet = std::uint16_t{128}; }, 2);
  join(2);
  EXPECT_EQ(notice().field(), ConfigField::kNone) << "it has come back";
}

TEST_F(Joining, MismatchOfTheTableAlone) {
  std::vector<std::uint16_t> a(16), b(16);
  for (std::uint16_t i = 0; i < 16; ++i) a[i] = b[i] = static_cast<std::uint16_t>(2 * i);
  b[3] = 7;
  answer([&](auto& h) { h.use_table(4, a); });
  const Reply reply = answer([&](auto& h) { h.use_table(4, b); }, 1);
  EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch);
  EXPECT_EQ(reply.field(), ConfigField::kTable);
}

TEST_F(Joining, BadConfigNamesTheField) {
  const auto bad = [&](const std::function<void(HelloMessage&)>& change) {
    const Reply reply = answer(change);
    EXPECT_EQ(reply.reason(), ErrorReason::kBadConfig);
    return reply.field();
  };
  EXPECT_EQ(bad([](auto& h) { h.header.num_workers = std::uint8_t{0}; }), ConfigField::kNumWorkers);
  EXPECT_EQ(bad([](auto& h) { h.header.num_workers = std::uint8_t{65}; }), ConfigField::kNumWorkers);
  EXPECT_EQ(bad([](auto& h) { h.header.worker_id = kWorkers; }), ConfigField::kWorkerId);
  EXPECT_EQ(bad([](auto& h) { h.header.code_bits = std::uint8_t{9}; }), ConfigField::kCodeBits);
  EXPECT_EQ(bad([](auto& h) { h.header.code_bits = std::uint8_t{255}; }), ConfigField::kCodeBits);
  EXPECT_EQ(bad([](auto& h) { h.header.value_bits = std::uint8_t{32}; }), ConfigField::kValueBits);
  EXPECT_EQ(bad([](auto& h) { h.payload.quorum = std::uint8_t{0}; }), ConfigField::kQuorum);
  EXPECT_EQ(bad([](auto& h) { h.payload.quorum = std::uint8_t{kWorkers + 1}; }), ConfigField::kQuorum);
  EXPECT_EQ(bad([](auto& h) { h.payload.slots = std::uint32_t{1}; }), ConfigField::kSlots);
  EXPECT_EQ(bad([](auto& h) { h.payload.codes_per_packet = std::uint16_t{63}; }), ConfigField::kCodesPerPacket);
  EXPECT_EQ(bad([](auto& h) { h.payload.codes_per_packet = std::uint16_t{9000}; }), ConfigField::kCodesPerPacket)
      << "the aggregate does not fit a datagram";
  EXPECT_EQ(bad([](auto& h) { h.payload.granularity = std::uint16_t{14}; }), ConfigField::kGranularity);
  EXPECT_EQ(bad([](auto& h) { h.payload.granularity = std::uint16_t{0}; }), ConfigField::kGranularity);
  EXPECT_EQ(bad([](auto& h) { h.payload.table_hash = std::uint64_t{1}; }), ConfigField::kTable);
  EXPECT_EQ(bad([](auto& h) { h.values[5] = h.values[4]; }), ConfigField::kTable);
  EXPECT_EQ(bad([](auto& h) { h.values[0] = 1; }), ConfigField::kTable);
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U) << "no job came of it";
}

TEST_F(Joining, RefusesLanesThatCouldOverflow) {
  EXPECT_EQ(answer([](auto& h) { h.use_table(1, {0, 86}); }).reason(), ErrorReason::kOverflow);  // 258
  EXPECT_EQ(answer([](auto& h) { h.use_table(1, {0, 85}); }).type(), MessageType::kWelcome);     // 255
}

TEST_F(Joining, DropsMalformedHello) {
  const Bytes hello = make_hello(0).bytes();
  for (std::size_t size = sizeof(wire::Header); size < hello.size(); ++size) {
    EXPECT_TRUE(from_worker(0, Bytes(hello.begin(), hello.begin() + static_cast<std::ptrdiff_t>(size))).empty())
        << size;
  }
  Bytes longer = hello;
  longer.push_back(0);
  EXPECT_TRUE(from_worker(0, longer).empty());
  EXPECT_EQ(drops(Drop::kLength), hello.size() - sizeof(wire::Header) + 1);
  EXPECT_TRUE(from_worker(0, with_header(hello, [](auto& h) { h.slot = std::uint32_t{1}; })).empty());
  EXPECT_EQ(drops(Drop::kSlot), 1U);
  EXPECT_TRUE(from_worker(0, with_header(hello, [](auto& h) { h.switch_pass = std::uint8_t{1}; })).empty());
  EXPECT_EQ(drops(Drop::kHeader), 1U);
}

TEST_F(Joining, NothingIsDoneForAnAddressThatDoesNotAnswer) {
  const Reply challenge = single(from_worker(0, make_hello(0).bytes()));
  ASSERT_EQ(challenge.type(), MessageType::kChallenge);
  EXPECT_EQ(challenge.to, address(0));
  EXPECT_LE(sizeof(wire::Header) + challenge.payload.size(), make_hello(0).bytes().size());
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U) << "no job came of it";
  HelloMessage wrong = make_hello(0);
  wrong.payload.cookie = challenge.as<wire::ChallengePayload>().cookie + 1;
  EXPECT_EQ(single(from_worker(0, wrong.bytes())).type(), MessageType::kChallenge);
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U);
}

TEST_F(Joining, ACookieIsGoodForOneClaimAndSomeSeconds) {
  HelloMessage hello = make_hello(0);
  hello.payload.cookie = single(from_worker(0, hello.bytes())).as<wire::ChallengePayload>().cookie;
  const auto kind = [&](const std::function<void(HelloMessage&)>& change, io::Endpoint from) {
    HelloMessage changed = hello;
    change(changed);
    return single(exchange({{from, changed.bytes()}})).type();
  };
  const auto same = [](HelloMessage&) {};
  EXPECT_EQ(kind(same, {address(0).ip, 1}), MessageType::kChallenge);
  EXPECT_EQ(kind(same, {address(0).ip.ipv4() + 1, address(0).port}), MessageType::kChallenge);
  EXPECT_EQ(kind(same, {io::IpAddress(1, address(0).ip.low), address(0).port}), MessageType::kChallenge);
  EXPECT_EQ(kind([](auto& h) { h.header.worker_id = std::uint8_t{1}; }, address(0)), MessageType::kChallenge);
  EXPECT_EQ(kind([](auto& h) { h.header.job_id = std::uint16_t{8}; }, address(0)), MessageType::kChallenge);
  EXPECT_EQ(kind([](auto& h) { h.payload.nonce = std::uint64_t{5}; }, address(0)), MessageType::kChallenge);
  now += 10s;
  EXPECT_EQ(kind(same, address(0)), MessageType::kWelcome);
  now += 10s;
  EXPECT_EQ(kind(same, address(0)), MessageType::kChallenge);
}

TEST_F(Joining, CookiesOfAnotherServerAreWorthless) {
  HelloMessage hello = make_hello(0);
  hello.payload.cookie = single(from_worker(0, hello.bytes())).as<wire::ChallengePayload>().cookie;
  start();
  EXPECT_EQ(single(from_worker(0, hello.bytes())).type(), MessageType::kChallenge);
}

/// A newcomer wants a place that a worker has, or the job number of all workers.
class Claims : public Joining {
 protected:
  static constexpr io::Endpoint kNewcomer{0x0a000063, 9000};

  /// The answers to the newcomer. PROBEs to workers are counted.
  std::vector<Reply> claim_with(const HelloMessage& hello) {
    std::vector<Reply> replies = say_hello(kNewcomer, hello);
    std::erase_if(replies, [this](const Reply& reply) { return note_probe(reply); });
    return replies;
  }
  /// Lets time pass as packet threads do; the workers in `alive` answer PROBEs.
  void pass(std::chrono::milliseconds time, const std::vector<unsigned>& alive = {}) {
    for (auto left = time; left > 0ms; left -= 50ms) {
      now += 50ms;
      shard->run_timers(now);
      for (const Reply& reply : exchange({})) note_probe(reply);
      for (const unsigned worker : alive) EXPECT_TRUE(from_worker(worker, make_alive(worker)).empty());
    }
  }
  bool note_probe(const Reply& reply) {
    if (reply.type() != MessageType::kProbe) return false;
    EXPECT_EQ(reply.to, address(reply.header.worker_id));
    EXPECT_EQ(reply.header.epoch, epoch);
    EXPECT_TRUE(reply.payload.empty());
    ++probes.at(reply.header.worker_id);
    return true;
  }
  Bytes make_alive(unsigned worker) const {
    return with_header(make_goodbye(worker),
                       [](auto& h) { h.message_type = static_cast<std::uint8_t>(MessageType::kAlive); });
  }

  std::array<int, kWorkers> probes{};
};

/// Another process wants the place of worker 2. Other workers are probed too, in case they wait for results.
class Contest : public Claims {
 protected:
  Contest() { join_all(); }

  Reply claim() { return single(claim_with(another_process(2))); }
};

TEST_F(Contest, AProcessThatAnswersKeepsItsPlace) {
  now += 20s;  // it computes
  for (int i = 0; i < 50; ++i) {
    const Reply reply = claim();
    ASSERT_EQ(reply.reason(), ErrorReason::kDuplicateWorker) << i;
    EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0b100U);
    pass(100ms, {2});
  }
  EXPECT_GE(probes[2], 20);
  EXPECT_LE(probes[2], 26) << "five a second";
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty()) << "the job goes on";
}

TEST_F(Contest, AnyPacketIsAnAnswer) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(claim().reason(), ErrorReason::kDuplicateWorker) << i;
    pass(200ms);
    from_worker(2, make_codes(2));
  }
}

TEST_F(Contest, ASilentProcessIsReplacedAfterASecondOfProbes) {
  from_worker(0, make_codes(0));
  const Bytes survivor = make_codes(1);
  const Bytes replaced = make_codes(2);
  now += 20s;
  int tries = 0;
  Reply reply = claim();
  for (; reply.type() == MessageType::kError && tries < 100; ++tries) {
    pass(100ms);
    reply = claim();
  }
  ASSERT_EQ(reply.type(), MessageType::kWelcome);
  EXPECT_EQ(tries, 10);
  EXPECT_GE(probes[2], 5);
  EXPECT_EQ(reply.to, kNewcomer);
  EXPECT_NE(reply.header.epoch, epoch);
  EXPECT_EQ(single(from_worker(1, survivor)).reason(), ErrorReason::kStaleEpoch);
  EXPECT_EQ(single(from_worker(2, replaced)).reason(), ErrorReason::kStaleEpoch) << "it was stopped, and goes on";
  EXPECT_TRUE(exchange({{address(9), with_header(replaced, [](auto&) {})}}).empty()) << "a stranger learns nothing";
  // A late copy of the replaced process's HELLO is of no use, and nothing of the old rounds is left.
  EXPECT_TRUE(say_hello(address(2), make_hello(2)).empty());
  epoch = reply.header.epoch;
  join(0);
  join(1);
  from_worker(0, make_codes(0));
  from_worker(1, make_codes(1));
  const auto results = exchange({{kNewcomer, make_codes(2)}});
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[0].payload[0], 3);
}

// It left before it was welcomed, so without a GOODBYE, and comes again with smaller packets, which a server wants.
// Its GOODBYE was lost, and worker 0 has lost its last result: it must get it before the job starts over.
TEST_F(Contest, TheOthersAreAskedWhetherTheyWait) {
  now += 20s;
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_codes(worker));
  from_worker(1, make_goodbye(1));
  const Bytes again = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  HelloMessage hello = another_process(2);
  std::vector<io::Endpoint> asked;
  for (int i = 0; i < 3; ++i) {
    for (const Reply& reply : say_hello(kNewcomer, hello)) {
      if (reply.type() == MessageType::kProbe) asked.push_back(reply.to);
    }
    now += 200ms;
  }
  EXPECT_EQ(asked, (std::vector{address(2), address(2), address(0), address(2)})) << "when 2 has left one unanswered";
  EXPECT_EQ(single(from_worker(0, again)).type(), MessageType::kAggregate);
}

TEST_F(Contest, ASilentProcessLosesItsPlaceToOneWithOtherSettings) {
  const auto claim_otherwise = [&] {
    HelloMessage hello = another_process(2);
    hello.payload.quorum = std::uint8_t{2};
    return answer_to(kNewcomer, hello);
  };
  for (int tries = 0; tries < 15; ++tries) {
    ASSERT_EQ(claim_otherwise().reason(), ErrorReason::kConfigMismatch);
    pass(100ms);
  }
  from_worker(0, make_goodbye(0));
  ASSERT_EQ(claim_otherwise().reason(), ErrorReason::kConfigMismatch) << "worker 1 lives in the job";
  from_worker(1, make_goodbye(1));
  EXPECT_EQ(claim_otherwise().type(), MessageType::kWelcome);
}

TEST_F(Contest, AProcessThatAnswersKeepsItsPlaceFromOtherSettings) {
  HelloMessage hello = another_process(2);
  hello.payload.quorum = std::uint8_t{2};
  for (int i = 0; i < 30; ++i) {
    claim_with(hello);
    pass(100ms, {2});
  }
  EXPECT_GE(probes[2], 12);
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty()) << "the job goes on";
  from_worker(1, make_codes(1));
  EXPECT_EQ(from_worker(2, make_codes(2)).size(), kWorkers);
}

TEST_F(Contest, ProbesEndWithTheClaim) {
  claim();
  pass(10s);
  EXPECT_LE(probes[2], 11);
  EXPECT_EQ(claim().reason(), ErrorReason::kDuplicateWorker) << "what was not answered long ago counts no more";
}

TEST_F(Contest, AStrangersAliveDoesNotCount) {
  claim();
  for (int i = 0; i < 12; ++i) {
    pass(100ms);
    EXPECT_TRUE(exchange({{address(9), make_alive(2)}}).empty());
    from_worker(2, with_header(make_alive(2), [](auto& h) { h.epoch = h.epoch + 1; }));
  }
  EXPECT_EQ(drops(Drop::kSender), 12U);
  EXPECT_EQ(drops(Drop::kHeader), 12U);
  EXPECT_EQ(claim().type(), MessageType::kWelcome);
}

/// Workers 0 to 2 of a training, which has run 11; others want their job number.
class Trainings : public Claims {
 protected:
  Trainings() {
    for (unsigned worker = 0; worker < kWorkers; ++worker) epoch = enter(worker, 11).header.epoch;
  }
  Reply enter(unsigned worker, std::uint64_t run) {
    return answer([run](auto& h) { h.payload.run = run; }, worker);
  }
  /// The answer to worker 1 of another training.
  Reply claim(std::uint64_t run) {
    HelloMessage hello = another_process(1);
    hello.payload.run = run;
    return single(claim_with(hello));
  }
};

TEST_F(Trainings, AnotherOneIsRefusedAsLongAsOneWorkerLives) {
  for (const std::uint64_t run : {std::uint64_t{12}, std::uint64_t{0}}) {  // 0 is a training like any other
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(claim(run).reason(), ErrorReason::kOtherTraining) << i;
      pass(100ms, {2});
    }
  }
  for (const int count : probes) {
    EXPECT_GE(count, 24);
    EXPECT_LE(count, 32) << "five a second";
  }
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty());
  EXPECT_EQ(enter(1, 11).header.epoch, epoch) << "the training's own are in it as before";
}

TEST_F(Trainings, EvenWhereNobodyHasThePlace) {
  from_worker(1, make_goodbye(1));
  EXPECT_EQ(claim(12).reason(), ErrorReason::kOtherTraining);
  EXPECT_EQ(shard->jobs()[0].workers.get(), 2U);
}

TEST_F(Trainings, AnotherOneGetsTheJobWhenNobodyOfItLives) {
  const Bytes stopped = make_codes(0);
  int tries = 0;
  Reply reply = claim(12);
  for (; reply.type() == MessageType::kError && tries < 100; ++tries) {
    EXPECT_EQ(reply.reason(), ErrorReason::kOtherTraining);
    pass(100ms);
    reply = claim(12);
  }
  ASSERT_EQ(reply.type(), MessageType::kWelcome);
  EXPECT_EQ(tries, 10);
  EXPECT_NE(reply.header.epoch, epoch);
  EXPECT_EQ(single(from_worker(0, stopped)).reason(), ErrorReason::kStaleEpoch) << "it was stopped, and goes on";
  EXPECT_TRUE(say_hello(address(0),
                        [&] {
                          HelloMessage late = make_hello(0);
                          late.payload.run = std::uint64_t{12};
                          return late;
                        }())
                  .empty())
      << "its HELLO is a late copy, whatever it says";
  EXPECT_EQ(enter(2, 11).reason(), ErrorReason::kOtherTraining) << "now the first one is the other";
}

TEST_F(Trainings, AnotherOneGetsTheJobWhenAllHaveLeft) {
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_goodbye(worker));
  EXPECT_EQ(claim(12).type(), MessageType::kWelcome);
}

// The job of a killed training is no reason to refuse the next training.
TEST_F(Trainings, OtherSettingsGetTheJobOfADeadOne) {
  const auto claim_otherwise = [&] {
    return answer(
        [](auto& h) {
          h.payload.run = std::uint64_t{12};
          h.payload.nonce = std::uint64_t{999};
          h.payload.quorum = std::uint8_t{2};
        },
        1);
  };
  Reply reply = claim_otherwise();
  EXPECT_EQ(reply.reason(), ErrorReason::kOtherTraining) << "it is told of other settings afterwards";
  for (int tries = 0; reply.type() == MessageType::kError && tries < 100; ++tries) {
    ASSERT_EQ(reply.reason(), ErrorReason::kOtherTraining);
    pass(100ms);
    reply = claim_otherwise();
  }
  EXPECT_EQ(reply.type(), MessageType::kWelcome);
  EXPECT_EQ(changes(), (std::vector{JobChange::kStarted, JobChange::kReplaced, JobChange::kStarted}));
}

/// Worker 2 said GOODBYE, and its next process says HELLO. Worker 1 has been silent for long, so only 0 is probed.
class ComingBack : public Contest {
 protected:
  ComingBack() {
    now += 5s;
    from_worker(2, make_goodbye(2));
  }
  std::vector<Reply> come_back() { return claim_with(another_process(2)); }
};

TEST_F(ComingBack, AtOnceWhenNobodyAsksForResults) {
  const Reply reply = single(come_back());
  EXPECT_EQ(reply.type(), MessageType::kWelcome);
  EXPECT_NE(reply.header.epoch, epoch) << "the job starts over";
}

TEST_F(ComingBack, WhenTheOthersHaveTheirLastResults) {
  from_worker(0, make_codes(0));
  for (int i = 0; i < 9; ++i) {
    EXPECT_TRUE(come_back().empty()) << i;
    now += 100ms;
  }
  EXPECT_EQ(drops(Drop::kLater), 9U);
  EXPECT_EQ(job_counters().replays.get(), 0U);
  now += 100ms;
  EXPECT_EQ(single(come_back()).type(), MessageType::kWelcome);
}

// Worker 0 has lost its last result, and its retransmission timeout is longer than a second.
TEST_F(ComingBack, WhoMayWaitForItsLastResultIsAskedAndGetsIt) {
  start();
  join_all();
  const Bytes again = with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_codes(worker));
  from_worker(1, make_goodbye(1));
  from_worker(2, make_goodbye(2));
  now += 1200ms;
  ASSERT_TRUE(come_back().empty()) << "though nobody has asked for a second";
  EXPECT_EQ(probes, (std::array{1, 0, 0}));
  for (int i = 0; i < 4; ++i) {  // PROBEs, or answers to them, get lost
    now += 200ms;
    shard->run_timers(now);
    for (const Reply& reply : exchange({})) EXPECT_TRUE(note_probe(reply));
    EXPECT_TRUE(come_back().empty()) << i;
  }
  EXPECT_EQ(probes, (std::array{5, 0, 0}));
  const Reply result = single(from_worker(0, again));
  EXPECT_EQ(result.type(), MessageType::kAggregate);
  EXPECT_EQ(result.payload, Bytes(kCodes, 3));
  now += 900ms;
  EXPECT_TRUE(come_back().empty()) << "it may have lost this one, too";
  from_worker(0, make_goodbye(0));
  EXPECT_EQ(single(come_back()).type(), MessageType::kWelcome);
  EXPECT_EQ(changes().back(), JobChange::kStarted) << "a new job, so nobody is told to restart";
}

TEST_F(ComingBack, IntoANewJobWhenTheOthersHaveLeftToo) {
  from_worker(0, make_codes(0));
  EXPECT_TRUE(come_back().empty());
  from_worker(0, make_goodbye(0));
  from_worker(1, make_goodbye(1));
  EXPECT_EQ(single(come_back()).type(), MessageType::kWelcome);
  EXPECT_EQ(changes(), (std::vector{JobChange::kStarted, JobChange::kLeft, JobChange::kStarted}));
}

TEST_F(ComingBack, NotLaterThanInTwoSecondsWhateverTheOthersAskFor) {
  int held = 0;
  for (; held < 100; ++held) {
    from_worker(0, with_header(make_codes(0), [](auto& h) { h.flags = wire::kFlagRetransmit; }));
    if (!come_back().empty()) break;
    now += 100ms;
  }
  EXPECT_EQ(held, 20);
}

TEST_F(ComingBack, NotAsTheProcessThatLeft) {
  EXPECT_TRUE(say_hello(address(2), make_hello(2)).empty());
  EXPECT_EQ(shard->jobs()[0].workers.get(), 2U);
}

TEST_F(Joining, NothingTellsAStrangerWhetherAnEpochIsRight) {
  join(0);
  join(1);
  for (const unsigned worker : {0U, 1U, 2U}) {  // 2 has not joined
    const Bytes right = make_codes(worker);
    const Bytes wrong = with_header(right, [](auto& h) { h.epoch = h.epoch ^ 1; });
    const auto to_right = exchange({{address(9), right}});
    const auto to_wrong = exchange({{address(9), wrong}});
    ASSERT_EQ(to_right.size(), worker == 2 ? 1U : 0U);
    ASSERT_EQ(to_wrong.size(), to_right.size());
    for (const auto* replies : {&to_right, &to_wrong}) {
      for (const Reply& reply : *replies) EXPECT_EQ(reply.reason(), ErrorReason::kUnknownJob);
    }
  }
  EXPECT_EQ(drops(Drop::kSender), 4U);
  EXPECT_TRUE(exchange({{address(9), make_goodbye(0)}}).empty());
  EXPECT_TRUE(exchange({{address(9), with_header(make_goodbye(0), [](auto& h) { h.epoch = h.epoch ^ 1; })}}).empty());
  EXPECT_EQ(drops(Drop::kSender), 6U);
}

TEST_F(Joining, EpochsAreFreshRandomNumbers) {
  std::set<std::uint32_t> epochs;
  for (int i = 0; i < 100; ++i) {
    start();
    epochs.insert(join(0).header.epoch);
  }
  EXPECT_GE(epochs.size(), 99U);
  EXPECT_FALSE(epochs.contains(0));
}

TEST_F(Joining, AnswersToStrangersAreNoLongerThanTheirQuestions) {
  const Bytes small = make_norm(0, 1);  // 36 bytes; ERROR has 48
  std::size_t answered_bytes = 0;
  for (int i = 0; i < 100; ++i) {
    for (const Reply& reply : from_worker(0, small)) answered_bytes += sizeof(wire::Header) + reply.payload.size();
  }
  EXPECT_LE(answered_bytes, 100 * small.size());
  EXPECT_GE(answered_bytes, 99 * small.size() - 48) << "but a worker that repeats itself hears of it";
}

TEST_F(Joining, JobsFromOneAddressAreLimited) {
  start([](JobLimits& limits) {
    limits.max_jobs = 4;
    limits.max_jobs_per_address = 2;
  });
  join(0);
  EXPECT_EQ(answer_to(0, make_hello(0, 8)).type(), MessageType::kWelcome);
  EXPECT_EQ(answer_to(0, make_hello(0, 9)).reason(), ErrorReason::kTooManyJobs);
  EXPECT_EQ(answer_to(1, make_hello(1, 9)).type(), MessageType::kWelcome);
  EXPECT_EQ(answer_to(0, make_hello(0, 9)).type(), MessageType::kWelcome) << "as a worker of another's job";
}

TEST_F(Joining, AnIpv6NetworkOfAHostIsOneAddress) {
  start([](JobLimits& limits) {
    limits.max_jobs = 4;
    limits.max_jobs_per_address = 2;
  });
  const auto type = [&](io::IpAddress ip, std::uint16_t job) {
    const Reply reply = single(say_hello({ip, 5'000}, make_hello(0, job)));
    return reply.type();
  };
  constexpr std::uint64_t kNetwork = 0x2001'0db8'0000'0007;
  EXPECT_EQ(type({kNetwork, 1}, 7), MessageType::kWelcome);
  EXPECT_EQ(type({kNetwork, 2}, 8), MessageType::kWelcome);
  EXPECT_EQ(type({kNetwork, 3}, 9), MessageType::kError);
  EXPECT_EQ(type({kNetwork + 1, 1}, 9), MessageType::kWelcome);
}

TEST_F(Joining, JobsStartAtALimitedRate) {
  start([](JobLimits& limits) { limits.slots = 100'000, limits.max_memory_bytes = 1 << 30; });
  int started = 0, later = 0;
  for (int i = 0; i < 40; ++i) {
    if (say_hello(address(0), make_hello(0)).empty()) {
      ++later;
    } else {
      ++started;
      join(0);
      from_worker(0, make_goodbye(0));
    }
    now += 1ms;
  }
  EXPECT_EQ(drops(Drop::kLater), static_cast<std::uint64_t>(later));
  EXPECT_LE(started, 4);  // 8 MB each: 32 MB are written at once, half of this for one address
  EXPECT_GE(started, 2);
  EXPECT_FALSE(say_hello({0x0a000063, 5'000}, make_hello(0, 9)).empty());  // the other half is for others
  now += 1s;
  join(0);
}

TEST_F(Joining, WorkersOfAnotherServerLifeAreAskedToSayHello) {
  const Bytes early = make_codes(0);
  EXPECT_EQ(single(from_worker(0, early)).reason(), ErrorReason::kUnknownJob);
  join(1);
  const Bytes old_epoch = with_header(early, [&](auto& h) { h.epoch = epoch + 1; });
  EXPECT_EQ(single(from_worker(0, old_epoch)).reason(), ErrorReason::kUnknownJob);
}

TEST_F(Joining, TableOfJobsIsLimited) {
  join(0);
  EXPECT_EQ(answer_to(0, make_hello(0, 8)).type(), MessageType::kWelcome);
  EXPECT_EQ(answer_to(0, make_hello(0, 9)).reason(), ErrorReason::kTooManyJobs);
}

TEST_F(Joining, SlotsFollowTheMemoryOfAJob) {
  const auto slots_of = [this](std::size_t memory_bytes, std::uint16_t index, std::uint16_t shards) {
    start([&](JobLimits& limits) {
      limits.share = {.shard = index, .shards = shards};
      limits.slots = 0;
      limits.max_jobs = 2;
      limits.max_memory_bytes = memory_bytes;
    });
    HelloMessage hello = make_hello(0);
    hello.header.slot = index;
    return answer_to(0, hello).as<wire::WelcomePayload>().slots;
  };
  constexpr std::size_t kSlotBytes = 64 + 2 * 64 + 16;
  EXPECT_EQ(slots_of(1 << 30, 0, 1), 4096U);
  EXPECT_EQ(slots_of(2 * 4096 * kSlotBytes, 0, 1), 4096U);
  EXPECT_EQ(slots_of(2 * 4096 * kSlotBytes - 1, 0, 1), 2048U);
  EXPECT_EQ(slots_of(2 * 16 * kSlotBytes, 0, 1), 16U);
  EXPECT_EQ(slots_of(2 * 16 * kSlotBytes - 1, 0, 1), 16U) << "the fewest, as long as all memory holds them";
  // 1366 or 1365 of 4096 slots are on each of three shards: for one byte less than the first one needs, all have half.
  for (std::uint16_t index = 0; index < 3; ++index) {
    EXPECT_EQ(slots_of(2 * 1366 * kSlotBytes, index, 3), 4096U);
    EXPECT_EQ(slots_of(2 * 1366 * kSlotBytes - 1, index, 3), 2048U);
    EXPECT_EQ(slots_of(2 * 11 * kSlotBytes - 1, index, 3), 32U) << "of 16, one shard would have no slot for norms";
  }
}

TEST_F(Joining, MoreSlotsThanTheMemoryOfAJobAreNotGiven) {
  const auto asked = [&](std::uint32_t slots) {
    start([](JobLimits& limits) { limits.slots = 0; });
    const auto payload = answer([=](auto& h) { h.payload.slots = slots; }).as<wire::WelcomePayload>();
    return std::uint32_t{payload.slots};
  };
  EXPECT_EQ(asked(100'000), 2048U);  // 2048 * (64 + 2 * 64 + 16) bytes are less than half of 1 MiB
  EXPECT_EQ(asked(32), 32U);
}

TEST_F(Joining, MemoryIsLimited) {
  start([](JobLimits& limits) { limits.max_memory_bytes = 5000; });  // a job takes 16 * (64 + 2 * 64 + 16) bytes
  join(0);
  EXPECT_EQ(answer_to(0, make_hello(0, 8)).reason(), ErrorReason::kTooManyJobs);
  EXPECT_EQ(shard->jobs()[0].memory_bytes.get(), 16U * (64 + 2 * 64 + 16));
}

TEST_F(Joining, OneRefusalInTenSecondsIsTold) {
  start([](JobLimits& limits) { limits.max_memory_bytes = 2 * 5000 - 1, limits.max_jobs_per_address = 1; });
  join(0);
  const auto refusals = [&] {
    std::vector<JobEvent> told;
    for (JobEvent event; shard->job_events().pop(event);) {
      if (!event.started()) told.push_back(event);
    }
    return told;
  };
  for (int i = 0; i < 3; ++i) answer_to(0, make_hello(0, 8));
  const auto of_place = refusals();
  ASSERT_EQ(of_place.size(), 1U);
  EXPECT_EQ(of_place[0].change, JobChange::kNoPlace);
  EXPECT_EQ(of_place[0].job, 8U);
  now += 9s;
  const auto large = [](std::uint16_t job) {
    HelloMessage hello = make_hello(1, job);
    hello.payload.codes_per_packet = std::uint16_t{1024};
    return hello;
  };
  EXPECT_EQ(answer_to(1, large(9)).reason(), ErrorReason::kTooManyJobs);
  EXPECT_TRUE(refusals().empty());
  now += 1s;
  EXPECT_EQ(answer_to(1, large(9)).reason(), ErrorReason::kTooManyJobs);
  const auto of_memory = refusals();
  ASSERT_EQ(of_memory.size(), 1U);
  EXPECT_EQ(of_memory[0].change, JobChange::kNoMemory);
  EXPECT_EQ(of_memory[0].slots, 16U);
  EXPECT_EQ(of_memory[0].needed_bytes, 16U * (64 + 2 * 1024 + 16));
  EXPECT_EQ(of_memory[0].free_bytes, 2U * 5000 - 1 - 16 * (64 + 2 * 64 + 16));
}

TEST_F(Joining, WindowIsSharedByJobs) {
  const std::uint32_t alone = join(0).as<wire::WelcomePayload>().window_bytes;
  const Reply second = answer_to(0, make_hello(0, 8));
  EXPECT_EQ(second.as<wire::WelcomePayload>().window_bytes, alone / 2);
}

TEST_F(Joining, LastGoodbyeEndsTheJob) {
  join(0);
  join(1);
  EXPECT_TRUE(from_worker(0, make_goodbye(0)).empty());
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), kJob + 1U);
  EXPECT_EQ(shard->jobs()[0].workers.get(), 1U);
  EXPECT_EQ(changes(), std::vector{JobChange::kStarted});
  from_worker(1, make_goodbye(1));
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_EQ(changes(), std::vector{JobChange::kLeft});
  EXPECT_EQ(single(from_worker(0, make_codes(0))).reason(), ErrorReason::kUnknownJob);
}

TEST_F(Joining, GoodbyeIsCheckedLikeAnyPacket) {
  join(0);
  EXPECT_TRUE(exchange({{address(5), make_goodbye(0)}}).empty());
  EXPECT_EQ(drops(Drop::kSender), 1U);
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.epoch = h.epoch + 1; }));
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.num_workers = std::uint8_t{200}; }));
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.worker_id = std::uint8_t{200}; }));
  EXPECT_EQ(drops(Drop::kSender), 2U);
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.job_id = std::uint16_t{8}; }));
  EXPECT_EQ(drops(Drop::kHeader), 3U);
  Bytes longer = make_goodbye(0);
  longer.push_back(0);
  from_worker(0, longer);
  EXPECT_EQ(drops(Drop::kLength), 1U);
  EXPECT_EQ(shard->jobs()[0].workers.get(), 1U);
}

TEST_F(Joining, IdleJobsExpire) {
  join(0);
  now += 30s;
  shard->run_timers(now);
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), kJob + 1U);
  now += 1ms;
  shard->run_timers(now);
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_EQ(single(from_worker(0, make_codes(0))).reason(), ErrorReason::kUnknownJob);
  join(0);
  EXPECT_EQ(changes(), (std::vector{JobChange::kStarted, JobChange::kIdle, JobChange::kStarted}));
}

TEST_F(Joining, DrainingServerTakesNobodyNew) {
  join(0);
  shard->drain(now);
  EXPECT_EQ(answer_to(1, make_hello(1)).reason(), ErrorReason::kDraining);
  EXPECT_EQ(answer_to(0, make_hello(0, 8)).reason(), ErrorReason::kDraining);
  join(0);
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty()) << "what is in flight goes on";
}

TEST_F(Joining, DrainingServerSaysSoToWhoAsks) {
  join(0);
  EXPECT_EQ(single(exchange({{address(9), make_hello(1).bytes()}})).type(), MessageType::kChallenge);
  shard->drain(now);
  const auto asked = make_hello(1).bytes();
  const Reply told = single(exchange({{address(9), asked}}));
  EXPECT_EQ(told.reason(), ErrorReason::kDraining) << "without a cookie";
  EXPECT_LE(sizeof(told.header) + told.payload.size(), asked.size()) << "whose address may be another one's";
  EXPECT_EQ(single(exchange({{address(0), make_hello(0).bytes()}})).type(), MessageType::kChallenge)
      << "who is in the job may come back";
}

TEST_F(Joining, DrainingServerStaysUntilWorkersHaveHeardOfIt) {
  join_all();
  now += 10s;
  shard->drain(now);
  EXPECT_FALSE(shard->is_quiet(now + 1650ms)) << "they ask each second";
  EXPECT_TRUE(shard->is_quiet(now + 1750ms));
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_goodbye(worker));
  EXPECT_TRUE(shard->is_quiet(now)) << "nobody is left";
}

TEST_F(Joining, QuietOnlyWhenNobodyCanWaitForAResult) {
  join_all();
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_codes(worker));
  now += 450ms;
  EXPECT_FALSE(shard->is_quiet(now)) << "a worker may have lost the result twice";
  now += 100ms;
  EXPECT_TRUE(shard->is_quiet(now));
  from_worker(0, make_codes(0, 2));
  now += 900ms;
  EXPECT_FALSE(shard->is_quiet(now)) << "worker 0 waits for a result";
  now += 200ms;
  EXPECT_TRUE(shard->is_quiet(now)) << "it waits no longer";
}

TEST_F(Joining, StrangersGetALimitedNumberOfAnswers) {
  const std::vector<std::pair<io::Endpoint, Bytes>> flood(3000, {address(9), make_codes(0)});
  EXPECT_EQ(exchange(flood).size(), 1000U);
  EXPECT_EQ(drops(Drop::kRateLimited), 2000U);
  join(1);  // workers of a server that came back get through
  now += 100ms;
  EXPECT_EQ(exchange(flood).size(), 1000U);
}

TEST_F(Joining, HellosAreLimited) {
  HelloMessage hello = make_hello(0);
  const std::vector<std::pair<io::Endpoint, Bytes>> without_cookie(3000, {address(0), hello.bytes()});
  const auto challenges = exchange(without_cookie);
  EXPECT_EQ(challenges.size(), 1000U);
  EXPECT_EQ(drops(Drop::kRateLimited), 2000U);
  hello.payload.cookie = challenges[0].as<wire::ChallengePayload>().cookie;
  const std::vector<std::pair<io::Endpoint, Bytes>> flood(3000, {address(0), hello.bytes()});
  EXPECT_EQ(exchange(flood).size(), 1000U) << "who has no cookie takes nothing from who has";
  EXPECT_EQ(drops(Drop::kRateLimited), 4000U);
  now += 100ms;
  join(1);
}

}  // namespace
}  // namespace thc::ps
