// Counters of a session. The polling thread writes; any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace thc {

enum class Count : std::size_t {
  kHelloSent,
  kNormSent,         ///< NORM packets, with repeats
  kCodesSent,        ///< CODES packets, with repeats
  kRetransmissions,  ///< NORM and CODES packets sent again
  kBytesSent,        ///< headers and payloads of NORM and CODES
  kSendFailures,     ///< packets without room in the back end (sent again later)
  kMaxNormReceived,
  kAggregateReceived,
  kBytesReceived,       ///< headers and payloads of accepted results
  kPartialReceived,     ///< results of fewer than all workers
  kIncompleteReceived,  ///< notices that a packet arrived and other workers are missing
  kStragglerReceived,   ///< notices that a round completed without this worker
  kDuplicates,          ///< repeated results
  kStale,               ///< messages of an earlier round or epoch
  kMalformed,           ///< wrong version, type, length or job
  kForeign,             ///< datagrams from other addresses than this session's servers
  kUnauthenticated,     ///< datagrams without a valid tag
  kDamaged,             ///< datagrams with a wrong checksum
  kGivenUp,             ///< packets without a result within the loss timeout (loss-tolerant mode)
  kAbstained,           ///< CODES that do not count, with repeats: a quorum continued without this worker's norms
  kNewEpochs,           ///< epochs begun by a server with unchanged slots
  kRejoins,             ///< servers joined again after losing the job
  // The rest are no counts: the latest values of a link's congestion control (congestion/control.h).
  kWindowBytes,    ///< may be in flight to the server
  kSmoothedRttUs,  ///< round-trip time in microseconds
  kLeastRttUs,     ///< since the last probe
  kDeliveryBps,    ///< the largest rate of the last rounds, bits per second
  kEnd
};

inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::kEnd);

inline constexpr std::array<std::string_view, kCounts> kCountNames = {"hello_sent",
                                                                      "norm_sent",
                                                                      "codes_sent",
                                                                      "retransmissions",
                                                                      "bytes_sent",
                                                                      "send_failures",
                                                                      "max_norm_received",
                                                                      "aggregate_received",
                                                                      "bytes_received",
                                                                      "partial_received",
                                                                      "incomplete_received",
                                                                      "straggler_received",
                                                                      "duplicates",
                                                                      "stale",
                                                                      "malformed",
                                                                      "foreign",
                                                                      "unauthenticated",
                                                                      "damaged",
                                                                      "given_up",
                                                                      "abstained",
                                                                      "new_epochs",
                                                                      "rejoins",
                                                                      "window_bytes",
                                                                      "smoothed_rtt_us",
                                                                      "least_rtt_us",
                                                                      "delivery_bps"};

class Counters {
 public:
  /// Polling thread only: a plain load and store, no locked instruction.
  void add(Count count, std::uint64_t amount = 1) noexcept { set(count, (*this)[count] + amount); }
  void set(Count count, std::uint64_t value) noexcept { at(count).store(value, std::memory_order_relaxed); }
  std::uint64_t operator[](Count count) const noexcept {
    return values_[static_cast<std::size_t>(count)].load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t>& at(Count count) noexcept { return values_[static_cast<std::size_t>(count)]; }
  std::array<std::atomic<std::uint64_t>, kCounts> values_{};
};

}  // namespace thc
