// What makes a shard a leaf: the server of a rack, whose sums the root adds (docs/contributors/protocol.md, "Racks").
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "job_table.h"
#include "leaf_config.h"
#include "replies.h"
#include "root_link.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc::ps {

class Leaf {
 public:
  /// `jobs` and `outbox` are the shard's, and outlive this. `limits.leaf` is there.
  Leaf(const JobLimits& limits, JobTable& jobs, Outbox& outbox);

  /// Whether the packet is for handle(): from the root, or of a type that only the root sends.
  bool takes(const Packet& packet) const noexcept;
  void handle(const Packet& packet, TimePoint now) noexcept;

  /// Why this server does not take such a worker; nothing when it does.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept;
  /// Slots of the root's job, once the root has let it in. Until then the root is asked, and the worker told to wait,
  /// or why in vain.
  std::optional<std::uint32_t> admit(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// WELCOME to a worker of `job`, as the way to the root and its other racks allow.
  void limit(Message<wire::WelcomePayload>& welcome, const Job& job, io::Endpoint to) const noexcept;
  /// A sum of the rack, to the root.
  void send_up(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;

  /// The job began anew, for this training: so it must at the root, where the next HELLO contests the rack's place.
  void renew(std::uint16_t job_id, std::uint64_t run) noexcept { renew(*find(job_id), run); }
  /// The job ended: leaves the root's.
  void end(std::uint16_t job_id) noexcept { end(*find(job_id)); }
  /// Repeats HELLO and says ALIVE where that is due, and leaves jobs that are not here and nobody asks for.
  void run_timers(TimePoint now) noexcept;

 private:
  // Links to the root (leaf_links.cc).
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
  void answer_challenge(RootLink& link, const wire::Header& header, const wire::ChallengePayload& payload) noexcept;
  void send(const wire::Header& header, std::span<const std::uint8_t> payload = {}) noexcept;
  void renew(RootLink& link, std::uint64_t run) noexcept;
  void end(RootLink& link) noexcept;
  /// Forgets a job that the root has forgotten.
  void forget(RootLink& link) noexcept;

  /// nullptr: no place, which the worker was told.
  RootLink* open_link(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  void take_welcome(const Packet& packet, RootLink& link, TimePoint now) noexcept;
  void take_error(const Packet& packet, RootLink& link, TimePoint now) noexcept;
  void take_refusal(const Refusal& refusal, RootLink& link, TimePoint now) noexcept;
  void leave_root_job(RootLink& link, wire::ErrorReason why) noexcept;
  void take_answer(const Packet& packet, RootLink& link) noexcept;
  /// What the root said, to those workers (a bitmap) of the rack that have joined.
  void pass_on(const Packet& packet, Job& job, std::uint64_t workers) noexcept;
  void pass_on_error(const Packet& packet, const Job& job, std::uint64_t workers) noexcept;

  const LeafConfig config_;
  const io::Endpoint root_;  ///< this shard's
  JobTable& jobs_;
  Outbox& outbox_;
  std::vector<std::unique_ptr<RootLink>> links_;
  std::array<std::uint16_t, 65536> place_plus_one_{};  // by job id
};

}  // namespace thc::ps
