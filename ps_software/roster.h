// Who the workers of a job are: their addresses and processes, signs of life, and who may take a place.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "io/packet_io.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc::ps {

using TimePoint = std::chrono::steady_clock::time_point;

class Roster {
 public:
  // A place is taken over when its process left this many PROBEs without an answer, over this time.
  static constexpr std::chrono::milliseconds kProbeInterval{200};
  static constexpr std::uint32_t kProbes = 5;
  static constexpr std::chrono::milliseconds kSilence{1000};
  // Who comes back after GOODBYE lets the others get their last results: they ask every 200 ms, so a second without is
  // five requests lost in a row. Not longer than kLongestHold: they may ask for what will never be.
  static constexpr std::chrono::milliseconds kAsking{1000};
  static constexpr std::chrono::milliseconds kLongestHold{2000};
  /// Who waits for a result asks every 200 ms (Timeouts.rto_max_s): silent for fifteen times as long, a worker of a
  /// quorum waits for nothing, or is gone.
  static constexpr std::chrono::milliseconds kGone{3000};
  /// A contest or a hold ends when nobody says HELLO for so long.
  static constexpr std::chrono::milliseconds kPatience{2000};

  enum class Verdict : std::uint8_t {
    kNew,        ///< nobody has this place
    kAgain,      ///< a repeated HELLO
    kRestarted,  ///< another process than before, which is gone: the job must start over
    kDuplicate,  ///< another process has the place; it is asked whether it lives
    kHeld,       ///< to be taken later: other workers still ask for their last results
    kGone,       ///< a copy of the HELLO of a process that said GOODBYE or was replaced
  };

  /// Whose training a HELLO is of.
  enum class Training : std::uint8_t {
    kSame,   ///< that of the processes that are here, or nobody is here
    kOther,  ///< another one; those that are here are asked whether they live
    kOver,   ///< another one, and of those that were here none lives: the job must start over
  };

  /// The last ones that the same workers had, one after the other.
  using Epochs = std::array<std::uint32_t, 5>;

  explicit Roster(std::uint8_t num_workers) noexcept : num_workers_(num_workers) {}

  /// Comes first: processes of two trainings must not meet. `run`: HELLO's.
  Training judge_training(std::uint64_t run, TimePoint now) noexcept;
  /// What to do about a HELLO of the same training.
  Verdict judge(const Hello& hello, TimePoint now) noexcept;
  /// The worker takes its place.
  void enter(const Hello& hello, io::Endpoint from, TimePoint now) noexcept;
  /// The worker said GOODBYE.
  void leave(std::uint8_t worker) noexcept;
  /// The job starts over: all places are free. `epochs`: those of the incarnation that ends, 0: none.
  void start_over(const Epochs& epochs) noexcept;

  bool has(std::uint8_t worker) const noexcept { return workers_[worker].joined; }
  bool is_registered(std::uint8_t worker, io::Endpoint from) const noexcept {
    return workers_[worker].joined && workers_[worker].endpoint == from;
  }
  /// Whether the process that says HELLO has its place: under whatever address.
  bool knows(const Hello& hello) const noexcept {
    const Worker& worker = workers_[hello.worker_id];
    return worker.joined && worker.nonce == hello.nonce && run_ == hello.run;
  }
  /// Whether one of the last incarnations before this had this epoch.
  bool was_superseded(std::uint32_t epoch) const noexcept { return superseded(epoch) != nullptr; }
  /// And the worker this address there.
  bool was_superseded(std::uint32_t epoch, std::uint8_t worker, io::Endpoint from) const noexcept {
    const Incarnation* incarnation = superseded(epoch);
    return incarnation != nullptr && incarnation->endpoints[worker] == from;
  }
  std::uint32_t size() const noexcept { return size_; }
  io::Endpoint address(std::uint8_t worker) const noexcept { return workers_[worker].endpoint; }

  void heard_of(std::uint8_t worker, TimePoint now) noexcept { workers_[worker].last_heard = now; }

  /// A queue has marked a packet of the worker (ECN).
  void note_congestion(std::uint8_t worker) noexcept { workers_[worker].congested = true; }
  /// Whether one has since the last call: what the next result tells it.
  bool take_congestion(std::uint8_t worker) noexcept { return std::exchange(workers_[worker].congested, false); }

  /// Calls visit(worker, endpoint) for every worker.
  template <typename Visit>
  void for_each(Visit&& visit) const noexcept {
    for (std::uint8_t worker = 0; worker < num_workers_; ++worker) {
      if (workers_[worker].joined) visit(worker, workers_[worker].endpoint);
    }
  }

  bool is_silent(std::uint8_t worker, TimePoint now) const noexcept {
    return now - workers_[worker].last_heard > kGone;
  }

  /// Calls probe(worker, endpoint) for every worker that must be asked now whether it lives.
  template <typename Probe>
  void for_each_due_probe(TimePoint now, Probe&& probe) noexcept {
    if (now >= contested_until_) return;
    for (std::uint8_t worker = 0; worker < num_workers_; ++worker) {
      if (take_due_probe(worker, now)) probe(worker, workers_[worker].endpoint);
    }
  }

 private:
  /// Read for every packet.
  struct Worker {
    bool joined = false;
    bool known = false;  ///< a process has, or had, this place in this incarnation
    bool congested = false;
    io::Endpoint endpoint;
    std::uint64_t nonce = 0;
    TimePoint last_heard{};
  };
  /// Another process wants a place.
  struct Claim {
    // The place is taken.
    TimePoint contested_until{};
    TimePoint next_probe{};
    TimePoint asked_at{};  ///< the first PROBE without an answer
    std::uint32_t unanswered = 0;
    // The place is free, but the others are not ready.
    TimePoint held_since{};
    TimePoint held_until{};
  };
  struct Incarnation {
    Epochs epochs{};
    std::array<io::Endpoint, wire::kMaxWorkers> endpoints{};
  };

  /// The incarnation that had this epoch; nullptr: none of the last.
  const Incarnation* superseded(std::uint32_t epoch) const noexcept;
  Verdict contest(std::uint8_t worker, TimePoint now) noexcept;
  /// From now on this worker is asked whether it lives, for a while.
  void dispute(std::uint8_t worker, TimePoint now) noexcept;
  /// Whether it was asked often enough, and did not answer.
  bool is_dead(std::uint8_t worker, TimePoint now) const noexcept;
  Verdict come_back(std::uint8_t worker, TimePoint now) noexcept;
  bool take_due_probe(std::uint8_t worker, TimePoint now) noexcept;

  std::uint8_t num_workers_;
  std::uint64_t run_ = 0;  ///< of those who are here
  std::array<Worker, wire::kMaxWorkers> workers_{};
  std::array<Claim, wire::kMaxWorkers> claims_{};
  /// Of the last process that left each place for good. Outlives the incarnation: a late copy of its HELLO would put a
  /// dead process into the next one.
  std::array<std::uint64_t, wire::kMaxWorkers> gone_nonces_{};
  std::array<Incarnation, 4> superseded_{};
  std::size_t restarts_ = 0;
  std::uint32_t size_ = 0;
  TimePoint contested_until_{};  ///< of any worker
};

}  // namespace thc::ps
