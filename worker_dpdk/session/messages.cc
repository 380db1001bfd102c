#include "session/messages.h"

#include <cstring>

#include "thc/checksum.h"

namespace thc {
namespace {

/// Returns nullopt for a type that no server sends.
std::optional<std::size_t> announced_bytes(const wire::Header& header, const SessionConfig& config) noexcept {
  const std::size_t count = header.payload_count;
  switch (static_cast<wire::MessageType>(std::uint8_t{header.message_type})) {
    case wire::MessageType::kWelcome:
      return sizeof(wire::WelcomePayload);
    case wire::MessageType::kMaxNorm:
      return count * sizeof(float);
    case wire::MessageType::kAggregate:
      return count * config.value_bits / 8;
    case wire::MessageType::kStraggler:
    case wire::MessageType::kProbe:
      return 0;
    case wire::MessageType::kChallenge:
      return sizeof(wire::ChallengePayload);
    case wire::MessageType::kError:
      return sizeof(wire::ErrorPayload);
    default:
      return std::nullopt;
  }
}

bool agrees(const wire::Header& header, const SessionConfig& config) noexcept {
  return header.version == wire::kVersion && header.job_id == config.job_id && header.worker_id == config.worker_id &&
         header.num_workers == config.num_workers && header.code_bits == config.table.bits() &&
         header.value_bits == config.value_bits && has_checksum_or_zero(header);
}

}  // namespace

std::optional<ServerMessage> parse_server_message(std::span<const std::uint8_t> datagram,
                                                  const SessionConfig& config) noexcept {
  ServerMessage message;
  if (datagram.size() < sizeof(message.header)) {
    return std::nullopt;
  }
  std::memcpy(&message.header, datagram.data(), sizeof(message.header));
  const wire::Header& header = message.header;
  if (!agrees(header, config)) {
    return std::nullopt;
  }
  message.payload = datagram.subspan(sizeof(message.header));
  if (announced_bytes(header, config) != message.payload.size()) {
    return std::nullopt;
  }
  message.type = static_cast<wire::MessageType>(std::uint8_t{header.message_type});
  message.congested = (header.flags & wire::kFlagCongested) != 0;
  return message;
}

wire::Header make_header(wire::MessageType type, const SessionConfig& config) noexcept {
  wire::Header header{};
  header.version = wire::kVersion;
  header.message_type = static_cast<std::uint8_t>(type);
  header.code_bits = static_cast<std::uint8_t>(config.table.bits());
  header.value_bits = static_cast<std::uint8_t>(config.value_bits);
  header.worker_id = config.worker_id;
  header.num_workers = config.num_workers;
  header.job_id = config.job_id;
  return header;
}

JobConfig job_config(const SessionConfig& config) {
  return {.num_workers = config.num_workers,
          .value_bits = static_cast<std::uint8_t>(config.value_bits),
          .quorum = config.quorum,
          .settings_hash = config.settings_hash,
          .arithmetic = config.arithmetic,
          .codes_per_packet = static_cast<std::uint16_t>(config.codes_per_packet),
          .slots_asked = 0,  // the server decides
          .table = config.table};
}

Hello hello_of(const SessionConfig& config, std::uint64_t nonce) {
  return {.job_id = config.job_id,
          .worker_id = config.worker_id,
          .nonce = nonce,
          .cookie = 0,
          .run = config.run,
          .config = job_config(config)};
}

}  // namespace thc
