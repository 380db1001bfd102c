// The slot state machine of thc-ps, without sockets and clock (docs/contributors/protocol.md, "Slots").
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "thc/lookup_table.h"

namespace thc {

struct SlotPoolConfig {
  std::uint32_t slots = 0;
  std::uint32_t norm_slots = 0;        ///< slots 0 .. norm_slots - 1 take norms, the rest codes
  std::uint32_t codes_per_packet = 0;  ///< most codes of one contribution
  unsigned workers = 0;                ///< n
  unsigned quorum = 0;                 ///< contributions that complete a slot, 1 .. n
  unsigned value_bits = 0;             ///< 8 or 16
  unsigned sum_bits = 0;               ///< of the sums here; 0: value_bits. A rack's are narrower than the job's
};

/// One worker's packet for one slot.
struct Contribution {
  std::uint32_t slot = 0;
  std::uint32_t round = 0;  ///< a serial number: wraps around
  std::uint8_t worker = 0;
  bool retransmit = false;
  bool abstain = false;  ///< asks for the result, adds nothing to it, and begins no round
  std::uint16_t partition = 0;
  std::uint16_t chunk = 0;
  std::uint16_t count = 0;                ///< codes or norms in the payload
  const std::uint8_t* payload = nullptr;  ///< payload_bytes(slot, count) bytes: packed codes or big-endian fp32 norms
};

enum class SlotOutcome : std::uint8_t {
  kAbsorbed,       ///< aggregated; the slot waits for more workers
  kCompleted,      ///< aggregated, and the quorum is reached: `result` is for all workers
  kReplay,         ///< not aggregated, the slot was complete: `result` is for this worker
  kIncomplete,     ///< not aggregated, a retransmission; the slot waits for the workers missing in `bitmap`
  kDuplicate,      ///< not aggregated, no answer: a copy or an abstention before the slot is complete
  kStraggler,      ///< not aggregated, the round is over
  kOrderMismatch,  ///< not aggregated, the slot and round have another partition, chunk or count of codes
  kInvalid,        ///< not aggregated, a field is out of range
};

struct SlotReply {
  SlotOutcome outcome = SlotOutcome::kInvalid;
  std::uint8_t contributions = 0;          ///< workers in the aggregate so far
  std::uint64_t bitmap = 0;                ///< bit w: worker w is in the aggregate
  std::uint16_t count = 0;                 ///< codes or norms in `result`: of norms as many as the first worker had
  std::span<const std::uint8_t> result{};  ///< kCompleted, kReplay: the payload to send, in wire order; valid until the
                                           ///< slot's version starts over (see starts_over)
};

/// All slots of one job. Allocates in its constructor only. Not thread-safe: one thread owns it.
class SlotPool {
 public:
  /// Throws ConfigurationError when a setting is out of range or granularity * workers does not fit value_bits.
  SlotPool(const SlotPoolConfig& config, const LookupTable& table);

  /// Applies one packet, with payload_bytes(slot, count) of payload, and checks every field. Workers may have different
  /// numbers of norms: common ones, fingerprints among them, get their maximum.
  SlotReply contribute(const Contribution& contribution) noexcept;

  /// Whether a contribution to `slot` in `round` would overwrite the last result of its version.
  bool starts_over(std::uint32_t slot, std::uint32_t round) const noexcept;

  /// Fetches the state of `slot` and the aggregate of `round` into the cache.
  void prefetch(std::uint32_t slot, std::uint32_t round) const noexcept;

  /// Forgets everything, as after construction.
  void reset() noexcept;

  const SlotPoolConfig& config() const noexcept { return config_; }
  const LookupTable& table() const noexcept { return table_; }
  bool takes_norms(std::uint32_t slot) const noexcept { return slot < config_.norm_slots; }
  /// Most codes or norms of one contribution to `slot`; full results of both have the same length.
  std::uint32_t max_count(std::uint32_t slot) const noexcept;
  std::size_t payload_bytes(std::uint32_t slot, std::uint32_t count) const noexcept;
  std::size_t result_bytes(std::uint32_t slot, std::uint32_t count) const noexcept;
  /// Bytes a pool of this configuration allocates.
  static std::size_t memory_bytes(const SlotPoolConfig& config) noexcept;
  /// Slots with a round that began and is not complete.
  std::uint32_t slots_in_use() const noexcept { return slots_in_use_; }

  /// State of a slot: one cache line.
  static constexpr std::size_t kSlotBytes = 64;

 private:
  /// One use of a slot.
  struct Version {
    std::uint64_t bitmap;
    std::uint32_t round;
    std::uint16_t partition;
    std::uint16_t chunk;
    std::uint16_t count;
    std::uint8_t contributions;
    bool complete;
    bool used;  // since construction or reset
  };
  /// A round's version is picked by its lowest bit.
  struct alignas(kSlotBytes) Slot {
    Version versions[2];
  };
  static_assert(sizeof(Slot) == kSlotBytes);
  struct AlignedDelete {
    void operator()(std::uint8_t* bytes) const noexcept;
  };

  bool valid(const Contribution& contribution) const noexcept;
  std::uint8_t* result_of(std::uint32_t slot, std::uint32_t round) const noexcept;
  bool same_place(const Version& version, const Contribution& contribution) const noexcept;
  void start_over(Version& version, const Contribution& contribution) noexcept;
  void aggregate(const Version& version, const Contribution& contribution) noexcept;
  SlotReply add(Version& version, const Contribution& contribution) noexcept;
  SlotReply answer_again(const Version& version, const Contribution& contribution) const noexcept;

  SlotPoolConfig config_;
  LookupTable table_;
  std::size_t stride_bytes_;  // of one version's result
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::uint8_t[], AlignedDelete> results_;
  std::uint32_t slots_in_use_ = 0;
};

}  // namespace thc
