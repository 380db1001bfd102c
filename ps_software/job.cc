#include "job.h"

#include <sodium.h>

#include <algorithm>

namespace thc::ps {
namespace {

/// 0 means none in packets.
std::uint32_t random_epoch() noexcept { return 1 + randombytes_uniform(UINT32_MAX); }

SlotPoolConfig pool_config(const JobConfig& config, std::uint32_t slots, ShardShare share,
                           const LeafConfig* leaf) noexcept {
  SlotPoolConfig pool{.slots = share.count(slots),
                      .norm_slots = share.count(norm_slots_of(slots)),
                      .codes_per_packet = config.codes_per_packet,
                      .workers = config.num_workers,
                      .quorum = config.quorum,
                      .value_bits = config.value_bits,
                      .sum_bits = config.value_bits};
  if (leaf != nullptr) {
    pool.workers = pool.quorum = leaf->rack_workers;
    pool.sum_bits = LeafConfig::kSumBits;
  }
  return pool;
}

std::size_t tables_bytes(std::uint32_t local_slots, const LeafConfig* leaf) noexcept {
  return 2 * sizeof(std::uint64_t) * local_slots + (leaf != nullptr ? AwaitedRounds::memory_bytes(local_slots) : 0);
}

}  // namespace

Job::Job(std::uint16_t id, const JobConfig& config, std::uint32_t slots, ShardShare share, const LeafConfig* leaf,
         io::IpAddress holder_ip, JobCounters& counters, TimePoint now)
    : id_(id),
      holder_ip_(holder_ip),
      config_(config),
      first_worker_(leaf != nullptr ? leaf->first_worker : 0),
      workers_elsewhere_(leaf != nullptr ? leaf->workers_elsewhere() : 0),
      slots_(slots),
      epoch_(random_epoch()),
      roster_(config.num_workers),
      last_heard_(now),
      pool_(pool_config(config, slots, share, leaf), config.table),
      queued_at_(2 * std::size_t{share.count(slots)}),
      awaited_(leaf != nullptr ? share.count(slots) : 0),
      counters_(counters) {
  counters_.packets = {};
  counters_.workers.set(0);
  counters_.slots.set(share.count(slots));
  counters_.slots_in_use.set(0);
  counters_.memory_bytes.set(memory_bytes(config, slots, share, leaf));
  counters_.job_plus_one.set(std::uint64_t{id} + 1);
}

std::size_t Job::memory_bytes(const JobConfig& config, std::uint32_t slots, ShardShare share,
                              const LeafConfig* leaf) noexcept {
  return SlotPool::memory_bytes(pool_config(config, slots, share, leaf)) + tables_bytes(share.count(slots), leaf);
}

std::size_t Job::bytes_written(std::uint32_t slots, ShardShare share, const LeafConfig* leaf) noexcept {
  // Starting a job touches everything but results.
  return sizeof(Job) + SlotPool::kSlotBytes * share.count(slots) + tables_bytes(share.count(slots), leaf);
}

void Job::enter(const Hello& hello, io::Endpoint from, TimePoint now) noexcept {
  roster_.enter(hello, from, now);
  if (outsider_ && outsider_->worker == hello.worker_id) outsider_.reset();
  counters_.workers.set(roster_.size());
  last_heard_ = now;
}

bool Job::leave(std::uint8_t worker) noexcept {
  roster_.leave(worker);
  counters_.workers.set(roster_.size());
  return roster_.size() == 0;
}

void Job::start_over() noexcept {
  Roster::Epochs epochs{epoch_};
  std::ranges::copy(renewed_, epochs.begin() + 1);  // a survivor may not have heard of the last one
  roster_.start_over(epochs);
  outsider_.reset();
  renew_epoch();
  renewed_.fill(0);  // their workers are gone, or must start over
  counters_.workers.set(0);
  pool_.reset();
  awaited_.reset();
}

bool Job::ends_epoch(std::uint32_t local_slot, std::uint32_t round, std::uint32_t rounds_per_epoch) noexcept {
  if (rounds_per_epoch == 0 || !pool_.starts_over(local_slot, round)) return false;
  RoundRange& rounds = pool_.takes_norms(local_slot) ? norm_rounds_ : code_rounds_;
  return !rounds.takes(round, rounds_per_epoch);
}

void Job::renew_epoch() noexcept {
  renewed_[renewals_++ % renewed_.size()] = epoch_;
  epoch_ = random_epoch();
  norm_rounds_.forget();
  code_rounds_.forget();
}

bool Job::has_renewed(std::uint32_t epoch) const noexcept {
  return epoch != 0 && std::ranges::find(renewed_, epoch) != renewed_.end();
}

}  // namespace thc::ps
