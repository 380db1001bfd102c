#include "session/engine_group.h"

#include <utility>

namespace thc {

void EngineGroup::tell_shape(std::size_t server, const wire::WelcomePayload& shape) noexcept {
  servers_[server].shape = shape;
  servers_[server].has_shape.store(true, std::memory_order_release);
}

const wire::WelcomePayload* EngineGroup::shape(std::size_t server) const noexcept {
  const Server& known = servers_[server];
  return known.has_shape.load(std::memory_order_acquire) ? &known.shape : nullptr;
}

void EngineGroup::tell_codes_answered(std::size_t server, TimePoint now) noexcept {
  std::atomic<TimePoint>& answered_at = servers_[server].codes_answered_at;
  // Told with every result: written rarely, so that all caches keep it.
  if (now - Duration(1'000) >= answered_at.load(std::memory_order_relaxed)) {
    answered_at.store(now, std::memory_order_relaxed);
  }
}

TimePoint EngineGroup::codes_answered_at(std::size_t server) const noexcept {
  return servers_[server].codes_answered_at.load(std::memory_order_relaxed);
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
