// Which packet back end a session uses, and its settings.
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

/// Throws TransportError or DpdkUnavailableError.
std::unique_ptr<io::PacketIo> make_packet_io(const IoConfig& config);

}  // namespace thc::python
