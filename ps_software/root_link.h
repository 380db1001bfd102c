// A leaf's job as a worker of the root (docs/contributors/protocol.md, "Racks").
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
  /// HELLO repeats for this long after the last HELLO of a worker.
  static constexpr std::chrono::milliseconds kPatience{2000};
  /// Lifetime of the root's last refusal: refused HELLOs repeat.
  static constexpr std::chrono::milliseconds kRefusalAge{500};
  /// The root counts as silent after this time without any answer.
  static constexpr std::chrono::milliseconds kSilence{500};
  /// Period of ALIVE for a rack with nothing to send: some workers are missing.
  static constexpr std::chrono::milliseconds kAliveInterval{500};
  /// Allocates. `holder_ip`: the client's.
  RootLink(const Hello& hello, io::IpAddress holder_ip, const LeafConfig& leaf, ShardShare share);

  std::uint16_t job_id() const noexcept { return join_.header().job_id; }
  io::IpAddress holder_ip() const noexcept { return holder_ip_; }
  const JobConfig& config() const noexcept { return config_; }
  std::uint64_t run() const noexcept { return run_; }
  /// Whether another training may take the job: its workers no longer wait, or the root refused it for another.
  bool may_give_way(TimePoint now) const noexcept;

  bool joined() const noexcept { return join_.joined(); }
  void want(TimePoint now) noexcept;
  bool is_wanted(TimePoint now) const noexcept { return now < wanted_until_; }
  /// Also after joining, while the root is silent: it may have lost this address.
  bool is_hello_due(TimePoint now) const noexcept {
    return joined() ? is_root_silent(now) && now - asked_at_ >= kSilence : is_wanted(now) && join_.is_hello_due(now);
  }
  Join::Message say_hello(TimePoint now) noexcept;
  /// Whether the message answers this process's HELLO; others are old copies.
  bool answers_hello(const wire::Header& header) const noexcept { return join_.is_awaited(header); }
  bool awaits_challenge(const wire::Header& header) const noexcept { return join_.is_challenge_awaited(header); }
  /// Returns a HELLO to send at once, if any.
  std::optional<Join::Message> take_challenge(const wire::Header& header,
                                              const wire::ChallengePayload& payload) noexcept {
    return join_.take_challenge(header, payload);
  }
  /// Returns false if unexpected or invalid; else the job has joined.
  bool take_welcome(const wire::Header& header, const wire::WelcomePayload& payload, TimePoint now) noexcept;
  /// Returns whether the refusal is new.
  bool take_refusal(const Refusal& refusal, TimePoint now) noexcept;
  /// The answer to waiting workers; nullopt: none yet.
  std::optional<Refusal> why_waiting(TimePoint now) const noexcept;
  /// Returns true once per silence of the root.
  bool has_fallen_silent(TimePoint now) noexcept;
  /// `epoch` 0 is invalid.
  bool take_new_epoch(std::uint32_t epoch) noexcept;
  /// HELLO then comes from a new process of this training.
  void start_over(std::uint64_t run) noexcept;

  // From WELCOME.
  std::uint32_t epoch() const noexcept { return join_.epoch(); }
  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t window_bytes() const noexcept { return window_bytes_; }
  wire::Header notice_header(wire::MessageType type) const noexcept { return join_.notice(type); }
  wire::Header partial_sum_header(const wire::Header& contribution, TimePoint now) noexcept;
  /// The root must answer repeats.
  wire::Header repeated_sum_header(const wire::Header& contribution, TimePoint now) noexcept;
  /// Whether HELLO or repeated sums lacked an answer for too long.
  bool is_root_silent(TimePoint now) const noexcept;
  bool is_alive_due(TimePoint workers_heard_at, TimePoint now) const noexcept;
  void said_alive(TimePoint now) noexcept { sent_at_ = now; }
  /// Whether the root's `header` is about this incarnation of the job.
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
  Forbearance forbearance_;  ///< of repeated refusals for one reason
  TimePoint refused_at_{};   ///< latest
  bool told_of_silence_ = false;
  std::uint32_t slots_ = 0;
  std::uint32_t window_bytes_ = 0;
  TimePoint sent_at_{};                    ///< the last packet to the root
  TimePoint asked_at_{};                   ///< the last HELLO after joining
  std::optional<TimePoint> silent_since_;  ///< the first unanswered packet since the last answer
};

}  // namespace thc::ps
