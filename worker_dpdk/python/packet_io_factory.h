// Which packet back ends a session uses, and their settings.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "io/dpdk_io.h"
#include "io/faulty_io.h"
#include "io/job_keys.h"
#include "io/packet_io.h"
#include "io/udp_io.h"

namespace thc::python {

struct IoConfig {
  std::variant<io::UdpConfig, io::DpdkConfig> back_end;
  std::optional<io::FaultConfig> faults;
  std::optional<io::JobKeys> keys;
};

/// A socket of kernel UDP, or the queue of a DPDK device. Throws ConfigurationError, TransportError or
/// DpdkUnavailableError.
std::unique_ptr<io::PacketIo> make_packet_io(const IoConfig& config);

}  // namespace thc::python
