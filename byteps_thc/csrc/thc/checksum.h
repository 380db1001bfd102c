// Checksums of packets without a tag (docs/contributors/protocol.md, "Checksums"): CRC-32C by the processor's
// instruction, in four lanes, of which each takes every fourth word of 8 bytes, so that none waits for another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/wire_layout.h"

namespace thc {

/// Where the checksum travels: the last 32 bits of the header, which are a switch's inside a switch.
inline constexpr std::size_t kChecksumOffset = offsetof(wire::Header, switch_pass);
static_assert(kChecksumOffset + sizeof(std::uint32_t) == sizeof(wire::Header));

/// Whether something else is in that place: of a packet whose flag was lost on the way, for example.
inline bool has_checksum_or_zero(const wire::Header& header) noexcept {
  return (header.flags & wire::kFlagChecksum) != 0 ||
         (header.switch_pass == 0 && header.switch_step == 0 && header.switch_state == 0);
}

/// Of a payload alone: a result for several workers is read once.
using ChecksumLanes = std::array<std::uint32_t, 4>;
ChecksumLanes checksum_lanes(std::span<const std::uint8_t> payload) noexcept;

/// Of a datagram. What `header` has in place of the checksum does not matter.
std::uint32_t checksum(std::span<const std::uint8_t, sizeof(wire::Header)> header, const ChecksumLanes& lanes) noexcept;

}  // namespace thc
