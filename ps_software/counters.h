#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "thc/wire_layout.h"

namespace thc::ps {

/// One writer, any readers, no locks.
class Counter {
 public:
  void add(std::uint64_t amount = 1) noexcept { set(get() + amount); }  // one writer, so no locked instruction
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  Counter& operator=(const Counter& other) noexcept {
    set(other.get());
    return *this;
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Reasons for dropping a packet without an effect on any slot.
enum class Drop : std::uint8_t {
  kVersion,      ///< shorter than a header, or another protocol version
  kType,         ///< not a message of workers
  kLength,       ///< the length does not match the payload that the header announces
  kHeader,       ///< a header field contradicts the job, or must be zero
  kSlot,         ///< out of range, of the other stage or of another shard; round 0
  kSender,       ///< not the address that said HELLO as this worker, or a HELLO of a dead process
  kRateLimited,  ///< too many HELLOs, or too many ERRORs to strangers
  kSign,         ///< a norm with the sign bit set
  kLater,        ///< a repeated HELLO will be taken: other workers still ask for results, or many jobs start
};
inline constexpr std::size_t kDrops = 9;
inline constexpr std::array<const char*, kDrops> kDropNames{"version", "message_type", "length", "header", "slot",
                                                            "sender",  "rate_limited", "sign",   "later"};

struct PacketCounters {
  Counter packets;
  Counter bytes;
  Counter completed;   ///< slots that reached the quorum
  Counter partial;     ///< completed slots without all workers
  Counter duplicates;  ///< copies of a contribution to an incomplete slot
  Counter replays;     ///< repeated results to one worker
  Counter stale;       ///< STRAGGLER notices
  Counter abstained;   ///< CODES of workers that lack a maximum norm: answered, not added
  Counter withheld;    ///< results not sent to silent workers of a quorum
  Counter sent_up;     ///< partial sums and maxima from a leaf to the root, with repeats
  Counter passed_on;   ///< results of the root, passed to workers of the rack
  std::array<Counter, kDrops> drops;
  std::array<Counter, wire::kErrorReasonNames.size()> errors;  ///< sent, by wire::ErrorReason

  void count(Drop reason) noexcept { drops[static_cast<std::size_t>(reason)].add(); }
  void count(wire::ErrorReason reason) noexcept { errors[static_cast<std::size_t>(reason)].add(); }
};

struct JobCounters {
  Counter job_plus_one;  ///< 0: free
  Counter workers;       ///< joined
  Counter slots;
  Counter slots_in_use;
  Counter memory_bytes;
  PacketCounters packets;
};

}  // namespace thc::ps
