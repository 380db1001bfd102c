// The jobs of one shard of a leaf as the root sees them: links by job id, and what is sent to the root.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/packet_io.h"
#include "job_table.h"
#include "leaf_config.h"
#include "root_link.h"

namespace thc::ps {

class Upstream {
 public:
  /// `packet_io` outlives this. `limits.leaf` is there.
  Upstream(const JobLimits& limits, io::PacketIo& packet_io);

  const LeafConfig& leaf() const noexcept { return leaf_; }
  bool is_root(io::Endpoint from) const noexcept { return from == root_; }
  /// Why this server does not take such a worker; nothing when it does.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept;

  /// nullptr when there is none.
  RootLink* find(std::uint16_t job_id) const noexcept {
    const std::uint16_t place = place_plus_one_[job_id];
    return place == 0 ? nullptr : links_[place - 1].get();
  }
  /// nullptr when there is no room, or not for one more from this address.
  RootLink* create(const Hello& hello, io::Endpoint from) noexcept;

  /// Says HELLO if it is due.
  void ask(RootLink& link, TimePoint now) noexcept;
  /// Says HELLO again, with the cookie that CHALLENGE brought.
  void answer_challenge(RootLink& link, const wire::ChallengePayload& payload) noexcept;
  void send(const wire::Header& header, std::span<const std::uint8_t> payload = {}) noexcept;

  /// The job began anew here, for this training: so it must at the root, where the next HELLO contests the rack's
  /// place.
  void renew(RootLink& link, std::uint64_t run) noexcept;
  /// Leaves the root's job.
  void end(RootLink& link) noexcept;
  /// Forgets a job that the root has forgotten.
  void forget(RootLink& link) noexcept;

  /// Repeats HELLO and says ALIVE where that is due, and leaves jobs that are not in `jobs` and nobody asks for.
  void run_timers(JobTable& jobs, TimePoint now) noexcept;

 private:
  const LeafConfig leaf_;
  const io::Endpoint root_;  ///< this shard's
  const ShardShare share_;
  const std::uint32_t max_jobs_per_address_;
  io::PacketIo& io_;
  std::vector<std::unique_ptr<RootLink>> links_;
  std::array<std::uint16_t, 65536> place_plus_one_{};  // by job id
};

}  // namespace thc::ps
