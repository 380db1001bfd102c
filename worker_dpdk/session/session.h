// A worker's connection to its servers: asynchronous stages of push_pull, one polling thread.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "io/packet_io.h"
#include "session/session_engine.h"

namespace thc {

/// Any thread may submit and wait. All workers must submit the same partitions in the same order (docs/protocol.md).
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
  /// alone until done; `norms` is copied. Throws InputError, or why the session ended.
  OperationPtr push_norms(std::uint16_t partition, std::span<const float> norms, std::span<float> max_norms);

  /// Main stage: `count` codes, packed; aggregate[count] of value_bits each; contributions[chunks(count)] workers in
  /// each packet of the aggregate. All must stay valid and alone until done. Throws InputError, or why the session
  /// ended.
  OperationPtr push_codes(std::uint16_t partition, std::span<const std::uint8_t> codes, std::size_t count,
                          void* aggregate, std::span<std::uint8_t> contributions);

  /// True when done, false when `timeout` is over first. Throws the operation's failure.
  bool wait(const OperationPtr& operation, Duration timeout);

  /// Says GOODBYE and ends the polling thread; operations in flight fail with TransportError. May be called again.
  void close();

  const SessionConfig& config() const noexcept { return config_; }
  std::size_t chunks(std::size_t count) const noexcept {
    return (count + config_.codes_per_packet - 1) / config_.codes_per_packet;
  }
  std::uint64_t count(Count which) const noexcept { return engine_.counters()[which]; }

 private:
  OperationPtr submit(std::shared_ptr<Operation> operation);
  void run();
  void take_submitted();
  void publish();

  const std::unique_ptr<io::PacketIo> io_;
  const SessionConfig config_;
  SessionEngine engine_;  ///< polling thread only, but its counters

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> submitted_;  ///< under mutex_
  bool connected_ = false;                             ///< under mutex_
  std::optional<Failure> failure_;                     ///< under mutex_
  std::vector<std::shared_ptr<Operation>> taking_;     ///< polling thread only
  std::atomic<bool> closing_{false};
  std::mutex close_mutex_;
  std::thread polling_thread_;
};

}  // namespace thc
