// Counters that one packet thread writes and the metrics thread reads, without locks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "thc/wire_layout.h"

namespace thc::ps {

/// A number with one writer and any reader.
class Counter {
 public:
  void add(std::uint64_t amount = 1) noexcept { set(get() + amount); }  // one writer: no locked instruction needed
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  Counter& operator=(const Counter& other) noexcept {
    set(other.get());
    return *this;
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Why a packet was dropped without an effect on any slot.
enum class Drop : std::uint8_t {
  kVersion,      ///< shorter than a header, or another protocol version
  kType,         ///< no message that workers send
  kLength,       ///< length does not match the payload the header announces
  kHeader,       ///< a header field contradicts the job or must be zero
  kSlot,         ///< slot out of range, of the other stage or of another shard; round 0
  kSender,       ///< not from the address that said HELLO as this worker, or a HELLO of a process that is gone
  kRateLimited,  ///< too many HELLOs, or an ERROR was due but too many were sent to strangers
  kSign,         ///< a norm with the sign bit set
  kLater,        ///< a HELLO that will be taken when it is repeated: others still ask for results, or many jobs start
};
inline constexpr std::size_t kDrops = 9;
inline constexpr std::array<const char*, kDrops> kDropNames{"version", "message_type", "length", "header", "slot",
                                                            "sender",  "rate_limited", "sign",   "later"};

/// What happened to the packets of one job, or to those of no job, on one shard.
struct PacketCounters {
  Counter packets;
  Counter bytes;
  Counter completed;   ///< slots that reached the quorum
  Counter partial;     ///< of these, without all workers
  Counter duplicates;  ///< copies of a contribution to a slot that waits for others
  Counter replays;     ///< results sent again to one worker
  Counter stale;       ///< STRAGGLER notices
  Counter abstained;   ///< CODES of workers that lack a maximum norm: answered, not added
  Counter withheld;    ///< results that workers of a quorum were not sent because they had been silent
  Counter sent_up;     ///< partial sums and maxima of a leaf's rack to the root, repeated ones as well
  Counter passed_on;   ///< results of the root that went to workers of the rack
  std::array<Counter, kDrops> drops;
  std::array<Counter, wire::kErrorReasonNames.size()> errors;  ///< ERROR messages sent, by wire::ErrorReason

  void count(Drop reason) noexcept { drops[static_cast<std::size_t>(reason)].add(); }
  void count(wire::ErrorReason reason) noexcept { errors[static_cast<std::size_t>(reason)].add(); }
};

/// A place in the job table as the metrics thread sees it.
struct JobCounters {
  Counter job_plus_one;  ///< 0: free
  Counter workers;       ///< joined
  Counter slots;
  Counter slots_in_use;
  Counter memory_bytes;
  PacketCounters packets;
};

}  // namespace thc::ps
