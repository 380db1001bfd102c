#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/packet_io.h"
#include "session/counters.h"
#include "session/messages.h"
#include "session/session_config.h"
#include "thc/join.h"

namespace thc {

class Membership {
 public:
  enum class Welcome : std::uint8_t {
    kIgnored,  ///< unexpected, repeated or invalid
    kShape,    ///< the first one: shape() is known
    kShard,    ///< one more shard joined, joined again, or learned this worker's address
    kChanged,  ///< the server returned with other slots or shards, so packets in flight cannot continue
  };

  /// Asks shard 0, which knows the number of shards.
  Membership(io::Endpoint server, const SessionConfig& config, io::PacketIo& packet_io, Counters& counters,
             std::uint64_t nonce, TimePoint now);
  /// The configured address, of shard 0.
  io::Endpoint server() const noexcept { return server_; }
  /// Without `slot`: all shards.
  bool joined() const noexcept { return has_shape_ && waiting_ == 0; }
  bool joined(std::uint32_t slot) const noexcept { return has_shape_ && shard_of(slot).joined(); }
  std::uint32_t epoch(std::uint32_t slot) const noexcept { return shard_of(slot).epoch(); }
  /// Whether the shard of `slot` supports CODES that do not count.
  bool takes_abstentions(std::uint32_t slot) const noexcept { return shard_of(slot).takes_abstentions(); }
  std::uint8_t flags(std::uint32_t slot) const noexcept { return shard_of(slot).header().flags; }
  bool same_shard(std::uint32_t a, std::uint32_t b) const noexcept { return a % shards_.size() == b % shards_.size(); }

  /// From the server's first WELCOME. codes_multiple is a power of two that divides payload_count of CODES.
  const wire::WelcomePayload& shape() const noexcept { return shape_; }
  /// Results name the last worker.
  bool tells_last() const noexcept { return tells_last_; }

  /// Shard s has the server's port + s.
  io::Endpoint address_of(std::uint32_t slot) const noexcept {
    return {server_.ip, static_cast<std::uint16_t>(server_.port + slot % shards_.size())};
  }
  /// The first shard without an answer to HELLO; requires one.
  io::Endpoint absent() const noexcept;
  bool is_shard(io::Endpoint address) const noexcept {
    return address.ip == server_.ip && address.port >= server_.port && address.port < server_.port + shards_.size();
  }

  /// Whether a message repeats this HELLO's nonce: others answer an earlier HELLO, or are replayed.
  bool answers_hello(const wire::Header& header) const noexcept { return repeats_nonce(header, hello_.nonce); }
  Welcome take_welcome(const ServerMessage& message, TimePoint now);
  /// Repeats HELLO with the cookie at once. Returns false if unexpected.
  bool take_challenge(const ServerMessage& message) noexcept;
  void renew(std::uint32_t slot, std::uint32_t epoch) noexcept { shard_of(slot).renew(epoch); }
  /// The server asks whether this process lives, perhaps in an epoch unknown here. Returns false if not joined there.
  bool answer_probe(const ServerMessage& message) noexcept;
  /// The server probes the process in this worker's place: repeat HELLO often enough to learn the verdict.
  void await_verdict(std::uint32_t slot, TimePoint now) noexcept;
  /// The shard of `slot` lost the job: repeat HELLO there. Returns false if already doing so.
  bool lose(std::uint32_t slot, TimePoint now) noexcept;
  /// Asks the shard of `slot`, and the first one, whether they live; they learn this worker's new address, if any.
  void ask(std::uint32_t slot) noexcept;
  void run_timers(TimePoint now) noexcept;
  TimePoint next_timer() const noexcept;
  void send_goodbye() noexcept;

 private:
  const Join& shard_of(std::uint32_t slot) const noexcept { return shards_[slot % shards_.size()]; }
  Join& shard_of(std::uint32_t slot) noexcept { return shards_[slot % shards_.size()]; }
  /// Returns null for a shard that has answered HELLO.
  Join* waiting_shard(std::uint32_t index) noexcept;
  void add_shards(std::uint32_t shards, TimePoint now);
  void send_hello(const Join::Message& hello) noexcept;
  void send_notice(wire::MessageType type, std::uint32_t shard) noexcept;

  const io::Endpoint server_;
  io::PacketIo& io_;
  Counters& counters_;
  const Hello hello_;
  wire::WelcomePayload shape_{};
  bool tells_last_ = false;
  bool has_shape_ = false;
  std::vector<Join> shards_;
  std::size_t waiting_ = 1;  ///< shards without an answer to HELLO
};

}  // namespace thc
