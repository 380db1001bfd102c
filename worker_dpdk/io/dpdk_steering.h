// Which receive queue of a DPDK device a frame arrives at: the device's own rules, where it has them.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/dpdk_io.h"

namespace thc::io {

/// EAL arguments with what virtual devices need for `queues` queues, unless they say it themselves: af_packet gets
/// "qpairs". A memif connects to any peer, and with one of fewer queues two threads would use one ring: it gets a
/// "secret" that tells the number, so that such peers do not connect.
std::vector<std::string> with_queue_arguments(std::vector<std::string> eal_args, std::uint16_t queues);

/// What to change when a device of `driver` has too few queues.
std::string queue_hint(const std::string& driver, std::uint16_t queues);

/// Leaves all traffic to the kernel that no rule takes. Before the device is configured. Throws ConfigurationError when
/// the device cannot.
void isolate_device(std::uint16_t port_id, const std::string& device);

/// Makes the started device put UDP datagrams to `first_port` + q into queue q. Empty, or why it does not.
std::string steer_by_port(std::uint16_t port_id, std::uint32_t local_ip, std::uint16_t first_port,
                          std::uint16_t queues);

}  // namespace thc::io
