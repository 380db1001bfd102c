// A worker's connection to its servers: asynchronous stages of push_pull, and a polling thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "io/packet_io.h"
#include "session/session_engine.h"

namespace thc {

/// Any thread may submit and wait. All workers must submit the same partitions in the same order
/// (docs/contributors/protocol.md).
class Session {
 public:
  using OperationPtr = std::shared_ptr<const Operation>;

  /// Starts joining; see wait_connected(). Throws ConfigurationError.
  Session(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io);
  /// close().
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// True once every server has welcomed this worker, false when `timeout` is over first. Throws ServerRefusedError
  /// when one refuses, and DeadlineError naming the server when the connect timeout is over.
  bool wait_connected(Duration timeout);

  /// Preliminary stage: max_norms[i] becomes the maximum of norms[i] over the workers. `max_norms` must stay valid and
  /// alone until done; `norms` is copied. The first `compared` words must be the same on all workers, see wait().
  /// Throws InputError, or why the session ended.
  OperationPtr push_norms(std::uint16_t partition, std::span<const float> norms, std::span<float> max_norms,
                          std::size_t compared = 0);

  /// Main stage: `count` codes, packed; aggregate[count] of value_bits each; contributions[chunks(count)] workers in
  /// each packet of the aggregate. All must stay valid and alone until done. When a quorum has left this worker behind
  /// in the norms of the partition, its codes travel but do not count. Throws InputError, or why the session ended.
  OperationPtr push_codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count, void* aggregate,
                          std::uint8_t* contributions);

  /// True when done, false when `timeout` is over first. Throws the operation's failure. Also true as soon as the words
  /// that are compared have come back and differ from this worker's: they are in `max_norms` then, which the session
  /// goes on to write to, as other workers have pushed something else, and nobody can go on.
  bool wait(const OperationPtr& operation, Duration timeout);

  /// What that server, of those in the configuration, has not answered for longest.
  Unanswered unanswered(std::size_t server) const noexcept { return state_.unanswered(server); }
  /// See SessionState.
  TimePoint heard_at(std::size_t server) const noexcept { return state_.heard_at(server); }

  /// Says GOODBYE, ends the polling thread and closes its socket or device; operations in flight fail with
  /// TransportError. May be called again.
  void close();

  const SessionConfig& config() const noexcept { return config_; }
  std::size_t chunks(std::size_t count) const noexcept {
    return (count + config_.codes_per_packet - 1) / config_.codes_per_packet;
  }
  /// Once connected, whether the aggregator is a switch.
  bool is_of_switch() const noexcept { return engine_.codes_multiple() > 1; }
  std::uint64_t count(Count which) const noexcept { return engine_.counters()[which]; }

 private:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  OperationPtr submit(std::shared_ptr<Operation> operation);
  // Polling thread.
  void run();
  TimePoint sleep();  ///< until when, if nothing arrives
  void take_submitted();
  void publish();
  void wake() noexcept;

  std::unique_ptr<io::PacketIo> io_;  ///< nullptr once closed, under mutex_
  const SessionConfig config_;
  SessionState state_;
  SessionEngine engine_;  ///< polling thread only, but its counters
  Operations taking_;     ///< polling thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  Operations submitted_;    ///< under mutex_
  bool connected_ = false;  ///< under mutex_
  std::atomic<bool> has_submitted_{false};
  std::atomic<bool> closing_{false};
  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace thc
