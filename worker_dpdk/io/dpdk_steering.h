// Which receive queue of a DPDK device a frame arrives at: the device's own rules, where it has them.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <string>

namespace thc::io {

/// Leaves all traffic to the kernel that no rule takes. Before the device is configured. Throws ConfigurationError when
/// the device cannot.
void isolate_device(std::uint16_t port_id, const std::string& device);

/// Gives the stopped device's traffic back to whom it was before isolate_device(), where its driver can.
void end_isolation(std::uint16_t port_id) noexcept;

/// Makes the started device put UDP datagrams to `first_port` + q into queue q. Empty, or why it does not.
std::string steer_by_port(std::uint16_t port_id, std::uint32_t local_ip, std::uint16_t first_port,
                          std::uint16_t queues);

}  // namespace thc::io
