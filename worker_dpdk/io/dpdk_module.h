// What libthc_dpdk.so has: the DPDK back end, in a library of its own, so that the rest runs where DPDK is not
// installed.
#pragma once

#include <memory>
#include <vector>

#include "io/dpdk_io.h"
#include "io/packet_io.h"

namespace thc::io {

inline constexpr char kDpdkLibrary[] = "libthc_dpdk.so";
inline constexpr char kDpdkModuleSymbol[] = "thc_dpdk_module";

/// The one symbol that the library exports, under the name kDpdkModuleSymbol.
struct DpdkModule {
  const char* version;  ///< of byteps_thc; types must be the same on both sides, those of exceptions, too
  /// make_dpdk_ios(). What the virtual calls of PacketIo cost is what they cost without a library.
  std::vector<std::unique_ptr<PacketIo>> (*open)(const DpdkConfig& config);
};

}  // namespace thc::io
