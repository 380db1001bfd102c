// The DPDK back end is a separate library, so the rest runs without DPDK.
#pragma once

#include <memory>
#include <vector>

#include "io/dpdk_io.h"
#include "io/packet_io.h"

namespace thc::io {

inline constexpr char kDpdkLibrary[] = "libthc_dpdk.so";
inline constexpr char kDpdkModuleSymbol[] = "thc_dpdk_module";

struct DpdkModule {
  const char* version;  ///< of byteps_thc; both sides must agree on types, including exceptions
  /// make_dpdk_ios(). The library adds no cost to PacketIo's virtual calls.
  std::vector<std::unique_ptr<PacketIo>> (*open)(const DpdkConfig& config);
};

}  // namespace thc::io
