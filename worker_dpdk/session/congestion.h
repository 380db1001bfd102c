// How much a link may have under way (docs/contributors/protocol.md, "Congestion"): a window that follows what the way
// delivers, loses and marks. It knows neither packets nor results: a link tells it what it sends and what is answered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "session/recent_max.h"
#include "session/session_config.h"

namespace thc {

/// A result says that all that was sent before its packet has left the network: it has arrived, and perhaps waits for
/// other workers, or it is lost. So the *pipe*, what may be in a queue, is what was sent since. The window bounds it.
/// Times until results hold the wait for the slowest worker, which is no congestion; nothing here shrinks the window
/// for it.
class CongestionControl {
 public:
  struct Way {
    bool server_tells_last = false;  ///< results say whose packet came last: for whom nobody was waited
    bool is_own_host = false;        ///< without an interface
    bool awaits_all = true;          ///< no quorum: a result has the packets of all workers
    std::size_t workers = 1;         ///< that share the way to the server
    /// No queue but the server's receive memory: all that fits there may be under way, at no pace. A leaf, which tells
    /// nothing, has another way behind it.
    bool is_free() const noexcept { return server_tells_last && is_own_host; }
  };

  /// Once, before anything is sent. `packet_bytes`: of a full packet. `most_bytes`: never more than that.
  void open(std::size_t packet_bytes, std::size_t most_bytes, Way way) noexcept;

  std::size_t window_bytes() const noexcept;
  std::size_t pipe_bytes() const noexcept { return static_cast<std::size_t>(sent_bytes_ - answered_bytes_); }

  /// Whether so many bytes may be sent now. Where they may not, the window counts as used.
  bool has_room(std::size_t bytes, TimePoint now) noexcept;
  /// When pacing lets the packet go that has_room() refused last; the end of time where an answer must come first.
  TimePoint next_send() const noexcept { return next_send_; }

  /// Of every packet sent, also again. The return value is for answered(): how much was sent up to its end.
  std::uint64_t sent(std::size_t bytes, TimePoint now) noexcept;
  /// The transmission with that mark is answered by a result of so many `bytes` sent, or by a notice (0).
  void answered(std::uint64_t mark, std::size_t bytes, TimePoint now) noexcept;
  /// The time from a packet that was sent once to its result. `networks_alone`: nobody was waited for.
  void sample_round_trip(Duration round_trip, bool networks_alone) noexcept;
  /// The transmission with that mark is lost.
  void lost(std::uint64_t mark, std::size_t bytes) noexcept;
  /// A packet, or its result, passed a queue that marks (ECN).
  void marked() noexcept { ++round_.marks; }
  /// Nothing was answered for a whole timeout, once more.
  void timed_out() noexcept;
  /// Nothing is under way any more.
  void forget_pipe() noexcept { answered_bytes_ = sent_bytes_; }

 private:
  enum class Phase : std::uint8_t {
    kStartup,   ///< the window doubles
    kSteady,    ///< it grows by parts
    kProbeRtt,  ///< hardly anything is under way: how long is the way itself?
  };

  /// From a packet to its answer.
  struct Round {
    std::uint64_t end_mark = 0;  ///< the answer of what was sent up to here ends it
    TimePoint began_at{};
    std::uint64_t delivered_bytes = 0;
    std::uint32_t answers = 0;
    std::uint32_t marks = 0;
    bool window_used = false;
    Duration least_round_trip = Duration::max();
    Duration least_of_network = Duration::max();  ///< of those in which nobody was waited for
  };

  /// Among packets that are answered or lost.
  struct Losses {
    std::uint64_t bytes = 0;  ///< answered
    std::uint64_t lost_bytes = 0;
    std::uint32_t count = 0;
  };

  void begin_round(TimePoint now) noexcept;
  bool is_queue(Duration round_trip) const noexcept;
  /// Begins and ends the search for the least round trip of a way that may have grown longer.
  void probe_round_trip(TimePoint now) noexcept;
  /// How long a queue may be for the window to grow.
  Duration longest_queue() const noexcept;
  /// Whether the network, and not only the wait for others, has a queue, as far as is known.
  bool finds_queue() noexcept;
  void end_round(TimePoint now) noexcept;
  bool is_paced() const noexcept;
  bool is_much_lost() const noexcept;
  void shrink(double factor) noexcept;
  /// `waits`: results are late, be it for the network or for others.
  void grow(double rate, bool waits) noexcept;
  void set_window(double bytes) noexcept;
  double burst_bytes() const noexcept;

  Way way_;
  std::size_t packet_bytes_ = 0;
  std::size_t most_bytes_ = 0;
  std::size_t window_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;      ///< of all transmissions
  std::uint64_t answered_bytes_ = 0;  ///< of them, up to the latest that was answered

  Round round_;
  std::uint64_t shrunk_mark_ = 0;  ///< what was sent before the window shrank last
  std::size_t round_lost_bytes_ = 0;
  Losses counted_;  ///< since the window shrank, of the last hundred packets or more: random loss comes in clusters
  Losses recent_;   ///< of the last thousands

  Phase phase_ = Phase::kStartup;
  Phase phase_after_probe_ = Phase::kStartup;
  double best_rate_ = 0;  ///< bytes a microsecond
  unsigned flat_rounds_ = 0;
  RecentMax<double, 8> rate_;     ///< of the last rounds
  unsigned queueing_rounds_ = 0;  ///< in a row
  bool had_queue_ = false;        ///< the last of those
  unsigned untold_rounds_ = 0;    ///< since that one
  unsigned timeouts_ = 0;         ///< since the last answer

  Duration least_round_trip_ = Duration::max();  ///< since it was probed last
  TimePoint least_seen_at_{};                    ///< when there was one without a queue last, or it was probed
  unsigned probe_rounds_ = 0;                    ///< that have ended
  Duration probed_ = Duration::max();

  double credit_bytes_ = 0;  ///< may go at once
  TimePoint credited_at_{};
  TimePoint next_send_ = TimePoint::max();
};

}  // namespace thc
