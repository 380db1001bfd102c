// A worker's connection to its servers: asynchronous stages of push_pull, one polling thread or several.
#pragma once

#include <array>
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

/// Any thread may submit and wait. All workers must submit the same partitions in the same order (docs/protocol.md).
class Session {
 public:
  using OperationPtr = std::shared_ptr<const Operation>;

  using PacketIos = std::vector<std::unique_ptr<io::PacketIo>>;

  /// Starts joining; see wait_connected(). One polling thread for each of `packet_ios`, 1 to wire::kMaxShards: thread t
  /// of T has the shards s of every server with s mod T == t, and the packets in their slots. Threads that no server
  /// has a shard for are idle. Throws ConfigurationError.
  Session(const SessionConfig& config, PacketIos packet_ios);
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
  OperationPtr push_codes(std::uint16_t partition, std::span<const std::uint8_t> codes, std::size_t count,
                          void* aggregate, std::span<std::uint8_t> contributions);

  /// True when done, false when `timeout` is over first. Throws the operation's failure. Also true as soon as the words
  /// that are compared have come back and differ from this worker's: they are in `max_norms` then, which the session
  /// goes on to write to, as other workers have pushed something else, and nobody can go on.
  bool wait(const OperationPtr& operation, Duration timeout);

  /// What that server, of those in the configuration, has not answered for longest.
  Unanswered unanswered(std::size_t server) const noexcept { return group_.unanswered(server); }
  /// See EngineGroup.
  TimePoint heard_at(std::size_t server) const noexcept { return group_.heard_at(server); }

  /// Says GOODBYE, ends the polling threads and closes their sockets or devices; operations in flight fail with
  /// TransportError. May be called again.
  void close();

  const SessionConfig& config() const noexcept { return config_; }
  std::size_t chunks(std::size_t count) const noexcept {
    return (count + config_.codes_per_packet - 1) / config_.codes_per_packet;
  }
  std::size_t polling_threads() const noexcept { return pollers_.size(); }
  /// Of one polling thread.
  std::uint64_t count(Count which, std::size_t thread) const noexcept {
    return pollers_[thread]->engine.counters()[which];
  }
  /// The sum over them; of kSmoothedRttUs the maximum.
  std::uint64_t count(Count which) const noexcept;

 private:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  /// One polling thread.
  struct Poller {
    Poller(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io, EngineGroup& group,
           std::uint32_t number, std::uint64_t nonce, TimePoint now)
        : io(std::move(packet_io)), engine(config, *io, group, number, nonce, now) {}

    std::unique_ptr<io::PacketIo> io;  ///< nullptr once closed, under mutex_
    SessionEngine engine;              ///< polling thread only, but its counters
    Operations taking;                 ///< polling thread only
    Operations submitted;              ///< under mutex_
    bool connected = false;            ///< under mutex_
    std::atomic<bool> has_submitted{false};
    std::thread thread;
  };

  OperationPtr submit(std::shared_ptr<Operation> operation);
  void run(Poller& poller);
  static void sleep(Poller& poller);
  void take_submitted(Poller& poller);
  void publish(Poller& poller);
  void wake_all() noexcept;

  const SessionConfig config_;
  EngineGroup group_;
  std::vector<std::unique_ptr<Poller>> pollers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t connected_ = 0;  ///< pollers; under mutex_
  std::atomic<bool> closing_{false};
  std::mutex close_mutex_;
};

}  // namespace thc
