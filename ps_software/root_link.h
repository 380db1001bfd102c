// What a leaf's job is to the root (docs/contributors/protocol.md, "Racks"): one of its workers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "job.h"
#include "leaf_config.h"
#include "thc/hello.h"
#include "thc/join.h"
#include "thc/wire_layout.h"

namespace thc::ps {

class RootLink {
 public:
  static constexpr std::chrono::milliseconds kHelloInterval{100};
  /// HELLO goes on while workers' HELLOs wait: for so long after the last of them.
  static constexpr std::chrono::milliseconds kPatience{2000};
  /// What the root says no to is asked again all the time; this long its last answer holds.
  static constexpr std::chrono::milliseconds kRefusalAge{500};
  /// Without any answer for so long, the root is said not to answer.
  static constexpr std::chrono::milliseconds kSilence{500};
  /// A rack whose workers are there, but not all, has nothing to send; so often it says ALIVE instead.
  static constexpr std::chrono::milliseconds kAliveInterval{500};

  /// Allocates. `holder_ip`: who asked for the job.
  RootLink(const Hello& hello, io::IpAddress holder_ip, const LeafConfig& leaf, ShardShare share);

  std::uint16_t job_id() const noexcept { return join_.header().job_id; }
  io::IpAddress holder_ip() const noexcept { return holder_ip_; }
  /// What the workers said.
  const JobConfig& config() const noexcept { return config_; }
  std::uint64_t run() const noexcept { return run_; }
  /// Whether another training may have the job: no worker of this one waits, or the root has refused it for another.
  bool may_give_way(TimePoint now) const noexcept;

  // Joining.
  bool joined() const noexcept { return join_.joined(); }
  /// A worker's HELLO waits for the root.
  void want(TimePoint now) noexcept;
  bool is_wanted(TimePoint now) const noexcept { return now < wanted_until_; }
  /// Once joined, while the root is silent: it may not know this address any more.
  bool is_hello_due(TimePoint now) const noexcept {
    return joined() ? is_root_silent(now) && now - asked_at_ >= kSilence : is_wanted(now) && join_.is_hello_due(now);
  }
  Join::Message say_hello(TimePoint now) noexcept;
  /// Whether a message from the root answers the HELLO of this process; others are copies of old ones.
  bool answers_hello(const wire::Header& header) const noexcept { return join_.is_awaited(header); }
  bool awaits_challenge(const wire::Header& header) const noexcept { return join_.is_challenge_awaited(header); }
  /// The HELLO to say at once, if any.
  std::optional<Join::Message> take_challenge(const wire::Header& header,
                                              const wire::ChallengePayload& payload) noexcept {
    return join_.take_challenge(header, payload);
  }
  /// Whether it was expected and is possible; then the root has let the job in.
  bool take_welcome(const wire::Header& header, const wire::WelcomePayload& payload, TimePoint now) noexcept;
  /// What the root said to the HELLO. Returns whether it is news.
  bool take_refusal(const Refusal& refusal, TimePoint now) noexcept;
  /// What the workers whose HELLOs wait are to be told; nothing: to wait.
  std::optional<Refusal> why_waiting(TimePoint now) const noexcept;
  /// True once for each time that the root falls silent.
  bool has_fallen_silent(TimePoint now) noexcept;
  /// The root goes on in another epoch; 0 is none.
  bool take_new_epoch(std::uint32_t epoch) noexcept;
  /// Out of the root's job; HELLO must be said again, as another process, of this training.
  void start_over(std::uint64_t run) noexcept;

  // What WELCOME said.
  std::uint32_t epoch() const noexcept { return join_.epoch(); }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t window_bytes() const noexcept { return window_bytes_; }

  /// For a bare message to the root.
  wire::Header notice_header(wire::MessageType type) const noexcept { return join_.notice(type); }
  /// `contribution`, of a worker, as the rack's.
  wire::Header partial_sum_header(const wire::Header& contribution, TimePoint now) noexcept;
  /// As that, when `contribution` was sent again: the root must answer.
  wire::Header repeated_sum_header(const wire::Header& contribution, TimePoint now) noexcept;
  /// Whether the root has left HELLO, or repeated sums, without an answer for too long.
  bool is_root_silent(TimePoint now) const noexcept;
  bool is_alive_due(TimePoint workers_heard_at, TimePoint now) const noexcept;
  void said_alive(TimePoint now) noexcept { sent_at_ = now; }

  /// Whether `header`, from the root, is about this job, in this incarnation.
  bool is_addressed(const wire::Header& header) const noexcept;
  void heard_of() noexcept {
    silent_since_.reset();
    told_of_silence_ = false;
  }

 private:
  const JobConfig config_;
  const io::IpAddress holder_ip_;
  const LeafConfig& leaf_;
  std::uint64_t run_;
  Join join_;
  TimePoint wanted_until_{};
  std::optional<Refusal> refusal_;
  Forbearance forbearance_;  ///< of refusals for this reason, again and again
  TimePoint refused_at_{};   ///< the last time
  bool told_of_silence_ = false;
  std::uint32_t slots_ = 0;
  std::uint32_t window_bytes_ = 0;
  TimePoint sent_at_{};                    ///< the last packet to the root
  TimePoint asked_at_{};                   ///< the last HELLO after joining
  std::optional<TimePoint> silent_since_;  ///< the first packet since then that asks for an answer
};

}  // namespace thc::ps
