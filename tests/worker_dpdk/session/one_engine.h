// One worker of two, so that the test plays the server and nothing completes by itself.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine_fixture.h"
#include "session/session_engine.h"

namespace thc::testing {

using wire::ErrorReason;
using wire::MessageType;

inline MessageType type_of(const Datagram& datagram) {
  return static_cast<MessageType>(std::uint8_t{header_of(datagram).message_type});
}

class EngineTest : public ::testing::Test {
 protected:
  static SessionConfig two_workers() { return resolve(test_config(4, 2), 65507); }

  void start(const SessionConfig& resolved) {
    config = std::make_unique<SessionConfig>(resolved);
    state = std::make_unique<SessionState>(resolved.servers.size());
    engine = std::make_unique<SessionEngine>(resolved, packet_io, *state, 99, now);
  }
  void say_hello(const SessionConfig& resolved) {
    start(resolved);
    engine->step(now);
  }
  void submit(const std::shared_ptr<Operation>& operation) {
    engine->submit(operation, now);
    engine->step(now);
  }
  void arrive(const Datagram& datagram, io::Endpoint from = kServer) {
    packet_io.arriving.push_back({from, datagram});
    engine->step(now);
  }
  void pass(Duration time) {
    now += time;
    engine->step(now);
  }
  Datagram welcome(std::uint32_t shard, std::uint16_t shards = 1, std::uint32_t slots = 10, std::uint32_t epoch = 5,
                   std::uint16_t codes_multiple = 1) {
    wire::Header header = make_header(MessageType::kWelcome, *config);
    header.slot = shard;
    header.epoch = epoch;
    header.round = 99;  // the engine's nonce
    wire::WelcomePayload payload{};
    payload.slots = slots;
    payload.norm_slots = 2;
    payload.window_bytes = window_bytes;
    payload.shards = shards;
    payload.codes_multiple = codes_multiple;
    return make_datagram(header, payload);
  }
  static Datagram error(wire::Header header, ErrorReason reason, std::uint64_t bitmap = 0, std::uint32_t job_value = 0,
                        wire::ConfigField field = wire::ConfigField::kNone) {
    header.message_type = static_cast<std::uint8_t>(MessageType::kError);
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(reason);
    payload.field = static_cast<std::uint16_t>(field);
    payload.worker_bitmap = bitmap;
    payload.job_value = job_value;
    return make_datagram(header, payload);
  }
  /// The server has seen worker 0, and has refused another one.
  static Datagram notice_of_refused_worker(const Datagram& about, wire::ConfigField field, std::uint32_t value) {
    return error(header_of(about), ErrorReason::kIncomplete, 1, value, field);
  }
  /// The answer to HELLO of a job with so many codes in a packet, and not this worker's number.
  Datagram packets_differ(std::uint32_t job_value) {
    wire::Header header = make_header(MessageType::kError, *config);
    header.round = 99;  // the engine's nonce
    return error(header, ErrorReason::kConfigMismatch, 0, job_value, wire::ConfigField::kCodesPerPacket);
  }
  /// The aggregate of a CODES packet with every coordinate `value`.
  Datagram aggregate_of(const Datagram& codes, std::uint8_t value) const {
    wire::Header header = header_of(codes);
    header.message_type = static_cast<std::uint8_t>(MessageType::kAggregate);
    header.flags = 0;
    header.contributions = config->num_workers;
    Datagram datagram(sizeof(header) + header.payload_count, value);
    std::memcpy(datagram.data(), &header, sizeof(header));
    return datagram;
  }
  void join(const SessionConfig& resolved) {
    say_hello(resolved);
    arrive(welcome(0));
    ASSERT_TRUE(engine->connected());
    packet_io.take_sent();
  }
  /// Joins and pushes `count` codes; returns the packets.
  std::vector<Datagram> join_and_push(const SessionConfig& resolved, std::size_t count) {
    join(resolved);
    push = std::make_unique<Push>(std::uint16_t{3}, count, *config, 1);
    submit(push->operation);
    return packet_io.take_sent();
  }
  Datagram probe(std::uint32_t epoch = 5) const {
    wire::Header header = make_header(MessageType::kProbe, *config);
    header.epoch = epoch;
    return make_datagram(header);
  }
  /// The server's answer to a packet of a round that is over for the other workers.
  static Datagram straggler(wire::Header header) {
    header.message_type = static_cast<std::uint8_t>(MessageType::kStraggler);
    header.payload_count = 0;
    return make_datagram(header);
  }
  void step_until_failure() {
    while (!engine->failure()) {
      now = engine->next_timer();
      engine->step(now);
    }
    packet_io.take_sent();
  }
  /// The session has ended, and its message has these texts.
  void expect_failure(const std::vector<std::string>& texts) const {
    ASSERT_TRUE(engine->failure());
    const std::string& message = engine->failure()->message;
    for (const std::string& text : texts) EXPECT_NE(message.find(text), std::string::npos) << message;
  }
  std::uint64_t count(Count which) const { return engine->counters()[which]; }

  TimePoint now{std::chrono::hours(1)};
  std::uint32_t window_bytes = 1U << 20;  ///< of the server
  MemoryIo packet_io;
  std::unique_ptr<SessionConfig> config;
  std::unique_ptr<SessionState> state;
  std::unique_ptr<SessionEngine> engine;
  std::unique_ptr<Push> push;
};

}  // namespace thc::testing
