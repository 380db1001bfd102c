// Hosts around a switch: of each an up-link and a down-link, with a rate, a queue, a delay, losses and ECN marks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "io/packet_io.h"
#include "simulation/event_queue.h"

namespace thc::simulation {

/// Ethernet, IPv4 and UDP, which a shaped link counts.
inline constexpr std::size_t kOverheadBytes = 14 + 20 + 8;
inline constexpr std::size_t kMaxDatagramBytes = 1472;

struct Datagram {
  io::Endpoint from{};
  io::Endpoint to{};
  std::uint32_t size_bytes = 0;
  bool congested = false;    ///< marked CE on the way
  std::uint64_t number = 0;  ///< of a competitor's, which has no bytes
  std::array<std::uint8_t, kMaxDatagramBytes> bytes{};

  std::size_t wire_bytes() const noexcept { return size_bytes + kOverheadBytes; }
};

/// Lends datagrams, and frees none while the simulation runs.
class DatagramPool {
 public:
  Datagram* take() {
    if (free_.empty()) {
      owned_.push_back(std::make_unique<Datagram>());
      return owned_.back().get();
    }
    Datagram* datagram = free_.back();
    free_.pop_back();
    datagram->congested = false;
    return datagram;
  }
  void give_back(Datagram* datagram) { free_.push_back(datagram); }

 private:
  std::vector<std::unique_ptr<Datagram>> owned_;
  std::vector<Datagram*> free_;
};

struct LinkConfig {
  double rate_bps = 1e9;
  std::size_t queue_bytes = 512 * 1024;  ///< with the datagram on its way out
  Picoseconds delay = 0;
  double loss = 0;                ///< of each datagram, whatever the queue
  std::size_t mark_bytes = 0;     ///< a longer queue marks; 0: never
  std::size_t policer_bytes = 0;  ///< the burst of a policer, which drops datagrams above the rate; 0: a queue
};

struct LinkCounters {
  std::uint64_t datagrams = 0;
  std::uint64_t bytes = 0;
  std::uint64_t dropped = 0;  ///< no room in the queue
  std::uint64_t lost = 0;     ///< by chance
  std::uint64_t marked = 0;
};

class Network;

/// A queue in front of a wire. Departures are known when a datagram is queued, so that it takes one event.
class Link final : public Actor {
 public:
  using Receive = void (Network::*)(Datagram*);
  Link(Network& network, const LinkConfig& config, Receive receive);

  std::size_t queued_bytes() const noexcept;
  bool has_room(std::size_t bytes) const noexcept { return queued_bytes() + bytes <= config_.queue_bytes; }
  /// The time when so many bytes fit, at most as many as fit an empty queue.
  Picoseconds room_at(std::size_t bytes) const noexcept;
  /// Queues it, or drops it if the queue has no room.
  void send(Datagram* datagram);
  void act() override;
  /// As after a change of the route.
  void set_delay(Picoseconds delay) noexcept { config_.delay = delay; }

  const LinkConfig& config() const noexcept { return config_; }
  const LinkCounters& counters() const noexcept { return counters_; }

 private:
  Network& network_;
  LinkConfig config_;
  const Receive receive_;
  const Picoseconds per_byte_;
  Picoseconds busy_until_ = 0;                               ///< of a policer: until when its bucket fills
  std::deque<std::pair<Picoseconds, Datagram*>> under_way_;  ///< and when they arrive
  LinkCounters counters_;
};

/// One address of a host. Datagrams without room in the link's queue wait here, as in a socket with a full send buffer.
class Port {
 public:
  virtual ~Port() = default;
  virtual void arrive(Datagram* datagram) = 0;
  /// All that waited is in the link's queue.
  virtual void unblocked() = 0;
  bool blocked() const noexcept { return !waiting_.empty(); }

 private:
  friend class Network;
  std::deque<Datagram*> waiting_;
};

class Network {
 public:
  Network(EventQueue& events, std::uint64_t seed) : events_(events), random_(seed) {}

  /// `back_pressure`: whether senders wait when the up-link's queue is full, or lose datagrams.
  std::size_t add_host(const LinkConfig& up, const LinkConfig& down, bool back_pressure);
  void bind(io::Endpoint address, Port& port);
  static io::Endpoint address(std::size_t host, std::uint16_t port) {
    return {0x0a000001U + static_cast<std::uint32_t>(host), port};
  }
  static std::size_t host_of(io::Endpoint address) { return address.ip.ipv4() - 0x0a000001U; }

  /// Sends from one of the host's ports.
  void send(Port& port, Datagram* datagram);

  EventQueue& events() noexcept { return events_; }
  DatagramPool& pool() noexcept { return pool_; }
  /// 0 .. 1.
  double random() { return std::uniform_real_distribution<>()(random_); }
  bool happens(double chance) { return chance > 0 && random() < chance; }
  /// Sets the delay of every link.
  void set_delay(Picoseconds delay) noexcept;
  const Link& up(std::size_t host) const noexcept { return hosts_[host]->up; }
  const Link& down(std::size_t host) const noexcept { return hosts_[host]->down; }
  std::size_t hosts() const noexcept { return hosts_.size(); }

 private:
  struct Host {
    Host(Network& network, const LinkConfig& up, const LinkConfig& down, bool back_pressure);
    Link up;
    Link down;
    Link loopback;
    const bool back_pressure;
    std::vector<std::pair<std::uint16_t, Port*>> ports;
    std::size_t turn = 0;  ///< of the port that may send next
    Alarm room;
  };
  void forward(Datagram* datagram);
  void deliver(Datagram* datagram);
  void send_waiting(Host& host);

  EventQueue& events_;
  std::mt19937_64 random_;
  DatagramPool pool_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace thc::simulation
