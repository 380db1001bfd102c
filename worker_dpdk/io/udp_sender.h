// Batches of datagrams to send: sendmmsg, with datagrams of one size and destination merged by UDP_SEGMENT.
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
  /// `socket` stays the caller's. `gso`: try UDP_SEGMENT; given up for good when the kernel refuses merged datagrams
  /// that it sends one by one. `buffer_bytes`: what the send buffer may grow to.
  UdpSender(int socket, bool gso, std::size_t buffer_bytes, const RecentPeers& peers, IoCounters& counters);

  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept;

  /// A full buffer, or a full queue of the interface, is no loss: what goes to members waits as long as it drains.
  /// Answers to strangers, and what goes to addresses that have been silent, wait some milliseconds at most. What has
  /// no room then is dropped and counted (tx_no_buffer).
  ///
  /// Nothing is received meanwhile. Few milliseconds pass until some room is free, and what arrives in them is no more
  /// than workers may have in flight: the receive buffer has the room for that (window_bytes of WELCOME). A server
  /// that read on would only have more to send.
  void flush() noexcept;

  bool gso_active() const noexcept { return gso_; }

 private:
  static constexpr std::size_t kMessages = 64;
  static constexpr std::size_t kSegments = 64;       // the kernel's UDP_MAX_SEGMENTS, before 6.9
  static constexpr std::size_t kOpenMessages = 256;  // hash table, a power of two
  static constexpr std::uint16_t kNoMessage = 0xffff;

  // Room for the control messages IP_PKTINFO or IPV6_PKTINFO, and UDP_SEGMENT, in this order.
  struct alignas(cmsghdr) Control {
    std::array<std::uint8_t, CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(std::uint16_t))> bytes;
  };

  // One datagram, or several of `segment_bytes` each (the last may be shorter) to one destination.
  struct Message {
    Endpoint to;
    std::uint32_t segment_bytes;
    std::uint32_t total_bytes;
    std::uint16_t segments;
    std::uint16_t vectors;
    bool closed;  // nothing may be added
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
  // How often sending one message was tried in vain, by the reason.
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
  // The buffer is full, and waiting brought nothing: for anybody, and for strangers.
  bool stalled_ = false;
  bool strangers_stalled_ = false;
  const RecentPeers& peers_;
  IoCounters& counters_;
  std::vector<Message> messages_;
  std::size_t used_ = 0;
  std::bitset<kMessages> waits_;  // which messages wait for room
  std::array<mmsghdr, kMessages> headers_{};
  std::array<std::uint16_t, kOpenMessages> open_;  // the message of each destination that takes more
};

}  // namespace thc::io
