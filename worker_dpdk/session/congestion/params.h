#pragma once

#include "session/session_config.h"

namespace thc::congestion {

using Microseconds = std::chrono::duration<double, std::micro>;

/// Parameters by phase, then by part. Rates are bytes per microsecond.
struct Params {
  struct Startup {
    std::size_t packets = 10;  ///< as in RFC 6928, within its bytes on Ethernet
    std::size_t bytes = 14'600;
    std::size_t packets_of_all = 256;  ///< limits the sum of many workers that start at once
    double growth = 1.25;              ///< as in BBR, three rounds with less growth of the rate mean a full path
    unsigned flat_rounds = 3;
    unsigned queueing_rounds = 2;  ///< likewise
  } startup;

  struct Steady {
    std::size_t fewest_packets = 2;
    std::size_t many_workers = 32;  ///< one packet per worker fills a short queue
    double fast_growth = 1.0 / 8;   ///< a part of the window per round, without a queue
    double slow_growth = 1.0 / 32;  ///< with a queue
    // A worker that is never last does not grow its window: results of four that grow meet in the server's queue.
    std::size_t few_packets = 20;  ///< with fewer, the last worker is chance
    double fast_rate = 8;          ///< above, too: threads that share cores are late by more than a queue
  } steady;

  struct Probe {
    Duration period{500'000};  ///< a probe follows after this time and these round trips without one like the least
    int period_round_trips = 32;
    std::size_t packets = 4;  ///< are in flight, or a share of the path's capacity
    double share = 0.5;
    double needed = 1.5;  ///< times the capacity of a path that has become longer
  } probe;

  struct Queue {
    Duration shortest{200};
    double long_bytes = 128 * 1024;     ///< at the rate; at the next step, all enter a short queue at once
    Microseconds long_at_least{5'000};  ///< threads that share cores are milliseconds late
    Microseconds long_at_most{25'000};
    unsigned remembered_rounds = 8;  ///< by a worker that is never last and knows nothing of the network
  } queue;

  struct Loss {
    double shrink = 0.65;  ///< with a queue
    double shrink_for_much = 0.7;
    double needed = 1.25;  ///< times the path's capacity, whatever is lost
    double much = 0.1;     ///< beyond a path's own
    std::uint32_t fewest = 8;
    std::size_t counted_packets = 100;
    std::size_t recent_packets = 8'192;
    double hardly = 0.002;    ///< a fast link's queues take a window at once
    double of_bursts = 0.05;  ///< a short queue or a policer loses more than random loss does
  } loss;

  struct Pacing {
    double pace = 2;          ///< lets the delivery rate double
    double burst_us = 1'000;  ///< a burst is a millisecond's delivery, within these bytes
    std::size_t burst_bytes = 64 * 1024;
    double timer_us = 250;     ///< makes longer bursts above some 10 Gb/s
    double unpaced_rate = 40;  ///< above, pacing costs more than it saves unless packets get lost
  } pacing;
};
inline constexpr Params kParams{};

}  // namespace thc::congestion
