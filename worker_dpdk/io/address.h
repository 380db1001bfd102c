#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/packet_io.h"

namespace thc::io {

using MacAddress = std::array<std::uint8_t, 6>;

/// For settings that allow no names (else: io/name_lookup.h). To host byte order. Throws ConfigurationError.
std::uint32_t parse_ipv4(std::string_view text);

/// "02:00:00:00:00:01". Throws ConfigurationError.
MacAddress parse_mac(std::string_view text);

/// Rejects a count of 0 and ports above 65535; `first` may be 0. Throws ConfigurationError.
void check_port_range(std::uint16_t first, std::uint16_t count);
inline constexpr int kLastPort = 65535;

std::string to_string(IpAddress ip);       ///< "10.0.0.1", "2001:db8::1" or "fe80::1%eth0"
std::string to_string(Endpoint endpoint);  ///< "10.0.0.1:48865" or "[2001:db8::1]:48865"

}  // namespace thc::io
