#include "io/faulty_io.h"

#include <algorithm>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io {

FaultyIo::Store::Store() : buffer_(kHeld * kMaxDatagramBytes) {}

void FaultyIo::Store::add(Endpoint peer, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                          std::span<const std::uint8_t> trailer, bool congested) noexcept {
  std::uint8_t* copy = buffer_.data() + used_ * kMaxDatagramBytes;
  std::uint8_t* end = copy;
  for (const auto part : {header, payload, trailer}) {
    end = std::copy(part.begin(), part.end(), end);
  }
  packets_[used_++] = {copy, static_cast<std::uint32_t>(end - copy), peer, congested};
}

FaultyIo::FaultyIo(std::unique_ptr<PacketIo> inner, const FaultConfig& config)
    : inner_(std::move(inner)), config_(config), random_(config.seed) {
  const bool valid = config.drop >= 0 && config.duplicate >= 0 && config.reorder >= 0 &&
                     config.drop + config.duplicate + config.reorder <= 1;
  if (!valid) {
    throw ConfigurationError("fault rates must be probabilities: each from 0, together at most 1");
  }
}

FaultyIo::Fault FaultyIo::draw(const Store& store) noexcept {
  const double u = std::uniform_real_distribution<double>()(random_);
  if (u < config_.drop) {
    ++faults_.dropped;
    return Fault::kDrop;
  }
  if (u < config_.drop + config_.duplicate && !store.full()) {
    ++faults_.duplicated;
    return Fault::kDuplicate;
  }
  if (u >= config_.drop + config_.duplicate && u < config_.drop + config_.duplicate + config_.reorder &&
      !store.full()) {
    ++faults_.reordered;
    return Fault::kReorder;
  }
  return Fault::kNone;
}

std::size_t FaultyIo::receive(std::span<RxPacket> packets) noexcept {
  if (taken_ == held_receives_[1 - holding_].size()) {
    held_receives_[1 - holding_].clear();
    holding_ = 1 - holding_;
    taken_ = 0;
  }
  // What earlier calls held back comes after what is new in this one.
  const std::size_t late = std::min(packets.size(), held_receives_[1 - holding_].size() - taken_);
  const std::size_t fresh = receive_fresh(packets.first(packets.size() - late));
  for (std::size_t i = 0; i < late; ++i) {
    packets[fresh + i] = held_receives_[1 - holding_][taken_++];
  }
  return fresh + late;
}

std::size_t FaultyIo::receive_fresh(std::span<RxPacket> packets) noexcept {
  const std::size_t arrived = packets.empty() ? 0 : inner_->receive(packets);
  Store& store = held_receives_[holding_];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < arrived; ++i) {
    const RxPacket packet = packets[i];
    const Fault fault = draw(store);
    if (fault == Fault::kDuplicate || fault == Fault::kReorder) {
      store.add(packet.from, {}, {packet.data, packet.size_bytes}, {}, packet.congested);
    }
    if (fault == Fault::kNone || fault == Fault::kDuplicate) {
      packets[kept++] = packet;
    }
  }
  return kept;
}

bool FaultyIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                    std::span<const std::uint8_t> trailer) noexcept {
  if (header.size() + payload.size() + trailer.size() > kMaxDatagramBytes) {
    return inner_->send(to, header, payload, trailer);  // which refuses and counts it
  }
  switch (draw(held_sends_)) {
    case Fault::kDrop:
      return true;  // the network lost it; a sender cannot know
    case Fault::kReorder:
      held_sends_.add(to, header, payload, trailer);
      return true;
    case Fault::kDuplicate:
      held_sends_.add(to, header, payload, trailer);
      return inner_->send(to, header, payload, trailer);
    case Fault::kNone:
      return inner_->send(to, header, payload, trailer);
  }
  return false;
}

void FaultyIo::flush() noexcept {
  if (!held_sends_.empty() && ++flushes_held_ > 1) {
    release_held_sends();
  } else {
    inner_->flush();
  }
}

void FaultyIo::release_held_sends() noexcept {
  for (std::size_t i = 0; i < held_sends_.size(); ++i) {
    const RxPacket& held = held_sends_[i];
    const std::span<const std::uint8_t> datagram{held.data, held.size_bytes};
    const std::size_t header_bytes = std::min(datagram.size(), sizeof(wire::Header));  // back ends look into the header
    inner_->send(held.from, datagram.first(header_bytes), datagram.subspan(header_bytes));
  }
  inner_->flush();  // the copies have to last until here
  held_sends_.clear();
  flushes_held_ = 0;
}

void FaultyIo::wait(std::chrono::microseconds timeout) noexcept {
  if (!held_sends_.empty()) {
    release_held_sends();  // nothing else may be sent for long
  }
  const bool waiting = !held_receives_[holding_].empty() || taken_ < held_receives_[1 - holding_].size();
  if (!waiting) {
    inner_->wait(timeout);
  }
}

}  // namespace thc::io
