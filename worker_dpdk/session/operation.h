#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "session/failure.h"
#include "session/session_config.h"

namespace thc {

enum class Stage : std::uint8_t { kNorm, kCodes };

/// The caller owns the buffers and must not use them until done().
class Operation {
 public:
  /// norms[i] up, max_norms[i] down, of equal size. `compared`: number of words that must be equal, see differs().
  static std::shared_ptr<Operation> norms(std::uint16_t partition, std::span<const float> norms,
                                          std::span<float> max_norms, std::size_t per_packet, std::size_t compared = 0);

  /// `count` codes of `code_bits` up, aggregates of `value_bits` down (host byte order), and workers per chunk.
  /// code_bits * per_packet is a multiple of 8.
  static std::shared_ptr<Operation> codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count,
                                          void* aggregate, std::uint8_t* contributions, const SessionConfig& config);

  Stage stage() const noexcept { return stage_; }
  std::uint16_t partition() const noexcept { return partition_; }
  std::size_t chunks() const noexcept { return chunks_; }
  /// Elements of a packet, with padding: all packets but the last are full.
  std::size_t chunk_count(std::size_t chunk) const noexcept {
    return chunk + 1 == chunks_ ? last_chunk_count_ : per_packet_;
  }
  std::span<const std::uint8_t> chunk_payload(std::size_t chunk) const noexcept;

  /// Workers with another fingerprint in the compared words may have sent another number of norms.
  bool takes_count(std::size_t chunk, std::size_t count) const noexcept {
    return count == chunk_count(chunk) || (compared_ > 0 && count > 0);
  }
  /// `payload` holds `count` elements in network byte order. Drops padding and elements beyond the caller's.
  void store(std::size_t chunk, const std::uint8_t* payload, std::size_t count, std::uint8_t contributions) noexcept;
  void store_nothing(std::size_t chunk) noexcept;

  /// Any thread. After true, the caller may read the results and reuse the buffers.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Any thread. Other workers sent other compared words. Results contain theirs; the operation may never finish.
  bool differs() const noexcept { return differs_.load(std::memory_order_acquire); }
  /// Valid when done.
  const std::optional<Failure>& failure() const noexcept { return failure_; }

  /// Call before submitting codes: servers answer them, but do not add them.
  void abstain() noexcept { abstains_ = true; }
  bool abstains() const noexcept { return abstains_; }

  // Polling thread. Call before the last packet is sent. `multiple` divides a full packet; pads with 0.
  void pad(std::size_t multiple);
  /// Call once, when all packets have results (null) or never will, and no queued packet points into the buffers.
  void finish(const Failure* failure);

 private:
  Operation(Stage stage, std::uint16_t partition, std::size_t count, std::size_t per_packet);
  std::size_t own_count(std::size_t chunk) const noexcept;

  const Stage stage_;
  const std::uint16_t partition_;
  const std::size_t count_;
  const std::size_t per_packet_;
  const std::size_t chunks_;
  std::size_t last_chunk_count_;
  const std::uint8_t* payload_ = nullptr;
  std::size_t bits_up_ = 32;
  std::size_t bytes_down_ = 4;
  std::uint8_t* result_ = nullptr;
  std::uint8_t* contributions_ = nullptr;
  std::vector<std::uint8_t> norms_be_;
  std::size_t compared_ = 0;  ///< norms
  bool abstains_ = false;
  std::vector<std::uint8_t> padded_;  ///< payload of the last packet; empty if unpadded

  std::optional<Failure> failure_;
  std::atomic<bool> done_{false};
  std::atomic<bool> differs_{false};
};

}  // namespace thc
