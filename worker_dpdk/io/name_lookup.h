// Host names and addresses from text: every address of a server or of this host, wherever it is given, is read here.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/packet_io.h"

namespace thc::io {

/// How long a look-up may take where nothing else says so. A resolver repeats a lost question after 5 s.
inline constexpr std::chrono::milliseconds kLookupPatience{10'000};

/// Of one server, at least one.
using Addresses = std::vector<Endpoint>;

/// "10.0.0.1", "2001:db8::1" with or without brackets, or "server.example": the address, or one of each family in the
/// system's order where a name has both. Throws ConfigurationError for a name that is unknown or has several of each
/// family, TransportError when no name server knows for now, DeadlineError when none answers in time.
std::vector<IpAddress> resolve_host(const std::string& text, std::chrono::milliseconds patience = kLookupPatience);

/// Of this host: the IPv4 address where a name has both.
IpAddress resolve_own_host(const std::string& text);

/// Host and port of "HOST" (then `default_port`), "HOST:PORT", "[2001:db8::1]" or "[2001:db8::1]:PORT". Throws
/// ConfigurationError, also for an IPv6 address without brackets.
std::pair<std::string, std::uint16_t> split_port(const std::string& text, std::uint16_t default_port);

/// Where servers are, all together looked up within `patience`. Throws what these do, and ConfigurationError for a
/// server that is listed twice, and for address or port 0.
std::vector<Addresses> resolve_servers(const std::vector<std::string>& texts, std::uint16_t default_port,
                                       std::chrono::milliseconds patience = kLookupPatience);

}  // namespace thc::io
