#include "hello.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thc/errors.h"

namespace thc::ps {
namespace {

using wire::ConfigField;
using wire::ErrorReason;

constexpr std::size_t kFixedBytes = sizeof(wire::Header) + sizeof(wire::HelloPayload);

bool known_code_bits(unsigned bits) noexcept { return (bits >= 1 && bits <= 4) || bits == 8; }

/// The first field that is out of range on its own.
std::optional<ConfigField> bad_field(const wire::Header& header, const wire::HelloPayload& payload,
                                     std::size_t max_datagram_bytes) noexcept {
  if (header.num_workers < 1 || header.num_workers > wire::kMaxWorkers) return ConfigField::kNumWorkers;
  if (header.worker_id >= header.num_workers) return ConfigField::kWorkerId;
  if (header.value_bits != 8 && header.value_bits != 16) return ConfigField::kValueBits;
  if (payload.quorum < 1 || payload.quorum > header.num_workers) return ConfigField::kQuorum;
  if (payload.granularity < 1) return ConfigField::kGranularity;
  if (payload.slots == 1) return ConfigField::kSlots;  // one for norms and one for codes at least
  const std::size_t result_bytes = sizeof(wire::Header) + std::size_t{payload.codes_per_packet} * header.value_bits / 8;
  if (payload.codes_per_packet < wire::kMinCodesPerPacket || payload.codes_per_packet > wire::kMaxCodesPerPacket ||
      result_bytes > max_datagram_bytes) {
    return ConfigField::kCodesPerPacket;
  }
  return std::nullopt;
}

std::optional<LookupTable> read_table(std::span<const std::uint8_t> bytes, unsigned code_bits) noexcept {
  std::array<std::uint16_t, 256> values{};
  const std::size_t size = std::size_t{1} << code_bits;
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<std::uint16_t>(bytes[2 * i] << 8 | bytes[2 * i + 1]);
  try {
    return LookupTable(code_bits, std::span(values).first(size));
  } catch (const ConfigurationError&) {
    return std::nullopt;
  }
}

}  // namespace

ParsedHello parse_hello(std::span<const std::uint8_t> datagram, std::size_t max_datagram_bytes) noexcept {
  wire::Header header;
  wire::HelloPayload payload;
  if (datagram.size() < kFixedBytes) return {};
  std::memcpy(&header, datagram.data(), sizeof(header));
  std::memcpy(&payload, datagram.data() + sizeof(header), sizeof(payload));
  if (!known_code_bits(header.code_bits)) return Refusal{ErrorReason::kBadConfig, ConfigField::kCodeBits};
  if (datagram.size() != kFixedBytes + (std::size_t{2} << header.code_bits) || payload.reserved != 0) return {};
  if (const auto field = bad_field(header, payload, max_datagram_bytes)) {
    return Refusal{ErrorReason::kBadConfig, *field};
  }
  const auto table = read_table(datagram.subspan(kFixedBytes), header.code_bits);
  if (!table || table->hash() != payload.table_hash) return Refusal{ErrorReason::kBadConfig, ConfigField::kTable};
  if (table->granularity() != payload.granularity) return Refusal{ErrorReason::kBadConfig, ConfigField::kGranularity};
  const std::uint32_t largest_sum = std::uint32_t{payload.granularity} * header.num_workers;
  if (largest_sum >> header.value_bits != 0) return Refusal{ErrorReason::kOverflow, ConfigField::kGranularity};
  return Hello{.job_id = header.job_id,
               .worker_id = header.worker_id,
               .nonce = payload.nonce,
               .config = {.num_workers = header.num_workers,
                          .value_bits = header.value_bits,
                          .quorum = payload.quorum,
                          .settings_hash = payload.settings_hash,
                          .codes_per_packet = payload.codes_per_packet,
                          .slots_asked = payload.slots,
                          .table = *table}};
}

std::uint32_t value_of(wire::ConfigField field, const JobConfig& config) noexcept {
  switch (field) {
    case ConfigField::kNumWorkers:
      return config.num_workers;
    case ConfigField::kCodeBits:
      return config.table.bits();
    case ConfigField::kValueBits:
      return config.value_bits;
    case ConfigField::kGranularity:
      return config.table.granularity();
    case ConfigField::kCodesPerPacket:
      return config.codes_per_packet;
    case ConfigField::kQuorum:
      return config.quorum;
    case ConfigField::kSlots:
      return config.slots_asked;
    default:
      return 0;
  }
}

std::optional<wire::ConfigField> difference(const JobConfig& a, const JobConfig& b) noexcept {
  if (a.num_workers != b.num_workers) return ConfigField::kNumWorkers;
  if (a.table.bits() != b.table.bits()) return ConfigField::kCodeBits;
  if (a.value_bits != b.value_bits) return ConfigField::kValueBits;
  if (a.table.granularity() != b.table.granularity()) return ConfigField::kGranularity;
  if (!std::ranges::equal(a.table.values(), b.table.values())) return ConfigField::kTable;
  if (a.codes_per_packet != b.codes_per_packet) return ConfigField::kCodesPerPacket;
  if (a.quorum != b.quorum) return ConfigField::kQuorum;
  if (a.settings_hash != b.settings_hash) return ConfigField::kSettings;
  if (a.slots_asked != b.slots_asked) return ConfigField::kSlots;
  return std::nullopt;
}

}  // namespace thc::ps
