#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <cstring>

#include "io/packet_io.h"
#include "thc/byte_order.h"

namespace thc::io {

inline constexpr std::uint64_t kScope = 0xffff'ffff;  ///< in IpAddress::high: the interface of a link-local address

struct In6Halves {
  be64_t high;
  be64_t low;
};

inline in6_addr to_in6(IpAddress ip) noexcept {
  return std::bit_cast<in6_addr>(In6Halves{ip.is_link_local() ? ip.high & ~kScope : ip.high, ip.low});
}

inline IpAddress to_ip(const in6_addr& address, std::uint32_t scope) noexcept {
  const auto halves = std::bit_cast<In6Halves>(address);
  IpAddress ip(halves.high, halves.low);
  if (ip.is_link_local()) ip.high = (ip.high & ~kScope) | scope;
  return ip;
}

class SocketAddress {
 public:
  SocketAddress() noexcept = default;
  /// A socket of AF_INET refuses IPv6.
  SocketAddress(Endpoint endpoint, int family) noexcept {
    if (family == AF_INET && endpoint.ip.is_ipv4()) {
      sockaddr_in ipv4{};
      ipv4.sin_family = AF_INET;
      ipv4.sin_port = htons(endpoint.port);
      ipv4.sin_addr.s_addr = htonl(endpoint.ip.ipv4());
      std::memcpy(&address_, &ipv4, sizeof ipv4);
    } else {
      address_.sin6_family = AF_INET6;
      address_.sin6_port = htons(endpoint.port);
      address_.sin6_addr = to_in6(endpoint.ip);
      if (endpoint.ip.is_link_local()) address_.sin6_scope_id = static_cast<std::uint32_t>(endpoint.ip.high);
    }
  }
  explicit SocketAddress(const sockaddr* address) noexcept {
    std::memcpy(&address_, address, address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof address_);
  }

  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&address_); }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t bytes() const noexcept {
    return address_.sin6_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  }
  Endpoint endpoint() const noexcept {
    if (address_.sin6_family != AF_INET) {
      return {to_ip(address_.sin6_addr, address_.sin6_scope_id), ntohs(address_.sin6_port)};
    }
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address_, sizeof ipv4);
    return {ntohl(ipv4.sin_addr.s_addr), ntohs(ipv4.sin_port)};
  }

 private:
  sockaddr_in6 address_{};
};

}  // namespace thc::io
