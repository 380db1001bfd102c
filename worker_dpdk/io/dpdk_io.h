// DPDK ethdev back end. This header needs no DPDK: libthc_dpdk.so has the back end and is loaded when it is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/address.h"
#include "io/packet_io.h"

namespace thc::io {

/// A configured next hop: frames to `ip` go to `mac`, through the first device.
struct DpdkNeighbour {
  std::uint32_t ip = 0;
  MacAddress mac{};
};

struct DpdkConfig {
  /// EAL arguments, for example {"--no-huge", "-m", "256", "--vdev=net_memif0,role=client,socket=/run/thc.sock"}. EAL
  /// starts once in a process; later configurations must have the same. Added unless given: "--lcores" (one EAL
  /// thread, on the process's CPUs of the first "-a" device's NUMA node), "--no-pci" (without "-a"), "--in-memory" or
  /// "--no-shconf" (without "--file-prefix"), "--no-telemetry". With several queues also "qpairs" of net_af_packet
  /// devices, and a "secret" of net_memif devices, whose peers must have as many.
  std::vector<std::string> eal_args;
  std::vector<std::string> devices;       ///< names or PCI addresses, used by nobody else; empty: all that EAL has
  Endpoint local;                         ///< own address on every device; port 0: picked at random from 49152 up
  std::uint16_t queues = 1;               ///< of each device, one for each thread; queue q has port local.port + q
  std::uint8_t prefix_length = 24;        ///< of the local network
  std::uint32_t gateway_ip = 0;           ///< next hop of other networks; 0: none
  std::vector<DpdkNeighbour> neighbours;  ///< others are found by ARP
  std::uint16_t mtu_bytes = 1500;         ///< of the IP packet
  bool verify_udp_checksum = true;  ///< turn off for peers behind veth with checksum offload, whose frames carry none
};

/// True when this build has DPDK, and its libraries are installed here; loads them.
bool dpdk_available() noexcept;

/// Starts EAL when it is not running, then the devices. Element q has queue q of each device and port local.port + q,
/// for one thread; the devices stop when the last one is gone, in whatever order. Throws DpdkUnavailableError (DPDK not
/// in this build or not installed here, EAL or a device does not start), TransportError (no memory for packet buffers)
/// or ConfigurationError.
std::vector<std::unique_ptr<PacketIo>> make_dpdk_ios(const DpdkConfig& config);

/// The one of a configuration with one queue.
std::unique_ptr<PacketIo> make_dpdk_io(const DpdkConfig& config);

}  // namespace thc::io
