#include "io/address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <charconv>

#include "io/socket_address.h"
#include "thc/errors.h"

namespace thc::io {

std::uint32_t parse_ipv4(std::string_view text) {
  in_addr address{};
  if (inet_pton(AF_INET, std::string(text).c_str(), &address) != 1) {
    throw ConfigurationError("\"" + std::string(text) + "\" is not an IPv4 address such as 10.0.0.1");
  }
  return ntohl(address.s_addr);
}

MacAddress parse_mac(std::string_view text) {
  MacAddress mac{};
  bool ok = text.size() == 17;
  for (std::size_t i = 0; ok && i < mac.size(); ++i) {
    const char* first = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(first, first + 2, mac[i], 16);
    ok = error == std::errc{} && end == first + 2 && (i == 5 || *end == ':');
  }
  if (!ok) {
    throw ConfigurationError("\"" + std::string(text) + "\" is not a MAC address such as 02:00:00:00:00:01");
  }
  return mac;
}

void check_port_range(std::uint16_t first, std::uint16_t count) {
  if (count == 0) {
    throw ConfigurationError("a port for each thread is needed: ask for at least one thread");
  }
  if (first != 0 && first + count - 1 > kLastPort) {
    throw ConfigurationError("UDP port " + std::to_string(first) + " leaves no " + std::to_string(count) +
                             " ports in a row, one for each thread: choose " + std::to_string(kLastPort + 1 - count) +
                             " or less, or fewer threads");
  }
}

std::string to_string(IpAddress ip) {
  const SocketAddress address({ip}, ip.is_ipv4() ? AF_INET : AF_INET6);
  char text[NI_MAXHOST] = "";
  getnameinfo(address.get(), address.bytes(), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string to_string(Endpoint endpoint) {
  const std::string ip = to_string(endpoint.ip);
  return (endpoint.ip.is_ipv4() ? ip : std::string("[").append(ip) + "]") + ":" + std::to_string(endpoint.port);
}

}  // namespace thc::io
