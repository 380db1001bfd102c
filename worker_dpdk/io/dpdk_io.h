// DPDK ethdev back end, in libthc_dpdk.so, loaded on first use. This header needs no DPDK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/address.h"
#include "io/packet_io.h"

namespace thc::io {

/// Frames to `ip` go to `mac`, through the first device.
struct DpdkNeighbour {
  std::uint32_t ip = 0;
  MacAddress mac{};
};

struct DpdkConfig {
  /// For example {"--no-huge", "-m", "256", "--vdev=net_memif0,role=client,socket=/run/thc.sock"}. EAL starts once in a
  /// process, so later configurations must have the same. Defaults: "--lcores" (one EAL thread, on the process's CPUs),
  /// "--no-pci" (without "-a"), "--in-memory" or "--no-shconf" (without "--file-prefix"), "--no-telemetry", and for
  /// several queues "qpairs" of net_af_packet and a "secret" of net_memif.
  std::vector<std::string> eal_args;
  std::vector<std::string> devices;       ///< names or PCI addresses, without other users; empty: all of EAL's devices
  Endpoint local;                         ///< own address on every device; port 0: a random port from 49152 up
  std::uint16_t queues = 1;               ///< per device; queue q is one thread's and has port local.port + q
  unsigned prefix_length = 24;            ///< of the local network
  std::uint32_t gateway_ip = 0;           ///< next hop of other networks; 0: none
  std::vector<DpdkNeighbour> neighbours;  ///< static entries; ARP finds other neighbours
  std::uint16_t mtu_bytes = 1500;         ///< IP packet size
};

/// Loads DPDK. Returns false if this build or host lacks it.
bool dpdk_available() noexcept;

/// Starts EAL if needed, then the devices. Element q has queue q of each device and port local.port + q, for one
/// thread. The devices stop with the last element. Throws DpdkUnavailableError (no DPDK in this build or on this host,
/// EAL or a device does not start), TransportError (no memory for packet buffers) or ConfigurationError.
std::vector<std::unique_ptr<PacketIo>> make_dpdk_ios(const DpdkConfig& config);
std::unique_ptr<PacketIo> make_dpdk_io(const DpdkConfig& config);

}  // namespace thc::io
