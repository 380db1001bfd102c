// The worker's side of the protocol over a PacketIo: single-threaded, told the time, so that tests drive it step by
// step.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "io/packet_io.h"
#include "session/server_link.h"

namespace thc {

class SessionEngine {
 public:
  /// `config` must be resolved. `nonce` is random per process. The connect timeout counts from `now`.
  SessionEngine(SessionConfig config, io::PacketIo& packet_io, SessionState& state, std::uint64_t nonce, TimePoint now);

  /// Whether all shards of every server have answered HELLO at least once.
  bool connected() const noexcept { return connected_; }
  /// Set once; nothing is sent any more and every operation ends with it.
  const std::optional<Failure>& failure() const noexcept { return context_.failure; }
  /// Once connected: more than 1 is a switch's. Any thread.
  std::uint16_t codes_multiple() const noexcept { return links_.front().codes_multiple(); }
  const Counters& counters() const noexcept { return context_.counters; }
  const SessionConfig& config() const noexcept { return config_; }

  /// Starts the operation's deadline. One without
  /// chunks ends in the next step.
  void submit(std::shared_ptr<Operation> operation, TimePoint now);

  struct Step {
    bool received;  ///< datagrams were there, so there may be more
    bool changed;   ///< operations ended or differ, the engine connected or failed
  };
  /// Takes what has arrived, runs timers, sends what the windows allow. `was_away`: this process had no processor since
  /// the last step, or when a timer was due.
  Step step(TimePoint now, bool was_away = false);
  /// When step() has something to do although nothing arrives.
  TimePoint next_timer() const noexcept;

  /// Says GOODBYE; what is in flight ends with `failure` unless there was one before.
  void end(Failure failure);

 private:
  std::size_t receive(TimePoint now);
  void take(const io::RxPacket& packet, TimePoint now);
  void check_connected(TimePoint now);
  void abandon();
  /// True when an operation is done by it, or the engine has failed.
  bool end_operations();

  const SessionConfig config_;
  LinkContext context_;
  std::deque<ServerLink> links_;  ///< which never move
  std::array<io::RxPacket, 64> received_{};
  TimePoint connect_deadline_;
  bool connected_ = false;
  bool failure_published_ = false;
};

}  // namespace thc
