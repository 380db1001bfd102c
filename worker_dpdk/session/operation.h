// One stage of one partition: buffers of the caller, cut into packets.
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

/// Preliminary stage (norms) or main stage (codes).
enum class Stage : std::uint8_t { kNorm, kCodes };

/// The buffers belong to the caller, who leaves them alone until done().
class Operation {
 public:
  /// norms[i] up, max_norms[i] down; sizes are equal. `per_packet` norms fit a packet.
  /// The first `compared` of them must be the same on all workers, see differs().
  static std::shared_ptr<Operation> norms(std::uint16_t partition, std::span<const float> norms,
                                          std::span<float> max_norms, std::size_t per_packet, std::size_t compared = 0);

  /// `count` codes of `code_bits` up, aggregates of `value_bits` down (host byte order), contributions[chunk] workers
  /// in them. code_bits * per_packet is a multiple of 8.
  static std::shared_ptr<Operation> codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count,
                                          void* aggregate, std::uint8_t* contributions, const SessionConfig& config);

  Stage stage() const noexcept { return stage_; }
  std::uint16_t partition() const noexcept { return partition_; }
  std::size_t chunks() const noexcept { return chunks_; }
  /// Elements of one packet, padding included: all are full but the last.
  std::size_t chunk_count(std::size_t chunk) const noexcept {
    return chunk + 1 == chunks_ ? last_chunk_count_ : per_packet_;
  }
  std::span<const std::uint8_t> chunk_payload(std::size_t chunk) const noexcept;

  /// Whether a result of `count` elements can be that of a chunk: as many as were sent. What is compared may be a
  /// fingerprint, and then other workers, with another one, may have sent more or fewer norms.
  bool takes_count(std::size_t chunk, std::size_t count) const noexcept {
    return count == chunk_count(chunk) || (compared_ > 0 && count > 0);
  }
  /// Stores the result of a chunk; `payload` holds `count` elements in network byte order, and those of the padding, or
  /// that nobody has asked for, are dropped.
  void store(std::size_t chunk, const std::uint8_t* payload, std::size_t count, std::uint8_t contributions) noexcept;
  /// Gives a chunk up: zeros.
  void store_nothing(std::size_t chunk) noexcept;

  /// Any thread. After true, the results may be read and the buffers reused.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// Any thread. Whether other workers have sent something else in the words that are compared: they have their
  /// results, and the rest of the operation may never be done.
  bool differs() const noexcept { return differs_.load(std::memory_order_acquire); }
  /// Valid when done: why there is no result.
  const std::optional<Failure>& failure() const noexcept { return failure_; }

  /// Before it is submitted, of codes: they are answered, but not added.
  void abstain() noexcept { abstains_ = true; }
  bool abstains() const noexcept { return abstains_; }

  // Polling thread.
  /// Before the last packet is sent: it grows to a multiple of `multiple` elements,
  /// which divides a full packet, by codes or norms 0.
  void pad(std::size_t multiple);
  /// Once: all packets have results, or `failure` says why not (null: they have), and none that is queued still points
  /// into the buffers. The operation is done then.
  void finish(const Failure* failure);

 private:
  Operation(Stage stage, std::uint16_t partition, std::size_t count, std::size_t per_packet);
  /// Elements of the caller in a packet.
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
  std::vector<std::uint8_t> padded_;  ///< payload of the last packet; empty when nothing was added to it

  std::optional<Failure> failure_;
  std::atomic<bool> done_{false};
  std::atomic<bool> differs_{false};
};

}  // namespace thc
