#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/packet_io.h"
#include "io/udp_receiver.h"
#include "io/udp_sender.h"
#include "io/udp_socket.h"

namespace thc::io {

struct UdpConfig {
  Endpoint local;  ///< to bind; ip ::, all addresses, 0.0.0.0: all of IPv4, port 0: any free port
  std::size_t receive_buffer_bytes = 64U << 20;  ///< requested; receive_buffer_bytes() returns the granted size
  std::size_t send_buffer_bytes = 16U << 20;     ///< upper limit; the buffer is as small as the interface allows
  bool gso = true;                               ///< send bursts as UDP_SEGMENT super-datagrams if the kernel has them
  bool gro = true;                               ///< receive bursts as UDP_GRO super-datagrams if the kernel has them
  /// For servers: receive() sets RxPacket::from.own_ip, so that answers leave from the address that the peer uses.
  bool answers = false;
};

/// All buffers are allocated here, none later.
class UdpIo final : public PacketIo {
 public:
  /// Prefer make_udp_io().
  UdpIo(FileDescriptor socket, Endpoint local, const UdpConfig& config);

  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  void wait(std::chrono::microseconds timeout) noexcept override;
  void wake() noexcept override;
  Endpoint local() const noexcept override { return local_; }
  std::size_t max_datagram_bytes(Endpoint to) const noexcept override;
  std::size_t common_datagram_bytes(Endpoint to) const noexcept override;
  bool is_own_host(Endpoint to) const noexcept override;
  Endpoint simplify(Endpoint peer) const noexcept override;
  std::size_t receive_buffer_bytes() const noexcept override { return receive_buffer_bytes_; }
  const IoCounters& counters() const noexcept override { return counters_; }
  bool gso_active() const noexcept { return sender_.gso_active(); }

 private:
  FileDescriptor socket_;
  FileDescriptor wake_event_;
  FileDescriptor route_probe_;
  Endpoint local_;
  std::size_t receive_buffer_bytes_;
  IoCounters counters_;
  RecentPeers peers_;
  UdpReceiver receiver_;
  UdpSender sender_;
};

/// Throws TransportError: port in use, no such address, no socket.
std::unique_ptr<UdpIo> make_udp_io(const UdpConfig& config);

/// Element i has local port + i. Port 0: any free range. Throws as make_udp_io(), and ConfigurationError for count 0
/// and for ports above 65535.
std::vector<std::unique_ptr<PacketIo>> make_udp_ios(const UdpConfig& config, std::uint16_t count);

}  // namespace thc::io
