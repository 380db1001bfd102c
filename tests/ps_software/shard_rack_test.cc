// Leaves and a root, joined by a network in memory: workers 0 and 1 in rack 0, worker 2 in rack 1.
#include <array>
#include <numeric>

#include "leaf_config.h"
#include "shard_fixture.h"
#include "thc/errors.h"

namespace thc::ps {
namespace {

using wire::ConfigField;
using wire::ErrorReason;
using wire::MessageType;

class Rack : public ShardTest {
 protected:
  static constexpr io::Endpoint kRoot{0x0a00ff00, 48865};
  static constexpr std::array<io::Endpoint, 2> kLeaves{{{0x0a00ff01, 48865}, {0x0a00ff02, 48865}}};

  struct Node {
    io::Endpoint at;
    MemoryIo packet_io{};
    std::optional<Shard> shard{};
  };

  Rack() {
    root.at = kRoot;
    start_root();
    for (unsigned rack = 0; rack < leaves.size(); ++rack) {
      leaves[rack].at = kLeaves[rack];
      start_leaf(rack);
    }
  }

  static JobLimits limits_of(std::uint32_t slots) {
    return {.share = {}, .max_jobs = 2, .slots = slots, .max_memory_bytes = 1 << 20, .idle_timeout = 30s};
  }
  void start_root(std::uint32_t slots = 16) { root.shard.emplace(limits_of(slots), root.packet_io); }
  void start_leaf(unsigned rack, const std::vector<std::string>& racks = {"0-1", "2"}) {
    JobLimits limits = limits_of(64);  // of which a leaf takes no notice
    limits.leaf = make_leaf(kRoot, rack, racks);
    leaves[rack].shard.emplace(limits, leaves[rack].packet_io);
  }
  static unsigned rack_of(unsigned worker) { return worker / 2; }

  /// Carries datagrams until none is under way; returns those to workers.
  std::vector<Reply> settle() {
    std::vector<Reply> replies;
    for (bool moved = true; moved;) {
      moved = false;
      for (Node* node : {&root, &leaves[0], &leaves[1]}) {
        if (!node->shard) continue;
        while (node->shard->poll(now) > 0) {
        }
        for (auto& datagram : node->packet_io.take_sent()) {
          moved = true;
          carry(*node, std::move(datagram), replies);
        }
      }
    }
    return replies;
  }
  void carry(Node& from, MemoryIo::Datagram datagram, std::vector<Reply>& replies) {
    for (Node* node : {&root, &leaves[0], &leaves[1]}) {
      if (datagram.peer != node->at) continue;
      ++carried;
      if (lose && lose(from, *node, datagram.bytes)) return;
      return node->packet_io.deliver(from.at, std::move(datagram.bytes), mark && mark(from, *node));
    }
    replies.push_back(reply_of(datagram));
  }

  std::vector<Reply> say(unsigned worker, const Bytes& packet) {
    leaves[rack_of(worker)].packet_io.deliver(address(worker), packet);
    return settle();
  }
  std::vector<Reply> pass_time(std::chrono::milliseconds time) {
    std::vector<Reply> replies;
    for (const TimePoint end = now + time; now < end;) {
      now += 50ms;
      for (Node* node : {&root, &leaves[0], &leaves[1]}) {
        if (node->shard) node->shard->run_timers(now);
      }
      const std::vector<Reply> more = settle();
      replies.insert(replies.end(), more.begin(), more.end());
    }
    return replies;
  }

  /// Says HELLO as a worker does, for some seconds: until WELCOME or an ERROR other than racks_incomplete.
  Reply say_hello_until_answered(unsigned worker, HelloMessage hello, unsigned rack) {
    Reply last;
    for (int i = 0; i < 60; ++i, pass_time(50ms)) {
      leaves[rack].packet_io.deliver(address(worker), hello.bytes());
      for (const Reply& reply : settle()) {
        if (reply.to != address(worker)) continue;
        last = reply;
        if (reply.type() == MessageType::kChallenge) hello.payload.cookie = reply.as<wire::ChallengePayload>().cookie;
        if (reply.type() == MessageType::kWelcome) return reply;
        if (reply.type() == MessageType::kError && reply.reason() != ErrorReason::kRacksIncomplete &&
            reply.reason() != ErrorReason::kDuplicateWorker) {
          return reply;
        }
      }
    }
    return last;
  }
  Reply enter(unsigned worker, const std::function<void(HelloMessage&)>& change = [](HelloMessage&) {}) {
    HelloMessage hello = make_hello(worker);
    change(hello);
    const Reply reply = say_hello_until_answered(worker, hello, rack_of(worker));
    epochs[worker] = reply.header.epoch;
    return reply;
  }
  void enter_all() {
    for (unsigned worker = 0; worker < kWorkers; ++worker) ASSERT_EQ(enter(worker).type(), MessageType::kWelcome);
  }

