// Batches of datagrams to send: sendmmsg, with datagrams of one size and destination merged by UDP_SEGMENT.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/packet_io.h"
#include "io/recent_peers.h"

namespace thc::io {

class UdpSender {
 public:
  /// `socket` stays the caller's. `gso`: try UDP_SEGMENT; given up for good when the kernel refuses merged datagrams
  /// that it sends one by one.
  UdpSender(int socket, bool gso, const RecentPeers& peers, IoCounters& counters);

  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept;

  /// Waits some milliseconds at most, and only while the send buffer drains. What has no room then is dropped and
  /// counted (tx_no_buffer): first answers to strangers, and what goes to addresses that have been silent.
  void flush() noexcept;

  bool gso_active() const noexcept { return gso_; }

 private:
  static constexpr std::size_t kMessages = 64;
  static constexpr std::size_t kSegments = 64;         // the kernel's UDP_MAX_SEGMENTS, before 6.9
  static constexpr std::size_t kMessageBytes = 65507;  // largest UDP payload over IPv4
  static constexpr std::size_t kOpenMessages = 256;    // hash table, a power of two
  static constexpr std::uint16_t kNoMessage = 0xffff;

  // Room for the control messages IP_PKTINFO and UDP_SEGMENT, in this order.
  struct alignas(cmsghdr) Control {
    std::array<std::uint8_t, CMSG_SPACE(sizeof(in_pktinfo)) + CMSG_SPACE(sizeof(std::uint16_t))> bytes;
  };

  // One datagram, or several of `segment_bytes` each (the last may be shorter) to one destination.
  struct Message {
    Endpoint to;
    std::uint32_t segment_bytes;
    std::uint32_t total_bytes;
    std::uint16_t segments;
    std::uint16_t vectors;
    bool closed;  // nothing may be added
    sockaddr_in address;
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
  bool wait_for_room() noexcept;
  bool deserves_the_rest(const Message& message, RecentPeers::TimePoint recent) const noexcept;
  static void fill_header(Message& message, msghdr& header) noexcept;
  static void add_own_address(Message& message, msghdr& header) noexcept;
  std::size_t send_from(std::size_t first, std::size_t end) noexcept;
  void count_sent(const Message& message) noexcept;
  void refused(Message& message, int error) noexcept;
  bool send_segments(Message& message) noexcept;

  int socket_;
  bool gso_;
  bool stalled_ = false;  // the buffer is full, and waiting brought nothing
  const RecentPeers& peers_;
  IoCounters& counters_;
  std::vector<Message> messages_;
  std::size_t used_ = 0;
  std::array<std::uint16_t, kMessages> sending_{};  // the messages of headers_
  std::array<mmsghdr, kMessages> headers_{};
  std::array<std::uint16_t, kOpenMessages> open_;  // the message of each destination that takes more
};

}  // namespace thc::io
