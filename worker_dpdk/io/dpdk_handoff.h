// Frames that arrive at the queue of one thread and are another one's: bounded rings between the threads of a device.
#pragma once

#include <rte_mbuf.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

struct rte_ring;

namespace thc::io {

/// One ring for each queue, of which one thread takes and all others give. Nobody takes a lock, but a giver that is
/// preempted in the middle makes the ring's other givers wait until it runs again: give every thread a core.
class DpdkHandoff {
 public:
  /// Most frames that wait for one queue.
  static constexpr unsigned kFrames = 512;

  /// `numa_node`: where the rings' memory is. Throws TransportError.
  DpdkHandoff(std::uint16_t queues, int numa_node);
  /// Frees what nobody took.
  ~DpdkHandoff();
  DpdkHandoff(const DpdkHandoff&) = delete;
  DpdkHandoff& operator=(const DpdkHandoff&) = delete;

  /// Any thread. False when the queue's ring is full; the frame is still the caller's then.
  bool give(std::uint16_t queue, rte_mbuf* frame) noexcept;

  /// The thread of `queue`.
  std::size_t take(std::uint16_t queue, std::span<rte_mbuf*> frames) noexcept;

 private:
  std::vector<rte_ring*> rings_;
};

}  // namespace thc::io