  Bytes codes_of(unsigned worker, std::uint32_t round = 1, bool again = false) {
    epoch = epochs[worker];
    return with_header(make_codes(worker, round, static_cast<std::uint8_t>(worker + 1)),
                       [again](auto& h) { h.flags = again ? wire::kFlagRetransmit : std::uint8_t{0}; });
  }
  /// The answers to the last worker's packet.
  std::vector<Reply> complete(std::uint32_t round = 1) {
    std::vector<Reply> replies;
    for (unsigned worker = 0; worker < kWorkers; ++worker) replies = say(worker, codes_of(worker, round));
    return replies;
  }
  const PacketCounters& counters_of(unsigned rack) const { return leaves[rack].shard->jobs()[0].packets; }

  Node root;
  std::array<Node, 2> leaves;
  std::array<std::uint32_t, kWorkers> epochs{};
  std::function<bool(const Node& from, const Node& to, const Bytes& bytes)> lose;
  std::function<bool(const Node& from, const Node& to)> mark;  ///< ECN
  std::size_t carried = 0;
};

bool is(const Bytes& bytes, MessageType type) { return bytes[1] == static_cast<std::uint8_t>(type); }

TEST_F(Rack, MarksOfFullQueuesReachTheWorkersBehindThem) {
  enter_all();
  const auto flags_of_round = [&](std::uint32_t round, const Node* marked_from, const Node* marked_to) {
    mark = [=](const Node& from, const Node& to) { return &from == marked_from && &to == marked_to; };
    std::array<int, kWorkers> flags{};
    for (const Reply& reply : complete(round))
      flags.at(reply.header.worker_id) = reply.header.flags & wire::kFlagCongested;
    return flags;
  };
  constexpr int kMarked = wire::kFlagCongested;
  EXPECT_EQ(flags_of_round(1, &leaves[0], &root), (std::array{kMarked, kMarked, 0}));
  EXPECT_EQ(flags_of_round(2, &root, &leaves[1]), (std::array{0, 0, kMarked}));
  EXPECT_EQ(flags_of_round(3, nullptr, nullptr), (std::array{0, 0, 0}));
  leaves[0].packet_io.deliver(address(0), codes_of(0, 4), /*congested=*/true);
  EXPECT_EQ(flags_of_round(4, nullptr, nullptr), (std::array{kMarked, 0, 0}));
}

TEST_F(Rack, WelcomeHasTheSlotsOfTheRoot) {
  const Reply welcome = enter(2);
  ASSERT_EQ(welcome.type(), MessageType::kWelcome);
  const auto shape = welcome.as<wire::WelcomePayload>();
  EXPECT_EQ(shape.slots, 16U);
  EXPECT_EQ(shape.norm_slots, 2U);
  EXPECT_EQ(shape.shards, 1);
  EXPECT_EQ(shape.window_bytes, MemoryIo::kReceiveBufferBytes / 2 / 2 / 2)
      << "half of what the root takes from each of two racks: a packet of 4-bit codes becomes one of 8-bit sums";
}

TEST_F(Rack, SumsAreThoseOfAllRacksForAllWorkers) {
  enter_all();
  for (std::uint32_t round = 1; round <= 5; ++round) {
    const auto results = complete(round);
    ASSERT_EQ(results.size(), kWorkers);
    for (const Reply& result : results) {
      const std::uint8_t worker = result.header.worker_id;
      EXPECT_EQ(result.to, address(worker));
      EXPECT_EQ(result.type(), MessageType::kAggregate);
      EXPECT_EQ(result.header.contributions, kWorkers);
      EXPECT_EQ(result.header.num_workers, kWorkers);
      EXPECT_EQ(result.header.code_bits, 4);
      EXPECT_EQ(result.header.epoch, epochs[worker]);
      EXPECT_EQ(result.header.round, round);
      EXPECT_EQ(result.payload, Bytes(kCodes, 1 + 2 + 3));
    }
  }
  EXPECT_EQ(counters_of(0).sent_up.get(), 5U);
  EXPECT_EQ(counters_of(0).passed_on.get(), 5U);
}

TEST_F(Rack, SumsOf16BitsFromRacksOf8) {
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    ASSERT_EQ(enter(worker,
                    [](auto& h) {
                      h.header.value_bits = std::uint8_t{16};
                      h.use_table(1, {0, 127});
                    })
                  .type(),
              MessageType::kWelcome);
  }
  std::vector<Reply> results;
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    epoch = epochs[worker];
    Bytes packet = with_header(make_codes(worker, 1, 0xf), [](auto& h) {
      h.code_bits = std::uint8_t{1};
      h.value_bits = std::uint8_t{16};
    });
    packet.resize(sizeof(wire::Header) + kCodes / 8);
    results = say(worker, packet);
  }
  ASSERT_EQ(results.size(), kWorkers);
  Bytes expected;
  for (unsigned i = 0; i < kCodes; ++i) expected.insert(expected.end(), {381 >> 8, 381 & 0xff});
  EXPECT_EQ(results[0].payload, expected);
  // Norms of a job of 16 bits are twice as many as of one of 8.
  std::vector<Reply> maxima;
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    epoch = epochs[worker];
    Bytes packet = with_header(make_norm(worker, 0), [](auto& h) {
      h.code_bits = std::uint8_t{1};
      h.value_bits = std::uint8_t{16};
      h.payload_count = std::uint16_t{kCodes / 2};
    });
    packet.resize(sizeof(wire::Header) + 4 * kCodes / 2, static_cast<std::uint8_t>(worker + 1));
    maxima = say(worker, packet);
  }
  ASSERT_EQ(maxima.size(), kWorkers);
  EXPECT_EQ(maxima[2].type(), MessageType::kMaxNorm);
  EXPECT_EQ(maxima[2].payload.back(), 3);
}

