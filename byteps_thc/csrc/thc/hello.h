// HELLO: a worker and its job, to bytes and back, with checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "thc/lookup_table.h"
#include "thc/wire_layout.h"

namespace thc {

/// Configuration of a job, fixed by its first HELLO.
struct JobConfig {
  std::uint8_t num_workers;
  std::uint8_t value_bits;
  std::uint8_t quorum;
  std::uint32_t settings_hash;   ///< of settings only workers use
  std::uint32_t arithmetic = 0;  ///< 24 bits of the arithmetic behind the workers' codes
  std::uint16_t codes_per_packet;
  std::uint32_t slots_asked;  ///< 0: the server decides
  LookupTable table;
};

struct Hello {
  std::uint16_t job_id;
  std::uint8_t worker_id;
  std::uint64_t nonce;
  std::uint64_t cookie;   ///< of the last CHALLENGE; 0 before the first
  std::uint64_t run = 0;  ///< which training; 0: not told
  JobConfig config;
};

/// Refusal of a HELLO, for ERROR.
struct Refusal {
  wire::ErrorReason reason;
  wire::ConfigField field = wire::ConfigField::kNone;
  std::uint64_t worker_bitmap = 0;
  std::uint32_t job_value = 0;
};

/// Payload of HELLO.
std::vector<std::uint8_t> hello_payload(const Hello& hello);

/// monostate: the length is wrong, and no answer is due.
using ParsedHello = std::variant<std::monostate, Hello, Refusal>;

/// Whether a HELLO has the fixed fields, and the table of its header's code_bits (of any size if those are invalid).
bool has_hello_length(std::span<const std::uint8_t> datagram) noexcept;

/// Checks a HELLO, but for the server's state. datagram: with a header of the right version and type.
/// max_datagram_bytes: of the largest result that reaches the sender unfragmented.
ParsedHello parse_hello(std::span<const std::uint8_t> datagram, std::size_t max_datagram_bytes) noexcept;

/// Number of `field` in `config`; nothing for the table and other fields that are no number.
std::optional<std::uint32_t> value_of(wire::ConfigField field, const JobConfig& config) noexcept;

/// The first field in which two configurations differ.
std::optional<wire::ConfigField> difference(const JobConfig& a, const JobConfig& b) noexcept;

}  // namespace thc
