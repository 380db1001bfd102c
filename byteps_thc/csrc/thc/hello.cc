#include "thc/hello.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thc/errors.h"

namespace thc {
namespace {

using wire::ConfigField;
using wire::ErrorReason;

constexpr std::size_t kFixedBytes = sizeof(wire::Header) + sizeof(wire::HelloPayload);

/// The first field that is out of range on its own.
std::optional<ConfigField> bad_field(const wire::Header& header, const wire::HelloPayload& payload,
                                     std::size_t max_datagram_bytes) noexcept {
  if (header.num_workers < 1 || header.num_workers > wire::kMaxWorkers) return ConfigField::kNumWorkers;
  if (header.worker_id >= header.num_workers) return ConfigField::kWorkerId;
  if (!wire::is_value_bits(header.value_bits)) return ConfigField::kValueBits;
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
  std::array<be16_t, std::size_t{1} << wire::kMaxCodeBits> values_be;
  std::array<std::uint16_t, std::size_t{1} << wire::kMaxCodeBits> values{};
  const std::size_t size = std::size_t{1} << code_bits;
  std::memcpy(values_be.data(), bytes.data(), size * sizeof(be16_t));
  std::copy_n(values_be.begin(), size, values.begin());
  try {
    return LookupTable(code_bits, std::span(values).first(size));
  } catch (const ConfigurationError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::uint8_t> hello_payload(const Hello& hello) {
  const JobConfig& config = hello.config;
  wire::HelloPayload payload{};
  payload.table_hash = config.table.hash();
  payload.nonce = hello.nonce;
  payload.cookie = hello.cookie;
  payload.run = hello.run;
  payload.granularity = config.table.granularity();
  payload.codes_per_packet = config.codes_per_packet;
  payload.slots = config.slots_asked;
  payload.quorum = config.quorum;
  payload.settings_hash = config.settings_hash;
  payload.arithmetic = config.arithmetic;
  const std::vector<be16_t> values_be(config.table.values().begin(), config.table.values().end());
  std::vector<std::uint8_t> bytes(sizeof(payload) + values_be.size() * sizeof(be16_t));
  std::memcpy(bytes.data(), &payload, sizeof(payload));
  std::memcpy(bytes.data() + sizeof(payload), values_be.data(), values_be.size() * sizeof(be16_t));
  return bytes;
}

bool has_hello_length(std::span<const std::uint8_t> datagram) noexcept {
  if (datagram.size() < kFixedBytes) return false;
  const std::uint8_t code_bits = datagram[offsetof(wire::Header, code_bits)];
  return !wire::is_code_bits(code_bits) || datagram.size() == kFixedBytes + (std::size_t{2} << code_bits);
}

ParsedHello parse_hello(std::span<const std::uint8_t> datagram, std::size_t max_datagram_bytes) noexcept {
  wire::Header header;
  wire::HelloPayload payload;
  if (!has_hello_length(datagram)) return {};
  std::memcpy(&header, datagram.data(), sizeof(header));
  std::memcpy(&payload, datagram.data() + sizeof(header), sizeof(payload));
  if (!wire::is_code_bits(header.code_bits)) return Refusal{ErrorReason::kBadConfig, ConfigField::kCodeBits};
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
               .cookie = payload.cookie,
               .run = payload.run,
               .config = {.num_workers = header.num_workers,
                          .value_bits = header.value_bits,
                          .quorum = payload.quorum,
                          .settings_hash = payload.settings_hash,
                          .arithmetic = payload.arithmetic,
                          .codes_per_packet = payload.codes_per_packet,
                          .slots_asked = payload.slots,
                          .table = *table}};
}

std::optional<std::uint32_t> value_of(wire::ConfigField field, const JobConfig& config) noexcept {
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
    case ConfigField::kArithmetic:
      return config.arithmetic;
    default:
      return std::nullopt;
  }
}

std::optional<wire::ConfigField> difference(const JobConfig& a, const JobConfig& b) noexcept {
  if (a.num_workers != b.num_workers) return ConfigField::kNumWorkers;
  if (a.arithmetic != b.arithmetic) return ConfigField::kArithmetic;  // another version may choose another table, too
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

}  // namespace thc
