// Has no DPDK dependency, so any build can test it.
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
  kDatagram,   ///< UDP for this thread
  kSibling,    ///< UDP for another thread's port
  kArp,        ///< ARP, not parsed yet
  kOther,      ///< valid, but not UDP or not for this host
  kMalformed,  ///< wrong length or checksum, or a fragment
};

struct FrameFilter {
  MacAddress mac;
  Endpoint local;
  bool check_ip_checksum = true;
  bool check_udp_checksum = true;
  /// Ports `first_port` and up belong to the `threads` threads of the device. 0: one thread.
  std::uint16_t first_port = 0;
  std::uint16_t threads = 0;
};

/// `payload`, `from` and `from_mac` are set for kDatagram alone; `payload` points into the frame.
struct ParsedFrame {
  FrameKind kind;
  std::span<const std::uint8_t> payload;
  Endpoint from;
  MacAddress from_mac;
  bool congested = false;    ///< kDatagram: a full queue on the path marked it
  std::uint16_t thread = 0;  ///< kSibling: the owner
};

ParsedFrame parse_frame(std::span<const std::uint8_t> frame, const FrameFilter& filter) noexcept;

/// Parses a kArp frame. Returns nullopt if it is incomplete or not IPv4 over Ethernet.
std::optional<ArpPacket> parse_arp(std::span<const std::uint8_t> frame) noexcept;

UdpFrameHeader make_frame_template(const MacAddress& from_mac, Endpoint from, const MacAddress& to_mac,
                                   std::uint32_t to_ip) noexcept;

/// Sets port, lengths and IPv4 checksum for `datagram_bytes` of payload. The UDP checksum stays 0.
void complete_frame(UdpFrameHeader& frame, std::uint16_t to_port, std::size_t datagram_bytes) noexcept;

/// Over pseudo-header and `udp_and_payload`, ready to store. A right checksum in the UDP header gives 0; set the field
/// to 0 to compute one.
std::uint16_t udp_checksum(const Ipv4Header& ip, std::span<const std::uint8_t> udp_and_payload) noexcept;

/// Not complemented, as checksum offload requires.
std::uint16_t pseudo_header_sum(const Ipv4Header& ip, std::size_t udp_bytes) noexcept;

ArpFrame make_arp(std::uint16_t operation, const MacAddress& from_mac, std::uint32_t from_ip, const MacAddress& to_mac,
                  std::uint32_t to_ip) noexcept;

}  // namespace thc::io