TEST_F(Rack, WhoIsMissingInTheRack) {
  enter_all();
  say(1, codes_of(1));
  const Reply reply = single(say(1, codes_of(1, 1, true)));
  EXPECT_EQ(reply.reason(), ErrorReason::kIncomplete);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0b110U) << "another rack's worker is not known to be missing";
  EXPECT_EQ(counters_of(0).sent_up.get(), 0U);
}

TEST_F(Rack, WhichRacksAreMissing) {
  enter_all();
  say(0, codes_of(0));
  EXPECT_TRUE(say(1, codes_of(1)).empty());
  const Reply reply = single(say(1, codes_of(1, 1, true)));
  EXPECT_EQ(reply.to, address(1)) << "and not worker 0, who did not ask";
  EXPECT_EQ(reply.reason(), ErrorReason::kRacksIncomplete);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0b01U);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().job_value, 2U);
  EXPECT_EQ(reply.header.epoch, epochs[1]);
  EXPECT_EQ(reply.header.slot, kCodeSlot);
  EXPECT_EQ(reply.header.round, 1U);
}

TEST_F(Rack, LostPartialSumAndLostResult) {
  enter_all();
  std::optional<MessageType> lost = MessageType::kCodes;
  lose = [&](const Node&, const Node&, const Bytes& bytes) { return lost && is(bytes, *lost); };
  EXPECT_TRUE(complete().empty());
  lost.reset();
  EXPECT_TRUE(say(2, codes_of(2, 1, true)).empty()) << "now it is counted";
  EXPECT_EQ(single(say(2, codes_of(2, 1, true))).reason(), ErrorReason::kRacksIncomplete);
  lost = MessageType::kAggregate;
  EXPECT_TRUE(say(0, codes_of(0, 1, true)).empty()) << "the results to both racks";
  lost.reset();
  const auto first = say(0, codes_of(0, 1, true));
  ASSERT_EQ(first.size(), 2U) << "the first result of a round is for all of the rack";
  EXPECT_EQ(first[0].payload, Bytes(kCodes, 6));
  const Reply second = single(say(1, codes_of(1, 1, true)));
  EXPECT_EQ(second.to, address(1)) << "a result again is for those that asked";
  EXPECT_EQ(second.payload, Bytes(kCodes, 6));
}

TEST_F(Rack, ALeafGoesOnFromAnotherAddress) {
  enter_all();
  complete();
  leaves[0].at = {0x0a00ff03, 48865};  // and the root's packets to the old address get lost
  EXPECT_TRUE(complete(2).empty());
  EXPECT_TRUE(say(0, codes_of(0, 2, true)).empty());
  EXPECT_TRUE(pass_time(600ms).empty()) << "after half a second of silence it asks";
  auto results = say(0, codes_of(0, 2, true));
  std::erase_if(results, [](const Reply& reply) { return reply.type() != MessageType::kAggregate; });
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[0].payload, Bytes(kCodes, 6));
  EXPECT_EQ(complete(3).size(), kWorkers);
}

