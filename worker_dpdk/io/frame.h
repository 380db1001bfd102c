// Ethernet / IPv4 / UDP frames: layout, building and strict parsing. Knows nothing of DPDK, so any build can test it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "io/address.h"
#include "io/packet_io.h"
#include "thc/byte_order.h"

namespace thc::io {

struct EthernetHeader {
  MacAddress destination;
  MacAddress source;
  be16_t type;
};
static_assert(sizeof(EthernetHeader) == 14 && alignof(EthernetHeader) == 1);
static_assert(offsetof(EthernetHeader, source) == 6 && offsetof(EthernetHeader, type) == 12);

struct Ipv4Header {
  be8_t version_and_length;  ///< 4 bits version, 4 bits header length in 32-bit words
  be8_t type_of_service;
  be16_t total_bytes;
  be16_t identification;
  be16_t flags_and_fragment;
  be8_t time_to_live;
  be8_t protocol;
  be16_t checksum;
  be32_t source;
  be32_t destination;
};
static_assert(sizeof(Ipv4Header) == 20 && alignof(Ipv4Header) == 1);
static_assert(offsetof(Ipv4Header, protocol) == 9 && offsetof(Ipv4Header, destination) == 16);

struct UdpHeader {
  be16_t source_port;
  be16_t destination_port;
  be16_t length_bytes;  ///< header and payload
  be16_t checksum;      ///< 0: none
};
static_assert(sizeof(UdpHeader) == 8 && alignof(UdpHeader) == 1);

/// ARP for IPv4 over Ethernet.
struct ArpPacket {
  be16_t hardware_type;
  be16_t protocol_type;
  be8_t hardware_bytes;
  be8_t protocol_bytes;
  be16_t operation;
  MacAddress sender_mac;
  be32_t sender_ip;
  MacAddress target_mac;
  be32_t target_ip;
};
static_assert(sizeof(ArpPacket) == 28 && alignof(ArpPacket) == 1);
static_assert(offsetof(ArpPacket, sender_ip) == 14 && offsetof(ArpPacket, target_ip) == 24);

/// Start of the frames we send: no IP options.
struct UdpFrameHeader {
  EthernetHeader ethernet;
  Ipv4Header ip;
  UdpHeader udp;
};
static_assert(sizeof(UdpFrameHeader) == 42 && std::is_trivially_copyable_v<UdpFrameHeader>);

struct ArpFrame {
  EthernetHeader ethernet;
  ArpPacket arp;
};
static_assert(sizeof(ArpFrame) == 42 && std::is_trivially_copyable_v<ArpFrame>);

inline constexpr MacAddress kBroadcastMac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint8_t kProtocolUdp = 17;
inline constexpr std::uint16_t kArpRequest = 1;
inline constexpr std::uint16_t kArpReply = 2;
static_assert(sizeof(Ipv4Header) + sizeof(UdpHeader) == kIpUdpHeaderBytes);

enum class FrameKind : std::uint8_t {
  kDatagram,   ///< UDP for us
  kSibling,    ///< UDP for another thread's port
  kArp,        ///< ARP, not looked into yet
  kOther,      ///< sound but not for us, or not UDP
  kMalformed,  ///< lengths or checksums are wrong, or a fragment
};

/// What a receiver accepts. Checksums the device has checked need no second look.
struct FrameFilter {
  MacAddress mac;
  Endpoint local;
  bool check_ip_checksum = true;
  bool check_udp_checksum = true;
  /// Ports of the threads that share the device: `threads` from `first_port`. 0: there are no others.
  std::uint16_t first_port = 0;
  std::uint16_t threads = 0;
};

/// `payload`, `from` and `from_mac` are set for kDatagram only; `payload` points into the frame.
struct ParsedFrame {
  FrameKind kind;
  std::span<const std::uint8_t> payload;
  Endpoint from;
  MacAddress from_mac;
  bool congested = false;    ///< marked by a full queue on the way, of kDatagram
  std::uint16_t thread = 0;  ///< whose frame it is, of kSibling
};

ParsedFrame parse_frame(std::span<const std::uint8_t> frame, const FrameFilter& filter) noexcept;

/// The ARP packet of a kArp frame; nothing unless it is complete and about IPv4 over Ethernet.
std::optional<ArpPacket> parse_arp(std::span<const std::uint8_t> frame) noexcept;

/// Everything of a UDP frame that does not depend on the datagram.
UdpFrameHeader make_frame_template(const MacAddress& from_mac, Endpoint from, const MacAddress& to_mac,
                                   std::uint32_t to_ip) noexcept;

/// Fills in the port and lengths for `datagram_bytes` of payload, and the IPv4 checksum. UDP checksum is left at 0.
void complete_frame(UdpFrameHeader& frame, std::uint16_t to_port, std::size_t datagram_bytes) noexcept;

/// UDP checksum over pseudo-header, `udp` (checksum field as it is: 0 when computing) and `payload`, ready to store.
/// 0 for a datagram whose stored checksum is right.
std::uint16_t udp_checksum(const Ipv4Header& ip, std::span<const std::uint8_t> udp_and_payload) noexcept;

/// Checksum of the pseudo-header alone, not complemented, as devices that complete the checksum want it.
std::uint16_t pseudo_header_sum(const Ipv4Header& ip, std::size_t udp_bytes) noexcept;

ArpFrame make_arp(std::uint16_t operation, const MacAddress& from_mac, std::uint32_t from_ip, const MacAddress& to_mac,
                  std::uint32_t to_ip) noexcept;

}  // namespace thc::io
