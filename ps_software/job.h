// One training job on one shard: who joined, and the slots of this shard.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "counters.h"
#include "io/packet_io.h"
#include "thc/hello.h"
#include "thc/slot_pool.h"

namespace thc::ps {

using TimePoint = std::chrono::steady_clock::time_point;

/// How slots are dealt to shards: slot s belongs to shard s mod shards and is number s div shards there.
struct ShardShare {
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;

  bool owns(std::uint32_t slot) const noexcept { return slot % shards == shard; }
  std::uint32_t local(std::uint32_t slot) const noexcept { return slot / shards; }
  /// Of slots 0 .. slots - 1, how many are here.
  std::uint32_t count(std::uint32_t slots) const noexcept { return (slots + shards - 1 - shard) / shards; }
};

/// Slots of a job that are given to norms: they are few, one for each rotation block of thousands of coordinates.
constexpr std::uint32_t norm_slots_of(std::uint32_t slots) noexcept { return slots < 16 ? 1 : slots / 8; }

class Job {
 public:
  enum class Joined : std::uint8_t { kNew, kAgain, kRestarted, kDuplicate };

  /// Throws std::bad_alloc. `slots`: of the job on the whole server.
  Job(std::uint16_t id, const JobConfig& config, std::uint32_t slots, ShardShare share, std::uint32_t epoch,
      JobCounters& counters, TimePoint now);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { counters_.job_plus_one.set(0); }

  /// Bytes of the slots of such a job on this shard.
  static std::size_t memory_bytes(const JobConfig& config, std::uint32_t slots, ShardShare share) noexcept;

  /// A worker said HELLO. kRestarted: it is another process than before, and the job starts over with `next_epoch`.
  /// kDuplicate: the earlier process was heard of less than a second ago, nothing changed.
  Joined join(const Hello& hello, io::Endpoint from, std::uint32_t next_epoch, TimePoint now) noexcept;

  /// A worker said GOODBYE. Returns whether it was the last one.
  bool leave(std::uint8_t worker) noexcept;

  /// Whether `from` is the address of `worker`, which must be below num_workers.
  bool is_registered(std::uint8_t worker, io::Endpoint from) const noexcept {
    return workers_[worker].joined && workers_[worker].endpoint == from;
  }
  void heard_of(std::uint8_t worker, TimePoint now) noexcept { workers_[worker].last_heard = last_heard_ = now; }

  /// Calls send(worker, endpoint) for every worker that joined.
  template <typename Send>
  void for_each_worker(Send&& send) const noexcept {
    for (std::uint8_t worker = 0; worker < config_.num_workers; ++worker) {
      if (workers_[worker].joined) send(worker, workers_[worker].endpoint);
    }
  }

  /// Whether the job was started anew since it had this epoch.
  bool was_superseded(std::uint32_t epoch) const noexcept;

  /// Result buffers handed to PacketIo::send() must not change before the flush. `flush_number` counts flushes.
  void mark_queued(std::uint32_t local_slot, std::uint32_t round, std::uint64_t flush_number) noexcept {
    queued_at_[2 * std::size_t{local_slot} + (round & 1)] = flush_number;
  }
  /// Whether a packet for this slot and round would overwrite a result that is queued since the last flush.
  bool would_overwrite_queued(std::uint32_t local_slot, std::uint32_t round,
                              std::uint64_t flush_number) const noexcept {
    return queued_at_[2 * std::size_t{local_slot} + (round & 1)] == flush_number &&
           pool_.starts_over(local_slot, round);
  }

  std::uint16_t id() const noexcept { return id_; }
  std::uint32_t epoch() const noexcept { return epoch_; }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t norm_slots() const noexcept { return norm_slots_of(slots_); }
  const JobConfig& config() const noexcept { return config_; }
  SlotPool& pool() noexcept { return pool_; }
  const SlotPool& pool() const noexcept { return pool_; }
  TimePoint last_heard() const noexcept { return last_heard_; }
  JobCounters& counters() noexcept { return counters_; }

 private:
  struct Worker {
    bool joined = false;
    io::Endpoint endpoint;
    std::uint64_t nonce = 0;
    TimePoint last_heard{};
  };

  void start_over(std::uint32_t epoch) noexcept;

  const std::uint16_t id_;
  const JobConfig config_;
  const std::uint32_t slots_;
  std::uint32_t epoch_;
  std::array<std::uint32_t, 4> superseded_epochs_{};  // the last few, 0: none
  std::size_t restarts_ = 0;
  std::array<Worker, wire::kMaxWorkers> workers_;
  TimePoint last_heard_;
  SlotPool pool_;
  std::vector<std::uint64_t> queued_at_;
  JobCounters& counters_;
};

}  // namespace thc::ps
