// Checks of every field of a worker's packet before any of them is used. nullopt: sound.
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

/// NORM and CODES: whether the datagram is as long as its own header says, which must be a multiple of
/// `codes_multiple` codes or value_bits / 32 of that in norms.
std::optional<Drop> check_contribution_length(const wire::Header& header, std::size_t datagram_bytes,
                                              std::uint16_t codes_multiple) noexcept;

/// NORM and CODES of the right length, sender and epoch, against the job. `payload`: what follows the header.
std::optional<Drop> check_contribution(const wire::Header& header, std::span<const std::uint8_t> payload,
                                       const Job& job, ShardShare share) noexcept;

std::optional<Drop> check_hello_header(const wire::Header& header, ShardShare share) noexcept;

/// GOODBYE and ALIVE.
std::optional<Drop> check_notice(const wire::Header& header, std::size_t datagram_bytes, io::Endpoint from,
                                 const Job& job) noexcept;

/// Whether the packet comes from where its worker said HELLO.
bool is_from_its_worker(const wire::Header& header, io::Endpoint from, const Job& job) noexcept;

}  // namespace thc::ps
