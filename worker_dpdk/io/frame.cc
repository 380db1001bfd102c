#include "io/frame.h"

#include <cstring>

namespace thc::io {
namespace {

constexpr std::uint16_t kMoreFragments = 0x2000;
constexpr std::uint16_t kFragmentOffset = 0x1fff;
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kArpEthernet = 1;

template <typename T>
T load(std::span<const std::uint8_t> bytes, std::size_t offset) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::uint16_t fold(std::uint64_t sum) noexcept {
  while (sum >> 16 != 0) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(sum);
}

/// Adds big-endian 16-bit words; zero pads an odd last byte; the caller folds. Adding words in memory order and
/// swapping at the end has the same result (RFC 1071) and vectorizes.
std::uint64_t word_sum(std::span<const std::uint8_t> bytes) noexcept {
  std::uint64_t sum = 0;
  std::size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4) {
    std::uint32_t words;
    std::memcpy(&words, bytes.data() + i, sizeof words);
    sum += words;
  }
  if (i < bytes.size()) {
    std::uint32_t words = 0;
    std::memcpy(&words, bytes.data() + i, bytes.size() - i);
    sum += words;
  }
  return to_big_endian(fold(sum));
}

std::uint16_t ip_checksum(std::span<const std::uint8_t> header) noexcept {
  return static_cast<std::uint16_t>(~fold(word_sum(header)));
}

constexpr ParsedFrame kMalformedFrame{FrameKind::kMalformed, {}, {}, {}};
constexpr ParsedFrame kOtherFrame{FrameKind::kOther, {}, {}, {}};

ParsedFrame parse_udp(std::span<const std::uint8_t> datagram, const Ipv4Header& ip,
                      const FrameFilter& filter) noexcept {
  if (datagram.size() <= sizeof(UdpHeader)) {
    return kMalformedFrame;
  }
  const auto udp = load<UdpHeader>(datagram, 0);
  if (udp.length_bytes != datagram.size() || udp.source_port == 0) {  // port 0 cannot receive an answer
    return kMalformedFrame;
  }
  if (udp.destination_port != filter.local.port) {  // the other thread verifies the checksum
    const int thread = udp.destination_port - filter.first_port;
    return thread >= 0 && thread < filter.threads
               ? ParsedFrame{FrameKind::kSibling, {}, {}, {}, false, static_cast<std::uint16_t>(thread)}
               : kOtherFrame;
  }
  if (filter.check_udp_checksum && udp.checksum != 0 && udp_checksum(ip, datagram) != 0) {
    return kMalformedFrame;
  }
  const bool congested = (ip.type_of_service & kEcnMask) == kEcnCongestion;
  return {FrameKind::kDatagram,
          datagram.subspan(sizeof(UdpHeader)),
          {std::uint32_t{ip.source}, udp.source_port},
          {},
          congested};
}

ParsedFrame parse_ipv4(std::span<const std::uint8_t> packet, const FrameFilter& filter) noexcept {
  if (packet.size() < sizeof(Ipv4Header)) {
    return kMalformedFrame;
  }
  const auto ip = load<Ipv4Header>(packet, 0);
  const std::size_t header_bytes = 4U * (ip.version_and_length & 0xfU);
  const std::size_t total_bytes = ip.total_bytes;
  if (ip.version_and_length >> 4 != 4 || header_bytes < sizeof(Ipv4Header) || total_bytes < header_bytes ||
      total_bytes > packet.size()) {
    return kMalformedFrame;
  }
  if (filter.check_ip_checksum && ip_checksum(packet.first(header_bytes)) != 0) {
    return kMalformedFrame;
  }
  if (ip.destination != filter.local.ip.ipv4() || ip.protocol != kProtocolUdp) {
    return kOtherFrame;
  }
  if ((ip.flags_and_fragment & (kMoreFragments | kFragmentOffset)) != 0) {
    return kMalformedFrame;
  }
  return parse_udp(packet.subspan(header_bytes, total_bytes - header_bytes), ip, filter);
}

}  // namespace

