#include "io/udp_socket.h"

#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "io/address.h"
#include "io/socket_address.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr int kMostErrors = 1024;  // per call: more may arrive meanwhile

[[noreturn]] void throw_errno(const std::string& what) { throw TransportError(what + ": " + std::strerror(errno)); }

/// Sets the IPv4 option, and its IPv6 counterpart on AF_INET6. Returns false if the kernel lacks one.
bool set_option(int socket, int ipv4_option, int ipv6_option, int value) noexcept {
  return setsockopt(socket, IPPROTO_IP, ipv4_option, &value, sizeof value) == 0 &&
         (family_of(socket) == AF_INET || setsockopt(socket, IPPROTO_IPV6, ipv6_option, &value, sizeof value) == 0);
}

void set_buffer(int fd, int force_option, int option, std::size_t bytes) noexcept {
  const int wanted = static_cast<int>(std::min<std::size_t>(bytes, 1U << 30));
  if (setsockopt(fd, SOL_SOCKET, force_option, &wanted, sizeof wanted) != 0) {
    setsockopt(fd, SOL_SOCKET, option, &wanted, sizeof wanted);
  }
}

std::size_t datagram_bytes_of(std::size_t mtu_bytes, Endpoint to) noexcept {
  const std::size_t header_bytes = to.ip.is_ipv4() ? kIpUdpHeaderBytes : kIpv6UdpHeaderBytes;
  return std::min(std::max(mtu_bytes, header_bytes + 1) - header_bytes, kMaxUdpPayloadBytes);
}

template <typename Ask>
void ask_route(const FileDescriptor& probe, Endpoint to, Ask ask) noexcept {
  const SocketAddress address(to, family_of(probe.get()));
  if (connect(probe.get(), address.get(), address.bytes()) != 0) {
    return;
  }
  ask(probe.get());
  const sockaddr disconnect{.sa_family = AF_UNSPEC, .sa_data = {}};  // also clears the local address and port
  // If it fails, the next connect replaces the old peer. NOLINTNEXTLINE(bugprone-unused-return-value)
  connect(probe.get(), &disconnect, sizeof disconnect);
}

bool has_address(const ifaddrs& interface, IpAddress ip) noexcept {
  const int family = interface.ifa_addr == nullptr ? AF_UNSPEC : interface.ifa_addr->sa_family;
  return (family == AF_INET || family == AF_INET6) && SocketAddress(interface.ifa_addr).endpoint().ip == ip;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

Endpoint usable_local(Endpoint local) noexcept {
  static const bool has_ipv6 =
      FileDescriptor(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)).get() >= 0 || errno != EAFNOSUPPORT;
  return local.ip.is_any() && !has_ipv6 ? Endpoint{0, local.port} : local;
}

FileDescriptor open_udp_socket(IpAddress local) {
  const int family = local.is_ipv4() ? AF_INET : AF_INET6;
  FileDescriptor socket_fd(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int off = 0;  // accept IPv4 despite net.ipv6.bindv6only
  if (socket_fd.get() < 0 ||
      (family == AF_INET6 && setsockopt(socket_fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)) {
    throw_errno("cannot open a UDP socket");
  }
  return socket_fd;
}

int family_of(int socket) noexcept {
  int family = AF_INET;
  socklen_t length = sizeof family;
  getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family;
}

Endpoint bind_udp_socket(const FileDescriptor& socket, Endpoint local) {
  SocketAddress address(local, family_of(socket.get()));
  if (bind(socket.get(), address.get(), address.bytes()) != 0) {
    if (errno == EADDRINUSE) {
      throw TransportError("UDP port " + std::to_string(local.port) + " on " + to_string(local.ip) +
                           " is in use: stop the program that has it (ss -ulpn 'sport = :" +
                           std::to_string(local.port) + "') or choose another port");
    }
    if (errno == EADDRNOTAVAIL) {
      throw TransportError("this machine has no address " + to_string(local.ip) +
                           ": bind to one of its own (ip addr), or to [::], all of them");
    }
    throw_errno("cannot bind UDP " + to_string(local));
  }
  socklen_t length = address.bytes();
  getsockname(socket.get(), address.get(), &length);
  return address.endpoint();
}

void ask_for_own_address(const FileDescriptor& socket) {
  if (!set_option(socket.get(), IP_PKTINFO, IPV6_RECVPKTINFO, 1)) {
    throw_errno("the kernel does not tell which address a datagram came to (IP_PKTINFO)");
  }
}

std::size_t grow_receive_buffer(const FileDescriptor& socket, std::size_t bytes) noexcept {
  set_buffer(socket.get(), SO_RCVBUFFORCE, SO_RCVBUF, bytes);
  int granted = 0;
  socklen_t length = sizeof granted;
  getsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length);
  return static_cast<std::size_t>(granted) / 2;  // the kernel doubles the request for its bookkeeping
}

void resize_send_buffer(int socket, std::size_t bytes) noexcept {
  set_buffer(socket, SO_SNDBUFFORCE, SO_SNDBUF, bytes);
}

void ask_for_errors(const FileDescriptor& socket) noexcept {
  set_option(socket.get(), IP_RECVERR, IPV6_RECVERR, 1);  // without it, drops stay silent
}

void use_ecn(const FileDescriptor& socket) noexcept {
  set_option(socket.get(), IP_TOS, IPV6_TCLASS, kEcnCapable);  // without it, packets get no marks
  set_option(socket.get(), IP_RECVTOS, IPV6_RECVTCLASS, 1);
}

bool take_icmp_errors(int socket) noexcept {
  bool any = false;
  struct alignas(cmsghdr) {
    std::array<std::uint8_t, 256> bytes;  // for the error and the control messages of each datagram
  } control;
  for (int taken = 0; taken < kMostErrors; ++taken) {
    msghdr message{};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
          (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
        sock_extended_err error{};
        std::memcpy(&error, CMSG_DATA(c), sizeof error);
        any = any || error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6;
      }
    }
  }
  return any;
}

std::size_t route_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept {
  int mtu = 0;
  ask_route(probe, to, [&](int connected) {
    socklen_t length = sizeof mtu;
    const bool is_ipv4 = to.ip.is_ipv4();
    getsockopt(connected, is_ipv4 ? IPPROTO_IP : IPPROTO_IPV6, is_ipv4 ? IP_MTU : IPV6_MTU, &mtu, &length);
  });
  return datagram_bytes_of(mtu > 0 ? static_cast<std::size_t>(mtu) : 1500, to);
}

IpAddress route_source_ip(const FileDescriptor& probe, Endpoint to) noexcept {
  SocketAddress source({}, AF_INET6);
  ask_route(probe, to, [&source](int connected) {
    socklen_t length = source.bytes();
    getsockname(connected, source.get(), &length);
  });
  return source.endpoint().ip;
}

std::size_t own_interface_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) {
    return SIZE_MAX;
  }
  std::size_t smallest = SIZE_MAX;
  for (const ifaddrs* interface = interfaces; interface != nullptr; interface = interface->ifa_next) {
    ifreq request{};
    std::strncpy(request.ifr_name, interface->ifa_name, IFNAMSIZ - 1);
    if (has_address(*interface, to.ip) && ioctl(probe.get(), SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0) {
      smallest = std::min(smallest, datagram_bytes_of(static_cast<std::size_t>(request.ifr_mtu), to));
    }
  }
  freeifaddrs(interfaces);
  return smallest;
}

}  // namespace thc::io