TEST_F(Rack, OrderMismatchBetweenRacks) {
  enter_all();
  say(2, with_header(codes_of(2), [](auto& h) { h.partition = std::uint16_t{9}; }));
  say(0, codes_of(0));
  const auto replies = say(1, codes_of(1));
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[0].reason(), ErrorReason::kOrderMismatch);
  EXPECT_EQ(replies[1].to, address(1));
}

TEST_F(Rack, RefusesWhatItsPlaceDoesNotAllow) {
  const auto refusal = [&](const std::function<void(HelloMessage&)>& change) {
    const Reply reply = enter(0, change);
    EXPECT_EQ(reply.type(), MessageType::kError);
    return std::pair(reply.reason(), reply.field());
  };
  using Pair = std::pair<ErrorReason, ConfigField>;
  EXPECT_EQ(refusal([](auto& h) { h.header.worker_id = std::uint8_t{2}; }),
            Pair(ErrorReason::kBadConfig, ConfigField::kWorkerId));
  EXPECT_EQ(refusal([](auto& h) { h.header.num_workers = std::uint8_t{4}; }),
            Pair(ErrorReason::kBadConfig, ConfigField::kNumWorkers));
  EXPECT_EQ(refusal([](auto& h) { h.payload.quorum = std::uint8_t{2}; }),
            Pair(ErrorReason::kBadConfig, ConfigField::kQuorum));
  const Reply too_fine = enter(0, [](auto& h) {
    h.header.value_bits = std::uint8_t{16};
    h.use_table(1, {0, 128});
  });
  EXPECT_EQ(too_fine.reason(), ErrorReason::kOverflow);
  EXPECT_EQ(too_fine.as<wire::ErrorPayload>().job_value, 127U) << "two workers in the largest rack";
  const Reply too_much = enter(0, [](auto& h) { h.use_table(1, {0, 64}); });
  EXPECT_EQ(too_much.as<wire::ErrorPayload>().job_value, 63U) << "two racks of at most two, in 8 bits";
  EXPECT_EQ(carried, 0U) << "nothing of it came to the root";
}

TEST_F(Rack, RacksOfOtherSettingsAreRefused) {
  enter(0);
  Reply reply = enter(2, [](auto& h) { h.payload.settings_hash = std::uint32_t{5}; });
  EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch);
  EXPECT_EQ(reply.field(), ConfigField::kSettings);
  pass_time(3s);
  reply = enter(2, [](auto& h) { h.use_table(1, {0, 14}); });
  EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch);
  EXPECT_EQ(reply.field(), ConfigField::kGranularity);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().job_value, 15U) << "the workers' own, not the rack's";
  pass_time(3s);
  EXPECT_EQ(enter(2).type(), MessageType::kWelcome) << "what was refused is forgotten";
}

/// The HELLO of a worker whose packets have so many codes.
auto packets_of(std::uint16_t codes) {
  return [codes](HelloMessage& hello) { hello.payload.codes_per_packet = codes; };
}

