#include "io/udp_sender.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/udp_socket.h"
#include "thc/wire_layout.h"

namespace thc::io {
namespace {

// Limits of one wait for room in the send buffer. A link of 2 Mb/s needs 250 ms for the largest message.
constexpr SendBuffer::Patience kMembers{.fruitless_ms = 250, .longest_ms = 500};
constexpr SendBuffer::Patience kStrangers{.fruitless_ms = 2, .longest_ms = 8};
constexpr std::size_t kStrangersAtOnce = 8;  // leaves half of the buffer to members
constexpr int kRefusals = 8;                 // ICMP errors make the next send fail
// Retries per datagram: each takes a millisecond, or until 16 KiB leave. A merged message soon falls back to datagrams.
constexpr int kFullQueues = 256;
constexpr int kFullQueuesMerged = 4;
// A worker that lacks a result asks again every 200 ms at least.
constexpr std::chrono::seconds kRecent{2};

template <typename Value>
void add_control(msghdr& header, int level, int type, const Value& value) noexcept {
  auto* control = reinterpret_cast<cmsghdr*>(static_cast<std::uint8_t*>(header.msg_control) + header.msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

bool is_queue_full(int error) noexcept { return error == ENOBUFS || error == ENOMEM; }
bool is_buffer_full(int error) noexcept { return error == EAGAIN || is_queue_full(error); }

/// Errors of a kernel or device that cannot split a merged message. Others concern one message: its destination (port
/// 0), a firewall, a route.
bool cannot_merge(int error) noexcept {
  return error == EINVAL || error == EIO || error == EOPNOTSUPP || error == EMSGSIZE || error == ENOPROTOOPT;
}

}  // namespace

UdpSender::UdpSender(int socket, bool gso, std::size_t buffer_bytes, const RecentPeers& peers, IoCounters& counters)
    : socket_(socket),
      family_(family_of(socket)),
      gso_(gso),
      buffer_(socket, buffer_bytes),
      peers_(peers),
      counters_(counters),
      messages_(kMessages) {
  open_.fill(kNoMessage);
}

bool UdpSender::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                     std::span<const std::uint8_t> trailer) noexcept {
  const std::size_t size_bytes = header.size() + payload.size() + trailer.size();
  if (header.size() > PacketIo::kMaxHeaderBytes || trailer.size() > PacketIo::kMaxTrailerBytes ||
      size_bytes > kMaxUdpPayloadBytes || size_bytes == 0) {
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

std::uint16_t& UdpSender::open_entry(Endpoint to) noexcept { return open_[hash_of(to) % kOpenMessages]; }

UdpSender::Message* UdpSender::find_open(std::uint16_t index, Endpoint to, std::size_t size_bytes) noexcept {
  if (!gso_ || index >= used_) {  // the table keeps entries of earlier batches; the checks below reject them
    return nullptr;
  }
  Message& message = messages_[index];
  const bool same_way = message.to == to && message.to.own_ip == to.own_ip;
  const bool fits = !message.closed && same_way && size_bytes <= message.segment_bytes &&
                    message.total_bytes + size_bytes <= buffer_.message_bytes();
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
  buffer_.begin_batch();
  stalled_ = stalled_ && !buffer_.has_room();
  const auto recent = std::chrono::steady_clock::now() - kRecent;
  for (std::size_t i = 0; i < used_; ++i) {
    waits_[i] = deserves_the_rest(messages_[i], recent);
    fill_header(messages_[i], headers_[i].msg_hdr);
  }
  for (std::size_t done = 0; done < used_;) {
    std::size_t end = done + 1;
    while (end < used_ && waits_[end] == waits_[done]) {
      ++end;
    }
    done = waits_[done] ? send_from(done, end) : send_to_strangers(done, std::min(end, done + kStrangersAtOnce));
  }
  used_ = 0;
}

/// Sends while half of the buffer is free: datagrams without a neighbour stay in it for seconds. After a fruitless wait
/// it retries only if room is free: many flushes would each wait for the same few destinations.
std::size_t UdpSender::send_to_strangers(std::size_t first, std::size_t end) noexcept {
  strangers_stalled_ = !buffer_.has_room() && (strangers_stalled_ || !buffer_.wait_for_room(kStrangers, false));
  if (!strangers_stalled_) {
    return send_from(first, end);
  }
  for (; first < end; ++first) {
    counters_.tx_no_buffer += messages_[first].segments;
  }
  return end;
}

/// Half of the buffer is for peers that drain: for messages to servers, results for recently heard members, and PROBE,
/// at most five a second, because a lost PROBE counts against a live process. Anybody can request other messages.
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

void UdpSender::fill_header(Message& message, msghdr& header) const noexcept {
  message.address = SocketAddress(message.to, family_);
  header = {};
  header.msg_name = message.address.get();
  header.msg_namelen = message.address.bytes();
  header.msg_iov = message.vector.data();
  header.msg_iovlen = message.vectors;
  add_own_address(message, header);
  if (message.segments > 1) {
    header.msg_control = &message.control;
    add_control(header, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(message.segment_bytes));
  }
}

/// The route chooses the interface.
void UdpSender::add_own_address(Message& message, msghdr& header) noexcept {
  const IpAddress own = message.to.own_ip;
  if (own == IpAddress()) {
    return;
  }
  header.msg_control = &message.control;
  if (own.is_ipv4()) {
    in_pktinfo info{};
    info.ipi_spec_dst.s_addr = htonl(own.ipv4());
    add_control(header, IPPROTO_IP, IP_PKTINFO, info);
  } else {
    const auto interface = own.is_link_local() ? static_cast<unsigned>(own.high & kScope) : 0U;
    add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, in6_pktinfo{.ipi6_addr = to_in6(own), .ipi6_ifindex = interface});
  }
}

/// Sends messages [first, end) until one is refused; returns the first unfinished one.
std::size_t UdpSender::send_from(std::size_t first, std::size_t end) noexcept {
  const bool may_wait = waits_[first];
  Failures failures{.most_full_queues = messages_[first].segments > 1 ? kFullQueuesMerged : kFullQueues};
  for (;;) {
    const int sent = sendmmsg(socket_, &headers_[first], static_cast<unsigned>(end - first), MSG_DONTWAIT);
    if (sent > 0) {
      for (int i = 0; i < sent; ++i) {
        count_sent(messages_[first++]);
      }
      return first;
    }
    if (const int error = errno; !may_retry(error, may_wait, failures)) {
      refused(messages_[first], error, may_wait);
      return first + 1;
    }
  }
}

bool UdpSender::may_retry(int error, bool may_wait, Failures& failures) noexcept {
  if (error == EINTR) {
    return true;
  }
  if (is_buffer_full(error)) {
    if (!may_wait || stalled_) {
      return false;
    }
    if (is_queue_full(error)) {
      if (++failures.full_queues < failures.most_full_queues && buffer_.wait_for_queue()) {
        return true;
      }
      stalled_ = failures.most_full_queues == kFullQueues;  // a merged message falls back to datagrams
      return false;
    }
    stalled_ = !buffer_.wait_for_room(kMembers, true);
    return !stalled_;
  }
  // Perhaps an ICMP error about an earlier datagram. A real refusal repeats.
  const bool pending = take_icmp_errors(socket_);
  return ++failures.refused < (pending ? kRefusals : 2);
}

void UdpSender::count_sent(const Message& message) noexcept {
  counters_.tx_packets += message.segments;
  counters_.tx_bytes += message.total_bytes;
}

void UdpSender::refused(Message& message, int error, bool may_wait) noexcept {
  if (is_queue_full(error) && message.segments > 1 && may_wait && !stalled_) {
    send_segments(message, may_wait);  // the queue may be smaller than the message
  } else if (is_buffer_full(error)) {
    counters_.tx_no_buffer += message.segments;
  } else if (message.segments == 1 || !cannot_merge(error)) {
    counters_.tx_errors += message.segments;
  } else if (send_segments(message, may_wait)) {
    // GSO is not at fault if the single datagrams fail, too.
    gso_ = false;
  }
}

bool UdpSender::send_segments(Message& message, bool may_wait) noexcept {
  const std::uint64_t sent_before = counters_.tx_packets;
  std::size_t vector = 0;
  for (std::uint32_t offset = 0; offset < message.total_bytes; offset += message.segment_bytes) {
    const std::size_t size_bytes = std::min(message.segment_bytes, message.total_bytes - offset);
    msghdr header{};
    header.msg_name = message.address.get();
    header.msg_namelen = message.address.bytes();
    header.msg_iov = &message.vector[vector];
    add_own_address(message, header);
    for (std::size_t bytes = 0; bytes < size_bytes; bytes += message.vector[vector++].iov_len) {
      ++header.msg_iovlen;
    }
    Failures failures{.most_full_queues = kFullQueues};
    bool sent = false;
    int error = 0;
    do {
      sent = sendmsg(socket_, &header, MSG_DONTWAIT) >= 0;
      error = errno;
    } while (!sent && may_retry(error, may_wait, failures));
    if (sent) {
      ++counters_.tx_packets;
      counters_.tx_bytes += size_bytes;
    } else {
      ++(is_buffer_full(error) ? counters_.tx_no_buffer : counters_.tx_errors);
    }
  }
  return counters_.tx_packets != sent_before;
}

}  // namespace thc::io
