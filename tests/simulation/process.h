// Programs on simulated hosts: the real worker engine and the real shard, each behind a PacketIo of the simulation.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "session/session_engine.h"
#include "shard.h"
#include "simulation/network.h"

namespace thc::simulation {

/// A UDP socket. `wake` is called for each datagram that arrives, and when the socket can send again.
class Socket final : public io::PacketIo, public Port {
 public:
  Socket(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, std::function<void()> wake)
      : network_(network), local_(local), receive_buffer_bytes_(receive_buffer_bytes), wake_(std::move(wake)) {
    network_.bind(local, *this);
  }

  std::size_t receive(std::span<io::RxPacket> packets) noexcept override;
  bool send(io::Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return local_; }
  std::size_t max_datagram_bytes(io::Endpoint) const noexcept override { return kMaxDatagramBytes; }
  bool is_own_host(io::Endpoint to) const noexcept override { return to.ip == local_.ip; }
  std::size_t receive_buffer_bytes() const noexcept override { return receive_buffer_bytes_; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

  void arrive(Datagram* datagram) override;
  void unblocked() override { wake_(); }
  bool has_arrived() const noexcept { return !arrived_.empty(); }
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  Network& network_;
  const io::Endpoint local_;
  const std::size_t receive_buffer_bytes_;
  std::function<void()> wake_;
  std::deque<Datagram*> arrived_;
  std::size_t arrived_bytes_ = 0;
  std::vector<Datagram*> received_;
  std::uint64_t dropped_ = 0;
  io::IoCounters counters_;
};

/// Times of a program's work.
struct ProcessCosts {
  Picoseconds wake = 0;    ///< from an arrival to the program's turn, when it sleeps
  Picoseconds packet = 0;  ///< for each that arrived
};

/// A program that sleeps until something arrives or a timer is due. It does nothing while its socket is blocked.
class Process {
 public:
  Process(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs);
  virtual ~Process() = default;

  Socket& socket() noexcept { return socket_; }
  TimePoint now() const noexcept { return time_point(events_.now()); }
  Picoseconds time() const noexcept { return events_.now(); }

 protected:
  /// Takes a burst of datagrams that have arrived; returns the time of the next work without an arrival.
  virtual Picoseconds turn() = 0;
  void wake() { alarm_.set_earlier(std::max(events_.now() + costs_.wake, busy_until_)); }

 private:
  void run();

  EventQueue& events_;
  const ProcessCosts costs_;
  Picoseconds busy_until_ = 0;
  Alarm alarm_;
  Socket socket_;
};

class Server final : public Process {
 public:
  Server(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs,
         const ps::JobLimits& limits);
  const ps::Shard& shard() const noexcept { return shard_; }

 private:
  Picoseconds turn() override;

  ps::Shard shard_;
  Picoseconds next_timer_ = 0;
};

class Worker final : public Process {
 public:
  /// `config` without a worker's number. `changed`: operations ended, the engine has connected or failed.
  Worker(Network& network, io::Endpoint local, std::size_t receive_buffer_bytes, const ProcessCosts& costs,
         const SessionConfig& config, std::uint8_t number, std::function<void()> changed);

  void submit(std::shared_ptr<Operation> operation) {
    engine_.submit(std::move(operation), now());
    wake();
  }
  const SessionEngine& engine() const noexcept { return engine_; }
  /// The longest time that a packet was without an answer, as failover is told.
  std::uint32_t unanswered_ms() const noexcept { return unanswered_ms_; }

 private:
  Picoseconds turn() override;

  SessionState state_;
  SessionEngine engine_;
  std::function<void()> changed_;
  std::uint32_t unanswered_ms_ = 0;
};

}  // namespace thc::simulation
