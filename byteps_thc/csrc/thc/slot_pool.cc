#include "thc/slot_pool.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "thc/byte_order.h"
#include "thc/errors.h"
#include "thc/lookup_sum.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

constexpr std::size_t kCacheLineBytes = 64;

std::size_t stride_bytes(const SlotPoolConfig& config) noexcept {
  const std::size_t bytes = std::size_t{config.codes_per_packet} * config.value_bits / 8;
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

/// Serial number arithmetic (RFC 1982): at full rate the 32 bits of a round wrap around within days.
bool is_later(std::uint32_t round, std::uint32_t than) noexcept { return static_cast<std::int32_t>(round - than) > 0; }

void require(bool condition, const std::string& message) {
  if (!condition) throw ConfigurationError(message);
}

SlotPoolConfig checked(SlotPoolConfig config, const LookupTable& table) {
  if (config.sum_bits == 0) config.sum_bits = config.value_bits;
  require(config.workers >= 1 && config.workers <= wire::kMaxWorkers,
          "workers must be 1 to " + std::to_string(wire::kMaxWorkers));
  require(config.quorum >= 1 && config.quorum <= config.workers, "quorum must be 1 to the number of workers");
  require(wire::is_value_bits(config.value_bits), std::string("value_bits must be ") + wire::kValueBitsText);
  require(wire::is_value_bits(config.sum_bits) && config.sum_bits <= config.value_bits,
          "sum_bits must be 8 or 16, and no more than value_bits");
  require(config.codes_per_packet >= wire::kMinCodesPerPacket && config.codes_per_packet <= wire::kMaxCodesPerPacket,
          "codes_per_packet must be " + std::to_string(wire::kMinCodesPerPacket) + " to " +
              std::to_string(wire::kMaxCodesPerPacket));
  require(config.norm_slots <= config.slots, "norm_slots must not exceed slots");
  require(table.value_bits_for(config.workers) <= config.sum_bits,
          "granularity * workers does not fit value_bits: take a smaller granularity or 16-bit values");
  return config;
}

void to_wire_order(std::uint8_t* aggregate, std::size_t count) noexcept {
  auto* sums = reinterpret_cast<std::uint16_t*>(aggregate);
  for (std::size_t i = 0; i < count; ++i) sums[i] = to_big_endian(sums[i]);
}

}  // namespace

void SlotPool::AlignedDelete::operator()(std::uint8_t* bytes) const noexcept {
  ::operator delete[](bytes, std::align_val_t{kCacheLineBytes});
}

SlotPool::SlotPool(const SlotPoolConfig& config, const LookupTable& table)
    : config_(checked(config, table)),
      table_(table),
      stride_bytes_(stride_bytes(config)),
      slots_(std::make_unique_for_overwrite<Slot[]>(config.slots)),
      results_(new (std::align_val_t{kCacheLineBytes}) std::uint8_t[2 * stride_bytes_ * config.slots]) {
  // Results stay untouched until a packet writes them: a job that nobody uses costs no pages.
  reset();
}

void SlotPool::reset() noexcept {
  std::fill_n(slots_.get(), config_.slots, Slot{});  // unused versions are written, not added to: results may stay
  slots_in_use_ = 0;
}

std::size_t SlotPool::memory_bytes(const SlotPoolConfig& config) noexcept {
  return config.slots * (sizeof(Slot) + 2 * stride_bytes(config));
}

std::uint32_t SlotPool::max_count(std::uint32_t slot) const noexcept {
  return takes_norms(slot) ? config_.codes_per_packet * config_.value_bits / 32 : config_.codes_per_packet;
}

std::size_t SlotPool::payload_bytes(std::uint32_t slot, std::uint32_t count) const noexcept {
  return takes_norms(slot) ? std::size_t{count} * 4 : (std::size_t{count} * table_.bits() + 7) / 8;
}

std::size_t SlotPool::result_bytes(std::uint32_t slot, std::uint32_t count) const noexcept {
  return takes_norms(slot) ? std::size_t{count} * 4 : std::size_t{count} * config_.sum_bits / 8;
}

std::uint8_t* SlotPool::result_of(std::uint32_t slot, std::uint32_t round) const noexcept {
  return results_.get() + (std::size_t{slot} * 2 + (round & 1)) * stride_bytes_;
}