TEST_F(Rack, PacketsThatTheWayDownFromTheRootDoesNotTake) {  // jumbo frames in racks, and none between them
  root.packet_io.largest_datagram_bytes = 1472;
  for (unsigned worker : {0U, 2U, 1U}) {  // of both racks
    const Reply refused = enter(worker, packets_of(8192));
    ASSERT_EQ(refused.type(), MessageType::kError);
    EXPECT_EQ(refused.field(), ConfigField::kCodesPerPacket);
    if (worker == 1) {
      EXPECT_EQ(refused.reason(), ErrorReason::kConfigMismatch) << "its rack has another size by now";
      EXPECT_EQ(refused.as<wire::ErrorPayload>().job_value, 1024U);
    } else {
      EXPECT_EQ(refused.reason(), ErrorReason::kBadConfig);
    }
    EXPECT_EQ(enter(worker, packets_of(1024)).type(), MessageType::kWelcome);
  }
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Rack, PacketsLargerThanThoseOfAnotherRack) {
  EXPECT_EQ(enter(2, packets_of(1024)).type(), MessageType::kWelcome);
  const Reply refused = enter(0, packets_of(8192));
  EXPECT_EQ(refused.reason(), ErrorReason::kConfigMismatch);
  EXPECT_EQ(refused.as<wire::ErrorPayload>().job_value, 1024U);
  const Reply other = enter(0, [](auto& h) {
    h.payload.codes_per_packet = std::uint16_t{1024};
    h.payload.settings_hash = std::uint32_t{5};
  });
  EXPECT_EQ(other.reason(), ErrorReason::kConfigMismatch) << "smaller packets are no other settings";
  EXPECT_EQ(enter(0, packets_of(1024)).type(), MessageType::kWelcome);
  EXPECT_EQ(enter(1, packets_of(512)).reason(), ErrorReason::kConfigMismatch) << "the root has let the rack in";
  EXPECT_EQ(enter(1, packets_of(1024)).type(), MessageType::kWelcome);
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Rack, PacketsThatTheWayUpToTheRootDoesNotTake) {
  leaves[0].packet_io.narrow_way = {kRoot, 1472};
  const Reply refused = enter(0, packets_of(8192));
  EXPECT_EQ(refused.reason(), ErrorReason::kBadConfig);
  EXPECT_EQ(refused.field(), ConfigField::kCodesPerPacket);
  const auto of_16_bits = [](std::uint16_t codes) {
    return [codes](HelloMessage& hello) {
      hello.header.value_bits = std::uint8_t{16};
      hello.payload.codes_per_packet = codes;
    };
  };
  EXPECT_EQ(enter(0, of_16_bits(768)).field(), ConfigField::kCodesPerPacket) << "norms go up in 1536 bytes";
  EXPECT_EQ(carried, 0U) << "nothing of it came to the root";
  EXPECT_EQ(enter(0, of_16_bits(704)).type(), MessageType::kWelcome);
}

TEST_F(Rack, OtherRacksAreRefused) {
  enter(0);
  start_leaf(1, {"0", "1-2"});
  Reply reply = enter(2);
  EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch) << "worker 1 would be in both, though the sizes are alike";
  EXPECT_EQ(reply.field(), ConfigField::kSettings);
  pass_time(3s);
  start_leaf(1, {"0", "1", "2"});
  reply = say_hello_until_answered(1, make_hello(1), 1);
  EXPECT_EQ(reply.reason(), ErrorReason::kConfigMismatch);
  EXPECT_EQ(reply.field(), ConfigField::kNone) << "workers do not know how many racks there are";
}

TEST_F(Rack, WithoutARootWorkersAreToldSo) {
  root.shard.reset();
  const Reply reply = enter(0);
  EXPECT_EQ(reply.reason(), ErrorReason::kRacksIncomplete);
  EXPECT_EQ(reply.header.epoch, 0U);
  EXPECT_EQ(reply.header.round, make_hello(0).header.round);
  start_root();
  EXPECT_EQ(enter(0).type(), MessageType::kWelcome);
}

TEST_F(Rack, ASilentRootIsToldOf) {
  enter_all();
  root.shard.reset();
  complete();
  EXPECT_TRUE(say(0, codes_of(0, 1, true)).empty());
  now += 600ms;
  const Reply reply = single(say(0, codes_of(0, 1, true)));
  EXPECT_EQ(reply.reason(), ErrorReason::kRacksIncomplete);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0U);
  pass_time(1s);
  std::vector<JobChange> told;
  for (JobEvent event; leaves[0].shard->job_events().pop(event);) told.push_back(event.change);
  EXPECT_EQ(told, std::vector({JobChange::kStarted, JobChange::kRootSilent})) << "once";
}

TEST_F(Rack, AfterARestartOfTheRootTheRoundIsRepeated) {
  enter_all();
  complete();
  start_root();
  const auto replies = say(2, with_header(codes_of(2, 2), [](auto&) {}));
  EXPECT_TRUE(replies.empty());
  const Reply unknown = single(say(2, codes_of(2, 2, true)));
  EXPECT_EQ(unknown.reason(), ErrorReason::kUnknownJob) << "as if this worker's server had restarted";
  say(0, codes_of(0, 2));
  say(1, codes_of(1, 2));
  enter_all();
  const auto results = complete(2);
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[0].payload, Bytes(kCodes, 6));
}

