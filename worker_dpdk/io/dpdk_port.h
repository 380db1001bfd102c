// One DPDK device with one receive and one transmit queue.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "io/address.h"
#include "io/dpdk_io.h"
#include "io/dpdk_runtime.h"

namespace thc::io {

class DpdkPort {
 public:
  static constexpr std::size_t kBurst = 64;

  /// Claims, configures and starts `device`. Throws DpdkUnavailableError, ConfigurationError.
  DpdkPort(DpdkRuntime& runtime, const std::string& device, const DpdkConfig& config, rte_mempool* pool);
  ~DpdkPort();
  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;

  const MacAddress& mac() const noexcept { return mac_; }
  /// UDP checksums of frames to send: written by the device, by software, or not at all.
  bool offloads_udp_checksum() const noexcept { return (tx_flags_ & RTE_MBUF_F_TX_UDP_CKSUM) != 0; }
  bool software_udp_checksum() const noexcept { return software_udp_checksum_; }

  std::size_t receive(std::span<rte_mbuf*> frames) noexcept;

  /// Queues a frame, which is the port's from now on. Counts the datagrams that left.
  void transmit(rte_mbuf* frame, IoCounters& counters) noexcept;
  void flush(IoCounters& counters) noexcept;

  /// Offload flags for UDP frames to send.
  std::uint64_t tx_flags() const noexcept { return tx_flags_; }

 private:
  void configure(const DpdkConfig& config, rte_mempool* pool);
  void start(const std::string& driver, std::chrono::milliseconds timeout);
  void choose_checksums(const DpdkConfig& config, std::string_view driver, std::uint64_t tx_offloads) noexcept;

  DpdkRuntime& runtime_;
  std::string device_;
  std::uint16_t port_id_;
  MacAddress mac_{};
  std::uint64_t tx_flags_ = 0;
  bool software_udp_checksum_ = false;
  std::size_t queued_ = 0;
  std::array<rte_mbuf*, kBurst> queue_{};
};

/// The pool all of a PacketIo's frames live in: `mbufs` buffers for frames of `mtu_bytes`. Throws TransportError.
rte_mempool* obtain_pool(std::uint16_t first_port, std::uint32_t mbufs, std::uint16_t mtu_bytes);

}  // namespace thc::io
