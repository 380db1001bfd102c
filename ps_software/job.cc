#include "job.h"

#include <algorithm>

namespace thc::ps {
namespace {

// A worker that was silent for this long may be replaced by another process with its id.
constexpr std::chrono::seconds kLiveness{1};

SlotPoolConfig pool_config(const JobConfig& config, std::uint32_t slots, ShardShare share) noexcept {
  return {.slots = share.count(slots),
          .norm_slots = share.count(norm_slots_of(slots)),
          .codes_per_packet = config.codes_per_packet,
          .workers = config.num_workers,
          .quorum = config.quorum,
          .value_bits = config.value_bits};
}

}  // namespace

Job::Job(std::uint16_t id, const JobConfig& config, std::uint32_t slots, ShardShare share, std::uint32_t epoch,
         JobCounters& counters, TimePoint now)
    : id_(id),
      config_(config),
      slots_(slots),
      epoch_(epoch),
      last_heard_(now),
      pool_(pool_config(config, slots, share), config.table),
      queued_at_(2 * std::size_t{share.count(slots)}),
      counters_(counters) {
  counters_.packets.reset();
  counters_.workers.set(0);
  counters_.slots.set(share.count(slots));
  counters_.slots_in_use.set(0);
  counters_.memory_bytes.set(memory_bytes(config, slots, share));
  counters_.job_plus_one.set(std::uint64_t{id} + 1);
}

std::size_t Job::memory_bytes(const JobConfig& config, std::uint32_t slots, ShardShare share) noexcept {
  return SlotPool::memory_bytes(pool_config(config, slots, share)) + 2 * sizeof(std::uint64_t) * share.count(slots);
}

Job::Joined Job::join(const Hello& hello, io::Endpoint from, std::uint32_t next_epoch, TimePoint now) noexcept {
  Worker& worker = workers_[hello.worker_id];
  Joined joined = Joined::kNew;
  if (worker.nonce != 0 || worker.joined) {  // known: joined, or left and came back
    if (worker.nonce == hello.nonce) {
      joined = Joined::kAgain;
    } else if (worker.joined && now - worker.last_heard < kLiveness) {
      return Joined::kDuplicate;
    } else {
      joined = Joined::kRestarted;
      start_over(next_epoch);
    }
  }
  if (!worker.joined) counters_.workers.add();
  worker = {.joined = true, .endpoint = from, .nonce = hello.nonce, .last_heard = now};
  last_heard_ = now;
  return joined;
}

bool Job::leave(std::uint8_t worker) noexcept {
  workers_[worker].joined = false;
  counters_.workers.set(counters_.workers.get() - 1);
  return std::ranges::none_of(workers_, &Worker::joined);
}

void Job::start_over(std::uint32_t epoch) noexcept {
  superseded_epochs_[restarts_++ % superseded_epochs_.size()] = epoch_;
  epoch_ = epoch;
  workers_.fill({});
  counters_.workers.set(0);
  pool_.reset();
}

bool Job::was_superseded(std::uint32_t epoch) const noexcept {
  return epoch != 0 && std::ranges::find(superseded_epochs_, epoch) != superseded_epochs_.end();
}

}  // namespace thc::ps
