#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace thc::io {

/// An IPv6 address in host byte order; IPv4 is ::ffff:a.b.c.d, as in the kernel. A link-local address has its
/// interface's number in the 32 bits before the last 64, which are zero on the wire.
struct IpAddress {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  constexpr IpAddress() noexcept = default;  ///< :: is all addresses of both families
  // NOLINTNEXTLINE(google-explicit-constructor): an IPv4 address is one
  constexpr IpAddress(std::uint32_t ipv4) noexcept : low(kIpv4 | ipv4) {}
  constexpr IpAddress(std::uint64_t high_half, std::uint64_t low_half) noexcept : high(high_half), low(low_half) {}

  constexpr bool is_ipv4() const noexcept { return high == 0 && low >> 32 == kIpv4 >> 32; }
  constexpr std::uint32_t ipv4() const noexcept { return static_cast<std::uint32_t>(low); }
  constexpr bool is_any() const noexcept { return high == 0 && (low == 0 || low == kIpv4); }  ///< :: or 0.0.0.0
  constexpr bool is_link_local() const noexcept { return high >> 54 == 0xfe80U >> 6; }
  /// The unit of limits per source: an IPv6 host owns all addresses of its /64.
  constexpr IpAddress source() const noexcept { return is_ipv4() ? *this : IpAddress(high, 0); }
  /// Whether a socket with this address can send to `other`.
  constexpr bool speaks_to(IpAddress other) const noexcept {
    return *this == IpAddress() || is_ipv4() == other.is_ipv4();
  }
  friend constexpr bool operator==(const IpAddress&, const IpAddress&) noexcept = default;

 private:
  static constexpr std::uint64_t kIpv4 = 0xffff'0000'0000;
};

struct Endpoint {
  IpAddress ip;
  std::uint16_t port = 0;
  /// The local address that this peer uses, and so the source of datagrams to it: a host may have several. ::, the
  /// kernel chooses. receive() sets it for a server on all addresses (UdpConfig). Comparison ignores it.
  IpAddress own_ip{};
  friend bool operator==(const Endpoint& a, const Endpoint& b) noexcept { return a.ip == b.ip && a.port == b.port; }
};

inline std::uint32_t hash_of(const Endpoint& endpoint) noexcept {
  const std::uint64_t ip = endpoint.ip.high ^ endpoint.ip.low;
  const std::uint32_t key = static_cast<std::uint32_t>(ip ^ ip >> 32) * 0x9e3779b1U ^ endpoint.port * 0x85ebca6bU;
  return key >> 16 ^ key;
}

/// Valid until the next receive() on the same PacketIo.
struct RxPacket {
  const std::uint8_t* data;
  std::uint32_t size_bytes;
  Endpoint from;
  bool congested = false;  ///< a full queue on the path marked it (ECN: CE)
};

struct IoCounters {
  std::uint64_t rx_packets = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t rx_malformed = 0;        ///< broken frames and fragments (DPDK), truncated datagrams (UDP)
  std::uint64_t rx_unauthenticated = 0;  ///< without a valid tag (authenticated_io.h)
  std::uint64_t rx_damaged = 0;          ///< with a wrong checksum (checked_io.h)
  std::uint64_t rx_handed_over = 0;      ///< frames passed to other threads (DPDK)
  std::uint64_t rx_handoff_full = 0;     ///< frames and ARP for other threads, dropped because the ring was full
  std::uint64_t rx_other = 0;            ///< valid frames with another protocol, address or port (DPDK)
  std::uint64_t tx_packets = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t tx_no_buffer = 0;     ///< datagrams dropped because no buffer or queue space was free
  std::uint64_t tx_errors = 0;        ///< datagrams refused by the kernel or device
  std::uint64_t tx_no_neighbour = 0;  ///< datagrams whose next hop's MAC is not known yet (DPDK)
};

inline constexpr std::size_t kIpUdpHeaderBytes = 28;    ///< IPv4 without options, and UDP
inline constexpr std::size_t kIpv6UdpHeaderBytes = 48;  ///< IPv6 without extensions, and UDP
inline constexpr std::size_t kMaxUdpPayloadBytes = 65535 - kIpUdpHeaderBytes;

/// The ECN field of an IP header's second byte (RFC 3168). All sent packets are ECN-capable: full queues mark them.
inline constexpr std::uint8_t kEcnMask = 3;
inline constexpr std::uint8_t kEcnCapable = 2;     ///< ECT(0)
inline constexpr std::uint8_t kEcnCongestion = 3;  ///< CE

template <typename T>
std::span<const std::uint8_t> bytes_of(const T& value) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof(value)};
}

/// One endpoint's packets, for one thread. Its functions do not throw, log or allocate after construction.
class PacketIo {
 public:
  virtual ~PacketIo() = default;
  PacketIo(const PacketIo&) = delete;
  PacketIo& operator=(const PacketIo&) = delete;

  /// Does not wait. Invalidates earlier packets.
  virtual std::size_t receive(std::span<RxPacket> packets) noexcept = 0;

  /// Queues a datagram. Copies `header` (at most kMaxHeaderBytes) and `trailer` (at most kMaxTrailerBytes); `payload`
  /// must stay unchanged until flush(). May flush early. Returns false, after counting, if it drops the datagram.
  virtual bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                    std::span<const std::uint8_t> trailer) noexcept = 0;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) noexcept {
    return send(to, header, payload, {});
  }

  /// Sends the queue; payloads may change afterwards.
  virtual void flush() noexcept = 0;

  /// Sleeps until a datagram arrives, wake() is called, or `timeout` ends. A polling back end may return at once.
  virtual void wait(std::chrono::microseconds timeout) noexcept = 0;
  /// From any thread.
  virtual void wake() noexcept = 0;
  virtual Endpoint local() const noexcept = 0;  ///< with the port resolved

  /// Largest header + payload that reaches `to` unfragmented.
  virtual std::size_t max_datagram_bytes(Endpoint to) const noexcept = 0;
  /// For other hosts' datagrams to `to`: if it is this host, its interface's limit, although loopback allows more.
  virtual std::size_t common_datagram_bytes(Endpoint to) const noexcept { return max_datagram_bytes(to); }
  /// Packets to this host pass no shared queue.
  virtual bool is_own_host(Endpoint /*to*/) const noexcept { return false; }
  /// Drops own_ip if the kernel picks that source anyway, which saves work per datagram. For busy peers. A route may
  /// change, so answer requests at RxPacket::from.
  virtual Endpoint simplify(Endpoint peer) const noexcept { return peer; }
  virtual std::size_t receive_buffer_bytes() const noexcept = 0;

  virtual const IoCounters& counters() const noexcept = 0;

  static constexpr std::size_t kMaxHeaderBytes = 64;
  static constexpr std::size_t kMaxTrailerBytes = 8;

 protected:
  PacketIo() = default;
};

}  // namespace thc::io
