#include <algorithm>
#include <utility>

#include "session/server_link.h"
#include "thc/wire_layout.h"

namespace thc {

void ServerLink::send_new(TimePoint now) noexcept {
  next_send_ = TimePoint::max();
  for (Lane* lane : {&norms_, &codes_}) {
    send_unsent(*lane, now);
  }
  for (Lane* lane : {&norms_, &codes_}) {
    send_new(*lane, now);
  }
}

bool ServerLink::takes_new(const Lane& lane, std::uint32_t bytes, TimePoint now) noexcept {
  const SlotStream& stream = lane.stream;
  // Each stage may always have one packet in flight. Otherwise codes that wait for another worker could block norms
  // here, and that worker's norms its codes: a deadlock.
  if (stream.oldest() == nullptr) {
    return true;
  }
  // A packet without a result blocks the packet a lap later. Half of the slots leave work until the repeat.
  constexpr std::size_t kFewSlots = 16;  // too few to halve
  const std::size_t most = std::max(stream.capacity() / 2, std::min(stream.capacity(), kFewSlots));
  return stream.in_flight() < most && in_flight_bytes_ + bytes <= most_in_flight_bytes_ && has_room(bytes, now);
}

void ServerLink::send_unsent(Lane& lane, TimePoint now) noexcept {
  if (!std::exchange(lane.unsent, false)) {
    return;
  }
  lane.stream.for_each_in_flight([&](InFlight& packet) {
    if (!packet.unsent || !membership_.joined(packet.slot)) {
      return;  // sent again after the shard's answer to HELLO
    }
    if (lane.unsent || !has_room(packet.bytes, now)) {
      lane.unsent = true;
      return;
    }
    repeat(lane, packet, now);
  });
}

void ServerLink::send_new(Lane& lane, TimePoint now) noexcept {
  SlotStream& stream = lane.stream;
  for (auto next = stream.next(); next && membership_.joined(next->slot); next = stream.next()) {
    if (lane.unsent || !takes_new(lane, next->bytes, now)) {
      return;
    }
    InFlight* packet = stream.take_next(now);
    in_flight_bytes_ += packet->bytes;
    send(lane, *packet, now);
    next_check_ = std::min(next_check_, now + (gives_up(lane) ? context_.config.loss_timeout : rtt_.timeout(0)));
  }
}

void ServerLink::send(Lane& lane, InFlight& packet, TimePoint now) noexcept {
  const bool is_norm = lane.stream.stage() == Stage::kNorm;
  wire::Header& header = is_norm ? norm_header_ : codes_header_;
  const bool abstains = packet.operation().abstains() && membership_.takes_abstentions(packet.slot);
  header.flags = static_cast<std::uint8_t>(membership_.flags(packet.slot) |
                                           (packet.retransmissions > 0 ? wire::kFlagRetransmit : 0U) |
                                           (abstains ? wire::kFlagAbstain : 0U));
  header.payload_count = static_cast<std::uint16_t>(packet.operation().chunk_count(packet.chunk));
  header.epoch = membership_.epoch(packet.slot);
  header.round = packet.round;
  header.slot = packet.slot;
  header.partition = packet.operation().partition();
  header.chunk = static_cast<std::uint16_t>(packet.chunk);
  packet.sent_at = now;
  lane.losses.sent(packet, now);
  packet.mark = congestion_.on_sent(packet.bytes, now);
  packet.first_mark = packet.retransmissions == 0 ? packet.mark : packet.first_mark;
  packet.unsent = !context_.packet_io.send(address_of(packet.slot), io::bytes_of(header),
                                           packet.operation().chunk_payload(packet.chunk));
  context_.counters.add(Count::kAbstained, abstains ? 1 : 0);
  context_.counters.add(is_norm ? Count::kNormSent : Count::kCodesSent);
  context_.counters.add(Count::kBytesSent, packet.bytes);
  if (packet.unsent) {
    constexpr Duration kResendPeriod{1'000};
    context_.counters.add(Count::kSendFailures);
    lane.unsent = true;
    next_check_ = std::min(next_check_, now + kResendPeriod);
  }
}

void ServerLink::resend_shard(std::uint32_t slot, TimePoint now) noexcept {
  const auto mark = [&](InFlight& packet) {
    if (membership_.same_shard(slot, packet.slot)) {
      packet.unsent = true;
      packet.seen_workers = packet.seen_racks = packet.racks = 0;
    }
  };
  for (Lane* lane : {&norms_, &codes_}) {
    lane->stream.for_each_in_flight(mark);
    lane->unsent = true;
  }
  next_check_ = now;
}

}  // namespace thc
