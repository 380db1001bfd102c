#include "io/udp_sender.h"

#include <linux/sockios.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "thc/wire_layout.h"

namespace thc::io {
namespace {

// Of one wait for room in the send buffer, in milliseconds: while it drains, and while nothing leaves it.
constexpr int kLongestWaits = 8;
constexpr int kFruitlessWaits = 2;
constexpr int kIcmpErrors = 8;  // one is reported for each datagram that found nobody, instead of sending the next one
// A worker that lacks a result asks again every 200 ms at least.
constexpr std::chrono::seconds kRecent{2};

/// Appends a control message; the header's has the room.
template <typename Value>
void add_control(msghdr& header, int level, int type, const Value& value) noexcept {
  auto* control = reinterpret_cast<cmsghdr*>(static_cast<std::uint8_t*>(header.msg_control) + header.msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

bool is_buffer_full(int error) noexcept { return error == EAGAIN || error == ENOBUFS || error == ENOMEM; }

/// What the kernel says when it, or the device, cannot cut a merged message, or not with datagrams of that size.
/// Anything else is the fault of one message: its destination (port 0), a firewall, a route.
bool cannot_merge(int error) noexcept {
  return error == EINVAL || error == EIO || error == EOPNOTSUPP || error == EMSGSIZE || error == ENOPROTOOPT;
}

int unsent_bytes(int socket) noexcept {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace

UdpSender::UdpSender(int socket, bool gso, const RecentPeers& peers, IoCounters& counters)
    : socket_(socket), gso_(gso), peers_(peers), counters_(counters), messages_(kMessages) {
  open_.fill(kNoMessage);
}

bool UdpSender::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                     std::span<const std::uint8_t> trailer) noexcept {
  const std::size_t size_bytes = header.size() + payload.size() + trailer.size();
  if (header.size() > PacketIo::kMaxHeaderBytes || trailer.size() > PacketIo::kMaxTrailerBytes ||
      size_bytes > kMessageBytes || size_bytes == 0) {
    ++counters_.tx_errors;
    return false;
  }
  std::uint16_t& open = open_entry(to);
  Message* message = find_open(open, to, size_bytes);
  if (message == nullptr) {
    message = start_message(to, size_bytes);
    open = static_cast<std::uint16_t>(used_ - 1);
  }
  append(*message, header, payload, trailer);
  return true;
}

std::uint16_t& UdpSender::open_entry(Endpoint to) noexcept {
  const std::uint32_t key = to.ip * 0x9e3779b1U ^ to.port * 0x85ebca6bU;
  return open_[(key >> 16 ^ key) % kOpenMessages];
}

UdpSender::Message* UdpSender::find_open(std::uint16_t index, Endpoint to, std::size_t size_bytes) noexcept {
  if (!gso_ || index >= used_) {  // entries of an earlier batch are left in the table; the checks below sort them out
    return nullptr;
  }
  Message& message = messages_[index];
  const bool same_way = message.to == to && message.to.own_ip == to.own_ip;
  const bool fits = !message.closed && same_way && size_bytes <= message.segment_bytes &&
                    message.total_bytes + size_bytes <= kMessageBytes;
  return fits ? &message : nullptr;
}

UdpSender::Message* UdpSender::start_message(Endpoint to, std::size_t size_bytes) noexcept {
  if (used_ == kMessages) {
    flush();
  }
  Message& message = messages_[used_++];
  message.to = to;
  message.segment_bytes = static_cast<std::uint32_t>(size_bytes);
  message.total_bytes = 0;
  message.segments = 0;
  message.vectors = 0;
  message.closed = false;
  return &message;
}

void UdpSender::append(Message& message, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                       std::span<const std::uint8_t> trailer) noexcept {
  if (!header.empty()) {
    auto& copy = message.headers[message.segments];
    std::memcpy(copy.data(), header.data(), header.size());
    message.vector[message.vectors++] = {copy.data(), header.size()};
  }
  if (!payload.empty()) {
    message.vector[message.vectors++] = {const_cast<std::uint8_t*>(payload.data()), payload.size()};
  }
  if (!trailer.empty()) {
    auto& copy = message.trailers[message.segments];
    std::memcpy(copy.data(), trailer.data(), trailer.size());
    message.vector[message.vectors++] = {copy.data(), trailer.size()};
  }
  const std::size_t size_bytes = header.size() + payload.size() + trailer.size();
  message.total_bytes += static_cast<std::uint32_t>(size_bytes);
  ++message.segments;
  message.closed = size_bytes < message.segment_bytes || message.segments == kSegments;
}

void UdpSender::flush() noexcept {
  if (used_ == 0) {
    return;
  }
  // The kernel calls a socket writable when half of its buffer is free. What has no neighbour stays in it for seconds.
  stalled_ = !wait_for_room();
  const auto recent = std::chrono::steady_clock::now() - kRecent;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < used_; ++i) {
    if (stalled_ && !deserves_the_rest(messages_[i], recent)) {
      counters_.tx_no_buffer += messages_[i].segments;
    } else {
      fill_header(messages_[i], headers_[kept].msg_hdr);
      sending_[kept++] = static_cast<std::uint16_t>(i);
    }
  }
  for (std::size_t done = 0; done < kept;) {
    done = send_from(done, kept);
  }
  used_ = 0;
}

/// Waits as long as the buffer drains, and no longer. Once that was in vain it is not tried again until there is room:
/// many flushes would each wait for the same few destinations.
bool UdpSender::wait_for_room() noexcept {
  pollfd writable{socket_, POLLOUT, 0};
  if (poll(&writable, 1, 0) > 0) {
    return true;
  }
  int fruitless = stalled_ ? kFruitlessWaits : 0;
  for (int waits = 0; waits < kLongestWaits && fruitless < kFruitlessWaits; ++waits) {
    const int before_bytes = unsent_bytes(socket_);
    if (poll(&writable, 1, 1) > 0) {
      return true;
    }
    fruitless += unsent_bytes(socket_) < before_bytes ? 0 : 1;
  }
  return false;
}

/// Whether a message may use the half of the buffer that is kept for those who do drain: what workers send to their
/// servers, results for members of a job that were heard of, and PROBE, which goes to members, five a second at most:
/// one that is lost counts against a live process. All else anybody can ask for, in the name of anybody.
bool UdpSender::deserves_the_rest(const Message& message, RecentPeers::TimePoint recent) const noexcept {
  switch (static_cast<wire::MessageType>(message.headers[0][offsetof(wire::Header, message_type)])) {
    case wire::MessageType::kNorm:
    case wire::MessageType::kCodes:
    case wire::MessageType::kHello:
    case wire::MessageType::kGoodbye:
    case wire::MessageType::kAlive:
    case wire::MessageType::kProbe:
      return true;
    case wire::MessageType::kMaxNorm:
    case wire::MessageType::kAggregate:
      return peers_.heard_since(message.to, recent);
    default:
      return false;
  }
}

void UdpSender::fill_header(Message& message, msghdr& header) noexcept {
  message.address = {};
  message.address.sin_family = AF_INET;
  message.address.sin_port = htons(message.to.port);
  message.address.sin_addr.s_addr = htonl(message.to.ip);
  header = {};
  header.msg_name = &message.address;
  header.msg_namelen = sizeof message.address;
  header.msg_iov = message.vector.data();
  header.msg_iovlen = message.vectors;
  add_own_address(message, header);
  if (message.segments > 1) {
    header.msg_control = &message.control;
    add_control(header, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(message.segment_bytes));
  }
}

/// As source address alone: the route to the destination tells the interface, as for any other datagram.
void UdpSender::add_own_address(Message& message, msghdr& header) noexcept {
  if (message.to.own_ip != 0) {
    header.msg_control = &message.control;
    in_pktinfo info{};
    info.ipi_spec_dst.s_addr = htonl(message.to.own_ip);
    add_control(header, IPPROTO_IP, IP_PKTINFO, info);
  }
}

/// Sends messages [first, end) of sending_ until one is refused; returns the first that is not dealt with yet.
std::size_t UdpSender::send_from(std::size_t first, std::size_t end) noexcept {
  Message& message = messages_[sending_[first]];
  for (int icmp_errors = 0; icmp_errors < kIcmpErrors;) {
    const int sent = sendmmsg(socket_, &headers_[first], static_cast<unsigned>(end - first), MSG_DONTWAIT);
    if (sent > 0) {
      for (int i = 0; i < sent; ++i) {
        count_sent(messages_[sending_[first++]]);
      }
      return first;
    }
    if (is_buffer_full(errno)) {
      if (stalled_ || !wait_for_room()) {
        stalled_ = true;
        counters_.tx_no_buffer += message.segments;
        return first + 1;
      }
    } else if (errno == ECONNREFUSED) {
      ++icmp_errors;
    } else if (errno != EINTR) {
      refused(message, errno);
      return first + 1;
    }
  }
  counters_.tx_errors += message.segments;
  return first + 1;
}

void UdpSender::count_sent(const Message& message) noexcept {
  counters_.tx_packets += message.segments;
  counters_.tx_bytes += message.total_bytes;
}

void UdpSender::refused(Message& message, int error) noexcept {
  if (message.segments == 1 || !cannot_merge(error)) {
    counters_.tx_errors += message.segments;
    return;
  }
  // The datagrams themselves tell whose fault it is: of a bad destination they are refused, too.
  if (send_segments(message)) {
    gso_ = false;
  }
}

/// Whether any of them was sent.
bool UdpSender::send_segments(Message& message) noexcept {
  const std::uint64_t sent_before = counters_.tx_packets;
  std::size_t vector = 0;
  for (std::uint32_t offset = 0; offset < message.total_bytes; offset += message.segment_bytes) {
    const std::size_t size_bytes = std::min(message.segment_bytes, message.total_bytes - offset);
    msghdr header{};
    header.msg_name = &message.address;
    header.msg_namelen = sizeof message.address;
    header.msg_iov = &message.vector[vector];
    add_own_address(message, header);
    for (std::size_t bytes = 0; bytes < size_bytes; bytes += message.vector[vector++].iov_len) {
      ++header.msg_iovlen;
    }
    if (sendmsg(socket_, &header, MSG_DONTWAIT) >= 0) {
      ++counters_.tx_packets;
      counters_.tx_bytes += size_bytes;
    } else {
      ++(is_buffer_full(errno) ? counters_.tx_no_buffer : counters_.tx_errors);
    }
  }
  return counters_.tx_packets != sent_before;
}

}  // namespace thc::io
