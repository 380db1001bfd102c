// rte_ring's inline functions need C++ atomics: ThreadSanitizer does not understand the others.
#ifndef RTE_USE_C11_MEM_MODEL
#define RTE_USE_C11_MEM_MODEL 1
#endif

#include "io/dpdk_handoff.h"

#include <rte_errno.h>

#include <array>
#include <atomic>
#include <string>

#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr unsigned kRingFlags = RING_F_SC_DEQ | RING_F_EXACT_SZ;

std::string new_name() {
  static std::atomic<unsigned> number{0};
  return "thc_handoff" + std::to_string(number++);
}

void free_rings(std::span<rte_ring* const> rings) noexcept {
  std::array<rte_mbuf*, 64> frames;
  for (rte_ring* ring : rings) {
    while (const unsigned count = rte_ring_dequeue_burst(ring, reinterpret_cast<void**>(frames.data()),
                                                         static_cast<unsigned>(frames.size()), nullptr)) {
      rte_pktmbuf_free_bulk(frames.data(), count);
    }
    rte_ring_free(ring);
  }
}

}  // namespace

DpdkHandoff::DpdkHandoff(std::uint16_t queues, int numa_node) {
  for (std::uint16_t queue = 0; queue < queues; ++queue) {
    rte_ring* ring = rte_ring_create(new_name().c_str(), kFrames, numa_node, kRingFlags);
    if (ring == nullptr) {
      const std::string why = rte_strerror(rte_errno);
      free_rings(rings_);
      throw TransportError("DPDK has no memory for the rings between " + std::to_string(queues) + " queues: " + why +
                           "; give EAL more (-m <MiB>, or more huge pages)");
    }
    rings_.push_back(ring);
  }
}

DpdkHandoff::~DpdkHandoff() { free_rings(rings_); }

bool DpdkHandoff::give(std::uint16_t queue, rte_mbuf* frame) noexcept {
  return rte_ring_enqueue(rings_[queue], frame) == 0;
}

std::size_t DpdkHandoff::take(std::uint16_t queue, std::span<rte_mbuf*> frames) noexcept {
  return rte_ring_dequeue_burst(rings_[queue], reinterpret_cast<void**>(frames.data()),
                                static_cast<unsigned>(frames.size()), nullptr);
}

}  // namespace thc::io
