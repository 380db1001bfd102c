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
  static constexpr std::chrono::milliseconds kProbeInterval{wire::kProbeIntervalMs};
  static constexpr std::chrono::milliseconds kSilence{wire::kSilenceMs};
  // A process that returns after GOODBYE waits until the others have their last results. By themselves, they may ask as
  // rarely as every 2 s (RttBounds::longest). PROBE has them ask every 200 ms, so a silent second (kSilence) is five
  // lost requests in a row. kLongestHold bounds the wait: they may ask for impossible results.
  static constexpr std::chrono::milliseconds kAsking{3000};
  static constexpr std::chrono::milliseconds kLongestHold{2000};
  /// A worker asks for a result every 200 ms, or every 2 s at least. After this silence, it needs none, or is gone.
  static constexpr std::chrono::milliseconds kGone{3000};
  /// A contest or a hold ends after this time without HELLO.
  static constexpr std::chrono::milliseconds kPatience{wire::kPatienceMs};

  enum class Verdict : std::uint8_t {
    kNew,        ///< the place is free
    kAgain,      ///< a repeated HELLO
    kRestarted,  ///< the previous process is gone: the job must start over
    kDuplicate,  ///< another process has the place; PROBE asks whether it lives
    kHeld,       ///< retry: other workers may still wait for their last results; PROBE has them ask
    kGone,       ///< a copied HELLO of a process that said GOODBYE or was replaced
  };

  enum class Training : std::uint8_t {
    kSame,   ///< as the present processes, or the job is empty
    kOther,  ///< another; PROBE asks whether the present processes live
    kOver,   ///< another, and no present process lives: the job must start over
  };

  /// The last epochs of the same workers, in order.
  using Epochs = std::array<std::uint32_t, 5>;

  explicit Roster(std::uint8_t num_workers) noexcept : num_workers_(num_workers) {}
  /// Call before judge(): processes of two trainings must not meet. `run`: from HELLO.
  Training judge_training(std::uint64_t run, TimePoint now) noexcept;
  Verdict judge(const Hello& hello, TimePoint now) noexcept;
  void enter(const Hello& hello, io::Endpoint from, TimePoint now) noexcept;
  void leave(std::uint8_t worker) noexcept;
  /// Frees all places. `epochs`: of the ending incarnation, 0: none.
  void start_over(const Epochs& epochs) noexcept;

  bool has(std::uint8_t worker) const noexcept { return workers_[worker].joined; }
  bool is_registered(std::uint8_t worker, io::Endpoint from) const noexcept {
    return workers_[worker].joined && workers_[worker].endpoint == from;
  }
  /// Whether the process of this HELLO has its place, at any address.
  bool knows(const Hello& hello) const noexcept {
    const Worker& worker = workers_[hello.worker_id];
    return worker.joined && worker.nonce == hello.nonce && run_ == hello.run;
  }
  /// Whether one of the last incarnations had this epoch.
  bool was_superseded(std::uint32_t epoch) const noexcept { return superseded(epoch) != nullptr; }
  /// And the worker had this address in it.
  bool was_superseded(std::uint32_t epoch, std::uint8_t worker, io::Endpoint from) const noexcept {
    const Incarnation* incarnation = superseded(epoch);
    return incarnation != nullptr && incarnation->endpoints[worker] == from;
  }
  std::uint32_t size() const noexcept { return size_; }
  io::Endpoint address(std::uint8_t worker) const noexcept { return workers_[worker].endpoint; }

  void heard_of(std::uint8_t worker, TimePoint now) noexcept { workers_[worker].last_heard = now; }

  /// A queue marked a packet of the worker (ECN).
  void note_congestion(std::uint8_t worker) noexcept { workers_[worker].congested = true; }
  /// Reads and clears the mark for the next result.
  bool take_congestion(std::uint8_t worker) noexcept { return std::exchange(workers_[worker].congested, false); }
  template <typename Visit>
  void for_each(Visit&& visit) const noexcept {
    for (std::uint8_t worker = 0; worker < num_workers_; ++worker) {
      if (workers_[worker].joined) visit(worker, workers_[worker].endpoint);
    }
  }

  bool is_silent(std::uint8_t worker, TimePoint now) const noexcept {
    return now - workers_[worker].last_heard > kGone;
  }
  template <typename Probe>
  void for_each_due_probe(TimePoint now, Probe&& probe) noexcept {
    if (now >= contested_until_) return;
    for (std::uint8_t worker = 0; worker < num_workers_; ++worker) {
      if (take_due_probe(worker, now)) probe(worker, workers_[worker].endpoint);
    }
  }

 private:
  struct Worker {
    bool joined = false;
    bool known = false;  ///< a process has, or had, this place in this incarnation
    bool congested = false;
    io::Endpoint endpoint;
    std::uint64_t nonce = 0;
    TimePoint last_heard{};
  };
  struct Claim {
    // If the place is taken.
    TimePoint contested_until{};
    TimePoint next_probe{};
    TimePoint asked_at{};  ///< the first PROBE without an answer
    std::uint32_t unanswered = 0;
    // If the place is free, but the others are not ready.
    TimePoint held_since{};
    TimePoint held_until{};
  };
  struct Incarnation {
    Epochs epochs{};
    std::array<io::Endpoint, wire::kMaxWorkers> endpoints{};
  };

  const Incarnation* superseded(std::uint32_t epoch) const noexcept;
  Verdict contest(std::uint8_t worker, TimePoint now) noexcept;
  void dispute(std::uint8_t worker, TimePoint now) noexcept;
  /// PROBEs the workers other than `worker` that may wait for results and were silent, since `since`, for the time of
  /// five PROBEs. Returns whether it has found any.
  bool ask_others(std::uint8_t worker, TimePoint since, TimePoint now) noexcept;
  bool is_dead(std::uint8_t worker, TimePoint now) const noexcept;
  Verdict come_back(std::uint8_t worker, TimePoint now) noexcept;
  bool take_due_probe(std::uint8_t worker, TimePoint now) noexcept;

  std::uint8_t num_workers_;
  std::uint64_t run_ = 0;  ///< of the present processes
  std::array<Worker, wire::kMaxWorkers> workers_{};
  std::array<Claim, wire::kMaxWorkers> claims_{};
  /// Nonces of the last processes that left each place for good. They outlive the incarnation: a late copy of a HELLO
  /// would put a dead process into the next one.
  std::array<std::uint64_t, wire::kMaxWorkers> gone_nonces_{};
  std::array<Incarnation, 4> superseded_{};
  std::size_t restarts_ = 0;
  std::uint32_t size_ = 0;
  TimePoint contested_until_{};  ///< for any worker
};

}  // namespace thc::ps
