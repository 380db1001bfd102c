// A flow like TCP's, without an end: slow start, NewReno or CUBIC, fast retransmit, a retransmission timeout.
#pragma once

#include <cstdint>
#include <deque>

#include "simulation/network.h"

namespace thc::simulation {

enum class Growth : std::uint8_t { kNewReno, kCubic };

/// Segments are numbered by transmission and acknowledged one by one, as TCP with SACK and timestamps can tell them.
class TcpFlow {
 public:
  TcpFlow(Network& network, io::Endpoint from, io::Endpoint to, Growth growth);
  void start() { send(); }
  /// Bytes of segments that have arrived, with their headers.
  std::uint64_t delivered_bytes() const noexcept { return receiver_.bytes; }

 private:
  struct Segment {
    Picoseconds sent_at;
    bool answered;
  };
  struct Sender final : Port {
    explicit Sender(TcpFlow& own) : flow(own) {}
    void arrive(Datagram* datagram) override { flow.take_acknowledgment(datagram); }
    void unblocked() override { flow.send(); }
    TcpFlow& flow;
  };
  struct Receiver final : Port {
    explicit Receiver(TcpFlow& own) : flow(own) {}
    void arrive(Datagram* datagram) override { flow.acknowledge(datagram); }
    void unblocked() override {}
    TcpFlow& flow;
    std::uint64_t bytes = 0;
  };

  void send();
  void acknowledge(Datagram* datagram);
  void take_acknowledgment(Datagram* datagram);
  void grow(Picoseconds round_trip);
  void find_losses();
  void shrink(bool timed_out);
  void time_out();

  Network& network_;
  const io::Endpoint from_;
  const io::Endpoint to_;
  const Growth growth_;
  Sender sender_{*this};
  Receiver receiver_{*this};
  std::deque<Segment> segments_;    ///< from first_ on
  std::uint64_t first_ = 0;         ///< the oldest that may still be acknowledged
  std::uint64_t highest_ = 0;       ///< acknowledged
  std::uint64_t recovered_at_ = 0;  ///< losses before this segment were an occasion to shrink already
  std::uint64_t in_flight_ = 0;
  double window_ = 10;  // segments
  double threshold_ = 1e9;
  double window_at_loss_ = 0;  // CUBIC
  Picoseconds lost_at_ = 0;
  Picoseconds smoothed_ = 0;
  Picoseconds variation_ = 0;
  unsigned timeouts_ = 0;  ///< one after the other
  Alarm timeout_;
};

}  // namespace thc::simulation
