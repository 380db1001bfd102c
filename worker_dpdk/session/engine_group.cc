#include "session/engine_group.h"

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

void EngineGroup::tell_shape(std::size_t server, const ServerShape& shape) noexcept {
  servers_[server].shape = shape;
  servers_[server].has_shape.store(true, std::memory_order_release);
}

const ServerShape* EngineGroup::shape(std::size_t server) const noexcept {
  const Server& known = servers_[server];
  return known.has_shape.load(std::memory_order_acquire) ? &known.shape : nullptr;
}

void EngineGroup::tell_codes_answered(std::size_t server, TimePoint now) noexcept {
  set_rarely(servers_[server].codes_answered_at, now);
}

TimePoint EngineGroup::codes_answered_at(std::size_t server) const noexcept {
  return servers_[server].codes_answered_at.load(std::memory_order_relaxed);
}

void EngineGroup::tell_heard(std::size_t server, TimePoint now) noexcept { set_rarely(servers_[server].heard_at, now); }

TimePoint EngineGroup::heard_at(std::size_t server) const noexcept {
  return servers_[server].heard_at.load(std::memory_order_relaxed);
}

Unanswered EngineGroup::unanswered(std::size_t server) const noexcept {
  Unanswered longest;
  for (std::size_t engine = 0; engine < engines_; ++engine) {
    const Unanswered packet = unanswered_[server * engines_ + engine].load(std::memory_order_relaxed);
    longest = packet.for_ms > longest.for_ms ? packet : longest;
  }
  return longest;
}

const Failure& EngineGroup::fail(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  return *failure_;
}

const Failure* EngineGroup::failure() const noexcept {
  return failed_.load(std::memory_order_acquire) ? &*failure_ : nullptr;
}

}  // namespace thc
