#include "io/checked_io.h"

#include <array>
#include <cstring>

#include "thc/byte_order.h"
#include "thc/wire_layout.h"

namespace thc::io {
namespace {

constexpr std::size_t kHeaderBytes = sizeof(wire::Header);
constexpr std::size_t kType = offsetof(wire::Header, message_type);
constexpr std::size_t kFlags = offsetof(wire::Header, flags);

/// CHALLENGE has the flag but no checksum: a leaf may be a switch, which drops packets whose last bits are not 0.
bool tells_of_checksums(const std::uint8_t* header) noexcept {
  return header[kType] == static_cast<std::uint8_t>(wire::MessageType::kChallenge);
}

bool has_checksum(const std::uint8_t* header) noexcept {
  return (header[kFlags] & wire::kFlagChecksum) != 0 && !tells_of_checksums(header);
}

be32_t checksum_of(const std::uint8_t* header, const ChecksumLanes& lanes) noexcept {
  return checksum(std::span<const std::uint8_t, kHeaderBytes>(header, kHeaderBytes), lanes);
}

bool is_sound(const RxPacket& packet) noexcept {
  if (packet.size_bytes < kHeaderBytes || !has_checksum(packet.data)) return true;
  const be32_t sum =
      checksum_of(packet.data, checksum_lanes({packet.data + kHeaderBytes, packet.data + packet.size_bytes}));
  return std::memcmp(&sum, packet.data + kChecksumOffset, sizeof sum) == 0;
}

}  // namespace

std::size_t CheckedIo::receive(std::span<RxPacket> packets) noexcept { return receive_if(packets, is_sound); }

bool CheckedIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                     std::span<const std::uint8_t> trailer) noexcept {
  const bool has_size = header.size() >= kHeaderBytes && header.size() <= kMaxHeaderBytes;  // inner() refuses others
  if (!has_size || !(tells_of_checksums(header.data()) || has_checksum(header.data()))) {
    return inner().send(to, header, payload, trailer);
  }
  std::array<std::uint8_t, kMaxHeaderBytes> copy;
  std::memcpy(copy.data(), header.data(), header.size());
  copy[kFlags] |= wire::kFlagChecksum;
  if (tells_of_checksums(header.data()))
    return inner().send(to, std::span(copy).first(header.size()), payload, trailer);
  const be32_t sum =
      checksum_of(copy.data(), payload.empty() ? checksum_lanes(header.subspan(kHeaderBytes)) : read_once(payload));
  std::memcpy(copy.data() + kChecksumOffset, &sum, sizeof sum);
  return inner().send(to, std::span(copy).first(header.size()), payload, trailer);
}

const ChecksumLanes& CheckedIo::read_once(std::span<const std::uint8_t> payload) noexcept {
  const bool known = last_sent_.payload.data() == payload.data() && last_sent_.payload.size() == payload.size();
  if (!known) last_sent_ = {payload, checksum_lanes(payload)};
  return last_sent_.lanes;
}

void CheckedIo::flush() noexcept {
  last_sent_ = {};  // payloads may change now
  inner().flush();
}

const IoCounters& CheckedIo::counters() const noexcept { return counters_ = counters_without(&IoCounters::rx_damaged); }

}  // namespace thc::io
