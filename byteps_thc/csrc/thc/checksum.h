// Checksums of packets without a tag (docs/contributors/protocol.md, "Checksums"): CRC-32C in four independent lanes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/wire_layout.h"

namespace thc {

/// Offset of the checksum: the last 32 bits of the header, which a switch uses internally.
inline constexpr std::size_t kChecksumOffset = offsetof(wire::Header, switch_pass);
static_assert(kChecksumOffset + sizeof(std::uint32_t) == sizeof(wire::Header));

/// Whether the place has a checksum or zeros, and not a checksum whose flag was lost on the way.
inline bool has_checksum_or_zero(const wire::Header& header) noexcept {
  return (header.flags & wire::kFlagChecksum) != 0 ||
         (header.switch_pass == 0 && header.switch_step == 0 && header.switch_state == 0);
}

/// Checksum of a payload alone: a result for several workers is read once.
using ChecksumLanes = std::array<std::uint32_t, 4>;
ChecksumLanes checksum_lanes(std::span<const std::uint8_t> payload) noexcept;

/// Checksum of a datagram. Ignores the place of the checksum in `header`.
std::uint32_t checksum(std::span<const std::uint8_t, sizeof(wire::Header)> header, const ChecksumLanes& lanes) noexcept;

}  // namespace thc
