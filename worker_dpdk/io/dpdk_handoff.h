#pragma once

#include <rte_mbuf.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

struct rte_ring;

namespace thc::io {

/// One bounded ring per thread, for frames that arrived at another thread's queue. It is lock-free, but a preempted
/// giver blocks the other givers of a ring until it runs again: give every thread a core.
class DpdkHandoff {
 public:
  static constexpr unsigned kFrames = 512;

  /// Throws TransportError.
  DpdkHandoff(std::uint16_t queues, int numa_node);
  ~DpdkHandoff();
  DpdkHandoff(const DpdkHandoff&) = delete;
  DpdkHandoff& operator=(const DpdkHandoff&) = delete;

  /// From any thread. Returns false if the ring is full; the caller then keeps the frame.
  bool give(std::uint16_t queue, rte_mbuf* frame) noexcept;

  /// Only from the thread of `queue`.
  std::size_t take(std::uint16_t queue, std::span<rte_mbuf*> frames) noexcept;

 private:
  std::vector<rte_ring*> rings_;
};

}  // namespace thc::io
