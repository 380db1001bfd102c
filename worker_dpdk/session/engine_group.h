// What the engines of one session tell each other. Each has a polling thread of its own, and shards of its own of every
// server; nothing else is shared between them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "session/failure.h"
#include "session/membership.h"
#include "session/session_config.h"
#include "thc/wire_layout.h"

namespace thc {

/// A packet that a shard of a server has not answered, neither with a result nor with a notice.
/// Aligned as a whole, or clang's atomics of it would be calls of a library.
struct alignas(8) Unanswered {
  std::uint32_t for_ms = 0;  ///< 0: there is none
  std::uint16_t port = 0;    ///< of the shard
};

/// Any thread may call anything. What was told stays.
class EngineGroup {
 public:
  EngineGroup(std::size_t servers, std::uint32_t engines)
      : engines_(engines), servers_(servers), unanswered_(servers * engines) {}

  std::uint32_t engines() const noexcept { return engines_; }

  /// Engine 0 tells what the first WELCOME of a server says; the others say HELLO when they know how many shards it
  /// has.
  void tell_shape(std::size_t server, const ServerShape& shape) noexcept;
  /// Null until it is told.
  const ServerShape* shape(std::size_t server) const noexcept;

  /// A packet of codes had a result from that server, so packets of that size get through.
  void tell_codes_answered(std::size_t server, TimePoint now) noexcept;
  /// When that was, within a millisecond; TimePoint::min(): never.
  TimePoint codes_answered_at(std::size_t server) const noexcept;

  /// Something arrived from that server, whatever it is.
  void tell_heard(std::size_t server, TimePoint now) noexcept;
  /// When that was, within a millisecond; TimePoint::min(): never.
  TimePoint heard_at(std::size_t server) const noexcept;

  /// What that engine's shards of the server have not answered for longest.
  void tell_unanswered(std::size_t server, std::uint32_t engine, Unanswered packet) noexcept {
    unanswered_[server * engines_ + engine].store(packet, std::memory_order_relaxed);
  }
  /// The same of all engines.
  Unanswered unanswered(std::size_t server) const noexcept;

  /// The maximum of this partition's norms is asked for.
  void begin_norms(std::uint16_t partition) noexcept { norms_of(partition).fetch_and(~bit_of(partition)); }
  /// A quorum went on without this worker's norms of the partition: it cannot say anything with its codes.
  void tell_left_behind(std::uint16_t partition) noexcept { norms_of(partition).fetch_or(bit_of(partition)); }
  bool is_left_behind(std::uint16_t partition) noexcept {
    return (norms_of(partition).load() & bit_of(partition)) != 0;
  }

  /// Ends the session. The first cause is the one that all engines tell; returns it.
  const Failure& fail(Failure failure);
  /// Null until an engine has failed.
  const Failure* failure() const noexcept;

 private:
  struct Server {
    std::atomic<bool> has_shape{false};
    ServerShape shape{};
    std::atomic<TimePoint> codes_answered_at{TimePoint::min()};
    std::atomic<TimePoint> heard_at{TimePoint::min()};
  };

  std::atomic<std::uint64_t>& norms_of(std::uint16_t partition) noexcept { return left_behind_[partition / 64]; }
  static std::uint64_t bit_of(std::uint16_t partition) noexcept { return std::uint64_t{1} << partition % 64; }

  const std::uint32_t engines_;
  std::vector<Server> servers_;
  std::vector<std::atomic<Unanswered>> unanswered_;  ///< of each server, those of all engines
  std::array<std::atomic<std::uint64_t>, wire::kMaxPartitions / 64> left_behind_{};  ///< a bit for each partition
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;  ///< under mutex_ until failed_
};

}  // namespace thc
