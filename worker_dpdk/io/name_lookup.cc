#include "io/name_lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "io/address.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

using std::chrono::milliseconds;

constexpr const char* kAnAddress = "give an IPv4 address such as 10.0.0.1, or a name that has one";

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

struct Answer {
  int error = 0;  ///< of getaddrinfo()
  std::vector<std::uint32_t> ips{};
  bool has_ipv6 = false;  ///< looked at where there is no IPv4 address
};

Answer ask_for(const std::string& name, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  Answer answer{.error = getaddrinfo(name.c_str(), nullptr, &hints, &found)};
  for (const addrinfo* each = found; answer.error == 0 && each != nullptr; each = each->ai_next) {
    sockaddr_in address{};
    std::memcpy(&address, each->ai_addr, std::min<std::size_t>(sizeof address, each->ai_addrlen));
    if (each->ai_family == AF_INET) answer.ips.push_back(ntohl(address.sin_addr.s_addr));
    answer.has_ipv6 = answer.has_ipv6 || each->ai_family == AF_INET6;
  }
  if (found != nullptr) freeaddrinfo(found);
  std::ranges::sort(answer.ips);
  answer.ips.erase(std::unique(answer.ips.begin(), answer.ips.end()), answer.ips.end());
  return answer;
}

Answer ask(const std::string& name) {
  Answer answer = ask_for(name, AF_INET);
  if (answer.error != 0) answer.has_ipv6 = ask_for(name, AF_INET6).has_ipv6;
  return answer;
}

/// getaddrinfo() has no deadline, and nothing ends it: a thread of its own waits for it, for as long as it takes.
Answer ask_within(const std::string& name, milliseconds patience) {
  std::packaged_task<Answer()> asking([name] { return ask(name); });
  std::future<Answer> answer = asking.get_future();
  std::thread(std::move(asking)).detach();
  if (answer.wait_for(patience) != std::future_status::ready) {
    throw DeadlineError("the name " + quoted(name) + " was not looked up within " + std::to_string(patience.count()) +
                        " ms: check that the name servers in /etc/resolv.conf " + "answer, or " + kAnAddress);
  }
  return answer.get();
}

bool is_ipv6(std::string_view host) {
  if (host.starts_with('[')) host = host.substr(1, host.find(']') - 1);
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

/// Not "10.1.2" or "0x7f.1": getaddrinfo() takes them for addresses, in the old way of inet_aton().
bool is_name(std::string_view host) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  const std::string_view last = host.substr(host.rfind('.') + 1);
  const bool ends_in_number =
      !last.empty() && (last.starts_with("0x") || last.find_first_not_of("0123456789") == std::string_view::npos);
  return !host.empty() && host.find_first_not_of(kAllowed) == std::string_view::npos && !ends_in_number;
}

std::uint32_t address_of(const std::string& name, const Answer& answer) {
  if (answer.ips.size() == 1) return answer.ips.front();
  if (answer.ips.size() > 1) {
    std::string all;
    for (const std::uint32_t ip : answer.ips) all += (all.empty() ? "" : ", ") + ipv4_to_string(ip);
    throw ConfigurationError("the name " + quoted(name) + " has several addresses (" + all +
                             "), and all workers must use the same one: give an address, or a name for each server, " +
                             "such as thc-ps-0.thc-ps in Kubernetes");
  }
  if (answer.has_ipv6) {
    throw ConfigurationError("the name " + quoted(name) +
                             " has IPv6 addresses only, and THC supports IPv4 only: " + kAnAddress);
  }
  const std::string why = answer.error == EAI_SYSTEM ? "a system error" : gai_strerror(answer.error);
  if (answer.error == EAI_AGAIN) {
    throw TransportError("the name " + quoted(name) + " cannot be looked up now (" + why +
                         "): check /etc/resolv.conf, " + "or " + kAnAddress);
  }
  throw ConfigurationError("the name " + quoted(name) + " has no address (" + why + "): " + kAnAddress);
}

std::uint16_t parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw ConfigurationError(quoted(text) + " is not a UDP port (0 to 65535)");
  }
  return port;
}

}  // namespace

std::uint32_t resolve_host(const std::string& text, milliseconds patience) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return ntohl(address.s_addr);
  if (is_ipv6(text)) {
    throw ConfigurationError(quoted(text) + " is an IPv6 address, and THC supports IPv4 only: " + kAnAddress);
  }
  if (!is_name(text)) throw ConfigurationError(quoted(text) + " is neither an address nor a name: " + kAnAddress);
  return address_of(text, ask_within(text, patience));
}

Endpoint resolve_endpoint(const std::string& text, std::uint16_t default_port, milliseconds patience) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || is_ipv6(text)) return {resolve_host(text, patience), default_port};
  const std::uint16_t port = parse_port(std::string_view(text).substr(colon + 1));
  return {resolve_host(text.substr(0, colon), patience), port};
}

std::vector<Endpoint> resolve_servers(const std::vector<std::string>& texts, std::uint16_t default_port,
                                      milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  std::vector<Endpoint> servers;
  for (const std::string& text : texts) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const Endpoint server = resolve_endpoint(text, default_port, std::max(left, milliseconds(0)));
    if (server.ip == 0 || server.port == 0) {
      throw ConfigurationError(quoted(text) + " is no server's address: address and port must not be 0");
    }
    if (const auto same = std::ranges::find(servers, server); same != servers.end()) {
      const std::string& first = texts[static_cast<std::size_t>(same - servers.begin())];
      throw ConfigurationError("servers has the same server twice: " + quoted(first) + " and " + quoted(text) +
                               " are both " + to_string(server) + "; list each server once");
    }
    servers.push_back(server);
  }
  return servers;
}

}  // namespace thc::io
