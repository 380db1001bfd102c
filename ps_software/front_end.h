// Opens the packet I/O the options ask for: kernel UDP sockets or the queues of a DPDK device.
#pragma once

#include <memory>
#include <vector>

#include "io/packet_io.h"
#include "options.h"

namespace thc::ps {

/// One for each packet thread. Throws thc::Error.
std::vector<std::unique_ptr<io::PacketIo>> open_front_end(const Options& options);

}  // namespace thc::ps
