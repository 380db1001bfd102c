#include "io/udp_sender.h"

#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "thc/wire_layout.h"

namespace thc::io {
namespace {

constexpr int kFullBufferRetries = 8;
constexpr int kFullBufferWaitMs = 1;

bool is_buffer_full(int error) noexcept { return error == EAGAIN || error == ENOBUFS || error == ENOMEM; }

}  // namespace

UdpSender::UdpSender(int socket, bool gso, IoCounters& counters)
    : socket_(socket), gso_(gso), counters_(counters), messages_(kMessages) {
  open_.fill(kNoMessage);
}

void UdpSender::set_shards(std::uint32_t shards) noexcept {
  flush();
  shards_ = std::max(shards, 1U);
}

bool UdpSender::send(Endpoint to, std::span<const std::uint8_t> header,
                     std::span<const std::uint8_t> payload) noexcept {
  const std::size_t size_bytes = header.size() + payload.size();
  if (header.size() > PacketIo::kMaxHeaderBytes || size_bytes > kMessageBytes || size_bytes == 0) {
    ++counters_.tx_errors;
    return false;
  }
  const std::uint32_t shard = shard_of(header);
  std::uint16_t& open = open_entry(to, shard);
  Message* message = find_open(open, to, shard, size_bytes);
  if (message == nullptr) {
    message = start_message(to, shard, size_bytes);
    open = static_cast<std::uint16_t>(used_ - 1);
  }
  append(*message, header, payload);
  return true;
}

std::uint32_t UdpSender::shard_of(std::span<const std::uint8_t> header) const noexcept {
  if (shards_ == 1 || header.size() < sizeof(wire::Header)) {
    return 0;
  }
  wire::Header fields;
  std::memcpy(&fields, header.data(), sizeof fields);
  return fields.slot % shards_;
}

std::uint16_t& UdpSender::open_entry(Endpoint to, std::uint32_t shard) noexcept {
  const std::uint32_t key = to.ip * 0x9e3779b1U ^ to.port * 0x85ebca6bU ^ shard * 0xc2b2ae35U;
  return open_[(key >> 16 ^ key) % kOpenMessages];
}

UdpSender::Message* UdpSender::find_open(std::uint16_t index, Endpoint to, std::uint32_t shard,
                                         std::size_t size_bytes) noexcept {
  if (!gso_ || index >= used_) {  // entries of an earlier batch are left in the table; the checks below sort them out
    return nullptr;
  }
  Message& message = messages_[index];
  const bool fits = !message.closed && message.to == to && message.shard == shard &&
                    size_bytes <= message.segment_bytes && message.total_bytes + size_bytes <= kMessageBytes;
  return fits ? &message : nullptr;
}

UdpSender::Message* UdpSender::start_message(Endpoint to, std::uint32_t shard, std::size_t size_bytes) noexcept {
  if (used_ == kMessages) {
    flush();
  }
  Message& message = messages_[used_++];
  message.to = to;
  message.shard = shard;
  message.segment_bytes = static_cast<std::uint32_t>(size_bytes);
  message.total_bytes = 0;
  message.segments = 0;
  message.vectors = 0;
  message.closed = false;
  return &message;
}

void UdpSender::append(Message& message, std::span<const std::uint8_t> header,
                       std::span<const std::uint8_t> payload) noexcept {
  if (!header.empty()) {
    auto& copy = message.headers[message.segments];
    std::memcpy(copy.data(), header.data(), header.size());
    message.vector[message.vectors++] = {copy.data(), header.size()};
  }
  if (!payload.empty()) {
    message.vector[message.vectors++] = {const_cast<std::uint8_t*>(payload.data()), payload.size()};
  }
  const std::size_t size_bytes = header.size() + payload.size();
  message.total_bytes += static_cast<std::uint32_t>(size_bytes);
  ++message.segments;
  message.closed = size_bytes < message.segment_bytes || message.segments == kSegments;
}

void UdpSender::flush() noexcept {
  for (std::size_t i = 0; i < used_; ++i) {
    fill_header(i);
  }
  std::size_t done = 0;
  while (done < used_) {
    done = send_from(done);
  }
  used_ = 0;
}

void UdpSender::fill_header(std::size_t index) noexcept {
  Message& message = messages_[index];
  message.address = {};
  message.address.sin_family = AF_INET;
  message.address.sin_port = htons(message.to.port);
  message.address.sin_addr.s_addr = htonl(message.to.ip);
  msghdr& header = headers_[index].msg_hdr;
  header = {};
  header.msg_name = &message.address;
  header.msg_namelen = sizeof message.address;
  header.msg_iov = message.vector.data();
  header.msg_iovlen = message.vectors;
  if (message.segments > 1) {
    header.msg_control = &message.control;
    header.msg_controllen = sizeof message.control;
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto segment_bytes = static_cast<std::uint16_t>(message.segment_bytes);
    std::memcpy(CMSG_DATA(control), &segment_bytes, sizeof segment_bytes);
  }
}

/// Sends messages [first, used_) until one is refused; returns the first that is not dealt with yet.
std::size_t UdpSender::send_from(std::size_t first) noexcept {
  for (int attempt = 0; attempt < kFullBufferRetries;) {
    const int sent = sendmmsg(socket_, &headers_[first], static_cast<unsigned>(used_ - first), MSG_DONTWAIT);
    if (sent > 0) {
      for (int i = 0; i < sent; ++i) {
        count_sent(first++);
      }
      return first;
    }
    if (is_buffer_full(errno)) {
      pollfd writable{socket_, POLLOUT, 0};
      poll(&writable, 1, kFullBufferWaitMs);
      ++attempt;
    } else if (errno == ECONNREFUSED) {
      ++attempt;  // an ICMP error about an earlier datagram, reported instead of sending this one
    } else if (errno != EINTR) {
      refused(first, errno);
      return first + 1;
    }
  }
  counters_.tx_no_buffer += messages_[first].segments;
  return first + 1;
}

void UdpSender::count_sent(std::size_t index) noexcept {
  counters_.tx_packets += messages_[index].segments;
  counters_.tx_bytes += messages_[index].total_bytes;
}

void UdpSender::refused(std::size_t index, int error) noexcept {
  const Message& message = messages_[index];
  // Without GSO in the kernel or the device, or with datagrams above the MTU, the merged message is what is refused.
  const bool merged = message.segments > 1;
  if (merged && (error == EINVAL || error == EIO || error == EOPNOTSUPP || error == EMSGSIZE || error == ENOPROTOOPT)) {
    gso_ = false;
    send_segments(message);
    return;
  }
  counters_.tx_errors += message.segments;
}

void UdpSender::send_segments(const Message& message) noexcept {
  std::size_t vector = 0;
  for (std::uint32_t offset = 0; offset < message.total_bytes; offset += message.segment_bytes) {
    const std::size_t size_bytes = std::min(message.segment_bytes, message.total_bytes - offset);
    msghdr header{};
    header.msg_name = const_cast<sockaddr_in*>(&message.address);
    header.msg_namelen = sizeof message.address;
    header.msg_iov = const_cast<iovec*>(&message.vector[vector]);
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
}

}  // namespace thc::io
