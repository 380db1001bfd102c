// Sends batches with sendmmsg, and merges datagrams of one size and destination by UDP_SEGMENT.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/packet_io.h"
#include "io/recent_peers.h"
#include "io/send_buffer.h"
#include "io/socket_address.h"

namespace thc::io {

class UdpSender {
 public:
  /// The caller owns `socket`. `gso`: use UDP_SEGMENT, until the kernel refuses merged datagrams but not single ones.
  UdpSender(int socket, bool gso, std::size_t buffer_bytes, const RecentPeers& peers, IoCounters& counters);

  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept;

  /// Waits while a full buffer or interface queue drains, for messages to members. Answers to strangers and to silent
  /// addresses wait a few milliseconds, and are then dropped and counted (tx_no_buffer). Receives nothing meanwhile,
  /// which is safe: window_bytes of WELCOME keeps the workers' bytes in flight below the receive buffer.
  void flush() noexcept;

  bool gso_active() const noexcept { return gso_; }

 private:
  static constexpr std::size_t kMessages = 64;
  static constexpr std::size_t kSegments = 64;       // the kernel's UDP_MAX_SEGMENTS before 6.9
  static constexpr std::size_t kOpenMessages = 256;  // hash table, a power of two
  static constexpr std::uint16_t kNoMessage = 0xffff;

  // IP_PKTINFO or IPV6_PKTINFO, and UDP_SEGMENT, in this order.
  struct alignas(cmsghdr) Control {
    std::array<std::uint8_t, CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(std::uint16_t))> bytes;
  };

  // One datagram, or several of `segment_bytes` (the last may be shorter) to one destination.
  struct Message {
    Endpoint to;
    std::uint32_t segment_bytes;
    std::uint32_t total_bytes;
    std::uint16_t segments;
    std::uint16_t vectors;
    bool closed;  // accepts no more datagrams
    SocketAddress address;
    Control control;
    std::array<iovec, 3 * kSegments> vector;
    std::array<std::array<std::uint8_t, PacketIo::kMaxHeaderBytes>, kSegments> headers;
    std::array<std::array<std::uint8_t, PacketIo::kMaxTrailerBytes>, kSegments> trailers;
  };

  std::uint16_t& open_entry(Endpoint to) noexcept;
  Message* find_open(std::uint16_t index, Endpoint to, std::size_t size_bytes) noexcept;
  Message* start_message(Endpoint to, std::size_t size_bytes) noexcept;
  static void append(Message& message, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                     std::span<const std::uint8_t> trailer) noexcept;
  // Failed attempts to send one message.
  struct Failures {
    int refused = 0;
    int full_queues = 0;
    int most_full_queues = 0;
  };

  bool deserves_the_rest(const Message& message, RecentPeers::TimePoint recent) const noexcept;
  void fill_header(Message& message, msghdr& header) const noexcept;
  static void add_own_address(Message& message, msghdr& header) noexcept;
  std::size_t send_to_strangers(std::size_t first, std::size_t end) noexcept;
  std::size_t send_from(std::size_t first, std::size_t end) noexcept;
  bool may_retry(int error, bool may_wait, Failures& failures) noexcept;
  void count_sent(const Message& message) noexcept;
  void refused(Message& message, int error, bool may_wait) noexcept;
  bool send_segments(Message& message, bool may_wait) noexcept;

  int socket_;
  int family_;
  bool gso_;
  SendBuffer buffer_;
  // The buffer is full and did not drain: for all messages, and for strangers' messages.
  bool stalled_ = false;
  bool strangers_stalled_ = false;
  const RecentPeers& peers_;
  IoCounters& counters_;
  std::vector<Message> messages_;
  std::size_t used_ = 0;
  std::bitset<kMessages> waits_;  // messages that wait for room
  std::array<mmsghdr, kMessages> headers_{};
  std::array<std::uint16_t, kOpenMessages> open_;  // per destination: its message with room
};

}  // namespace thc::io
