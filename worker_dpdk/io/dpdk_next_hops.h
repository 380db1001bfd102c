// Next hops of IP addresses, found by ARP. One table per thread.
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

struct DpdkPort {
  DpdkPort(const DpdkDevice& of, std::uint16_t number) noexcept : device(of), queue(of.port_id(), number) {}
  const DpdkDevice& device;
  DpdkQueue queue;
};

class DpdkNextHops {
 public:
  /// References must outlive it. Throws ConfigurationError for invalid neighbours.
  DpdkNextHops(const DpdkConfig& config, Endpoint local, std::span<const std::unique_ptr<DpdkPort>> ports,
               IoCounters& counters);

  /// Returns nullptr while ARP resolves `ip`. Off-link addresses have the gateway's entry.
  Neighbour* resolve(std::uint32_t ip) noexcept;

  void learn(std::uint32_t ip, const MacAddress& mac, std::size_t port_index) noexcept;

  /// Returns whether the frame is to this host or from a known neighbour. `answer`: false if another thread answers.
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
