// Everything between a worker and one server: membership, the streams of both stages,
// window (server_link_sending.cc, congestion.h) and retransmission (server_link_timers.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/congestion.h"
#include "session/loss_detector.h"
#include "session/membership.h"
#include "session/operation.h"
#include "session/refusal.h"
#include "session/rtt_estimator.h"
#include "session/session_state.h"
#include "session/slot_stream.h"

namespace thc {

/// What the links of an engine share. The engine leaves operations when everything queued is sent, because queued
/// packets point into the caller's buffers.
struct LinkContext {
  const SessionConfig& config;
  io::PacketIo& packet_io;
  SessionState& state;
  Counters counters;
  std::vector<std::shared_ptr<Operation>> finished;   ///< their packets have results
  std::vector<std::shared_ptr<Operation>> abandoned;  ///< they will not have them
  std::optional<Failure> failure;                     ///< the session's
  bool differs = false;                               ///< an operation has found out that it does (Operation)

  void fail(Failure cause) { failure = state.fail(std::move(cause)); }
};

class ServerLink {
 public:
  /// `server`: its place in the configuration.
  ServerLink(std::size_t server, LinkContext& context, std::uint64_t nonce, TimePoint now);

  io::Endpoint server() const noexcept { return membership_.server(); }
  bool joined() const noexcept { return membership_.joined(); }
  std::uint16_t codes_multiple() const noexcept { return membership_.codes_multiple(); }
  /// The failure when the connect timeout is over.
  Failure why_not_joined() const;
  /// Where the shard of a slot is.
  io::Endpoint address_of(std::uint32_t slot) const noexcept { return membership_.address_of(slot); }
  /// Whether a shard of this server has the address.
  bool is_shard(io::Endpoint address) const noexcept { return membership_.is_shard(address); }

  void enqueue(std::shared_ptr<Operation> operation, TimePoint deadline);
  void take(const ServerMessage& message, TimePoint now);
  /// Says HELLO, fails what is past its deadline. `drained`: nothing waits in the socket, so it also finds out which
  /// packets are lost, and asks for results.
  void run_timers(TimePoint now, bool drained);
  /// This process had no processor: packets may have left only now, so no result is missing before another timeout.
  void postpone_probes(TimePoint now) noexcept;
  /// Sends what the window allows: lost packets again, then new ones.
  void send_new(TimePoint now) noexcept;
  TimePoint next_timer() const noexcept;

  void send_goodbye() noexcept { membership_.send_goodbye(); }
  /// Moves all operations to context.abandoned.
  void abandon();

 private:
  void open_streams();
  void take_welcome(const ServerMessage& message, TimePoint now);
  void take_error(const ServerMessage& message, TimePoint now);
  void take_hello_refusal(const ServerMessage& message, wire::ErrorReason reason, TimePoint now);
  void take_result(const ServerMessage& message, TimePoint now);
  void take_order_mismatch(const wire::Header& about, TimePoint now);
  void take_new_epoch(std::uint32_t slot, std::uint32_t epoch, TimePoint now) noexcept;
  /// `networks_alone`: it holds no wait for other workers.
  void sample_round_trip(Duration round_trip, bool networks_alone, TimePoint now) noexcept;
  void take_straggler(const ServerMessage& message, TimePoint now);
  /// The packet in flight a message is about; null (and a counter) when there is none.
  InFlight* match(const ServerMessage& message) noexcept;

  /// The packets of a stage, and which of them are lost.
  struct Lane {
    Lane(Stage stage, const RttEstimator& rtt) noexcept : stream(stage), losses(rtt) {}
    SlotStream stream;
    LossDetector losses;
    TimePoint next_loss = TimePoint::max();  ///< not later than when one counts as lost
    TimePoint answered_at{};                 ///< when a packet last had a result or a notice
    bool overtaking = false;                 ///< there were results since the last look
    bool unsent = false;                     ///< some packets may be unsent
  };
  Lane& lane_of(std::uint32_t slot) noexcept { return slot < membership_.norm_slots() ? norms_ : codes_; }
  /// Whether packets are given up after the loss timeout instead of being repeated.
  bool gives_up(const Lane& lane) const noexcept;

  /// Whether a packet may go now, as the window and pacing have it.
  bool has_room(std::uint32_t bytes, TimePoint now) noexcept;
  /// Whether a new packet may go.
  bool takes_new(const Lane& lane, std::uint32_t bytes, TimePoint now) noexcept;
  void send_new(Lane& lane, TimePoint now) noexcept;
  void send(Lane& lane, InFlight& packet, TimePoint now) noexcept;
  void note_unsent(Lane& lane, TimePoint now) noexcept;
  void repeat(Lane& lane, InFlight& packet, TimePoint now) noexcept;
  void find_lost(Lane& lane, TimePoint now) noexcept;
  void run_packet_timers(Lane& lane, TimePoint now);
  void give_up_late(Lane& lane, TimePoint now);
  void send_unsent(Lane& lane, TimePoint now) noexcept;
  /// Asks for results of that shard; false where it is being joined again.
  bool probe(Lane& lane, std::size_t shard, TimePoint now) noexcept;
  void check_deadline(const SlotStream& stream, TimePoint now);
  /// How long a server that is there and reached leaves no packet unanswered.
  Duration silence() const noexcept;
  /// Whether packets of this one's size, and no others, may be lost on the way. `silent`: nothing is answered now.
  LargePackets judge_size(const SlotStream& stream, const InFlight* packet, bool silent) const noexcept;
  /// Earlier packets without one may be lost.
  void note_answer(Lane& lane, const InFlight& packet, bool last, TimePoint now) noexcept;
  /// Tells the session for how long a shard, whose oldest packet is given, answers none of the lane, and asks whether
  /// the shard is there.
  void note_unanswered(const Lane& lane, const InFlight& oldest, TimePoint now) noexcept;
  /// The server has answered a packet: what is still unanswered is told again by timers.
  void forget_unanswered() noexcept;
  void release(Lane& lane, InFlight& packet);
  void rejoin(std::uint32_t slot, TimePoint now);
  void resend_shard(std::uint32_t slot, TimePoint now) noexcept;
  void fail(Failure failure);

  LinkContext& context_;
  const std::size_t index_;
  Membership membership_;
  RttEstimator rtt_;
  Lane norms_{Stage::kNorm, rtt_};
  Lane codes_{Stage::kCodes, rtt_};
  wire::Header norm_header_;
  wire::Header codes_header_;
  CongestionControl congestion_;
  std::size_t most_in_flight_bytes_ = 0;  ///< what the server, and this end, have memory for
  std::size_t in_flight_bytes_ = 0;
  TimePoint next_send_ = TimePoint::max();   ///< when pacing lets a packet go that waits
  TimePoint next_check_ = TimePoint::max();  ///< not later than the first timer of a packet
  TimePoint heard_at_{};
  TimePoint asked_at_{};
  Unanswered unanswered_;
  TimePoint rejoined_at_{};
  std::optional<Failure> refusal_;  ///< of HELLO, which may pass: of another process's place, of room, of packets
  Forbearance forbearance_;         ///< of the refusal
  Outsider outsider_;               ///< of the last incomplete notice
};

}  // namespace thc
