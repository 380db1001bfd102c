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

/// Thread-safe. All workers must submit the same partitions in the same order (docs/contributors/protocol.md).
class Session {
 public:
  using OperationPtr = std::shared_ptr<const Operation>;

  /// Starts joining; see wait_connected(). `began`: of the connect timeout. Throws ConfigurationError.
  Session(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io, TimePoint began = Clock::now());
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// False if `timeout` ends first. Throws ServerRefusedError, or DeadlineError (connect timeout) naming the server.
  bool wait_connected(Duration timeout);

  /// Preliminary stage: max_norms[i] becomes the maximum of norms[i] over the workers. Copies `norms`; `max_norms` must
  /// stay valid and unused until done. `compared`: see wait(). Throws InputError, or why the session ended.
  OperationPtr push_norms(std::uint16_t partition, std::span<const float> norms, std::span<float> max_norms,
                          std::size_t compared = 0);

  /// Main stage: `count` packed codes; aggregate[count] of value_bits each; contributions[chunks(count)] workers per
  /// packet. All must stay valid and unused until done. If a quorum left this worker's norms of the partition behind,
  /// its codes do not count. Throws InputError, or why the session ended.
  OperationPtr push_codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count, void* aggregate,
                          std::uint8_t* contributions);

  /// False if `timeout` ends first. Throws the operation's failure. Also true once the first `compared` words differ
  /// from other workers': `max_norms` contains theirs, and the session keeps writing to it. No worker can continue.
  bool wait(const OperationPtr& operation, Duration timeout);
  /// The longest unanswered packet; `server`: index in the configuration.
  Unanswered unanswered(std::size_t server) const noexcept { return state_.unanswered(server); }
  TimePoint heard_at(std::size_t server) const noexcept { return state_.heard_at(server); }

  /// Says GOODBYE and closes the socket or device; operations in flight fail with TransportError. May be called again.
  void close();

  const SessionConfig& config() const noexcept { return config_; }
  std::size_t chunks(std::size_t count) const noexcept {
    return (count + config_.codes_per_packet - 1) / config_.codes_per_packet;
  }
  /// Requires a connection.
  bool is_of_switch() const noexcept { return engine_.codes_multiple() > 1; }
  std::uint64_t count(Count which) const noexcept { return engine_.counters()[which]; }

 private:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  OperationPtr submit(std::shared_ptr<Operation> operation);
  // Polling thread.
  void run();
  TimePoint sleep();  ///< returns the wake-up time if nothing arrives
  void take_submitted();
  void publish();
  void wake() noexcept;

  std::unique_ptr<io::PacketIo> io_;  ///< nullptr once closed, under mutex_
  const SessionConfig config_;
  SessionState state_;
  SessionEngine engine_;  ///< polling thread only, except its counters
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
