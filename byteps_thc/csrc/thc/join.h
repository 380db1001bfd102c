// Joins a job at a shard of a server, as a worker or the leaf of a rack (docs/contributors/protocol.md, "Joining"). The
// caller has the clock and sockets.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc {

class Join {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::microseconds;

  /// The time from one HELLO to the next: `first`, then twice as long each time, `last` at most.
  struct Pace {
    Duration first;
    Duration last;
  };

  /// A HELLO to be sent; the payload changes with the next take_challenge() or begin_again().
  struct Message {
    wire::Header header;
    std::span<const std::uint8_t> payload;
  };

  /// Allocates. The first HELLO is due at `now`.
  Join(const Hello& hello, std::uint32_t shard, Pace pace, TimePoint now);

  bool joined() const noexcept { return joined_; }
  /// The job's epoch on the shard, of the last WELCOME or renew(); 0 before.
  std::uint32_t epoch() const noexcept { return header_.epoch; }
  /// Whether the server supports CODES that are not to be added.
  bool takes_abstentions() const noexcept { return takes_abstentions_; }

  bool is_hello_due(TimePoint now) const noexcept { return now >= next_hello(); }
  /// Once joined, the end of time.
  TimePoint next_hello() const noexcept { return joined_ ? TimePoint::max() : next_hello_; }
  /// The HELLO that is due.
  Message say_hello(TimePoint now) noexcept;
  /// Once joined: the HELLO that asks whether a silent shard knows this address. Its CHALLENGE is awaited.
  Message ask() noexcept;
  /// Says HELLO soon, and often: HELLOs make the server probe the process that has the place.
  void await_verdict(TimePoint now) noexcept;

  /// Whether `header` is of an awaited answer, with this process's nonce.
  bool is_awaited(const wire::Header& header) const noexcept;
  bool is_challenge_awaited(const wire::Header& header) const noexcept;
  /// Takes the cookie of an awaited CHALLENGE, and returns the HELLO to send at once. Returns nothing for further ones
  /// before the next HELLO is due: a server may accept no cookie.
  std::optional<Message> take_challenge(const wire::Header& header, const wire::ChallengePayload& payload) noexcept;
  /// Whether a WELCOME is awaited, and not a late copy of one before lose().
  bool is_news(const wire::Header& welcome) const noexcept;
  /// Whether a WELCOME says, once joined, that the shard has learned another address of this process.
  bool is_found_again(const wire::Header& welcome) const noexcept;
  /// Joins. `welcome` must be news, and its contents possible.
  void take_welcome(const wire::Header& welcome) noexcept;

  /// Continues in another epoch of the shard.
  void renew(std::uint32_t epoch) noexcept;
  /// The shard does not know the job any more: HELLO must be said again.
  void lose(TimePoint now) noexcept;
  /// As another process, of the training `run`, with HELLO due at once. Allocates nothing.
  void begin_again(std::uint64_t nonce, std::uint64_t run) noexcept;

  /// Header of messages to the shard: job, sender, epoch, checksum flag.
  const wire::Header& header() const noexcept { return header_; }
  /// A message without payload, such as ALIVE.
  wire::Header notice(wire::MessageType type) const noexcept;

 private:
  Message hello() const noexcept;
  void forget_epoch() noexcept;

  wire::Header header_{};
  std::vector<std::uint8_t> payload_;
  std::uint64_t nonce_ = 0;
  const Pace pace_;
  Duration interval_;
  TimePoint next_hello_;
  bool challenged_ = false;  ///< since the last HELLO that was due, or ask()
  bool joined_ = false;
  bool takes_abstentions_ = false;
  /// The last lost epochs, 0: none. They never return: a WELCOME of one is a late copy, and late results of the epoch
  /// would be mistaken for sums of another.
  std::array<std::uint32_t, 32> lost_epochs_{};
  std::size_t losses_ = 0;
};

/// Whether an answer to HELLO repeats this nonce.
bool repeats_nonce(const wire::Header& answer, std::uint64_t nonce) noexcept;

/// Whether a refusal of HELLO ends if another process, which has the place or the job, is gone.
constexpr bool is_contest(wire::ErrorReason reason) noexcept {
  return reason == wire::ErrorReason::kDuplicateWorker || reason == wire::ErrorReason::kOtherTraining;
}

/// Time to wait for the end of a contest (is_contest): each shard drops a lost process after five PROBEs in a second.
class Forbearance {
 public:
  static constexpr std::chrono::milliseconds kLimit{wire::kContestMs};

  void begin(Join::TimePoint now) noexcept { end_ = now + kLimit; }
  void stop() noexcept { end_ = Join::TimePoint::max(); }
  bool has_begun() const noexcept { return end_ != Join::TimePoint::max(); }
  bool is_over(Join::TimePoint now) const noexcept { return now >= end_; }
  Join::TimePoint end() const noexcept { return end_; }

 private:
  Join::TimePoint end_ = Join::TimePoint::max();
};

}  // namespace thc
