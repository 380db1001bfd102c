// Receives batches with recvmmsg and splits UDP_GRO super-datagrams.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "io/packet_io.h"
#include "io/recent_peers.h"
#include "io/socket_address.h"

namespace thc::io {

class UdpReceiver {
 public:
  /// The caller owns `socket`.
  UdpReceiver(int socket, RecentPeers& peers, IoCounters& counters);

  std::size_t receive(std::span<RxPacket> packets) noexcept;
  bool has_leftover() const noexcept { return message_ < filled_; }

 private:
  static constexpr std::size_t kMessages = 32;
  static constexpr std::size_t kMessageBytes = 65536;  // a super-datagram is at most one IP packet

  // UDP_GRO, IP_PKTINFO, IPV6_PKTINFO, and IP_TOS or IPV6_TCLASS, with the kernel's alignment.
  struct alignas(cmsghdr) Control {
    std::array<std::uint8_t,
               2 * CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(in_pktinfo)) + CMSG_SPACE(sizeof(in6_pktinfo))>
        bytes;
  };

  bool fill() noexcept;
  void open_message() noexcept;
  Endpoint sender() const noexcept;
  std::size_t split(std::span<RxPacket> packets) noexcept;

  int socket_;
  RecentPeers& peers_;
  IoCounters& counters_;
  std::unique_ptr<std::uint8_t[]> buffer_;
  std::array<mmsghdr, kMessages> messages_{};
  std::array<iovec, kMessages> vectors_{};
  std::array<SocketAddress, kMessages> senders_{};
  std::array<Control, kMessages> controls_{};
  // Cursor over the messages of the last recvmmsg: message_ of filled_, its bytes [offset_, end_) in segments.
  std::size_t filled_ = 0;
  RecentPeers::TimePoint filled_at_{};
  std::size_t message_ = 0;
  std::size_t offset_ = 0;
  std::size_t end_ = 0;
  std::size_t segment_bytes_ = 0;
  IpAddress own_ip_{};      // destination of the message
  bool congested_ = false;  // all segments of a message share one ECN field
};

}  // namespace thc::io
