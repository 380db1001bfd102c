// Checks every field of a worker's packet before its use. Functions return nullopt for valid packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "counters.h"
#include "io/packet_io.h"
#include "job.h"
#include "thc/wire_layout.h"

namespace thc::ps {

/// NORM and CODES. The payload must be a multiple of `codes_multiple` codes, or of value_bits / 32 as many norms.
std::optional<Drop> check_contribution_length(const wire::Header& header, std::size_t datagram_bytes,
                                              std::uint16_t codes_multiple) noexcept;

/// NORM and CODES of the right length, sender and epoch.
std::optional<Drop> check_contribution(const wire::Header& header, std::span<const std::uint8_t> payload,
                                       const Job& job, ShardShare share) noexcept;

std::optional<Drop> check_hello_header(const wire::Header& header, ShardShare share) noexcept;

/// GOODBYE and ALIVE.
std::optional<Drop> check_notice(const wire::Header& header, std::size_t datagram_bytes, io::Endpoint from,
                                 const Job& job) noexcept;

bool is_from_its_worker(const wire::Header& header, io::Endpoint from, const Job& job) noexcept;

}  // namespace thc::ps
