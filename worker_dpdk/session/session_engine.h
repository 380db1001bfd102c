// The worker's protocol over a PacketIo. Single-threaded, with time as an argument, so tests drive it step by step.
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
  /// `config` must be resolved. `nonce` is random per process. The connect timeout starts at `now`.
  SessionEngine(SessionConfig config, io::PacketIo& packet_io, SessionState& state, std::uint64_t nonce, TimePoint now);
  bool connected() const noexcept { return connected_; }
  /// Set once; the engine then sends nothing and ends every operation with it.
  const Failure* failure() const noexcept { return context_.failure(); }
  /// Once connected: above 1 for a switch. Any thread.
  std::uint16_t codes_multiple() const noexcept { return links_.front().codes_multiple(); }
  const Counters& counters() const noexcept { return context_.counters; }
  const SessionConfig& config() const noexcept { return config_; }

  /// Starts the operation's deadline. An operation without chunks ends in the next step.
  void submit(std::shared_ptr<Operation> operation, TimePoint now);

  struct Step {
    bool received;  ///< more datagrams may wait
    bool changed;   ///< operations ended or differ, the engine connected or failed
  };
  /// `was_away`: this process had no CPU since the last step, or when a timer was due.
  Step step(TimePoint now, bool was_away = false);
  TimePoint next_timer() const noexcept;
  /// Says GOODBYE; operations in flight end with `failure`, or with an earlier one.
  void end(Failure failure);

 private:
  std::size_t receive(TimePoint now);
  void take(const io::RxPacket& packet, TimePoint now);
  void check_connected(TimePoint now);
  void abandon();
  bool end_operations();

  const SessionConfig config_;
  LinkContext context_;
  std::deque<ServerLink> links_;  ///< a deque, because links must not move
  std::array<io::RxPacket, 64> received_{};
  TimePoint connect_deadline_;
  bool connected_ = false;
  bool failure_published_ = false;
};

}  // namespace thc
