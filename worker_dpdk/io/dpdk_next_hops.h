// Where frames to an IP address go: MAC addresses and devices, asked for and told by ARP. One for each thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/dpdk_device.h"
#include "io/dpdk_io.h"
#include "io/dpdk_queue.h"
#include "io/frame.h"
#include "io/neighbour_table.h"

namespace thc::io {

/// A device as one thread sees it.
struct DpdkPort {
  DpdkPort(const DpdkDevice& of, std::uint16_t number) noexcept : device(of), queue(of.port_id(), number) {}
  const DpdkDevice& device;
  DpdkQueue queue;
};

class DpdkNextHops {
 public:
  /// `local`: of this thread. All references outlive it. Throws ConfigurationError for neighbours that cannot be.
  DpdkNextHops(const DpdkConfig& config, Endpoint local, std::span<const std::unique_ptr<DpdkPort>> ports,
               IoCounters& counters);

  /// The neighbour that leads to `ip`, or nullptr while ARP looks for it.
  Neighbour* resolve(std::uint32_t ip) noexcept;

  void learn(std::uint32_t ip, const MacAddress& mac, std::size_t port_index) noexcept;

  /// Learns from an ARP frame that is to us or from a neighbour; false: it is neither. `answer`: and answers it if it
  /// asks for us; false where another thread does.
  bool take_arp(const ArpPacket& arp, std::size_t port_index, bool answer) noexcept;

 private:
  void add_configured(const DpdkNeighbour& configured);
  void ask(Neighbour& hop, std::uint32_t next_hop) noexcept;
  void send_arp(const ArpFrame& frame, DpdkPort& port) noexcept;

  const DpdkConfig& config_;
  const Endpoint local_;
  const std::span<const std::unique_ptr<DpdkPort>> ports_;
  IoCounters& counters_;
  NeighbourTable neighbours_;
};

}  // namespace thc::io
