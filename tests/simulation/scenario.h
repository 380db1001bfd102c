// One training in the simulated network: some averages, one after the other, and their durations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simulation/tcp_flow.h"

namespace thc::simulation {

/// Ends of TCP-like flows beside the training: one flow from or to the host of server 0, with a host of its own at the
/// far end; or one from each worker's host to the host of server 0, and one back to worker 0's.
enum class Competitor : std::uint8_t { kNone, kToServer, kFromServer, kBothWays };

struct Scenario {
  std::string name{};
  std::size_t workers = 4;
  std::size_t servers = 1;
  bool colocated = false;  ///< server s is on worker s's host
  double rate_bps = 1e9;
  double slow_host_factor = 1;  ///< of worker 0's links
  double server_factor = 1;     ///< of the links of hosts that have servers alone
  double one_way_delay_s = 50e-6;
  double later_one_way_delay_s = 0;   ///< after a change of the route; 0: none
  std::size_t route_change_step = 2;  ///< in which that happens
  std::size_t queue_bytes = 512 * 1024;
  double loss = 0;                ///< one way
  double mark_fraction = 0;       ///< of the queue, from where ECN marks are set; 0: none
  std::size_t policer_bytes = 0;  ///< burst of a policer at each link; 0: queues
  std::size_t parameters = 1'000'000;
  std::size_t partitions = 0;  ///< 0: two for each server
  std::size_t steps = 6;
  double idle_s = 0.2;       ///< between steps
  double straggler_s = 0;    ///< worker 0 begins each step so much later
  double jitter_s = 100e-6;  ///< workers begin a step within this time
  Competitor competitor = Competitor::kNone;
  Growth growth = Growth::kCubic;  ///< the competitor's
  bool back_pressure = true;
  double wake_s = 0;    ///< from an arrival to the program that takes it
  double packet_s = 0;  ///< of a program's time for each that arrives
  std::size_t receive_buffer_bytes = std::size_t{8} << 20;
  std::uint32_t slots = 0;  ///< 0: the server's default
  double limit_s = 0;       ///< of simulated time; 0: 100 times the ideal of all steps
  std::uint64_t seed = 1;

  /// All fields, to repeat a run.
  std::string text() const;
};

/// Bytes of a step on each host's links, without repeats.
struct LinkBytes {
  std::vector<double> up;
  std::vector<double> down;
};
LinkBytes link_bytes(const Scenario& scenario);

/// Times of a step without losses and idle links.
struct Ideal {
  double transfer_s = 0;    ///< of the busiest link's bytes
  double round_trip_s = 0;  ///< of one packet of every worker, to the last result
  double step_s() const { return transfer_s + 3 * round_trip_s; }
};
Ideal ideal_of(const Scenario& scenario);

struct Outcome {
  std::string problem{};         ///< why it did not end as it should; empty: it did
  std::vector<double> step_s{};  ///< from the last worker's start to the last one's end
  double worst_spread = 0;       ///< of a step: from the first worker's end to the last one's, as a part of the step
  std::uint64_t packets = 0;     ///< that workers sent, repeated ones included
  std::uint64_t repeats = 0;
  double excess = 0;                   ///< bytes on up-links beyond one copy of all packets and results, as a part
  std::uint64_t dropped = 0;           ///< at links' queues, training's and competitor's
  std::uint64_t dropped_by_hosts = 0;  ///< for want of receive buffer
  std::uint64_t lost = 0;              ///< by chance
  std::uint64_t marked = 0;
  std::uint64_t rejoins = 0;
  std::uint32_t unanswered_ms = 0;  ///< the longest time that a worker took a packet for unanswered
  double competitor_share = 0;      ///< of the link that both use, while steps run
  double own_share = 0;             ///< likewise, of the training without repeats
  double simulated_s = 0;
  std::uint64_t events = 0;

  double median_s() const;   ///< of the steps but the first
  double worst_s() const;    ///< likewise
  double longest_s() const;  ///< of all
  double repeated() const { return packets == 0 ? 0 : static_cast<double>(repeats) / static_cast<double>(packets); }
};

Outcome run(const Scenario& scenario);

}  // namespace thc::simulation
