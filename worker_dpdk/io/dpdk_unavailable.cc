// Stands in for the DPDK back end in builds without DPDK.
#include "io/dpdk_io.h"
#include "thc/errors.h"

namespace thc::io {

bool dpdk_available() noexcept { return false; }

std::unique_ptr<PacketIo> make_dpdk_io(const DpdkConfig& /*config*/) {
  throw DpdkUnavailableError(
      "this build has no DPDK: install DPDK 22.11 or newer with its headers (Debian: apt install libdpdk-dev) and "
      "build byteps_thc again, or use the kernel UDP back end");
}

}  // namespace thc::io