ParsedFrame parse_frame(std::span<const std::uint8_t> frame, const FrameFilter& filter) noexcept {
  if (frame.size() < sizeof(EthernetHeader)) {
    return kMalformedFrame;
  }
  const auto ethernet = load<EthernetHeader>(frame, 0);
  if (ethernet.destination != filter.mac && ethernet.destination != kBroadcastMac) {
    return kOtherFrame;
  }
  if (ethernet.type == kEtherTypeArp) {
    return {FrameKind::kArp, {}, {}, {}};
  }
  if (ethernet.type != kEtherTypeIpv4) {
    return kOtherFrame;
  }
  ParsedFrame parsed = parse_ipv4(frame.subspan(sizeof(EthernetHeader)), filter);
  parsed.from_mac = ethernet.source;
  return parsed;
}

std::optional<ArpPacket> parse_arp(std::span<const std::uint8_t> frame) noexcept {
  if (frame.size() < sizeof(ArpFrame)) {
    return std::nullopt;
  }
  const auto arp = load<ArpPacket>(frame, sizeof(EthernetHeader));
  const bool known = arp.hardware_type == kArpEthernet && arp.protocol_type == kEtherTypeIpv4 &&
                     arp.hardware_bytes == sizeof(MacAddress) && arp.protocol_bytes == sizeof(std::uint32_t);
  return known ? std::optional(arp) : std::nullopt;
}

UdpFrameHeader make_frame_template(const MacAddress& from_mac, Endpoint from, const MacAddress& to_mac,
                                   std::uint32_t to_ip) noexcept {
  UdpFrameHeader frame{};
  frame.ethernet = {to_mac, from_mac, kEtherTypeIpv4};
  frame.ip.version_and_length = 0x45;
  frame.ip.type_of_service = kEcnCapable;
  frame.ip.flags_and_fragment = kDontFragment;  // permits identification 0 (RFC 6864)
  frame.ip.time_to_live = 64;
  frame.ip.protocol = kProtocolUdp;
  frame.ip.source = from.ip.ipv4();
  frame.ip.destination = to_ip;
  frame.udp.source_port = from.port;
  return frame;
}

void complete_frame(UdpFrameHeader& frame, std::uint16_t to_port, std::size_t datagram_bytes) noexcept {
  frame.ip.total_bytes = static_cast<std::uint16_t>(kIpUdpHeaderBytes + datagram_bytes);
  frame.ip.checksum = 0;
  frame.ip.checksum = ip_checksum(bytes_of(frame.ip));
  frame.udp.destination_port = to_port;
  frame.udp.length_bytes = static_cast<std::uint16_t>(sizeof(UdpHeader) + datagram_bytes);
  frame.udp.checksum = 0;
}

std::uint16_t pseudo_header_sum(const Ipv4Header& ip, std::size_t udp_bytes) noexcept {
  const std::uint32_t source = ip.source;
  const std::uint32_t destination = ip.destination;
  return fold((source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff) + kProtocolUdp +
              udp_bytes);
}

std::uint16_t udp_checksum(const Ipv4Header& ip, std::span<const std::uint8_t> udp_and_payload) noexcept {
  const std::uint16_t sum =
      fold(pseudo_header_sum(ip, udp_and_payload.size()) + std::uint64_t{fold(word_sum(udp_and_payload))});
  return static_cast<std::uint16_t>(~sum);
}

ArpFrame make_arp(std::uint16_t operation, const MacAddress& from_mac, std::uint32_t from_ip, const MacAddress& to_mac,
                  std::uint32_t to_ip) noexcept {
  ArpFrame frame{};
  frame.ethernet = {to_mac, from_mac, kEtherTypeArp};
  frame.arp.hardware_type = kArpEthernet;
  frame.arp.protocol_type = kEtherTypeIpv4;
  frame.arp.hardware_bytes = sizeof(MacAddress);
  frame.arp.protocol_bytes = sizeof(std::uint32_t);
  frame.arp.operation = operation;
  frame.arp.sender_mac = from_mac;
  frame.arp.sender_ip = from_ip;
  frame.arp.target_mac = operation == kArpRequest ? MacAddress{} : to_mac;
  frame.arp.target_ip = to_ip;
  return frame;
}

}  // namespace thc::io
