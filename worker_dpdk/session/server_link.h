#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/congestion/control.h"
#include "session/loss_detector.h"
#include "session/membership.h"
#include "session/operation.h"
#include "session/refusal.h"
#include "session/rtt_estimator.h"
#include "session/session_state.h"
#include "session/slot_stream.h"

namespace thc {

/// Queued packets point into the caller's buffers, so the engine finishes operations after sending the queue.
struct LinkContext {
  const SessionConfig& config;
  io::PacketIo& packet_io;
  SessionState& state;
  Counters counters{};
  std::vector<std::shared_ptr<Operation>> finished{};   ///< their packets have results
  std::vector<std::shared_ptr<Operation>> abandoned{};  ///< they get no results
  bool differs = false;                                 ///< an operation differs (see Operation)

  void fail(Failure cause) { state.fail(std::move(cause)); }
  const Failure* failure() const noexcept { return state.failure(); }
};

class ServerLink {
 public:
  /// `server`: index in the configuration.
  ServerLink(std::size_t server, LinkContext& context, std::uint64_t nonce, TimePoint now);

  io::Endpoint server() const noexcept { return membership_.server(); }
  bool joined() const noexcept { return membership_.joined(); }
  std::uint16_t codes_multiple() const noexcept { return membership_.shape().codes_multiple; }
  Failure why_not_joined() const;
  io::Endpoint address_of(std::uint32_t slot) const noexcept { return membership_.address_of(slot); }
  bool is_shard(io::Endpoint address) const noexcept { return membership_.is_shard(address); }

  void enqueue(std::shared_ptr<Operation> operation, TimePoint deadline);
  void take(const ServerMessage& message, TimePoint now);
  /// Says HELLO and enforces deadlines. `drained`: the socket is empty, so it also detects losses and asks for results.
  void run_timers(TimePoint now, bool drained);
  /// This process had no CPU: packets may have left late, so no result is missing before another timeout.
  void postpone_probes(TimePoint now) noexcept;
  /// Repeats lost packets, then sends new ones, as the window allows.
  void send_new(TimePoint now) noexcept;
  TimePoint next_timer() const noexcept;

  void send_goodbye() noexcept { membership_.send_goodbye(); }
  void abandon();

 private:
  void open_streams();
  void take_probe(const ServerMessage& message, TimePoint now) noexcept;
  void take_welcome(const ServerMessage& message, TimePoint now);
  void take_error(const ServerMessage& message, TimePoint now);
  void take_hello_refusal(const ServerMessage& message, wire::ErrorReason reason, TimePoint now);
  void take_result(const ServerMessage& message, TimePoint now);
  void take_order_mismatch(const wire::Header& about, TimePoint now);
  void take_new_epoch(std::uint32_t slot, std::uint32_t epoch, TimePoint now) noexcept;
  /// `networks_alone`: without waiting for other workers.
  void sample_round_trip(Duration round_trip, bool networks_alone, TimePoint now) noexcept;
  void take_straggler(const ServerMessage& message, TimePoint now);
  /// Returns null, after counting, if the message concerns no packet in flight.
  InFlight* match(const ServerMessage& message) noexcept;

  struct Lane {
    Lane(Stage stage, const RttEstimator& rtt) noexcept : stream(stage), losses(rtt) {}
    SlotStream stream;
    LossDetector losses;
    TimePoint next_loss = TimePoint::max();  ///< at or before the next loss time
    TimePoint answered_at{};                 ///< last result or notice of a packet
    bool overtaking = false;                 ///< results came since the last check
    bool unsent = false;                     ///< some packets may be unsent
  };
  Lane& lane_of(std::uint32_t slot) noexcept { return slot < membership_.shape().norm_slots ? norms_ : codes_; }
  /// Whether packets are abandoned after the loss timeout instead of repeated.
  bool gives_up(const Lane& lane) const noexcept;

  bool has_room(std::uint32_t bytes, TimePoint now) noexcept {
    congestion_.on_waiting(bytes, now);
    next_send_ = std::min(next_send_, congestion_.next_send());
    return congestion_.can_send(bytes);
  }
  bool takes_new(const Lane& lane, std::uint32_t bytes, TimePoint now) noexcept;
  void send_new(Lane& lane, TimePoint now) noexcept;
  void send(Lane& lane, InFlight& packet, TimePoint now) noexcept;
  void repeat(Lane& lane, InFlight& packet, TimePoint now) noexcept;
  void find_lost(Lane& lane, TimePoint now) noexcept;
  void run_packet_timers(Lane& lane, TimePoint now);
  void give_up_late(Lane& lane, TimePoint now);
  void send_unsent(Lane& lane, TimePoint now) noexcept;
  /// Returns false while joining the shard again.
  bool probe(Lane& lane, std::size_t shard, TimePoint now) noexcept;
  /// Repeats overdue packets now, despite the retransmission timeout: the server may soon start the job over.
  void ask_again(Lane& lane, std::size_t shard, TimePoint now) noexcept;
  struct Ends {
    InFlight* oldest = nullptr;  ///< null: nothing is in flight
    InFlight* newest = nullptr;
  };
  static Ends ends_in_flight(Lane& lane, std::size_t shard) noexcept;
  void check_deadline(const SlotStream& stream, TimePoint now);
  /// How long a live, reachable server may leave all packets unanswered.
  Duration silence() const noexcept;
  /// Whether the path may lose only packets of this size. `silent`: the server answers nothing now.
  LargePackets judge_size(const SlotStream& stream, const InFlight* packet, bool silent) const noexcept;
  void note_answer(Lane& lane, const InFlight& packet, bool last, TimePoint now) noexcept;
  /// Also asks whether the shard of `oldest` lives.
  void note_unanswered(const Lane& lane, const InFlight& oldest, TimePoint now) noexcept;
  void forget_unanswered() noexcept;
  void release(Lane& lane, InFlight& packet);
  void rejoin(std::uint32_t slot, TimePoint now);
  void resend_shard(std::uint32_t slot, TimePoint now) noexcept;

  LinkContext& context_;
  const std::size_t index_;
  Membership membership_;
  RttEstimator rtt_;
  Lane norms_{Stage::kNorm, rtt_};
  Lane codes_{Stage::kCodes, rtt_};
  wire::Header norm_header_;
  wire::Header codes_header_;
  congestion::Control congestion_;
  std::size_t most_in_flight_bytes_ = 0;  ///< memory of the server and of this end
  std::size_t in_flight_bytes_ = 0;
  TimePoint next_send_ = TimePoint::max();   ///< when pacing permits the waiting packet
  TimePoint next_check_ = TimePoint::max();  ///< at or before the first timer of a packet
  TimePoint heard_at_{};
  TimePoint asked_at_{};
  Unanswered unanswered_;
  TimePoint rejoined_at_{};
  std::optional<Failure> refusal_;  ///< of HELLO, and perhaps temporary: place, room or packet size
  Forbearance forbearance_;         ///< of the refusal
  Outsider outsider_;               ///< from the last incomplete notice
};

}  // namespace thc
