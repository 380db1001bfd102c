#include "simulation/network.h"

#include <algorithm>

namespace thc::simulation {

Link::Link(Network& network, const LinkConfig& config, Receive receive)
    : network_(network),
      config_(config),
      receive_(receive),
      per_byte_(std::max<Picoseconds>(static_cast<Picoseconds>(8e12 / config.rate_bps), 1)) {}

std::size_t Link::queued_bytes() const noexcept {
  const Picoseconds left = busy_until_ - network_.events().now();
  return left <= 0 ? 0 : static_cast<std::size_t>((left + per_byte_ - 1) / per_byte_);
}

Picoseconds Link::room_at(std::size_t bytes) const noexcept {
  const std::size_t rest = config_.queue_bytes - std::min(bytes, config_.queue_bytes);
  return busy_until_ - static_cast<Picoseconds>(rest) * per_byte_;
}

void Link::send(Datagram* datagram) {
  const std::size_t bytes = datagram->wire_bytes();
  const std::size_t queued = queued_bytes();
  if (queued + bytes > (config_.policer_bytes != 0 ? config_.policer_bytes : config_.queue_bytes)) {
    ++counters_.dropped;
    return network_.pool().give_back(datagram);
  }
  if (config_.mark_bytes != 0 && queued > config_.mark_bytes) {
    ++counters_.marked;
    datagram->congested = true;
  }
  ++counters_.datagrams;
  counters_.bytes += bytes;
  busy_until_ = std::max(busy_until_, network_.events().now()) + static_cast<Picoseconds>(bytes) * per_byte_;
  if (network_.happens(config_.loss)) {
    ++counters_.lost;
    return network_.pool().give_back(datagram);
  }
  const Picoseconds leaves = config_.policer_bytes != 0 ? network_.events().now() : busy_until_;
  const Picoseconds arrival = std::max(leaves + config_.delay, under_way_.empty() ? 0 : under_way_.back().first);
  if (under_way_.empty()) network_.events().push(arrival, *this);
  under_way_.emplace_back(arrival, datagram);
}

void Link::act() {
  Datagram* datagram = under_way_.front().second;
  under_way_.pop_front();
  if (!under_way_.empty()) network_.events().push(under_way_.front().first, *this);
  (network_.*receive_)(datagram);
}

Network::Host::Host(Network& network, const LinkConfig& up_config, const LinkConfig& down_config, bool waits)
    : up(network, up_config, &Network::forward),
      down(network, down_config, &Network::deliver),
      loopback(network, {.rate_bps = 100e9, .queue_bytes = std::size_t{1} << 40, .delay = picoseconds(5e-6)},
               &Network::deliver),
      back_pressure(waits),
      room(network.events_, [this, &network] { network.send_waiting(*this); }) {}

std::size_t Network::add_host(const LinkConfig& up, const LinkConfig& down, bool back_pressure) {
  hosts_.push_back(std::make_unique<Host>(*this, up, down, back_pressure));
  return hosts_.size() - 1;
}

void Network::bind(io::Endpoint address, Port& port) {
  hosts_[host_of(address)]->ports.emplace_back(address.port, &port);
}

void Network::send(Port& port, Datagram* datagram) {
  Host& host = *hosts_[host_of(datagram->from)];
  if (datagram->to.ip == datagram->from.ip) {
    host.loopback.send(datagram);
  } else if (!host.back_pressure || (!port.blocked() && host.up.has_room(datagram->wire_bytes()))) {
    host.up.send(datagram);
  } else {
    port.waiting_.push_back(datagram);
    host.room.set_earlier(host.up.room_at(datagram->wire_bytes()));
  }
}

void Network::send_waiting(Host& host) {
  // In turns, as far as the queue has room.
  for (std::size_t idle = 0; idle < host.ports.size();) {
    Port& port = *host.ports[host.turn].second;
    if (!port.blocked()) {
      ++idle;
    } else if (Datagram* first = port.waiting_.front(); host.up.has_room(first->wire_bytes())) {
      idle = 0;
      port.waiting_.pop_front();
      host.up.send(first);
      if (!port.blocked()) port.unblocked();
    } else {
      return host.room.set_earlier(host.up.room_at(first->wire_bytes()));
    }
    host.turn = (host.turn + 1) % host.ports.size();
  }
}

void Network::forward(Datagram* datagram) { hosts_[host_of(datagram->to)]->down.send(datagram); }

void Network::set_delay(Picoseconds delay) noexcept {
  for (const auto& host : hosts_) {
    host->up.set_delay(delay);
    host->down.set_delay(delay);
  }
}

void Network::deliver(Datagram* datagram) {
  const Host& host = *hosts_[host_of(datagram->to)];
  const auto found = std::ranges::find(host.ports, datagram->to.port, &std::pair<std::uint16_t, Port*>::first);
  if (found == host.ports.end()) return pool_.give_back(datagram);
  found->second->arrive(datagram);
}

}  // namespace thc::simulation
