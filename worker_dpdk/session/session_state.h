#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "session/failure.h"
#include "session/session_config.h"
#include "thc/wire_layout.h"

namespace thc {

/// Without a result or notice. Aligned as a whole, or clang's atomics would call a library.
struct alignas(8) Unanswered {
  std::uint32_t for_ms = 0;  ///< 0: no such packet
  std::uint16_t port = 0;    ///< of the shard
};

/// Any thread may call anything unless stated otherwise.
class SessionState {
 public:
  explicit SessionState(std::size_t servers) : servers_(servers) {}

  /// The path carries packets of this size.
  void tell_codes_answered(std::size_t server, TimePoint now) noexcept {
    set_rarely(servers_[server].codes_answered_at, now);
  }
  /// Within a millisecond; TimePoint::min(): never.
  TimePoint codes_answered_at(std::size_t server) const noexcept {
    return servers_[server].codes_answered_at.load(std::memory_order_relaxed);
  }

  void tell_heard(std::size_t server, TimePoint now) noexcept { set_rarely(servers_[server].heard_at, now); }
  /// Within a millisecond; TimePoint::min(): never.
  TimePoint heard_at(std::size_t server) const noexcept {
    return servers_[server].heard_at.load(std::memory_order_relaxed);
  }

  void tell_unanswered(std::size_t server, Unanswered packet) noexcept {
    servers_[server].unanswered.store(packet, std::memory_order_relaxed);
  }
  Unanswered unanswered(std::size_t server) const noexcept {
    return servers_[server].unanswered.load(std::memory_order_relaxed);
  }

  void begin_norms(std::uint16_t partition) noexcept { norms_of(partition).fetch_and(~bit_of(partition)); }
  /// A quorum continued without this worker's norms of the partition, so its codes cannot count.
  void tell_left_behind(std::uint16_t partition) noexcept { norms_of(partition).fetch_or(bit_of(partition)); }
  bool is_left_behind(std::uint16_t partition) noexcept {
    return (norms_of(partition).load() & bit_of(partition)) != 0;
  }

  /// Polling thread. Keeps and returns the first cause.
  const Failure& fail(Failure failure) {
    if (!failure_) {
      failure_ = std::move(failure);
      failed_.store(true, std::memory_order_release);
    }
    return *failure_;
  }
  const Failure* failure() const noexcept { return failed_.load(std::memory_order_acquire) ? &*failure_ : nullptr; }

 private:
  struct Server {
    std::atomic<TimePoint> codes_answered_at{TimePoint::min()};
    std::atomic<TimePoint> heard_at{TimePoint::min()};
    std::atomic<Unanswered> unanswered{};
  };

  /// Called for every packet: writes rarely, so that all caches keep the line.
  static void set_rarely(std::atomic<TimePoint>& at, TimePoint now) noexcept {
    if (now - Duration(1'000) >= at.load(std::memory_order_relaxed)) {
      at.store(now, std::memory_order_relaxed);
    }
  }
  std::atomic<std::uint64_t>& norms_of(std::uint16_t partition) noexcept { return left_behind_[partition / 64]; }
  static std::uint64_t bit_of(std::uint16_t partition) noexcept { return std::uint64_t{1} << partition % 64; }

  std::vector<Server> servers_;
  std::array<std::atomic<std::uint64_t>, wire::kMaxPartitions / 64> left_behind_{};  ///< a bit per partition
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
};

}  // namespace thc
