#include "io/udp_io.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
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

constexpr int kFreePortAttempts = 64;

void enable_gro(int socket) noexcept {
  const int on = 1;  // without GRO, datagrams arrive one by one
  setsockopt(socket, SOL_UDP, UDP_GRO, &on, sizeof on);
}

FileDescriptor open_wake_event() {
  FileDescriptor event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event.get() < 0) {
    throw TransportError(std::string("cannot create an eventfd: ") + std::strerror(errno));
  }
  return event;
}

std::vector<std::unique_ptr<PacketIo>> bind_in_a_row(UdpConfig config, std::uint16_t count) {
  std::vector<std::unique_ptr<PacketIo>> ios;
  for (std::uint16_t i = 0; i < count; ++i) {
    ios.push_back(make_udp_io(config));
    const std::uint16_t port = ios.back()->local().port;
    if (i == 0 && port + count - 1 > kLastPort) {  // only if the kernel picked it
      throw TransportError("UDP port " + std::to_string(port) + " has too few ports after it");
    }
    config.local.port = static_cast<std::uint16_t>(port + 1);
  }
  return ios;
}

}  // namespace

UdpIo::UdpIo(FileDescriptor socket, Endpoint local, const UdpConfig& config)
    : socket_(std::move(socket)),
      wake_event_(open_wake_event()),
      route_probe_(open_udp_socket(local.ip)),
      local_(local),
      receive_buffer_bytes_(grow_receive_buffer(socket_, config.receive_buffer_bytes)),
      receiver_(socket_.get(), peers_, counters_),
      sender_(socket_.get(), config.gso, config.send_buffer_bytes, peers_, counters_) {
  if (config.gro) enable_gro(socket_.get());
  ask_for_errors(socket_);
  use_ecn(socket_);
  if (config.answers && local.ip.is_any()) {
    ask_for_own_address(socket_);
  }
}

std::size_t UdpIo::receive(std::span<RxPacket> packets) noexcept { return receiver_.receive(packets); }

bool UdpIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                 std::span<const std::uint8_t> trailer) noexcept {
  return sender_.send(to, header, payload, trailer);
}

void UdpIo::flush() noexcept { sender_.flush(); }

void UdpIo::wait(std::chrono::microseconds timeout) noexcept {
  if (receiver_.has_leftover()) {
    return;
  }
  std::array<pollfd, 2> watched{{{socket_.get(), POLLIN, 0}, {wake_event_.get(), POLLIN, 0}}};
  const auto timeout_us = std::max<std::int64_t>(timeout.count(), 0);
  const timespec limit{timeout_us / 1'000'000, timeout_us % 1'000'000 * 1000};
  if (ppoll(watched.data(), watched.size(), &limit, nullptr) <= 0) {
    return;
  }
  if ((watched[0].revents & POLLERR) != 0) {
    take_icmp_errors(socket_.get());
  }
  if ((watched[1].revents & POLLIN) != 0) {
    std::uint64_t wakes = 0;
    [[maybe_unused]] const auto n = read(wake_event_.get(), &wakes, sizeof wakes);
  }
}

void UdpIo::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n =
      write(wake_event_.get(), &one, sizeof one);  // fails after 2^64 wakes without a wait()
}

std::size_t UdpIo::max_datagram_bytes(Endpoint to) const noexcept { return route_max_datagram_bytes(route_probe_, to); }

std::size_t UdpIo::common_datagram_bytes(Endpoint to) const noexcept {
  return std::min(max_datagram_bytes(to), own_interface_max_datagram_bytes(route_probe_, to));
}

bool UdpIo::is_own_host(Endpoint to) const noexcept {
  return (to.ip.is_ipv4() && to.ip.ipv4() >> 24 == IN_LOOPBACKNET) || route_source_ip(route_probe_, to) == to.ip;
}

Endpoint UdpIo::simplify(Endpoint peer) const noexcept {
  if (peer.own_ip != IpAddress() && route_source_ip(route_probe_, peer) == peer.own_ip) peer.own_ip = {};
  return peer;
}

std::unique_ptr<UdpIo> make_udp_io(const UdpConfig& config) {
  const Endpoint wanted = usable_local(config.local);
  FileDescriptor socket = open_udp_socket(wanted.ip);
  const Endpoint local = bind_udp_socket(socket, wanted);
  return std::make_unique<UdpIo>(std::move(socket), local, config);
}

std::vector<std::unique_ptr<PacketIo>> make_udp_ios(const UdpConfig& config, std::uint16_t count) {
  check_port_range(config.local.port, count);
  for (int attempt = 1;; ++attempt) {
    try {
      return bind_in_a_row(config, count);
    } catch (const TransportError&) {
      // Another process may have one of the ports after the one that the kernel picked.
      if (config.local.port != 0 || count == 1 || attempt == kFreePortAttempts) throw;
    }
  }
}

}  // namespace thc::io