TEST_F(Rack, AnotherProcessInARackEndsThoseOfOtherRacks) {
  enter_all();
  complete();
  const std::uint32_t before = epochs[2];
  const Reply welcome = enter(2, [](auto& h) { h.payload.nonce = std::uint64_t{777}; });
  ASSERT_EQ(welcome.type(), MessageType::kWelcome);
  EXPECT_NE(welcome.header.epoch, before);
  say(0, codes_of(0, 2));
  say(1, codes_of(1, 2));
  EXPECT_EQ(single(say(0, codes_of(0, 2, true))).reason(), ErrorReason::kStaleEpoch);
}

TEST_F(Rack, ARestartedWorkerIsInBeforeItGivesUpThoughOtherRacksAsk) {
  enter_all();
  for (unsigned worker : {0U, 1U}) say(worker, codes_of(worker));
  HelloMessage hello = make_hello(2);
  hello.payload.nonce = std::uint64_t{777};
  std::optional<TimePoint> refused_at;
  for (int i = 0; i < 60; ++i, pass_time(100ms)) {
    if (i % 2 == 0) say(0, codes_of(0, 1, true));
    for (const Reply& reply : say(2, hello.bytes())) {
      if (reply.type() == MessageType::kChallenge) hello.payload.cookie = reply.as<wire::ChallengePayload>().cookie;
      if (reply.type() == MessageType::kError && !refused_at) {
        EXPECT_EQ(reply.reason(), ErrorReason::kDuplicateWorker);
        refused_at = now;
      }
      if (reply.type() == MessageType::kWelcome) {
        ASSERT_TRUE(refused_at);
        EXPECT_LT(now - *refused_at, 3s) << "a worker that is refused for so long gives up";
        return;
      }
    }
  }
  FAIL() << "no WELCOME";
}

TEST_F(Rack, AnotherServerOfTheSameRackIsNoDuplicateOfAWorker) {
  enter_all();
  JobLimits limits = limits_of(64);
  limits.leaf = make_leaf(kRoot, 0, {"0-1", "2"});
  leaves[1].shard.emplace(limits, leaves[1].packet_io);
  HelloMessage hello = make_hello(1);
  hello.payload.nonce = std::uint64_t{777};
  EXPECT_EQ(say_hello_until_answered(1, hello, 1).reason(), ErrorReason::kRacksIncomplete) << "it may be gone";
  const Reply reply = say_hello_until_answered(1, hello, 1);
  EXPECT_EQ(reply.reason(), ErrorReason::kBadConfig) << "leaf 0 lives";
  EXPECT_EQ(reply.field(), ConfigField::kNone);
  JobEvent event;
  ASSERT_TRUE(leaves[1].shard->job_events().pop(event));
  EXPECT_EQ(event.change, JobChange::kRefused);
  EXPECT_EQ(event.reason, ErrorReason::kDuplicateWorker);
  EXPECT_FALSE(leaves[1].shard->job_events().pop(event)) << "told once";
}

TEST_F(Rack, AnotherServerInPlaceOfALeafTakesItsPlace) {
  enter_all();
  start_leaf(1);
  EXPECT_EQ(enter(2).type(), MessageType::kWelcome);
  say(0, codes_of(0));
  say(1, codes_of(1));
  EXPECT_EQ(single(say(0, codes_of(0, 1, true))).reason(), ErrorReason::kStaleEpoch);
  pass_time(1s);
  EXPECT_EQ(root.shard->jobs()[0].workers.get(), 1U) << "rack 0 has no workers and takes no place";
}

