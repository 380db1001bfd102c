#include "session/engine_group.h"

#include <utility>

namespace thc {

void EngineGroup::tell_shape(std::size_t server, const wire::WelcomePayload& shape) noexcept {
  shapes_[server].welcome = shape;
  shapes_[server].known.store(true, std::memory_order_release);
}

const wire::WelcomePayload* EngineGroup::shape(std::size_t server) const noexcept {
  const Shape& shape = shapes_[server];
  return shape.known.load(std::memory_order_acquire) ? &shape.welcome : nullptr;
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
