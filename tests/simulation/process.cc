#include "simulation/process.h"

#include <algorithm>

namespace thc::simulation {
namespace {

constexpr Picoseconds kServerTimers = picoseconds(50e-3);  // as ps_software/server.cc
constexpr Picoseconds kMicrosecond = 1'000'000;            // a program's loop takes as long at least

SessionConfig own_config(SessionConfig config, std::uint8_t number) {
  config.worker_id = number;
  return resolve(std::move(config), kMaxDatagramBytes);
}

}  // namespace

std::size_t Socket::receive(std::span<io::RxPacket> packets) noexcept {
  for (Datagram* datagram : received_) network_.pool().give_back(datagram);
  received_.clear();
  while (received_.size() < packets.size() && !arrived_.empty()) {
    Datagram* datagram = arrived_.front();
    arrived_.pop_front();
    arrived_bytes_ -= datagram->size_bytes;
    io::RxPacket& packet = packets[received_.size()];
    packet.data = datagram->bytes.data();
    packet.size_bytes = datagram->size_bytes;
    packet.from = datagram->from;
    packet.congested = datagram->congested;
    received_.push_back(datagram);
    ++counters_.rx_packets;
    counters_.rx_bytes += datagram->size_bytes;
  }
  return received_.size();
}

bool Socket::send(io::Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                  std::span<const std::uint8_t> trailer) noexcept {
  Datagram* datagram = network_.pool().take();
  std::uint8_t* end = std::ranges::copy(header, datagram->bytes.data()).out;
  end = std::ranges::copy(payload, end).out;
  end = std::ranges::copy(trailer, end).out;
  datagram->size_bytes = static_cast<std::uint32_t>(end - datagram->bytes.data());
  datagram->from = local_;
  datagram->to = to;
  ++counters_.tx_packets;
  counters_.tx_bytes += datagram->size_bytes;
  network_.send(*this, datagram);
  return true;
}

void Socket::arrive(Datagram* datagram) {
  if (arrived_bytes_ + datagram->size_bytes > receive_buffer_bytes_) {
    ++dropped_;
    return network_.pool().give_back(datagram);
  }
  arrived_bytes_ += datagram->size_bytes;
  arrived_.push_back(datagram);
  wake_();
}

Process::Process(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs)
    : events_(network.events()),
      costs_(costs),
      alarm_(network.events(), [this] { run(); }),
      socket_(network, local, receive_buffer_bytes, [this] { wake(); }) {}

void Process::run() {
  Picoseconds next = kNever;
  do {
    if (socket_.blocked()) {
      return;  // it is woken when the socket is not
    }
    const std::uint64_t before = socket_.counters().rx_packets;
    next = turn();
    busy_until_ = events_.now() + static_cast<Picoseconds>(socket_.counters().rx_packets - before) * costs_.packet;
  } while (socket_.has_arrived() && costs_.packet == 0);
  const Picoseconds due = socket_.has_arrived() ? busy_until_ : std::max(next, events_.now() + kMicrosecond);
  alarm_.set_earlier(std::max(due, busy_until_));
}

Server::Server(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs,
               const ps::JobLimits& limits)
    : Process(network, local, receive_buffer_bytes, costs), shard_(limits, socket()) {
  wake();
}

Picoseconds Server::turn() {
  const TimePoint time = now();
  shard_.poll(time);
  if (picoseconds(time) >= next_timer_) {
    shard_.run_timers(time);
    next_timer_ = picoseconds(time) + kServerTimers;
  }
  return std::min(next_timer_, picoseconds(shard_.next_result()));
}

Worker::Worker(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs,
               const SessionConfig& config, std::uint8_t number, std::function<void()> changed)
    : Process(network, local, receive_buffer_bytes, costs),
      state_(config.servers.size()),
      engine_(own_config(config, number), socket(), state_, number + 1U, now()),
      changed_(std::move(changed)) {
  wake();
}

Picoseconds Worker::turn() {
  if (engine_.step(now()).changed) changed_();
  for (std::size_t server = 0; server < engine_.config().servers.size(); ++server) {
    unanswered_ms_ = std::max(unanswered_ms_, state_.unanswered(server).for_ms);
  }
  const TimePoint next = engine_.next_timer();
  if (next == TimePoint::max()) return kNever;
  // As Session::sleep(): a whole number of microseconds.
  const Picoseconds due = picoseconds(next) - time();
  return due <= 0 ? time() : time() + (due + kMicrosecond - 1) / kMicrosecond * kMicrosecond;
}

}  // namespace thc::simulation
