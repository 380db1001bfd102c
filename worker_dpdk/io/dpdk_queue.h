#pragma once

#include <rte_mbuf.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/packet_io.h"

namespace thc::io {

class DpdkQueue {
 public:
  static constexpr std::size_t kBurst = 64;

  DpdkQueue(std::uint16_t port_id, std::uint16_t queue) noexcept : port_id_(port_id), queue_(queue) {}
  ~DpdkQueue();
  DpdkQueue(const DpdkQueue&) = delete;
  DpdkQueue& operator=(const DpdkQueue&) = delete;

  std::size_t receive(std::span<rte_mbuf*> frames) noexcept;
  /// Takes ownership of the frame. Counts the datagrams that left.
  void transmit(rte_mbuf* frame, IoCounters& counters) noexcept;
  /// Waits while a full ring drains.
  void flush(IoCounters& counters) noexcept;

 private:
  const std::uint16_t port_id_;
  const std::uint16_t queue_;
  bool dead_ = false;  // the ring is full and did not drain
  std::size_t waiting_ = 0;
  std::array<rte_mbuf*, kBurst> to_send_{};
};

}  // namespace thc::io
