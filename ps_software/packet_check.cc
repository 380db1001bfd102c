#include "packet_check.h"

#include <cstdint>

#include "thc/checksum.h"
#include "thc/lookup_sum.h"

namespace thc::ps {
namespace {

bool is_norm(const wire::Header& header) noexcept {
  return header.message_type == static_cast<std::uint8_t>(wire::MessageType::kNorm);
}

/// `flags`: the ones that a worker may set.
bool has_clean_header(const wire::Header& header, unsigned flags = 0) noexcept {
  return (header.flags & ~(flags | wire::kFlagChecksum)) == 0 && header.contributions == 0 &&
         has_checksum_or_zero(header);
}

/// Only a quorum leaves workers without a maximum norm.
unsigned flags_of_contribution(const wire::Header& header, const Job& job) noexcept {
  const bool may_abstain = !is_norm(header) && job.has_quorum();
  return wire::kFlagRetransmit | (may_abstain ? wire::kFlagAbstain : 0U);
}

bool agrees_with(const wire::Header& header, const Job& job) noexcept {
  return header.code_bits == job.config().table.bits() && header.value_bits == job.config().value_bits &&
         header.num_workers == job.config().num_workers && header.worker_id < job.config().num_workers;
}

}  // namespace

std::optional<Drop> check_contribution_length(const wire::Header& header, std::size_t datagram_bytes,
                                              std::uint16_t codes_multiple) noexcept {
  const std::size_t count = header.payload_count;
  const std::size_t payload_bytes = is_norm(header) ? 4 * count : (count * header.code_bits + 7) / 8;
  if (count == 0 || header.code_bits < 1 || header.code_bits > wire::kMaxCodeBits) return Drop::kLength;
  if (datagram_bytes != sizeof(header) + payload_bytes) return Drop::kLength;
  const std::size_t codes = is_norm(header) && header.value_bits != 0 ? count * 32 / header.value_bits : count;
  if (codes % codes_multiple != 0) return Drop::kLength;
  return std::nullopt;
}

bool is_from_its_worker(const wire::Header& header, io::Endpoint from, const Job& job) noexcept {
  return header.worker_id < job.config().num_workers && job.roster().is_registered(header.worker_id, from);
}

std::optional<Drop> check_contribution(const wire::Header& header, std::span<const std::uint8_t> payload,
                                       const Job& job, ShardShare share) noexcept {
  if (!has_clean_header(header, flags_of_contribution(header, job)) || !agrees_with(header, job)) return Drop::kHeader;
  const std::uint32_t slot = header.slot;
  if (slot >= job.slots() || !share.owns(slot) || is_norm(header) != (slot < job.norm_slots())) {
    return Drop::kSlot;
  }
  if (header.payload_count > job.pool().max_count(share.local(slot))) return Drop::kLength;
  if (is_norm(header) && has_negative_be(payload.data(), header.payload_count)) return Drop::kSign;
  return std::nullopt;
}

std::optional<Drop> check_hello_header(const wire::Header& header, ShardShare share) noexcept {
  if (!has_clean_header(header)) return Drop::kHeader;
  if (header.slot != share.shard) return Drop::kSlot;
  return std::nullopt;
}

std::optional<Drop> check_notice(const wire::Header& header, std::size_t datagram_bytes, io::Endpoint from,
                                 const Job& job) noexcept {
  if (datagram_bytes != sizeof(header)) return Drop::kLength;
  // The sender first: a stranger must not learn whether other fields are right.
  if (!is_from_its_worker(header, from, job)) return Drop::kSender;
  const bool of_this_incarnation = header.epoch == job.epoch() || job.has_renewed(header.epoch);
  if (!of_this_incarnation || !has_clean_header(header) || !agrees_with(header, job)) return Drop::kHeader;
  return std::nullopt;
}

}  // namespace thc::ps
