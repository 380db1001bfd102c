#include "io/name_lookup.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "io/address.h"
#include "io/socket_address.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io {
namespace {

using std::chrono::milliseconds;

constexpr const char* kAnAddress = "give an address such as 10.0.0.1 or [2001:db8::1], or a name that has one";

struct Answer {
  int error = 0;  ///< from getaddrinfo()
  std::vector<IpAddress> ips{};
};

/// Returns each address once, in the system's order (RFC 6724): addresses without a route come last.
Answer ask(const std::string& name, int flags = 0) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  Answer answer{.error = getaddrinfo(name.c_str(), nullptr, &hints, &found)};
  for (const addrinfo* each = found; answer.error == 0 && each != nullptr; each = each->ai_next) {
    const IpAddress ip = SocketAddress(each->ai_addr).endpoint().ip;
    if (std::ranges::find(answer.ips, ip) == answer.ips.end()) answer.ips.push_back(ip);
  }
  if (found != nullptr) freeaddrinfo(found);
  return answer;
}

/// getaddrinfo() has no deadline and cannot be cancelled, so a detached thread waits for it.
Answer ask_within(const std::string& name, milliseconds patience) {
  std::packaged_task<Answer()> asking([name] { return ask(name); });
  std::future<Answer> answer = asking.get_future();
  std::thread(std::move(asking)).detach();
  if (answer.wait_for(patience) != std::future_status::ready) {
    throw DeadlineError(
        fmt::format("the name \"{}\" was not looked up within {} ms: check that the name servers in /etc/resolv.conf "
                    "answer, or {}",
                    name, patience.count(), kAnAddress));
  }
  return answer.get();
}

/// Accepts brackets and a zone: "fe80::1%eth0".
IpAddress parse_ipv6(std::string_view text) {
  std::string host(text);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const Answer answer = host.find(':') == std::string::npos ? Answer{} : ask(host, AI_NUMERICHOST);
  if (answer.ips.empty()) {
    throw ConfigurationError(fmt::format(
        "\"{}\" is no IPv6 address such as [2001:db8::1], or [fe80::1%eth0] with an interface of this host", text));
  }
  if (answer.ips[0].is_link_local() && (answer.ips[0].high & kScope) == 0) {
    throw ConfigurationError(
        fmt::format("\"{}\" is a link-local address: name this host's interface to it, as in [{}%eth0]", text, host));
  }
  return answer.ips[0];
}

/// Rejects "10.1.2" and "0x7f.1", which getaddrinfo() accepts as addresses (inet_aton()).
bool is_name(std::string_view host) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  const std::string_view last = host.substr(host.rfind('.') + 1);
  const bool ends_in_number =
      !last.empty() && (last.starts_with("0x") || last.find_first_not_of("0123456789") == std::string_view::npos);
  return !host.empty() && host.find_first_not_of(kAllowed) == std::string_view::npos && !ends_in_number;
}

/// Returns at most one address per family: several may belong to different hosts.
std::vector<IpAddress> addresses_of(const std::string& name, const Answer& answer) {
  std::vector<IpAddress> single;
  for (const IpAddress ip : answer.ips) {
    if (std::ranges::count(answer.ips, ip.is_ipv4(), &IpAddress::is_ipv4) == 1) single.push_back(ip);
  }
  if (!single.empty()) return single;
  if (!answer.ips.empty()) {
    std::vector<std::string> all;
    for (const IpAddress ip : answer.ips) all.push_back(to_string(ip));
    throw ConfigurationError(fmt::format(
        "the name \"{}\" has several addresses ({}), and all workers must use the same one: give an address, "
        "or a name for each server, such as thc-ps-0.thc-ps in Kubernetes",
        name, fmt::join(all, ", ")));
  }
  const std::string why = answer.error == EAI_SYSTEM ? "a system error" : gai_strerror(answer.error);
  if (answer.error == EAI_AGAIN) {
    throw TransportError(fmt::format("the name \"{}\" cannot be looked up now ({}): check /etc/resolv.conf, or {}",
                                     name, why, kAnAddress));
  }
  throw ConfigurationError(fmt::format("the name \"{}\" has no address ({}): {}", name, why, kAnAddress));
}

std::uint16_t parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw ConfigurationError(fmt::format("\"{}\" is not a UDP port (0 to 65535)", text));
  }
  return port;
}

}  // namespace

std::vector<IpAddress> resolve_host(const std::string& text, milliseconds patience) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return {ntohl(address.s_addr)};
  if (text.find_first_of("[:") != std::string::npos) return {parse_ipv6(text)};
  if (!is_name(text)) {
    throw ConfigurationError(fmt::format("\"{}\" is neither an address nor a name: {}", text, kAnAddress));
  }
  return addresses_of(text, ask_within(text, patience));
}

IpAddress resolve_own_host(const std::string& text) {
  const std::vector<IpAddress> ips = resolve_host(text, kLookupPatience);
  const auto ipv4 = std::ranges::find_if(ips, &IpAddress::is_ipv4);
  return ipv4 != ips.end() ? *ipv4 : ips.front();
}

std::pair<std::string, std::uint16_t> split_port(const std::string& text, std::uint16_t default_port) {
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  const std::size_t colon = text.find(':', std::min(bracket, text.size()));
  if (colon == std::string::npos) return {text, default_port};
  if (bracket == 0 && text.find(':', colon + 1) != std::string::npos) {
    const bool has_port = ask(text, AI_NUMERICHOST).ips.empty();  // of 2001:db8::1:48865, for example
    const std::size_t end = has_port ? text.rfind(':') : text.size();
    const std::string host = fmt::format("[{}]", text.substr(0, end));
    parse_ipv6(host);
    throw ConfigurationError(
        fmt::format("\"{}\" is an IPv6 address without brackets, from which a port cannot be told: write {}{}{}", text,
                    host, has_port ? "" : fmt::format(" or {}:{}", host, wire::kUdpPort), text.substr(end)));
  }
  return {text.substr(0, colon), parse_port(std::string_view(text).substr(colon + 1))};
}

std::vector<Addresses> resolve_servers(const std::vector<std::string>& texts, std::uint16_t default_port,
                                       milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  std::vector<Addresses> servers;
  for (const std::string& text : texts) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto [host, port] = split_port(text, default_port);
    Addresses addresses;
    for (const IpAddress ip : resolve_host(host, std::max(left, milliseconds(0)))) {
      if (ip.is_any() || port == 0) {
        throw ConfigurationError(fmt::format("\"{}\" is no server's address: address and port must not be 0", text));
      }
      addresses.push_back({ip, port});
    }
    const auto same = std::ranges::find_if(
        servers, [&](const Addresses& other) { return std::ranges::find_first_of(other, addresses) != other.end(); });
    if (same != servers.end()) {
      const std::string& first = texts[static_cast<std::size_t>(same - servers.begin())];
      throw ConfigurationError(
          fmt::format("servers has the same server twice: \"{}\" and \"{}\" are both {}; list each server once", first,
                      text, to_string(*std::ranges::find_first_of(addresses, *same))));
    }
    servers.push_back(std::move(addresses));
  }
  return servers;
}

}  // namespace thc::io
