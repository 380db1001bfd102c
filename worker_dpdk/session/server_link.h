// Everything between a worker and one server: membership, the streams of both stages, window and retransmission.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "session/membership.h"
#include "session/operation.h"
#include "session/rtt_estimator.h"
#include "session/slot_stream.h"

namespace thc {

/// What the links of a session share. Operations in `finished` are published when everything queued is sent, because
/// queued packets point into the caller's buffers.
struct LinkContext {
  const SessionConfig& config;
  io::PacketIo& packet_io;
  Counters counters;
  std::vector<std::shared_ptr<Operation>> finished;
  std::optional<Failure> failure;
};

class ServerLink {
 public:
  ServerLink(io::Endpoint server, LinkContext& context, std::uint64_t nonce, TimePoint now);

  io::Endpoint server() const noexcept { return membership_.server(); }
  bool joined() const noexcept { return membership_.joined(); }
  /// The failure when the connect timeout is over.
  Failure why_not_joined() const;
  /// Where the shard of a slot is.
  io::Endpoint address_of(std::uint32_t slot) const noexcept { return membership_.address_of(slot); }
  /// Whether a shard of this server has the address.
  bool is_shard(io::Endpoint address) const noexcept { return membership_.is_shard(address); }

  void enqueue(std::shared_ptr<Operation> operation);
  void take(const ServerMessage& message, TimePoint now);
  /// Repeats or gives up packets without a result, says HELLO, fails what is past its deadline.
  void run_timers(TimePoint now);
  /// Sends what the window allows.
  void send_new(TimePoint now) noexcept;
  TimePoint next_timer() const noexcept;

  void send_goodbye() noexcept { membership_.send_goodbye(); }
  /// Moves all operations to context.finished; the caller fails them.
  void abandon();

 private:
  void take_welcome(const ServerMessage& message, TimePoint now);
  void take_error(const ServerMessage& message, TimePoint now);
  void take_hello_refusal(const ServerMessage& message, wire::ErrorReason reason, TimePoint now);
  void take_result(const ServerMessage& message, TimePoint now);
  void take_straggler(const ServerMessage& message, TimePoint now);
  /// The packet in flight a message is about; null (and a counter) when there is none.
  InFlight* match(const ServerMessage& message) noexcept;
  SlotStream& stream_of(std::uint32_t slot) noexcept { return slot < membership_.norm_slots() ? norms_ : codes_; }

  void send_new(SlotStream& stream, TimePoint now) noexcept;
  void send(const SlotStream& stream, InFlight& packet, TimePoint now) noexcept;
  void check_packets(SlotStream& stream, TimePoint now);
  void check_deadline(const SlotStream& stream, TimePoint now);
  /// When the packet is given up; never in reliable mode and for norms.
  TimePoint loss_time(const SlotStream& stream, const InFlight& packet) const noexcept;
  TimePoint repeat_time(const SlotStream& stream, const InFlight& packet) const noexcept;
  void give_up(SlotStream& stream, InFlight& packet);
  void release(SlotStream& stream, InFlight& packet);
  void rejoin(std::uint32_t slot, TimePoint now);
  void resend_shard(std::uint32_t slot, TimePoint now) noexcept;
  void fail(Failure failure);

  LinkContext& context_;
  Membership membership_;
  RttEstimator rtt_;
  SlotStream norms_{Stage::kNorm};
  SlotStream codes_{Stage::kCodes};
  wire::Header norm_header_;
  wire::Header codes_header_;
  std::size_t window_bytes_ = 0;
  std::size_t in_flight_bytes_ = 0;
  std::size_t repeat_budget_bytes_ = 0;
  TimePoint next_check_ = TimePoint::max();  ///< not later than the first timer of a packet
  TimePoint heard_at_{};
  bool heard_of_codes_ = false;  ///< a packet of codes had a result
  TimePoint rejoined_at_{};
  std::optional<Failure> refusal_;  ///< of HELLO, which may pass: another process has the place, or there is no room
  TimePoint refused_until_ = TimePoint::max();
};

}  // namespace thc
