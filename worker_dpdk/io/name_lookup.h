#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/packet_io.h"

namespace thc::io {

/// Default limit of a look-up. A resolver repeats a lost query after 5 s.
inline constexpr std::chrono::milliseconds kLookupPatience{10'000};

/// Addresses of one server, at least one.
using Addresses = std::vector<Endpoint>;

/// Accepts addresses, "[2001:db8::1]" and names; a name may have one address per family, in the system's order. Throws
/// ConfigurationError (unknown, several addresses in each family), TransportError (no name server knows for now),
/// DeadlineError (none answers in time).
std::vector<IpAddress> resolve_host(const std::string& text, std::chrono::milliseconds patience = kLookupPatience);

/// Prefers IPv4 if a name has both.
IpAddress resolve_own_host(const std::string& text);

/// Splits "HOST", "HOST:PORT", "[2001:db8::1]" or "[2001:db8::1]:PORT". Throws ConfigurationError, also for an IPv6
/// address without brackets.
std::pair<std::string, std::uint16_t> split_port(const std::string& text, std::uint16_t default_port);

/// `patience` is for all servers together. Also throws ConfigurationError for duplicates, and for address or port 0.
std::vector<Addresses> resolve_servers(const std::vector<std::string>& texts, std::uint16_t default_port,
                                       std::chrono::milliseconds patience = kLookupPatience);

}  // namespace thc::io
