#include "session/session_state.h"

#include <utility>

namespace thc {
namespace {

/// Told with every packet: written rarely, so that all caches keep it.
void set_rarely(std::atomic<TimePoint>& at, TimePoint now) noexcept {
  if (now - Duration(1'000) >= at.load(std::memory_order_relaxed)) {
    at.store(now, std::memory_order_relaxed);
  }
}

}  // namespace

void SessionState::tell_codes_answered(std::size_t server, TimePoint now) noexcept {
  set_rarely(servers_[server].codes_answered_at, now);
}

TimePoint SessionState::codes_answered_at(std::size_t server) const noexcept {
  return servers_[server].codes_answered_at.load(std::memory_order_relaxed);
}

void SessionState::tell_heard(std::size_t server, TimePoint now) noexcept {
  set_rarely(servers_[server].heard_at, now);
}

TimePoint SessionState::heard_at(std::size_t server) const noexcept {
  return servers_[server].heard_at.load(std::memory_order_relaxed);
}

const Failure& SessionState::fail(Failure failure) {
  if (!failure_) {
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  return *failure_;
}

}  // namespace thc
