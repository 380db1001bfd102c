// Workers, an aggregator and a clock that the test turns.
#pragma once

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "memory_network.h"
#include "session/session_engine.h"
#include "thc/lookup_sum.h"

namespace thc::testing {

inline LookupTable test_table(unsigned bits) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits);
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  if (values.size() > 2) {
    values.back() = static_cast<std::uint16_t>(values.back() + 5);  // not uniform
  }
  return {bits, values};
}

inline SessionConfig test_config(unsigned bits, std::uint8_t workers, unsigned value_bits = 0) {
  SessionConfig config{.table = test_table(bits)};
  config.servers = {kServer};
  config.job_id = 7;
  config.num_workers = workers;
  config.value_bits = value_bits;
  config.codes_per_packet = 64;
  return config;
}

inline SlotPoolConfig pool_config(const SessionConfig& resolved, std::uint32_t slots = 10,
                                  std::uint32_t norm_slots = 2) {
  return {.slots = slots,
          .norm_slots = norm_slots,
          .codes_per_packet = resolved.codes_per_packet,
          .workers = resolved.num_workers,
          .quorum = resolved.quorum,
          .value_bits = resolved.value_bits};
}

/// One worker's buffers for one partition.
struct Push {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> aggregate;  // bytes
  std::vector<std::uint8_t> contributions;
  std::shared_ptr<Operation> operation;

  Push(std::uint16_t partition, std::size_t count, const SessionConfig& config, std::uint64_t seed) {
    codes.resize((count * config.table.bits() + 7) / 8);
    std::mt19937_64 random(seed);
    std::generate(codes.begin(), codes.end(), [&] { return static_cast<std::uint8_t>(random()); });
    aggregate.assign(count * config.value_bits / 8, 0xee);
    contributions.assign((count + config.codes_per_packet - 1) / config.codes_per_packet, 0xee);
    operation = Operation::codes(partition, codes.data(), count, aggregate.data(), contributions.data(), config);
  }
};

/// The aggregate of all pushes by the scalar definition.
inline std::vector<std::uint8_t> expected_aggregate(const std::vector<const Push*>& pushes, std::size_t count,
                                                    const SessionConfig& config) {
  std::vector<std::uint16_t> sums(count);
  for (const Push* push : pushes) {
    for (std::size_t i = 0; i < count; ++i) {
      unsigned code = 0;
      for (std::size_t bit = i * config.table.bits(); bit < (i + 1) * config.table.bits(); ++bit) {
        code = code * 2 + ((push->codes[bit / 8] >> (7 - bit % 8)) & 1U);
      }
      sums[i] = static_cast<std::uint16_t>(sums[i] + config.table.values()[code]);
    }
  }
  if (config.value_bits == 8) return {sums.begin(), sums.end()};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(sums.data());
  return {bytes, bytes + count * sizeof(sums[0])};
}

/// Engines of all workers of a job.
class Workers {
 public:
  Workers(const SessionConfig& config, MemoryServer& server, Faults faults = {}, std::uint64_t seed = 1)
      : network(config.num_workers, server, faults, seed) {
    for (std::uint8_t worker = 0; worker < config.num_workers; ++worker) {
      SessionConfig own = config;
      own.worker_id = worker;
      states.push_back(std::make_unique<SessionState>(config.servers.size()));
      engines.push_back(
          std::make_unique<SessionEngine>(resolve(own, 65507), *network.ios[worker], *states.back(), worker + 1U, now));
    }
  }

  void submit(std::size_t worker, const std::shared_ptr<Operation>& operation) {
    engines[worker]->submit(operation, now);
  }

  /// Everybody's turn once, then the clock moves to the next timer if nobody had anything to do.
  void turn() {
    bool busy = false;
    TimePoint next = TimePoint::max();
    for (const auto& engine : engines) {
      const SessionEngine::Step step = engine->step(now);
      busy |= step.received;
      next = std::min(next, engine->next_timer());
    }
    network.deliver();
    for (const auto& packet_io : network.ios) busy |= !packet_io->arriving.empty();
    now += Duration(10);
    if (!busy && next != TimePoint::max()) now = std::max(now, next);
  }

  /// Turns until `done`, at most that often.
  template <typename Done>
  bool run_until(Done done, int turns = 100'000) {
    while (!done() && turns-- > 0) turn();
    return done();
  }

  bool connect() {
    return run_until([&] {
      return std::all_of(engines.begin(), engines.end(), [](const auto& engine) { return engine->connected(); });
    });
  }

  TimePoint now{std::chrono::hours(1)};
  MemoryNetwork network;
  std::vector<std::unique_ptr<SessionState>> states;
  std::vector<std::unique_ptr<SessionEngine>> engines;
};

}  // namespace thc::testing
