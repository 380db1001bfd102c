// Workers that speak to a Shard over a MemoryIo.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "memory_io.h"
#include "shard.h"

namespace thc::ps {

using Bytes = std::vector<std::uint8_t>;
using namespace std::chrono_literals;

/// One answer of the shard.
struct Reply {
  io::Endpoint to;
  wire::Header header;
  Bytes payload;

  wire::MessageType type() const { return static_cast<wire::MessageType>(std::uint8_t{header.message_type}); }
  template <typename Payload>
  Payload as() const {
    Payload value{};
    EXPECT_EQ(payload.size(), sizeof(value));
    std::memcpy(&value, payload.data(), std::min(payload.size(), sizeof(value)));
    return value;
  }
  wire::ErrorReason reason() const {
    EXPECT_EQ(type(), wire::MessageType::kError);
    return static_cast<wire::ErrorReason>(std::uint16_t{as<wire::ErrorPayload>().reason});
  }
  wire::ConfigField field() const {
    return static_cast<wire::ConfigField>(std::uint16_t{as<wire::ErrorPayload>().field});
  }
};

inline Reply reply_of(const MemoryIo::Datagram& datagram) {
  Reply reply{.to = datagram.peer, .header = {}, .payload = {}};
  EXPECT_GE(datagram.bytes.size(), sizeof(reply.header));
  std::memcpy(&reply.header, datagram.bytes.data(), sizeof(reply.header));
  reply.payload.assign(datagram.bytes.begin() + sizeof(reply.header), datagram.bytes.end());
  return reply;
}

/// A HELLO before it is bytes, so that tests can spoil any part.
struct HelloMessage {
  wire::Header header{};
  wire::HelloPayload payload{};
  std::vector<std::uint16_t> values;

  void use_table(unsigned code_bits, std::vector<std::uint16_t> table) {
    values = std::move(table);
    header.code_bits = static_cast<std::uint8_t>(code_bits);
    payload.granularity = values.back();
    payload.table_hash = LookupTable(code_bits, values).hash();
  }

  Bytes bytes() const {
    Bytes bytes(sizeof(header) + sizeof(payload));
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), &payload, sizeof(payload));
    for (const std::uint16_t value : values) {
      bytes.push_back(static_cast<std::uint8_t>(value >> 8));
      bytes.push_back(static_cast<std::uint8_t>(value));
    }
    return bytes;
  }
};

class ShardTest : public ::testing::Test {
 protected:
  static constexpr std::uint16_t kJob = 7;
  static constexpr std::uint8_t kWorkers = 3;
  static constexpr std::uint16_t kCodes = 64;
  static constexpr std::uint32_t kCodeSlot = 2;  // of 16 slots, 0 and 1 take norms

  ShardTest() { start(); }

  void start(const std::function<void(JobLimits&)>& change = [](JobLimits&) {}) {
    JobLimits limits{
        .share = {}, .max_jobs = 2, .slots = 16, .max_memory_bytes = 1 << 20, .idle_timeout = std::chrono::seconds(30)};
    change(limits);
    shard.emplace(limits, packet_io);
  }

  static io::Endpoint address(unsigned worker) {
    return {0x0a000001 + worker, static_cast<std::uint16_t>(5000 + worker)};
  }

  static HelloMessage make_hello(unsigned worker, std::uint16_t job = kJob) {
    HelloMessage hello;
    hello.header.version = wire::kVersion;
    hello.header.message_type = static_cast<std::uint8_t>(wire::MessageType::kHello);
    hello.header.value_bits = std::uint8_t{8};
    hello.header.worker_id = static_cast<std::uint8_t>(worker);
    hello.header.num_workers = kWorkers;
    hello.header.job_id = job;
    hello.payload.nonce = 100 + worker;
    hello.payload.codes_per_packet = kCodes;
    hello.payload.quorum = kWorkers;
    std::vector<std::uint16_t> table(16);
    for (std::uint16_t i = 0; i < 16; ++i) table[i] = i;
    hello.use_table(4, table);
    return hello;
  }

  static HelloMessage another_process(unsigned worker) {
    HelloMessage hello = make_hello(worker);
    hello.payload.nonce = std::uint64_t{999};
    return hello;
  }

  /// CODES of all equal codes.
  Bytes make_codes(unsigned worker, std::uint32_t round = 1, std::uint8_t code = 1,
                   std::uint32_t slot = kCodeSlot) const {
    wire::Header header = make_header(wire::MessageType::kCodes, worker, kCodes);
    header.slot = slot;
    header.round = round;
    Bytes bytes(sizeof(header) + kCodes / 2, static_cast<std::uint8_t>(code << 4 | code));
    std::memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
  }

