// Simulated time, and its events.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace thc::simulation {

/// Since the start. A byte takes 80 ps at 100 Gb/s.
using Picoseconds = std::int64_t;
inline constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

constexpr Picoseconds picoseconds(double seconds) { return static_cast<Picoseconds>(seconds * 1e12); }
constexpr double seconds(Picoseconds time) { return static_cast<double>(time) * 1e-12; }

/// The clock of the code under test. Not zero at the start: zero means "never" in places.
using TimePoint = std::chrono::steady_clock::time_point;
inline constexpr TimePoint kStart{std::chrono::hours(1)};
inline TimePoint time_point(Picoseconds time) { return kStart + std::chrono::nanoseconds(time / 1000); }
inline Picoseconds picoseconds(TimePoint time) {
  return time == TimePoint::max() ? kNever : std::chrono::nanoseconds(time - kStart).count() * 1000;
}

class Actor {
 public:
  virtual ~Actor() = default;
  virtual void act() = 0;
};

/// A binary heap. Events of the same time happen in the order they were pushed in, so that a run can be repeated.
class EventQueue {
 public:
  Picoseconds now() const noexcept { return now_; }
  std::uint64_t events() const noexcept { return events_; }

  void push(Picoseconds at, Actor& actor) {
    heap_.push_back({.at = std::max(at, now_), .number = pushed_++, .actor = &actor});
    std::push_heap(heap_.begin(), heap_.end());
  }

  /// False when nothing is left, or nothing until then.
  bool run_one(Picoseconds until) {
    if (heap_.empty() || heap_.front().at > until) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    ++events_;
    event.actor->act();
    return true;
  }

 private:
  struct Event {
    Picoseconds at;
    std::uint64_t number;
    Actor* actor;
    bool operator<(const Event& other) const noexcept { return at != other.at ? at > other.at : number > other.number; }
  };

  Picoseconds now_ = 0;
  std::uint64_t pushed_ = 0;
  std::uint64_t events_ = 0;
  std::vector<Event> heap_;
};

/// Calls once at the time that was set last. Cheap to set again and again: events that are too early stay in the heap.
class Alarm final : public Actor {
 public:
  Alarm(EventQueue& events, std::function<void()> ring) : events_(events), ring_(std::move(ring)) {}

  void set(Picoseconds at) {
    wanted_ = at;
    if (at < pushed_) {
      pushed_ = at;
      events_.push(at, *this);
    }
  }
  void set_earlier(Picoseconds at) {
    if (at < wanted_) set(at);
  }

  void act() override {
    if (events_.now() < pushed_) {
      return;  // of an alarm that was moved ahead before
    }
    pushed_ = kNever;
    if (wanted_ > events_.now()) return set(wanted_);
    wanted_ = kNever;
    ring_();
  }

 private:
  EventQueue& events_;
  std::function<void()> ring_;
  Picoseconds wanted_ = kNever;
  Picoseconds pushed_ = kNever;  ///< the earliest event in the heap that counts
};

}  // namespace thc::simulation