TEST_F(Rack, TrainingsDoNotMeetAtTheRoot) {
  const auto of = [](std::uint64_t run, std::uint64_t nonce) {
    return [=](HelloMessage& h) {
      h.payload.run = run;
      h.payload.nonce = nonce;
    };
  };
  ASSERT_EQ(enter(0, of(11, 1)).type(), MessageType::kWelcome);
  HelloMessage other = make_hello(2);
  of(12, 2)(other);
  EXPECT_EQ(say_hello_until_answered(2, other, 1).reason(), ErrorReason::kRacksIncomplete) << "rack 0 may be gone";
  EXPECT_EQ(say_hello_until_answered(2, other, 1).reason(), ErrorReason::kOtherTraining);
  EXPECT_EQ(enter(2, of(11, 3)).type(), MessageType::kWelcome) << "that of rack 0 is let in beside it";
  EXPECT_EQ(say_hello_until_answered(2, other, 1).reason(), ErrorReason::kOtherTraining);
  ASSERT_EQ(enter(1, of(11, 4)).type(), MessageType::kWelcome);
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Rack, ATrainingThatIsGoneMakesWayInAllRacks) {
  enter_all();
  std::vector<HelloMessage> hellos;
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    hellos.push_back(make_hello(worker));
    hellos.back().payload.run = std::uint64_t{12};
    hellos.back().payload.nonce = std::uint64_t{500} + worker;
  }
  std::array<bool, kWorkers> in{};
  for (int i = 0; i < 60 && !(in[0] && in[1] && in[2]); ++i, pass_time(100ms)) {
    for (unsigned worker = 0; worker < kWorkers; ++worker) {
      for (const Reply& reply : say(worker, hellos[worker].bytes())) {
        HelloMessage& hello = hellos[reply.header.worker_id];
        if (reply.type() == MessageType::kChallenge) hello.payload.cookie = reply.as<wire::ChallengePayload>().cookie;
        if (reply.type() != MessageType::kWelcome) continue;
        in[reply.header.worker_id] = true;
        epochs[reply.header.worker_id] = reply.header.epoch;
      }
    }
  }
  EXPECT_EQ(in, (std::array{true, true, true}));
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Rack, GoodbyeGoesUp) {
  enter_all();
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    epoch = epochs[worker];
    say(worker, make_goodbye(worker));
  }
  EXPECT_EQ(root.shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_EQ(leaves[0].shard->jobs()[0].job_plus_one.get(), 0U);
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    EXPECT_EQ(enter(worker, [](auto& h) { h.payload.nonce = std::uint64_t{h.payload.nonce} + 50; }).type(),
              MessageType::kWelcome);
  }
  EXPECT_EQ(complete().size(), kWorkers);
}

