// Host names and addresses from text: every address of a server or of this host, wherever it is given, is read here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "io/packet_io.h"

namespace thc::io {

/// How long a look-up may take where nothing else says so. A resolver repeats a lost question after 5 s.
inline constexpr std::chrono::milliseconds kLookupPatience{10'000};

/// "10.0.0.1" or "server.example" to host byte order. Throws ConfigurationError for a name that is unknown or has
/// several addresses, and for IPv6; TransportError when no name server knows for now, DeadlineError when none answers
/// in time.
std::uint32_t resolve_host(const std::string& text, std::chrono::milliseconds patience = kLookupPatience);

/// The same with a port, "10.0.0.1:48865", or without one (then `default_port`).
Endpoint resolve_endpoint(const std::string& text, std::uint16_t default_port,
                          std::chrono::milliseconds patience = kLookupPatience);

/// Where servers are, all together looked up within `patience`. Throws what resolve_endpoint() does, and
/// ConfigurationError for a server that is listed twice, and for address or port 0.
std::vector<Endpoint> resolve_servers(const std::vector<std::string>& texts, std::uint16_t default_port,
                                      std::chrono::milliseconds patience = kLookupPatience);

}  // namespace thc::io
