#pragma once

#include "session/congestion/path.h"

namespace thc::congestion {

enum class Phase : std::uint8_t {
  kStartup,   ///< the window doubles
  kSteady,    ///< the window grows by parts
  kDrain,     ///< almost nothing is in flight: queues become empty
  kProbeRtt,  ///< likewise, to measure the path
};

/// A result proves that all packets sent before its own have left the network: they arrived, and perhaps wait for other
/// workers, or are lost. The *pipe*, the bytes that may be in a queue, is everything sent since. The window bounds the
/// pipe. Times until results contain the wait for the slowest worker and never shrink the window.
class Window {
 public:
  /// Call once, before sending. `packet_bytes`: a full packet. `most_bytes`: upper limit of the window.
  void open(std::size_t packet_bytes, std::size_t most_bytes, const Way& way) noexcept;

  std::size_t window_bytes() const noexcept;
  std::size_t pipe_bytes() const noexcept { return static_cast<std::size_t>(sent_bytes_ - answered_bytes_); }
  bool fits(std::size_t bytes) const noexcept { return pipe_bytes() == 0 || pipe_bytes() + bytes <= window_bytes(); }
  Phase phase() const noexcept { return phase_; }
  const Path& path() const noexcept { return path_; }

  /// The transmission was answered by a result of `bytes`, or by a notice (0).
  void on_answered(std::uint64_t mark, std::size_t bytes, TimePoint now) noexcept;
  /// Round trip of a packet that was sent once. `networks_alone`: without waiting for other workers.
  void on_round_trip(Duration round_trip, bool networks_alone) noexcept;
  void on_lost(std::uint64_t mark, std::size_t bytes) noexcept;
  /// A packet, or its result, passed a queue that marks (ECN).
  void on_marked() noexcept { ++round_.marks; }
  /// A whole timeout passed without an answer, once more.
  void on_timeout() noexcept;
  void forget_pipe() noexcept { answered_bytes_ = sent_bytes_; }

 protected:
  struct Losses {
    std::uint64_t answered_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint32_t count = 0;
    bool exceed(double share) const noexcept {
      return static_cast<double>(bytes) > share * static_cast<double>(answered_bytes);
    }
  };

  std::size_t packet_bytes() const noexcept { return packet_bytes_; }
  const Losses& recent_losses() const noexcept { return recent_; }
  void on_full() noexcept { round_.window_used = true; }
  std::uint64_t add_sent(std::size_t bytes, TimePoint now) noexcept;

 private:
  bool is_probing() const noexcept { return phase_ == Phase::kDrain || phase_ == Phase::kProbeRtt; }
  void begin_round(TimePoint now) noexcept { round_ = {.end_mark = sent_bytes_ + 1, .began_at = now}; }
  void end_round(TimePoint now) noexcept;
  bool may_grow(Queue queue) const noexcept;
  void probe(bool waits, TimePoint now) noexcept;
  /// `waits`: results are late, because of the network or of other workers.
  void grow(double rate, bool waits) noexcept;
  void shrink(double factor) noexcept;
  void set_window(double bytes) noexcept;

  Path path_;
  Round round_;
  std::size_t packet_bytes_ = 0;
  std::size_t fewest_bytes_ = 0;
  std::size_t most_bytes_ = 0;
  std::size_t window_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;      ///< all transmissions
  std::uint64_t answered_bytes_ = 0;  ///< up to the latest answered transmission
  std::uint64_t shrunk_mark_ = 0;     ///< bytes sent before the last shrinking
  Losses counted_;                    ///< since then, at least a hundred packets: random loss comes in clusters
  Losses recent_;                     ///< the last thousands of packets
  bool round_loses_ = false;
  Phase phase_ = Phase::kStartup;
  Phase phase_after_probe_ = Phase::kStartup;
  double best_rate_ = 0;  ///< of rounds that doubled the window
  unsigned flat_rounds_ = 0;
  unsigned queueing_rounds_ = 0;  ///< in a row
  unsigned timeouts_ = 0;         ///< since the last answer
};

}  // namespace thc::congestion
