#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "awaited_rounds.h"
#include "counters.h"
#include "io/packet_io.h"
#include "leaf_config.h"
#include "roster.h"
#include "thc/hello.h"
#include "thc/slot_pool.h"

namespace thc::ps {

/// Slot s belongs to shard s mod shards, as number s div shards.
struct ShardShare {
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;

  bool owns(std::uint32_t slot) const noexcept { return slot % shards == shard; }
  std::uint32_t local(std::uint32_t slot) const noexcept { return slot / shards; }
  std::uint32_t count(std::uint32_t slots) const noexcept { return (slots + shards - 1 - shard) / shards; }
};

/// Norms need few slots: one packet per rotation block of thousands of coordinates.
constexpr std::uint32_t norm_slots_of(std::uint32_t slots) noexcept { return slots < 16 ? 1 : slots / 8; }

/// Bounds the rounds of a stage in one epoch, so that none occurs twice.
class RoundRange {
 public:
  /// Slots of a stage are a lap or two apart, but a returning worker may ask for older rounds.
  static constexpr std::uint32_t kBehind = 1U << 20;

  /// Whether a slot may begin `round`. The first round since forget() fixes the range: `size` rounds from it, and
  /// kBehind before. A slot's rounds only grow, so no round repeats within the range.
  bool takes(std::uint32_t round, std::uint32_t size) noexcept {
    if (!first_) first_ = round;
    return round - *first_ + kBehind < size + kBehind;
  }
  void forget() noexcept { first_.reset(); }

 private:
  std::optional<std::uint32_t> first_;
};

class Job {
 public:
  /// Throws std::bad_alloc. `slots`: on the whole server. `leaf`: null, or the rack to sum. `holder_ip`: the client's.
  Job(std::uint16_t id, const JobConfig& config, std::uint32_t slots, ShardShare share, const LeafConfig* leaf,
      io::IpAddress holder_ip, JobCounters& counters, TimePoint now);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { counters_.job_plus_one.set(0); }
  static std::size_t memory_bytes(const JobConfig& config, std::uint32_t slots, ShardShare share,
                                  const LeafConfig* leaf) noexcept;
  static std::size_t bytes_written(std::uint32_t slots, ShardShare share, const LeafConfig* leaf) noexcept;

  const Roster& roster() const noexcept { return roster_; }
  Roster& roster() noexcept { return roster_; }
  void enter(const Hello& hello, io::Endpoint from, TimePoint now) noexcept;
  /// Returns whether the last worker has left.
  bool leave(std::uint8_t worker) noexcept;
  /// Frees all places and slots, and begins an epoch.
  void start_over() noexcept;
  /// Whether a round would repeat in this epoch, which would allow replays. `rounds_per_epoch` 0: never.
  bool ends_epoch(std::uint32_t local_slot, std::uint32_t round, std::uint32_t rounds_per_epoch) noexcept;
  /// Keeps workers and slots.
  void renew_epoch() noexcept;
  /// Whether renew_epoch() ended `epoch` lately, for these workers.
  bool has_renewed(std::uint32_t epoch) const noexcept;

  void heard_of(std::uint8_t worker, TimePoint now) noexcept {
    roster_.heard_of(worker, now);
    last_heard_ = now;
  }
  std::uint8_t take_congestion_flag(std::uint8_t worker) noexcept {
    return roster_.take_congestion(worker) ? wire::kFlagCongested : std::uint8_t{0};
  }
  /// Result buffers in PacketIo::send() must not change before the flush. `flush_number` counts flushes.
  void mark_queued(std::uint32_t local_slot, std::uint32_t round, std::uint64_t flush_number) noexcept {
    queued_at_[2 * std::size_t{local_slot} + (round & 1)] = flush_number;
  }
  bool would_overwrite_queued(std::uint32_t local_slot, std::uint32_t round,
                              std::uint64_t flush_number) const noexcept {
    return queued_at_[2 * std::size_t{local_slot} + (round & 1)] == flush_number &&
           pool_.starts_over(local_slot, round);
  }

  /// `field` of a rejected worker's settings differs, with `value` there (0: no number).
  struct Outsider {
    std::uint8_t worker;
    wire::ConfigField field;
    std::uint32_t value;
  };
  void refused(const Outsider& outsider) noexcept { outsider_ = outsider; }
  /// The last one that has not joined since. Waiting workers learn its settings.
  const std::optional<Outsider>& outsider() const noexcept { return outsider_; }

  std::uint16_t id() const noexcept { return id_; }
  io::IpAddress holder_ip() const noexcept { return holder_ip_; }
  std::uint32_t epoch() const noexcept { return epoch_; }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t norm_slots() const noexcept { return norm_slots_of(slots_); }
  const JobConfig& config() const noexcept { return config_; }
  bool has_quorum() const noexcept { return config_.quorum < config_.num_workers; }
  /// The pool's first worker, and a bitmap of workers on other servers.
  std::uint8_t first_worker() const noexcept { return first_worker_; }
  std::uint64_t workers_elsewhere() const noexcept { return workers_elsewhere_; }
  SlotPool& pool() noexcept { return pool_; }
  AwaitedRounds& awaited() noexcept { return awaited_; }
  const SlotPool& pool() const noexcept { return pool_; }
  TimePoint last_heard() const noexcept { return last_heard_; }
  JobCounters& counters() noexcept { return counters_; }

 private:
  const std::uint16_t id_;
  const io::IpAddress holder_ip_;
  const JobConfig config_;
  const std::uint8_t first_worker_;
  const std::uint64_t workers_elsewhere_;
  const std::uint32_t slots_;
  std::uint32_t epoch_;
  /// Earlier epochs with the same workers; 0: none.
  std::array<std::uint32_t, std::tuple_size_v<Roster::Epochs> - 1> renewed_{};
  std::size_t renewals_ = 0;
  RoundRange norm_rounds_, code_rounds_;  ///< of this epoch
  Roster roster_;
  std::optional<Outsider> outsider_;
  TimePoint last_heard_;
  SlotPool pool_;
  std::vector<std::uint64_t> queued_at_;
  AwaitedRounds awaited_;  // empty without a root
  JobCounters& counters_;
};

}  // namespace thc::ps
