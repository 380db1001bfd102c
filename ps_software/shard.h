// The state of one packet thread. Shards share nothing.
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
  /// Handles a burst of packets; returns their number. Allocates only for the HELLO of a new job.
  std::size_t poll(TimePoint now) noexcept;
  TimePoint next_result() const noexcept { return pacer_.next(); }
  /// Call about ten times a second.
  void run_timers(TimePoint now) noexcept;
  /// Refuses new jobs and workers from now on.
  void drain(TimePoint now) noexcept;
  /// Whether no contribution came for half a second (a second if rounds are incomplete), and workers of a draining
  /// server had time to switch.
  bool is_quiet(TimePoint now) const noexcept;
  /// For one reader, on any thread.
  JobEvents& job_events() noexcept { return jobs_.events(); }

  // Any thread.
  std::span<const JobCounters> jobs() const noexcept { return jobs_.counters(); }
  const PacketCounters& strays() const noexcept { return strays_; }
  io::IoCounters io_totals() const noexcept;

 private:
  static constexpr std::size_t kBurst = 64;

  void prefetch(const io::RxPacket& packet) const noexcept;
  void handle(const io::RxPacket& packet, TimePoint now) noexcept;
  void handle_hello(const Packet& packet, TimePoint now) noexcept;
  void take_hello(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// A HELLO with an epoch comes from a worker that hears nothing, perhaps because its address changed.
  void take_address(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  void handle_goodbye(const Packet& packet) noexcept;
  void ended(std::uint16_t job_id) noexcept;
  void handle_alive(const Packet& packet, TimePoint now) noexcept;
  void handle_contribution(const Packet& packet, TimePoint now) noexcept;
  /// Returns false after dropping or refusing the contribution.
  bool check_sender(const Packet& packet, const Job& job) noexcept;
  bool is_stranger(const Packet& packet) const noexcept;
  void contribute(const Packet& packet, TimePoint now) noexcept;
  /// Whether the job is of the same training as HELLO. Otherwise refuses it while the other training lives.
  bool make_way(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept;
  /// Frees a place in a job of other settings once its process is dead. A worker that ends before its WELCOME says no
  /// GOODBYE, and may return with other settings.
  void clear_place(const Hello& hello, Job& job, TimePoint now) noexcept;
  /// Ends a job of a finished training with other settings.
  void take_over(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// Whether workers may join at once; a leaf waits for the root first.
  bool start_over(Job& job, std::uint64_t run) noexcept;
  void join(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept;
  std::uint32_t window_bytes(const Job& job, io::Endpoint to) const noexcept;
  /// `moved`: packets to the worker's previous address are lost.
  void send_welcome(const Packet& packet, const Job& job, bool moved = false) noexcept;
  /// Tells all workers the new epoch. `packet` would exceed the old epoch's rounds; its sender repeats it.
  void renew_epoch(const Packet& packet, Job& job) noexcept;
  void send_to_all(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;
  void send_result(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;
  void send_result_to(std::uint8_t worker, io::Endpoint to, wire::Header header, std::span<const std::uint8_t> result,
                      Job& job, TimePoint now) noexcept;
  void send_waiting(TimePoint now) noexcept;
  void send_straggler(const Packet& packet) noexcept;
  void send_probes(Job& job, TimePoint now) noexcept;
  void refuse_stranger(const Packet& packet, const Refusal& refusal) noexcept;
  void refill(TimePoint now) noexcept;
  void publish_io_totals() noexcept;

  Outbox outbox_;
  io::PacketIo& io_;
  ResultPacer pacer_;
  const Cookies cookies_;
  JobTable jobs_;
  const std::unique_ptr<Leaf> leaf_;  ///< nullptr: not a leaf
  PacketCounters strays_;
  std::array<Counter, sizeof(io::IoCounters) / sizeof(std::uint64_t)> io_totals_;  ///< for readers on any thread
  std::array<io::RxPacket, kBurst> burst_;
  bool draining_ = false;
  TimePoint told_at_{};      // when workers asked a draining server whether it lives, as they do each second
  TimePoint last_active_{};  // the last contribution
  // Limits per refill on answers to anybody. ERRORs of a restarted server must not use up the budget of HELLOs.
  std::uint32_t stranger_budget_ = 0;   // ERRORs about contributions
  std::uint32_t hello_budget_ = 0;      // HELLOs with a cookie
  std::uint32_t challenge_budget_ = 0;  // HELLOs without
  std::size_t stranger_bytes_ = 0;      // received from unproven addresses, minus sent
  TimePoint next_refill_{};
};

}  // namespace thc::ps
