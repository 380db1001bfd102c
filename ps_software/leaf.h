// A leaf is the server of a rack: the root adds the sums of leaves (docs/contributors/protocol.md, "Racks").
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
  /// The shard's `jobs` and `outbox` outlive this. `limits.leaf` must be set.
  Leaf(const JobLimits& limits, JobTable& jobs, Outbox& outbox);

  /// Whether handle() takes the packet: it is from the root, or of a type that only the root sends.
  bool takes(const Packet& packet) const noexcept;
  void handle(const Packet& packet, TimePoint now) noexcept;
  /// Returns nullopt for an acceptable worker.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept;
  /// Returns the slots of the root's job, once joined. Until then tells the worker to wait, or why it is rejected.
  std::optional<std::uint32_t> admit(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// Lowers the window for the path to the root.
  void limit(Message<wire::WelcomePayload>& welcome, const Job& job, io::Endpoint to) const noexcept;
  void send_up(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;
  /// The next HELLO contests the rack's place at the root, for this training.
  void renew(std::uint16_t job_id, std::uint64_t run) noexcept { renew(*find(job_id), run); }
  void end(std::uint16_t job_id) noexcept { end(*find(job_id)); }
  void run_timers(TimePoint now) noexcept;

 private:
  // Links to the root (leaf_links.cc).
  RootLink* find(std::uint16_t job_id) const noexcept {
    const std::uint16_t place = place_plus_one_[job_id];
    return place == 0 ? nullptr : links_[place - 1].get();
  }
  /// Returns nullptr without room, or if this address has too many jobs.
  RootLink* create(const Hello& hello, io::Endpoint from, TimePoint now) noexcept;
  void ask(RootLink& link, TimePoint now) noexcept;
  void answer_challenge(RootLink& link, const wire::Header& header, const wire::ChallengePayload& payload) noexcept;
  void send(const wire::Header& header, std::span<const std::uint8_t> payload = {}) noexcept;
  void renew(RootLink& link, std::uint64_t run) noexcept;
  void end(RootLink& link) noexcept;
  void forget(RootLink& link) noexcept;
  /// Returns nullptr if every place is taken, after telling the worker.
  RootLink* open_link(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  void take_welcome(const Packet& packet, RootLink& link, TimePoint now) noexcept;
  void take_error(const Packet& packet, RootLink& link, TimePoint now) noexcept;
  void take_refusal(const Refusal& refusal, RootLink& link, TimePoint now) noexcept;
  void leave_root_job(RootLink& link, wire::ErrorReason why) noexcept;
  void take_answer(const Packet& packet, RootLink& link) noexcept;
  /// `workers` is a bitmap.
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
