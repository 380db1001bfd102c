#include "io/faulty_io.h"

#include <algorithm>
#include <utility>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io {

FaultyIo::FaultyIo(std::unique_ptr<PacketIo> inner, const FaultConfig& config)
    : ForwardingIo(std::move(inner)), config_(config), random_(config.seed) {
  const bool valid = config.drop >= 0 && config.duplicate >= 0 && config.reorder >= 0 &&
                     config.drop + config.duplicate + config.reorder <= 1;
  if (!valid) {
    throw ConfigurationError("fault rates must be probabilities: each from 0, together at most 1");
  }
}

FaultyIo::Fault FaultyIo::draw() noexcept {
  const double u = std::uniform_real_distribution<double>()(random_);
  if (u < config_.drop) return Fault::kDrop;
  if (u < config_.drop + config_.duplicate) return Fault::kDuplicate;
  return u < config_.drop + config_.duplicate + config_.reorder ? Fault::kReorder : Fault::kNone;
}

std::size_t FaultyIo::receive(std::span<RxPacket> packets) noexcept {
  // Datagrams held back by earlier calls come after new ones.
  const std::size_t late = std::min(packets.size(), held_receives_.size());
  const auto end = held_receives_.begin() + static_cast<std::ptrdiff_t>(late);
  handed_out_.assign(std::move_iterator(held_receives_.begin()), std::move_iterator(end));
  held_receives_.erase(held_receives_.begin(), end);
  const auto room = packets.first(packets.size() - late);
  const std::size_t arrived = room.empty() ? 0 : inner().receive(room);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < arrived; ++i) {
    const RxPacket packet = packets[i];
    const Fault fault = draw();
    if (fault == Fault::kDuplicate || fault == Fault::kReorder) {
      held_receives_.push_back({packet.from, {packet.data, packet.data + packet.size_bytes}, packet.congested});
    }
    if (fault == Fault::kNone || fault == Fault::kDuplicate) packets[kept++] = packet;
  }
  for (const Held& held : handed_out_) {
    const auto size_bytes = static_cast<std::uint32_t>(held.datagram.size());
    packets[kept++] = {held.datagram.data(), size_bytes, held.peer, held.congested};
  }
  return kept;
}

bool FaultyIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                    std::span<const std::uint8_t> trailer) noexcept {
  const Fault fault = draw();
  if (fault == Fault::kDuplicate || fault == Fault::kReorder) {
    Held& held = held_sends_.emplace_back(Held{.peer = to, .datagram = {}});
    for (const auto part : {header, payload, trailer}) {
      held.datagram.insert(held.datagram.end(), part.begin(), part.end());
    }
  }
  const bool goes_now = fault == Fault::kNone || fault == Fault::kDuplicate;
  return !goes_now || inner().send(to, header, payload, trailer);  // the sender of a lost datagram sees success
}

void FaultyIo::flush() noexcept {
  if (!held_sends_.empty() && ++flushes_held_ > 1) {
    release_held_sends();
  } else {
    inner().flush();
  }
}

void FaultyIo::release_held_sends() noexcept {
  for (const Held& held : held_sends_) {
    const std::span<const std::uint8_t> datagram = held.datagram;
    const std::size_t header_bytes = std::min(datagram.size(), sizeof(wire::Header));  // back ends look into the header
    inner().send(held.peer, datagram.first(header_bytes), datagram.subspan(header_bytes));
  }
  inner().flush();  // copies must last until here
  held_sends_.clear();
  flushes_held_ = 0;
}

void FaultyIo::wait(std::chrono::microseconds timeout) noexcept {
  if (!held_sends_.empty()) release_held_sends();  // the caller may send nothing else for long
  if (held_receives_.empty()) inner().wait(timeout);
}

}  // namespace thc::io
