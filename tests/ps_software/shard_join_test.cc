// HELLO, WELCOME, GOODBYE, admission, expiry, restart.
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
    return single(from_worker(worker, hello.bytes()));
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

TEST_F(Joining, WorkersOfAJobShareItsEpoch) {
  const std::uint32_t first = join(0).header.epoch;
  EXPECT_EQ(join(1).header.epoch, first);
}

TEST_F(Joining, RepeatedHelloResetsNothing) {
  join_all();
  from_worker(0, make_codes(0));
  const std::uint32_t before = epoch;
  EXPECT_EQ(join(0).header.epoch, before);
  from_worker(1, make_codes(1));
  EXPECT_EQ(from_worker(2, make_codes(2)).size(), kWorkers);
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
  EXPECT_EQ(mismatch([](auto& h) { h.use_table(1, {0, 15}); }), ConfigField::kCodeBits);
  EXPECT_EQ(mismatch([](auto& h) { h.header.value_bits = std::uint8_t{16}; }), ConfigField::kValueBits);
  EXPECT_EQ(mismatch([&](auto& h) { h.use_table(4, other); }), ConfigField::kGranularity);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.codes_per_packet = std::uint16_t{128}; }), ConfigField::kCodesPerPacket);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.quorum = std::uint8_t{2}; }), ConfigField::kQuorum);
  EXPECT_EQ(mismatch([](auto& h) { h.payload.slots = std::uint32_t{8}; }), ConfigField::kSlots);
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
  EXPECT_EQ(bad([](auto& h) { h.header.code_bits = std::uint8_t{7}; }), ConfigField::kCodeBits);
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
  HelloMessage reserved = make_hello(0);
  reserved.payload.reserved = std::uint32_t{1};
  EXPECT_TRUE(from_worker(0, reserved.bytes()).empty());
  EXPECT_EQ(drops(Drop::kLength), hello.size() - sizeof(wire::Header) + 2);
  EXPECT_TRUE(from_worker(0, with_header(hello, [](auto& h) { h.slot = std::uint32_t{1}; })).empty());
  EXPECT_EQ(drops(Drop::kSlot), 1U);
  EXPECT_TRUE(from_worker(0, with_header(hello, [](auto& h) { h.epoch = std::uint32_t{9}; })).empty());
  EXPECT_TRUE(from_worker(0, with_header(hello, [](auto& h) { h.switch_pass = std::uint8_t{1}; })).empty());
  EXPECT_EQ(drops(Drop::kHeader), 2U);
}

TEST_F(Joining, SecondLiveProcessIsADuplicate) {
  join_all();
  now += 900ms;
  const Reply reply = answer([](auto& h) { h.payload.nonce = std::uint64_t{999}; }, 1);
  EXPECT_EQ(reply.reason(), ErrorReason::kDuplicateWorker);
  EXPECT_EQ(reply.as<wire::ErrorPayload>().worker_bitmap, 0b010U);
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty()) << "the job goes on";
}

TEST_F(Joining, PacketsKeepAWorkerAlive) {
  join_all();
  now += 900ms;
  from_worker(1, make_codes(1));
  now += 900ms;
  EXPECT_EQ(answer([](auto& h) { h.payload.nonce = std::uint64_t{999}; }, 1).reason(), ErrorReason::kDuplicateWorker);
}

TEST_F(Joining, RestartedWorkerStartsTheJobOver) {
  join_all();
  from_worker(0, make_codes(0));
  const Bytes survivor = make_codes(1);
  now += 1s;
  const Reply welcome = answer([](auto& h) { h.payload.nonce = std::uint64_t{999}; }, 2);
  ASSERT_EQ(welcome.type(), MessageType::kWelcome);
  EXPECT_NE(welcome.header.epoch, epoch);
  EXPECT_EQ(single(from_worker(1, survivor)).reason(), ErrorReason::kStaleEpoch);
  // Nothing of the old rounds is left: three new contributions complete the slot.
  epoch = welcome.header.epoch;
  join(0);
  join(1);
  from_worker(0, make_codes(0));
  from_worker(1, make_codes(1));
  const auto results = from_worker(2, make_codes(2));
  ASSERT_EQ(results.size(), kWorkers);
  EXPECT_EQ(results[0].payload[0], 3);
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
  EXPECT_EQ(single(from_worker(0, make_hello(0, 8).bytes())).type(), MessageType::kWelcome);
  EXPECT_EQ(single(from_worker(0, make_hello(0, 9).bytes())).reason(), ErrorReason::kTooManyJobs);
}

TEST_F(Joining, MemoryIsLimited) {
  start([](JobLimits& limits) { limits.max_memory_bytes = 5000; });  // a job takes 16 * (64 + 2 * 64 + 16) bytes
  join(0);
  EXPECT_EQ(single(from_worker(0, make_hello(0, 8).bytes())).reason(), ErrorReason::kTooManyJobs);
  EXPECT_EQ(shard->jobs()[0].memory_bytes.get(), 16U * (64 + 2 * 64 + 16));
}

TEST_F(Joining, WindowIsSharedByJobs) {
  const std::uint32_t alone = join(0).as<wire::WelcomePayload>().window_bytes;
  const Reply second = single(from_worker(0, make_hello(0, 8).bytes()));
  EXPECT_EQ(second.as<wire::WelcomePayload>().window_bytes, alone / 2);
}

TEST_F(Joining, LastGoodbyeEndsTheJob) {
  join(0);
  join(1);
  EXPECT_TRUE(from_worker(0, make_goodbye(0)).empty());
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), kJob + 1U);
  EXPECT_EQ(shard->jobs()[0].workers.get(), 1U);
  from_worker(1, make_goodbye(1));
  EXPECT_EQ(shard->jobs()[0].job_plus_one.get(), 0U);
  EXPECT_EQ(single(from_worker(0, make_codes(0))).reason(), ErrorReason::kUnknownJob);
}

TEST_F(Joining, GoodbyeIsCheckedLikeAnyPacket) {
  join(0);
  EXPECT_TRUE(exchange({{address(5), make_goodbye(0)}}).empty());
  EXPECT_EQ(drops(Drop::kSender), 1U);
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.epoch = h.epoch + 1; }));
  from_worker(0, with_header(make_goodbye(0), [](auto& h) { h.worker_id = std::uint8_t{200}; }));
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
}

TEST_F(Joining, DrainingServerTakesNobodyNew) {
  join(0);
  shard->drain();
  EXPECT_EQ(single(from_worker(1, make_hello(1).bytes())).reason(), ErrorReason::kDraining);
  EXPECT_EQ(single(from_worker(0, make_hello(0, 8).bytes())).reason(), ErrorReason::kDraining);
  join(0);
  EXPECT_TRUE(from_worker(0, make_codes(0)).empty()) << "what is in flight goes on";
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
  const std::vector<std::pair<io::Endpoint, Bytes>> flood(3000, {address(0), make_hello(0).bytes()});
  EXPECT_EQ(exchange(flood).size(), 1000U);
  EXPECT_EQ(drops(Drop::kRateLimited), 2000U);
  now += 100ms;
  join(1);
}

}  // namespace
}  // namespace thc::ps
