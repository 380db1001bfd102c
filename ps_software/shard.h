// One packet thread's world: packets in, checks, slots, packets out. Shards share nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cookies.h"
#include "counters.h"
#include "io/packet_io.h"
#include "job_table.h"
#include "leaf.h"
#include "replies.h"
#include "result_pacer.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc::ps {

class Shard {
 public:
  /// `packet_io` outlives the shard.
  Shard(const JobLimits& limits, io::PacketIo& packet_io);

  /// Handles one burst of the packets that are there; returns how many. Allocates for the HELLO of a new job only.
  std::size_t poll(TimePoint now) noexcept;
  /// When to call that although nothing arrives.
  TimePoint next_result() const noexcept { return pacer_.next(); }

  /// Asks workers whether they live, expires idle jobs and publishes gauges; call some ten times a second.
  void run_timers(TimePoint now) noexcept;

  /// From now on refuses new jobs and new workers.
  void drain(TimePoint now) noexcept;
  /// Whether no worker waits for anything, by all appearances: none has sent a contribution for half a second (a
  /// second while rounds are incomplete), and those of a server that drains have had the time to hear of it, so that
  /// they may go on without it.
  bool is_quiet(TimePoint now) const noexcept;

  /// Jobs that started and ended; for one reader, on any thread.
  JobEvents& job_events() noexcept { return jobs_.events(); }

  // Any thread may read these.
  std::span<const JobCounters> jobs() const noexcept { return jobs_.counters(); }
  /// Packets of no job.
  const PacketCounters& strays() const noexcept { return strays_; }
  /// What io::PacketIo has counted.
  io::IoCounters io_totals() const noexcept;

 private:
  static constexpr std::size_t kBurst = 64;

  void prefetch(const io::RxPacket& packet) const noexcept;
  void handle(const io::RxPacket& packet, TimePoint now) noexcept;
  void handle_hello(const Packet& packet, TimePoint now) noexcept;
  void take_hello(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// A HELLO with an epoch: of a worker that hears nothing any more, perhaps as its address has changed.
  void take_address(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  void handle_goodbye(const Packet& packet) noexcept;
  void ended(std::uint16_t job_id) noexcept;
  void handle_alive(const Packet& packet, TimePoint now) noexcept;
  void handle_contribution(const Packet& packet, TimePoint now) noexcept;
  /// Whether a contribution is of a worker and of this incarnation; otherwise it was dropped or refused.
  bool check_sender(const Packet& packet, const Job& job) noexcept;
  /// Whether a HELLO is of nobody who is in the job.
  bool is_stranger(const Packet& packet) const noexcept;
  bool has_cookie(const Packet& packet, TimePoint now) const noexcept;
  void contribute(const Packet& packet, TimePoint now) noexcept;

  /// Whether the job is the training's that says HELLO. Otherwise it is refused, as long as the other one lives.
  bool make_way(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept;
  /// Frees the place in a job of other settings, once the process that has it is found to be gone. A worker that ends
  /// before its WELCOME comes says no GOODBYE, and may be back with other settings at once.
  void clear_place(const Hello& hello, Job& job, TimePoint now) noexcept;
  /// A job of a training that is over, with other settings, ends for this one.
  void take_over(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// Whether workers can be let in at once: not before the root has let the job of a leaf in anew.
  bool start_over(Job& job, std::uint64_t run) noexcept;
  void join(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept;
  std::uint32_t window_bytes(const Job& job, io::Endpoint to) const noexcept;

  /// `moved`: what was sent to the worker's address of before is lost.
  void send_welcome(const Packet& packet, const Job& job, bool moved = false) noexcept;

  /// Tells all workers of a new epoch; `packet` would have begun a round too many of the old one, and is sent again.
  void renew_epoch(const Packet& packet, Job& job) noexcept;
  void send_to_all(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;
  void send_result(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;
  /// To one of the job's workers; `header` is that of all.
  void send_result_to(std::uint8_t worker, io::Endpoint to, wire::Header header, std::span<const std::uint8_t> result,
                      Job& job, TimePoint now) noexcept;
  /// Those that pacing lets go.
  void send_waiting(TimePoint now) noexcept;
  void send_straggler(const Packet& packet) noexcept;
  void send_challenge(const Packet& packet, TimePoint now) noexcept;
  void send_probes(Job& job, TimePoint now) noexcept;
  void refuse_stranger(const Packet& packet, const Refusal& refusal) noexcept;
  void refill(TimePoint now) noexcept;
  void publish_io_totals() noexcept;

  Outbox outbox_;
  io::PacketIo& io_;
  ResultPacer pacer_;
  const Cookies cookies_;
  JobTable jobs_;
  const std::unique_ptr<Leaf> leaf_;  ///< nullptr: this is no leaf
  PacketCounters strays_;
  std::array<Counter, sizeof(io::IoCounters) / sizeof(std::uint64_t)> io_totals_;  ///< where any thread can read them
  std::array<io::RxPacket, kBurst> burst_;
  bool draining_ = false;
  TimePoint told_at_{};      // when workers have asked whether it drains, which they do each second
  TimePoint last_active_{};  // when a contribution last came
  // What anybody can ask for is limited: so many until the next refill. Packets of unknown jobs (a server that came
  // back gets many) must not use up what HELLOs need.
  std::uint32_t stranger_budget_ = 0;   // ERROR messages about contributions
  std::uint32_t hello_budget_ = 0;      // HELLOs with a cookie
  std::uint32_t challenge_budget_ = 0;  // HELLOs without
  std::size_t stranger_bytes_ = 0;      // that came from addresses nobody has proven, less what was sent there
  TimePoint next_refill_{};
};

}  // namespace thc::ps
