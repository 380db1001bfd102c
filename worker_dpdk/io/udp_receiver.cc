#include "io/udp_receiver.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/udp_socket.h"

namespace thc::io {
namespace {

constexpr int kAttempts = 8;  // ICMP errors may arrive faster than this call reads them

}  // namespace

UdpReceiver::UdpReceiver(int socket, RecentPeers& peers, IoCounters& counters)
    : socket_(socket),
      peers_(peers),
      counters_(counters),
      buffer_(std::make_unique_for_overwrite<std::uint8_t[]>(kMessages * kMessageBytes)) {
  for (std::size_t i = 0; i < kMessages; ++i) {
    vectors_[i] = {buffer_.get() + i * kMessageBytes, kMessageBytes};
    messages_[i].msg_hdr.msg_iov = &vectors_[i];
    messages_[i].msg_hdr.msg_iovlen = 1;
    messages_[i].msg_hdr.msg_name = &senders_[i];
    messages_[i].msg_hdr.msg_control = &controls_[i];
  }
}

std::size_t UdpReceiver::receive(std::span<RxPacket> packets) noexcept {
  if (packets.empty() || (!has_leftover() && !fill())) {
    return 0;
  }
  // A second recvmmsg would overwrite datagrams that this call already returns.
  const std::size_t count = split(packets);
  counters_.rx_packets += count;
  return count;
}

bool UdpReceiver::fill() noexcept {
  for (mmsghdr& message : messages_) {
    message.msg_hdr.msg_namelen = sizeof(SocketAddress);
    message.msg_hdr.msg_controllen = sizeof(Control);
  }
  int received = -1;
  for (int attempts = 0; attempts < kAttempts && received < 0; ++attempts) {
    received = recvmmsg(socket_, messages_.data(), kMessages, MSG_DONTWAIT, nullptr);
    if (received < 0 && errno == EAGAIN) {
      break;
    }
    if (received < 0) {
      take_icmp_errors(socket_);  // about datagrams sent earlier, not about waiting ones
    }
  }
  filled_ = received > 0 ? static_cast<std::size_t>(received) : 0;
  message_ = 0;
  if (filled_ > 0) {
    filled_at_ = std::chrono::steady_clock::now();
    open_message();
  }
  return filled_ > 0;
}

void UdpReceiver::open_message() noexcept {
  mmsghdr& message = messages_[message_];
  offset_ = 0;
  end_ = message.msg_len;
  segment_bytes_ = std::max<std::size_t>(end_, 1);
  own_ip_ = {};
  congested_ = false;
  if ((message.msg_hdr.msg_flags & MSG_TRUNC) != 0) {
    ++counters_.rx_malformed;
    end_ = 0;
    return;
  }
  if (end_ == 0) {
    ++counters_.rx_malformed;  // an empty datagram carries no header
  }
  if (sender().port == 0) {
    ++counters_.rx_malformed;  // port 0 cannot receive an answer
    end_ = 0;
    return;
  }
  peers_.note(sender(), filled_at_);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message.msg_hdr); c != nullptr; c = CMSG_NXTHDR(&message.msg_hdr, c)) {
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
      int segment_bytes = 0;
      std::memcpy(&segment_bytes, CMSG_DATA(c), sizeof segment_bytes);
      segment_bytes_ = static_cast<std::size_t>(std::max(segment_bytes, 1));
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
      in_pktinfo info{};
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      own_ip_ = ntohl(info.ipi_spec_dst.s_addr);  // local even if the datagram was broadcast
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO && own_ip_ == IpAddress()) {
      in6_pktinfo info{};  // IPv4 datagrams have it, too, but IP_PKTINFO says more
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      own_ip_ = to_ip(info.ipi6_addr, info.ipi6_ifindex);
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      congested_ = (*CMSG_DATA(c) & kEcnMask) == kEcnCongestion;
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      int traffic_class = 0;
      std::memcpy(&traffic_class, CMSG_DATA(c), sizeof traffic_class);
      congested_ = (traffic_class & kEcnMask) == kEcnCongestion;
    }
  }
}

Endpoint UdpReceiver::sender() const noexcept {
  Endpoint sender = senders_[message_].endpoint();
  sender.own_ip = own_ip_;
  return sender;
}

std::size_t UdpReceiver::split(std::span<RxPacket> packets) noexcept {
  std::size_t count = 0;
  while (has_leftover()) {
    const Endpoint from = sender();
    const std::uint8_t* data = static_cast<const std::uint8_t*>(vectors_[message_].iov_base);
    for (; offset_ < end_; offset_ += segment_bytes_) {
      if (count == packets.size()) {
        return count;
      }
      const std::size_t size_bytes = std::min(segment_bytes_, end_ - offset_);
      packets[count++] = {data + offset_, static_cast<std::uint32_t>(size_bytes), from, congested_};
      counters_.rx_bytes += size_bytes;
    }
    if (++message_ < filled_) {
      open_message();
    }
  }
  return count;
}

}  // namespace thc::io