void SlotPool::prefetch(std::uint32_t slot, std::uint32_t round) const noexcept {
  if (slot >= config_.slots) return;
  __builtin_prefetch(&slots_[slot], 1);
  // The hardware prefetcher follows once the first lines stream.
  const std::uint8_t* result = result_of(slot, round);
  for (std::size_t offset = 0; offset < std::min(stride_bytes_, 4 * kCacheLineBytes); offset += kCacheLineBytes) {
    __builtin_prefetch(result + offset, 1);
  }
}

bool SlotPool::starts_over(std::uint32_t slot, std::uint32_t round) const noexcept {
  if (slot >= config_.slots) return false;
  return std::ranges::all_of(slots_[slot].versions, [round](const Version& version) {
    return !version.used || is_later(round, version.round);
  });
}

bool SlotPool::valid(const Contribution& c) const noexcept {
  return c.slot < config_.slots && c.worker < config_.workers && c.count >= 1 && c.count <= max_count(c.slot);
}

SlotReply SlotPool::contribute(const Contribution& c) noexcept {
  if (!valid(c)) return {};
  Version& version = slots_[c.slot].versions[c.round & 1];
  if (starts_over(c.slot, c.round)) {
    if (c.abstain) return {.outcome = c.retransmit ? SlotOutcome::kIncomplete : SlotOutcome::kDuplicate};
    start_over(version, c);
    return add(version, c);
  }
  if (!version.used || c.round != version.round) return {.outcome = SlotOutcome::kStraggler};
  if (!same_place(version, c)) {
    return {.outcome = SlotOutcome::kOrderMismatch, .contributions = version.contributions, .bitmap = version.bitmap};
  }
  if (version.complete || c.abstain || (version.bitmap >> c.worker & 1) != 0) return answer_again(version, c);
  return add(version, c);
}

bool SlotPool::same_place(const Version& version, const Contribution& c) const noexcept {
  return c.partition == version.partition && c.chunk == version.chunk &&
         (c.count == version.count || takes_norms(c.slot));
}

void SlotPool::start_over(Version& version, const Contribution& c) noexcept {
  // An abandoned round (restart, loss-tolerant workers) never completes.
  const bool was_in_use = version.used && !version.complete;
  slots_in_use_ += was_in_use ? 0 : 1;
  version = {.bitmap = 0,
             .round = c.round,
             .partition = c.partition,
             .chunk = c.chunk,
             .count = c.count,
             .contributions = 0,
             .complete = false,
             .used = true};
}

SlotReply SlotPool::add(Version& version, const Contribution& c) noexcept {
  aggregate(version, c);
  version.bitmap |= std::uint64_t{1} << c.worker;
  ++version.contributions;
  if (version.contributions < config_.quorum) {
    return {.outcome = SlotOutcome::kAbsorbed, .contributions = version.contributions, .bitmap = version.bitmap};
  }
  version.complete = true;
  --slots_in_use_;
  std::uint8_t* result = result_of(c.slot, c.round);
  if (config_.sum_bits == 16 && !takes_norms(c.slot)) to_wire_order(result, version.count);
  return {.outcome = SlotOutcome::kCompleted,
          .contributions = version.contributions,
          .bitmap = version.bitmap,
          .count = version.count,
          .result = {result, result_bytes(c.slot, version.count)}};
}

SlotReply SlotPool::answer_again(const Version& version, const Contribution& c) const noexcept {
  if (!version.complete) {
    const SlotOutcome outcome = c.retransmit ? SlotOutcome::kIncomplete : SlotOutcome::kDuplicate;
    return {.outcome = outcome, .contributions = version.contributions, .bitmap = version.bitmap};
  }
  return {.outcome = SlotOutcome::kReplay,
          .contributions = version.contributions,
          .bitmap = version.bitmap,
          .count = version.count,
          .result = {result_of(c.slot, c.round), result_bytes(c.slot, version.count)}};
}

void SlotPool::aggregate(const Version& version, const Contribution& c) noexcept {
  const Accumulate mode = version.contributions == 0 ? Accumulate::kWrite : Accumulate::kAdd;
  std::uint8_t* result = result_of(c.slot, c.round);
  if (takes_norms(c.slot)) {
    max_norms_be(c.payload, std::min(c.count, version.count), mode, result);
  } else if (config_.sum_bits == 8) {
    lookup_sum(c.payload, c.count, table_, mode, result);
  } else {
    lookup_sum(c.payload, c.count, table_, mode, reinterpret_cast<std::uint16_t*>(result));
  }
}

}  // namespace thc