TEST_F(Rack, AnIdleRackLeavesTheRootsJob) {
  enter_all();
  pass_time(15s);
  for (int i = 0; i < 5; ++i) {  // rack 0 lacks a worker, so that it sends nothing up
    say(0, codes_of(0, 1, true));
    pass_time(4s);
  }
  EXPECT_EQ(leaves[1].shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_NE(leaves[0].shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_EQ(root.shard->jobs()[0].workers.get(), 1U) << "ALIVE kept rack 0 in, GOODBYE let rack 1 go";
}

TEST_F(Rack, AnIdleRackLeavesInTheVeryTickThatEndsItsJob) {
  enter_all();
  for (int i = 0; i < 10; ++i) {
    say(0, codes_of(0, 1, true));
    pass_time(2900ms);
  }
  pass_time(950ms);
  HelloMessage hello = make_hello(2);  // of another process, so that the link is wanted
  hello.payload.nonce = std::uint64_t{777};
  hello.payload.cookie = single(say(2, hello.bytes())).as<wire::ChallengePayload>().cookie;
  ASSERT_EQ(say(2, hello.bytes()).back().reason(), ErrorReason::kDuplicateWorker) << "behind PROBE";
  now += 100ms;
  leaves[1].shard->run_timers(now);
  ASSERT_EQ(leaves[1].shard->jobs()[0].job_plus_one.get(), 0U);
  settle();
  EXPECT_EQ(root.shard->jobs()[0].workers.get(), 1U) << "a process that says HELLO now would have the old one's place";
}

TEST_F(Rack, OnlyTheRootsPacketsAreTheRoots) {
  enter_all();
  say(0, codes_of(0));
  say(1, codes_of(1));
  Bytes forged;
  lose = [&](const Node&, const Node& to, const Bytes& bytes) {
    if (&to == &leaves[0] && is(bytes, MessageType::kAggregate)) forged = bytes;
    return !forged.empty() && &to == &leaves[0];
  };
  say(2, codes_of(2));
  ASSERT_FALSE(forged.empty());
  lose = nullptr;
  const auto deliver = [&](io::Endpoint from, const Bytes& bytes) {
    leaves[0].packet_io.deliver(from, bytes);
    return settle();
  };
  const std::vector<std::function<void(wire::Header&)>> changes{[](auto& h) { h.epoch = h.epoch + 1; },
                                                                [](auto& h) { h.worker_id = std::uint8_t{1}; },
                                                                [](auto& h) { h.num_workers = std::uint8_t{3}; },
                                                                [](auto& h) { h.code_bits = std::uint8_t{4}; },
                                                                [](auto& h) { h.round = std::uint32_t{2}; },
                                                                [](auto& h) { h.slot = std::uint32_t{16}; },
                                                                [](auto& h) { h.slot = std::uint32_t{0}; },
                                                                [](auto& h) { h.contributions = std::uint8_t{1}; },
                                                                [](auto& h) { h.payload_count = std::uint16_t{63}; },
                                                                [](auto& h) { h.job_id = std::uint16_t{8}; }};
  for (const auto& change : changes) EXPECT_TRUE(deliver(kRoot, with_header(forged, change)).empty());
  EXPECT_TRUE(deliver(address(0), forged).empty()) << "from a worker";
  EXPECT_TRUE(deliver(kLeaves[1], forged).empty()) << "from another leaf";
  EXPECT_EQ(deliver(kRoot, forged).size(), 2U);
  EXPECT_TRUE(deliver(kRoot, forged).empty()) << "a copy is for nobody";
}

TEST_F(Rack, AReasonThatNobodyKnowsIsDropped) {
  HelloMessage hello = make_hello(0);
  hello.payload.cookie = single(say(0, hello.bytes())).as<wire::ChallengePayload>().cookie;
  Bytes to_root;
  lose = [&](const Node&, const Node&, const Bytes& bytes) {
    to_root = bytes;
    return true;
  };
  EXPECT_TRUE(say(0, hello.bytes()).empty());
  ASSERT_TRUE(is(to_root, MessageType::kHello));
  to_root.resize(sizeof(wire::Header) + sizeof(wire::ErrorPayload));
  to_root[1] = static_cast<std::uint8_t>(MessageType::kError);
  wire::ErrorPayload error{};
  error.reason = std::uint16_t{0xf700};
  std::memcpy(to_root.data() + sizeof(wire::Header), &error, sizeof(error));
  leaves[0].packet_io.deliver(kRoot, to_root);
  EXPECT_TRUE(settle().empty());
  EXPECT_TRUE(say(0, hello.bytes()).empty()) << "this worker waits for the root";
}

TEST_F(Rack, TheRootIsNoWorker) {
  leaves[0].packet_io.deliver(kRoot, make_hello(0).bytes());
  EXPECT_TRUE(settle().empty());
  EXPECT_EQ(carried, 0U);
}

TEST_F(Rack, ARootOfOtherThreadsIsNotUsed) {
  JobLimits limits = limits_of(16);
  limits.share.shards = 2;
  root.shard.emplace(limits, root.packet_io);
  const Reply reply = enter(0);
  EXPECT_EQ(reply.reason(), ErrorReason::kBadConfig);
  EXPECT_EQ(reply.field(), ConfigField::kNone);
  JobEvent event;
  ASSERT_TRUE(leaves[0].shard->job_events().pop(event));
  EXPECT_EQ(event.change, JobChange::kOtherShards);
  EXPECT_EQ(event.shards, 2);
}

TEST(LeafConfig, SettingsOfARackAreThoseOfASwitch) {  // the same number as in tests/p4/thc_switch/test_upstream.py
  std::array<std::uint16_t, 16> values;
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  const JobConfig config{.num_workers = 6,
                         .value_bits = 8,
                         .quorum = 6,
                         .settings_hash = 0x01020304,
                         .arithmetic = 0x01a3f2,
                         .codes_per_packet = 1024,
                         .slots_asked = 0,
                         .table = LookupTable(4, values)};
  EXPECT_EQ(make_leaf({}, 1, {"0-2", "3-5"}).towards_root(config).settings_hash, 0x1547ae0eU);
  EXPECT_EQ(make_leaf({}, 1, {"0-2", "3-5"}).towards_root(config).arithmetic, 0x01a3f2U);
}

TEST(LeafConfig, SaysWhatIsWrongWithRacks) {
  const auto error_of = [](unsigned rack, const std::vector<std::string>& racks) -> std::string {
    try {
      make_leaf({}, rack, racks);
    } catch (const ConfigurationError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(1, {"0-3", "4-7"}), "");
  EXPECT_EQ(error_of(1, {"0", "1-63"}), "");
  EXPECT_NE(error_of(2, {"0-3", "4-7"}).find("--rack is the number"), std::string::npos);
  EXPECT_NE(error_of(0, {"0-3"}).find("two at least"), std::string::npos);
  EXPECT_NE(error_of(0, {"0-3", "5-7"}).find("rack 1 must begin with worker 4, not 5"), std::string::npos);
  EXPECT_NE(error_of(0, {"1-3", "4-7"}).find("rack 0 must begin with worker 0"), std::string::npos);
  for (const char* bad : {"", "x", "3-1", "0-64", "-1", "0-", "0-3-4", "99999999999"}) {
    EXPECT_NE(error_of(0, {bad, "4-7"}).find("is not a rack"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace thc::ps
