#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "session/recent_max.h"
#include "session/session_config.h"

namespace thc {

/// Congestion control of a link (docs/contributors/protocol.md, "Congestion"). A result proves that all packets sent
/// before its own have left the network: they arrived, and perhaps wait for other workers, or are lost. The *pipe*, the
/// bytes that may be in a queue, is everything sent since. The window bounds the pipe. Times until results contain the
/// wait for the slowest worker and never shrink the window.
class CongestionControl {
 public:
  struct Way {
    bool server_tells_last = false;  ///< results name the last worker, for which nobody waited
    bool is_own_host = false;        ///< no interface on the path
    bool awaits_all = true;          ///< no quorum: a result contains all workers' packets
    std::size_t workers = 1;         ///< sharing the path to the server
    /// Only the server's memory queues: all that fits may be in flight, unpaced. A leaf has a further path behind it.
    bool is_free() const noexcept { return server_tells_last && is_own_host; }
  };

  /// Call once, before sending. `packet_bytes`: a full packet. `most_bytes`: upper limit of the window.
  void open(std::size_t packet_bytes, std::size_t most_bytes, Way way) noexcept;

  std::size_t window_bytes() const noexcept;
  std::size_t pipe_bytes() const noexcept { return static_cast<std::size_t>(sent_bytes_ - answered_bytes_); }

  /// Whether `bytes` may leave now. If not, the window counts as used.
  bool has_room(std::size_t bytes, TimePoint now) noexcept;
  /// TimePoint::max(): an answer must come first.
  TimePoint next_send() const noexcept { return next_send_; }

  /// Call for every transmission. Returns its mark, the bytes sent up to its end, for answered().
  std::uint64_t sent(std::size_t bytes, TimePoint now) noexcept;
  /// The transmission was answered by a result of `bytes`, or by a notice (0).
  void answered(std::uint64_t mark, std::size_t bytes, TimePoint now) noexcept;
  /// Round trip of a packet that was sent once. `networks_alone`: without waiting for other workers.
  void sample_round_trip(Duration round_trip, bool networks_alone) noexcept;
  void lost(std::uint64_t mark, std::size_t bytes) noexcept;
  /// A packet, or its result, passed a queue that marks (ECN).
  void marked() noexcept { ++round_.marks; }
  /// A whole timeout passed without an answer, once more.
  void timed_out() noexcept;
  void forget_pipe() noexcept { answered_bytes_ = sent_bytes_; }

 private:
  enum class Phase : std::uint8_t {
    kStartup,   ///< the window doubles
    kSteady,    ///< the window grows by parts
    kProbeRtt,  ///< almost nothing is in flight, to measure the path
  };

  struct Round {
    std::uint64_t end_mark = 0;  ///< the answer to this mark ends the round
    TimePoint began_at{};
    std::uint64_t delivered_bytes = 0;
    std::uint32_t answers = 0;
    std::uint32_t marks = 0;
    bool window_used = false;
    Duration least_round_trip = Duration::max();
    Duration least_of_network = Duration::max();  ///< without waiting for other workers
  };

  struct Losses {
    std::uint64_t bytes = 0;  ///< answered
    std::uint64_t lost_bytes = 0;
    std::uint32_t count = 0;
  };

  void begin_round(TimePoint now) noexcept;
  bool is_queue(Duration round_trip) const noexcept;
  void probe_round_trip(TimePoint now) noexcept;
  Duration longest_queue() const noexcept;
  bool finds_queue() noexcept;
  void end_round(TimePoint now) noexcept;
  bool is_paced() const noexcept;
  bool is_much_lost() const noexcept;
  void shrink(double factor) noexcept;
  /// `waits`: results are late, because of the network or of other workers.
  void grow(double rate, bool waits) noexcept;
  void set_window(double bytes) noexcept;
  double burst_bytes() const noexcept;

  Way way_;
  std::size_t packet_bytes_ = 0;
  std::size_t most_bytes_ = 0;
  std::size_t window_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;      ///< all transmissions
  std::uint64_t answered_bytes_ = 0;  ///< up to the latest answered transmission

  Round round_;
  std::uint64_t shrunk_mark_ = 0;  ///< bytes sent before the last shrinking
  std::size_t round_lost_bytes_ = 0;
  Losses counted_;  ///< since then, at least a hundred packets: random loss comes in clusters
  Losses recent_;   ///< the last thousands of packets

  Phase phase_ = Phase::kStartup;
  Phase phase_after_probe_ = Phase::kStartup;
  double best_rate_ = 0;  ///< bytes per microsecond
  unsigned flat_rounds_ = 0;
  RecentMax<double, 8> rate_;     ///< last rounds
  unsigned queueing_rounds_ = 0;  ///< in a row
  bool had_queue_ = false;        ///< at the last known round
  unsigned untold_rounds_ = 0;    ///< since then
  unsigned timeouts_ = 0;         ///< since the last answer

  Duration least_round_trip_ = Duration::max();  ///< since the last probe
  TimePoint least_seen_at_{};                    ///< last round trip without a queue, or last probe
  unsigned probe_rounds_ = 0;                    ///< completed
  Duration probed_ = Duration::max();

  double credit_bytes_ = 0;  ///< bytes that pacing permits now
  TimePoint credited_at_{};
  TimePoint next_send_ = TimePoint::max();
};

}  // namespace thc
