// One DPDK device with a receive and a transmit queue for each thread.
#pragma once

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "io/address.h"
#include "io/dpdk_io.h"
#include "io/dpdk_runtime.h"

namespace thc::io {

inline constexpr std::uint16_t kDpdkDescriptors = 1024;  ///< per receive and transmit ring

class DpdkDevice {
 public:
  /// `config` has a resolved port. Throws DpdkUnavailableError, TransportError (no memory), ConfigurationError.
  DpdkDevice(DpdkRuntime& runtime, const std::string& device, const DpdkConfig& config);
  ~DpdkDevice();
  DpdkDevice(const DpdkDevice&) = delete;
  DpdkDevice& operator=(const DpdkDevice&) = delete;

  std::uint16_t port_id() const noexcept { return port_id_; }
  const MacAddress& mac() const noexcept { return mac_; }
  rte_mempool* pool() const noexcept { return pool_; }
  /// Offload flags of UDP frames to send; 0: software computes checksums, or skips UDP's.
  std::uint64_t tx_flags() const noexcept { return tx_flags_; }
  bool software_udp_checksum() const noexcept { return software_udp_checksum_; }

 private:
  void set_up(const DpdkConfig& config);
  void check_queues(const DpdkConfig& config, const rte_eth_dev_info& info) const;
  void configure(const DpdkConfig& config, const rte_eth_dev_info& info);
  void set_up_queues(const DpdkConfig& config);
  void start(std::string_view driver);
  void choose_checksums(std::string_view driver, std::uint64_t tx_offloads) noexcept;

  DpdkRuntime& runtime_;
  std::string device_;
  std::uint16_t port_id_;
  rte_mempool* pool_ = nullptr;
  MacAddress mac_{};
  std::uint64_t tx_flags_ = 0;
  bool software_udp_checksum_ = false;
};

}  // namespace thc::io
