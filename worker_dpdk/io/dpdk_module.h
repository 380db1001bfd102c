// What libthc_dpdk.so has: the DPDK back end, in a library of its own, so that the rest runs where DPDK is not
// installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/dpdk_io.h"
#include "io/packet_io.h"

namespace thc::io {

inline constexpr char kDpdkLibrary[] = "libthc_dpdk.so";
inline constexpr char kDpdkModuleSymbol[] = "thc_dpdk_module";

/// Why a back end did not open. Exceptions do not cross the border of a library that is loaded.
struct DpdkFailure {
  enum class Kind : std::uint8_t { kConfiguration, kUnavailable, kTransport };
  Kind kind = Kind::kTransport;
  std::string message;
};

/// The one symbol that the library exports, under the name kDpdkModuleSymbol.
struct DpdkModule {
  const char* version;  ///< of byteps_thc; the types above must be the same on both sides
  /// What make_dpdk_ios() returns, or nothing and why. What the virtual calls of PacketIo cost is what they cost
  /// without a library.
  std::vector<std::unique_ptr<PacketIo>> (*open)(const DpdkConfig& config, DpdkFailure& failure) noexcept;
};

/// What make_dpdk_ios() does, inside of the library.
std::vector<std::unique_ptr<PacketIo>> open_dpdk_ios(const DpdkConfig& config);

}  // namespace thc::io
