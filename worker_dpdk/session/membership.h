// Being a member of a job on the shards of one server: HELLO until WELCOME, epochs, joining again after a restart.
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

/// What the first WELCOME of a server says.
struct ServerShape {
  wire::WelcomePayload welcome;
  bool tells_last;  ///< its results say whose packet came last
};

class Membership {
 public:
  enum class Welcome : std::uint8_t {
    kIgnored,  ///< not expected (again), or impossible values
    kShape,    ///< first of all: slots(), window_bytes() and the like are known
    kShard,    ///< one more shard joined, or joined again, or has learned this worker's address
    kChanged,  ///< the server is back with other slots or shards; packets in flight cannot be continued
  };

  /// Asks shard 0, which says how many there are.
  Membership(io::Endpoint server, const SessionConfig& config, io::PacketIo& packet_io, Counters& counters,
             std::uint64_t nonce, TimePoint now);

  /// As the configuration has it: the address of shard 0.
  io::Endpoint server() const noexcept { return server_; }
  /// All shards; `slot`: that of a slot.
  bool joined() const noexcept { return has_shape_ && waiting_ == 0; }
  bool joined(std::uint32_t slot) const noexcept { return has_shape_ && shard_of(slot).joined(); }
  std::uint32_t epoch(std::uint32_t slot) const noexcept { return shard_of(slot).epoch(); }
  /// Whether the shard of `slot` knows CODES that are not to be added.
  bool takes_abstentions(std::uint32_t slot) const noexcept { return shard_of(slot).takes_abstentions(); }
  /// Of all messages to the shard of `slot`.
  std::uint8_t flags(std::uint32_t slot) const noexcept { return shard_of(slot).header().flags; }
  bool same_shard(std::uint32_t a, std::uint32_t b) const noexcept { return a % shards_.size() == b % shards_.size(); }

  std::uint32_t slots() const noexcept { return shape_.welcome.slots; }
  std::uint32_t norm_slots() const noexcept { return shape_.welcome.norm_slots; }
  std::uint32_t window_bytes() const noexcept { return shape_.welcome.window_bytes; }
  /// Power of two that payload_count of CODES must be a multiple of.
  std::uint16_t codes_multiple() const noexcept { return shape_.welcome.codes_multiple; }
  bool tells_last() const noexcept { return shape_.tells_last; }
  std::uint16_t shards() const noexcept { return shape_.welcome.shards; }

  /// Shard s has the server's port + s.
  io::Endpoint address_of(std::uint32_t slot) const noexcept {
    return {server_.ip, static_cast<std::uint16_t>(server_.port + slot % shards_.size())};
  }
  /// Where the first shard is that has not answered HELLO; only while one has not.
  io::Endpoint absent() const noexcept;
  bool is_shard(io::Endpoint address) const noexcept {
    return address.ip == server_.ip && address.port >= server_.port && address.port < server_.port + shards_.size();
  }

  /// Whether a message repeats the nonce in the header of this HELLO: others answer a HELLO of before, or are replayed.
  bool answers_hello(const wire::Header& header) const noexcept { return repeats_nonce(header, hello_.nonce); }
  Welcome take_welcome(const ServerMessage& message, TimePoint now);
  /// The server wants HELLO with a cookie: says it at once, after ask() too. False: not expected (any more).
  bool take_challenge(const ServerMessage& message) noexcept;
  /// The shard of `slot` goes on in another epoch, with its slots as they are.
  void renew(std::uint32_t slot, std::uint32_t epoch) noexcept { shard_of(slot).renew(epoch); }
  /// The server asks whether this process lives, perhaps in an epoch that it has not yet heard of. False: it has not
  /// joined there.
  bool answer_probe(const ServerMessage& message) noexcept;
  /// The server asks the process that has this worker's place whether it lives: say HELLO often enough to hear of it.
  void await_verdict(std::uint32_t slot, TimePoint now) noexcept;
  /// The shard of `slot` does not know the job (any more): say HELLO there until it answers. False if it does already.
  bool lose(std::uint32_t slot, TimePoint now) noexcept;

  /// Asks the shard of `slot`, and the first one, whether they are there; they then learn this worker's address if it
  /// has changed.
  void ask(std::uint32_t slot) noexcept;

  /// Sends what is due of HELLO.
  void run_timers(TimePoint now) noexcept;
  TimePoint next_timer() const noexcept;
  void send_goodbye() noexcept;

 private:
  const Join& shard_of(std::uint32_t slot) const noexcept { return shards_[slot % shards_.size()]; }
  Join& shard_of(std::uint32_t slot) noexcept { return shards_[slot % shards_.size()]; }
  /// A shard that has not answered HELLO; null for others.
  Join* waiting_shard(std::uint32_t index) noexcept;
  /// Shards up to that many, of which HELLO is due.
  void add_shards(std::uint32_t shards, TimePoint now);
  void send_hello(const Join::Message& hello) noexcept;
  void send_notice(wire::MessageType type, std::uint32_t shard) noexcept;

  const io::Endpoint server_;
  io::PacketIo& io_;
  Counters& counters_;
  const Hello hello_;
  ServerShape shape_{};
  bool has_shape_ = false;
  std::vector<Join> shards_;
  std::size_t waiting_ = 1;  ///< shards that have not answered HELLO
};

}  // namespace thc
