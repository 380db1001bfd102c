// What makes a shard a leaf: the server of a rack, whose sums the root adds (docs/protocol.md, "Racks").
#pragma once

#include <cstdint>
#include <optional>

#include "job_table.h"
#include "outbox.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"
#include "upstream.h"

namespace thc::ps {

class Leaf {
 public:
  /// `jobs` and `outbox` are the shard's, and outlive this. `limits.leaf` is there.
  Leaf(const JobLimits& limits, JobTable& jobs, Outbox& outbox)
      : jobs_(jobs), outbox_(outbox), upstream_(limits, outbox.io) {}

  /// Whether the packet is for handle(): from the root, or of a type that only the root sends.
  bool takes(const Packet& packet) const noexcept;
  void handle(const Packet& packet, TimePoint now) noexcept;

  /// Why this server does not take such a worker; nothing when it does.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept { return upstream_.refuse(hello); }
  /// Slots of the root's job, once the root has let it in. Until then the root is asked, and the worker told to wait,
  /// or why in vain.
  std::optional<std::uint32_t> admit(const Packet& packet, const Hello& hello, TimePoint now) noexcept;
  /// WELCOME to a worker of `job`, as the way to the root and its other racks allow.
  void limit(Message<wire::WelcomePayload>& welcome, const Job& job, io::Endpoint to) const noexcept;
  /// A sum of the rack, to the root.
  void send_up(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept;

  /// The job began anew, for this training.
  void renew(std::uint16_t job_id, std::uint64_t run) noexcept { upstream_.renew(*upstream_.find(job_id), run); }
  /// The job ended.
  void end(std::uint16_t job_id) noexcept { upstream_.end(*upstream_.find(job_id)); }
  void run_timers(TimePoint now) noexcept { upstream_.run_timers(jobs_, now); }

 private:
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

  JobTable& jobs_;
  Outbox& outbox_;
  Upstream upstream_;
};

}  // namespace thc::ps
