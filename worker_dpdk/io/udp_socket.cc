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
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr int kMostErrors = 1024;  // at once: more may come meanwhile

[[noreturn]] void throw_errno(const std::string& what) { throw TransportError(what + ": " + std::strerror(errno)); }

sockaddr_in to_sockaddr(Endpoint endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  address.sin_addr.s_addr = htonl(endpoint.ip);
  return address;
}

void set_buffer(int fd, int force_option, int option, std::size_t bytes) noexcept {
  const int wanted = static_cast<int>(std::min<std::size_t>(bytes, 1U << 30));
  if (setsockopt(fd, SOL_SOCKET, force_option, &wanted, sizeof wanted) != 0) {
    setsockopt(fd, SOL_SOCKET, option, &wanted, sizeof wanted);
  }
}

std::size_t datagram_bytes_of(std::size_t mtu_bytes) noexcept {
  return std::min(std::max(mtu_bytes, kIpUdpHeaderBytes + 1) - kIpUdpHeaderBytes, kMaxUdpPayloadBytes);
}

/// Calls ask(socket) with the probe connected to `to`; not at all when there is no route.
template <typename Ask>
void ask_route(const FileDescriptor& probe, Endpoint to, Ask ask) noexcept {
  const sockaddr_in address = to_sockaddr(to);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return;
  }
  ask(probe.get());
  const sockaddr disconnect{.sa_family = AF_UNSPEC, .sa_data = {}};  // forgets the own address and port as well
  // If it fails the old peer stays, which the next connect replaces. NOLINTNEXTLINE(bugprone-unused-return-value)
  connect(probe.get(), &disconnect, sizeof disconnect);
}

bool has_address(const ifaddrs& interface, std::uint32_t ip) noexcept {
  if (interface.ifa_addr == nullptr || interface.ifa_addr->sa_family != AF_INET) {
    return false;
  }
  sockaddr_in address{};
  std::memcpy(&address, interface.ifa_addr, sizeof address);
  return ntohl(address.sin_addr.s_addr) == ip;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

FileDescriptor open_udp_socket() {
  FileDescriptor socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket_fd.get() < 0) {
    throw_errno("cannot open a UDP socket");
  }
  return socket_fd;
}

Endpoint bind_udp_socket(const FileDescriptor& socket, Endpoint local) {
  sockaddr_in address = to_sockaddr(local);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EADDRINUSE) {
      throw TransportError("UDP port " + std::to_string(local.port) + " on " + ipv4_to_string(local.ip) +
                           " is in use: stop the program that has it (ss -ulpn 'sport = :" +
                           std::to_string(local.port) + "') or choose another port");
    }
    if (errno == EADDRNOTAVAIL) {
      throw TransportError("this machine has no address " + ipv4_to_string(local.ip) +
                           ": bind to one of its own (ip -4 addr) or to 0.0.0.0");
    }
    throw_errno("cannot bind UDP " + to_string(local));
  }
  socklen_t length = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return {ntohl(address.sin_addr.s_addr), ntohs(address.sin_port)};
}

void ask_for_own_address(const FileDescriptor& socket) {
  const int on = 1;
  if (setsockopt(socket.get(), IPPROTO_IP, IP_PKTINFO, &on, sizeof on) != 0) {
    throw_errno("the kernel does not tell which address a datagram came to (IP_PKTINFO)");
  }
}

std::size_t grow_receive_buffer(const FileDescriptor& socket, std::size_t bytes) noexcept {
  set_buffer(socket.get(), SO_RCVBUFFORCE, SO_RCVBUF, bytes);
  int granted = 0;
  socklen_t length = sizeof granted;
  getsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &granted, &length);
  return static_cast<std::size_t>(granted) / 2;  // the kernel doubles what was asked for, for its own bookkeeping
}

void resize_send_buffer(int socket, std::size_t bytes) noexcept {
  set_buffer(socket, SO_SNDBUFFORCE, SO_SNDBUF, bytes);
}

void ask_for_errors(const FileDescriptor& socket) noexcept {
  const int on = 1;  // where a kernel lacks it, drops stay silent
  setsockopt(socket.get(), IPPROTO_IP, IP_RECVERR, &on, sizeof on);
}

void use_ecn(const FileDescriptor& socket) noexcept {
  const int capable = kEcnCapable;
  const int on = 1;  // where a kernel lacks either, there are no marks
  setsockopt(socket.get(), IPPROTO_IP, IP_TOS, &capable, sizeof capable);
  setsockopt(socket.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
}

bool take_icmp_errors(int socket) noexcept {
  bool any = false;
  struct alignas(cmsghdr) {
    std::array<std::uint8_t, 256> bytes;  // of the error and of what the socket asks for with each datagram
  } control;
  for (int taken = 0; taken < kMostErrors; ++taken) {
    msghdr message{};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
        sock_extended_err error{};
        std::memcpy(&error, CMSG_DATA(c), sizeof error);
        any = any || error.ee_origin == SO_EE_ORIGIN_ICMP;
      }
    }
  }
  return any;
}

std::size_t route_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept {
  int mtu = 0;
  ask_route(probe, to, [&mtu](int connected) {
    socklen_t length = sizeof mtu;
    getsockopt(connected, IPPROTO_IP, IP_MTU, &mtu, &length);
  });
  return datagram_bytes_of(mtu > 0 ? static_cast<std::size_t>(mtu) : 1500);
}

std::uint32_t route_source_ip(const FileDescriptor& probe, Endpoint to) noexcept {
  sockaddr_in source{};
  ask_route(probe, to, [&source](int connected) {
    socklen_t length = sizeof source;
    getsockname(connected, reinterpret_cast<sockaddr*>(&source), &length);
  });
  return ntohl(source.sin_addr.s_addr);
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
      smallest = std::min(smallest, datagram_bytes_of(static_cast<std::size_t>(request.ifr_mtu)));
    }
  }
  freeifaddrs(interfaces);
  return smallest;
}

}  // namespace thc::io
