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

void EngineGroup::tell_codes_answered(std::size_t server) noexcept {
  std::atomic<bool>& answered = servers_[server].codes_answered;
  if (!answered.load(std::memory_order_relaxed)) {  // told with every result: written once, so all caches keep it
    answered.store(true, std::memory_order_relaxed);
  }
}

bool EngineGroup::codes_answered(std::size_t server) const noexcept {
  return servers_[server].codes_answered.load(std::memory_order_relaxed);
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