  Bytes make_norm(unsigned worker, std::uint8_t first_byte) const {
    wire::Header header = make_header(wire::MessageType::kNorm, worker, 1);
    header.round = std::uint32_t{1};
    Bytes bytes(sizeof(header) + 4, first_byte);
    std::memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
  }

  Bytes make_goodbye(unsigned worker) const {
    const wire::Header header = make_header(wire::MessageType::kGoodbye, worker, 0);
    Bytes bytes(sizeof(header));
    std::memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
  }

  wire::Header make_header(wire::MessageType type, unsigned worker, std::uint16_t count) const {
    wire::Header header{};
    header.version = wire::kVersion;
    header.message_type = static_cast<std::uint8_t>(type);
    header.code_bits = std::uint8_t{4};
    header.value_bits = std::uint8_t{8};
    header.worker_id = static_cast<std::uint8_t>(worker);
    header.num_workers = kWorkers;
    header.job_id = kJob;
    header.payload_count = count;
    header.epoch = epoch;
    return header;
  }

  static Bytes with_header(Bytes packet, const std::function<void(wire::Header&)>& change) {
    wire::Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    change(header);
    std::memcpy(packet.data(), &header, sizeof(header));
    return packet;
  }

  /// Delivers packets in one burst; returns the answers.
  std::vector<Reply> exchange(const std::vector<std::pair<io::Endpoint, Bytes>>& packets) {
    for (const auto& [from, bytes] : packets) packet_io.deliver(from, bytes);
    while (shard->poll(now) > 0) {
    }
    std::vector<Reply> replies;
    for (const auto& datagram : packet_io.take_sent()) replies.push_back(reply_of(datagram));
    return replies;
  }

  std::vector<Reply> from_worker(unsigned worker, const Bytes& packet) { return exchange({{address(worker), packet}}); }

  /// The one answer that is expected.
  Reply single(const std::vector<Reply>& replies) {
    EXPECT_EQ(replies.size(), 1U);
    return replies.empty() ? Reply{} : replies.front();
  }

  /// The answers to a HELLO with a cookie, which is fetched first. With a cookie of its own: to that alone.
  std::vector<Reply> say_hello(io::Endpoint from, HelloMessage hello) {
    if (hello.payload.cookie != 0) return exchange({{from, hello.bytes()}});
    std::vector<Reply> replies = exchange({{from, hello.bytes()}});
    if (replies.size() != 1 || replies[0].type() != wire::MessageType::kChallenge) return replies;
    hello.payload.cookie = replies[0].as<wire::ChallengePayload>().cookie;
    return exchange({{from, hello.bytes()}});
  }
  /// The one answer that is not a PROBE.
  Reply answer_to(unsigned worker, const HelloMessage& hello) { return answer_to(address(worker), hello); }
  Reply answer_to(io::Endpoint from, const HelloMessage& hello) {
    std::vector<Reply> replies = say_hello(from, hello);
    std::erase_if(replies, [](const Reply& reply) { return reply.type() == wire::MessageType::kProbe; });
    return single(replies);
  }

  Reply join(unsigned worker) {
    const Reply reply = answer_to(worker, make_hello(worker));
    EXPECT_EQ(reply.type(), wire::MessageType::kWelcome);
    epoch = reply.header.epoch;
    return reply;
  }

  void join_all() {
    for (unsigned worker = 0; worker < kWorkers; ++worker) join(worker);
  }

  /// Changes of job kJob since the last call.
  std::vector<JobChange> changes() {
    std::vector<JobChange> changes;
    for (JobEvent event; shard->job_events().pop(event);) {
      EXPECT_EQ(event.job, kJob);
      EXPECT_EQ(event.workers, kWorkers);
      changes.push_back(event.change);
    }
    return changes;
  }

  const PacketCounters& job_counters(std::size_t place = 0) const { return shard->jobs()[place].packets; }
  std::uint64_t drops(Drop reason) const {
    std::uint64_t sum = shard->strays().drops[static_cast<std::size_t>(reason)].get();
    for (const JobCounters& job : shard->jobs()) sum += job.packets.drops[static_cast<std::size_t>(reason)].get();
    return sum;
  }

  TimePoint now{std::chrono::hours(1)};
  MemoryIo packet_io;
  std::optional<Shard> shard;
  std::uint32_t epoch = 0;
};

}  // namespace thc::ps
