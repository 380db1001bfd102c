#include "session/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "thc/errors.h"
#include "thc/kernel_random.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

// Without timers the polling thread sleeps until it is woken; this bounds the harm of a lost wake-up.
constexpr Duration kLongestSleep{1'000'000};

SessionConfig resolve_for(const SessionConfig& config, const Session::PacketIos& packet_ios) {
  std::size_t smallest = SIZE_MAX;
  std::size_t common = SIZE_MAX;
  for (const auto& packet_io : packet_ios) {
    for (const io::Endpoint server : config.servers) {
      smallest = std::min(smallest, packet_io->max_datagram_bytes(server));
      common = std::min(common, packet_io->common_datagram_bytes(server));
    }
  }
  return resolve(config, smallest, common);
}

std::uint32_t checked_threads(const Session::PacketIos& packet_ios) {
  if (packet_ios.empty() || packet_ios.size() > wire::kMaxShards) {
    throw ConfigurationError("a session has 1 to " + std::to_string(wire::kMaxShards) + " polling threads, not " +
                             std::to_string(packet_ios.size()));
  }
  return static_cast<std::uint32_t>(packet_ios.size());
}

/// For one more without an allocation. reserve() alone takes no more than it is asked for, every time.
template <typename T>
void make_room(std::vector<T>& list) {
  if (list.size() == list.capacity()) {
    list.reserve(std::max<std::size_t>(2 * list.size(), 16));
  }
}

void require_input(bool condition, const std::string& message) {
  if (!condition) {
    throw InputError(message);
  }
}

}  // namespace

Session::Session(const SessionConfig& config, PacketIos packet_ios)
    : config_(resolve_for(config, packet_ios)), group_(config_.servers.size(), checked_threads(packet_ios)) {
  const std::uint64_t nonce = random_uint64();
  const TimePoint now = Clock::now();
  for (std::uint32_t thread = 0; thread < group_.engines(); ++thread) {
    pollers_.push_back(std::make_unique<Poller>(config_, std::move(packet_ios[thread]), group_, thread, nonce, now));
  }
  try {
    for (const auto& poller : pollers_) {
      poller->thread = std::thread([this, &own = *poller] { run(own); });
    }
  } catch (...) {
    close();
    throw;
  }
}

Session::~Session() { close(); }

bool Session::wait_connected(Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return connected_ == pollers_.size() || group_.failure() != nullptr; });
  if (const Failure* failure = group_.failure(); failure != nullptr) {
    failure->raise();
  }
  return connected_ == pollers_.size();
}

Session::OperationPtr Session::push_norms(std::uint16_t partition, std::span<const float> norms,
                                          std::span<float> max_norms, std::size_t compared) {
  require_input(max_norms.size() == norms.size(), "max_norms has " + std::to_string(max_norms.size()) +
                                                      " elements, norms " + std::to_string(norms.size()));
  const std::size_t per_packet = std::size_t{config_.codes_per_packet} * config_.value_bits / 32;
  require_input((norms.size() + per_packet - 1) / per_packet <= wire::kMaxChunks, "too many norms for one partition");
  group_.begin_norms(partition);
  return submit(Operation::norms(partition, norms, max_norms, per_packet, compared));
}

Session::OperationPtr Session::push_codes(std::uint16_t partition, std::span<const std::uint8_t> codes,
                                          std::size_t count, void* aggregate, std::span<std::uint8_t> contributions) {
  const std::size_t code_bytes = (count * config_.table.bits() + 7) / 8;
  require_input(codes.size() == code_bytes,
                std::to_string(count) + " codes of " + std::to_string(config_.table.bits()) + " bits are " +
                    std::to_string(code_bytes) + " bytes, not " + std::to_string(codes.size()));
  require_input(contributions.size() == chunks(count), "contributions needs " + std::to_string(chunks(count)) +
                                                           " elements (codes / codes_per_packet), has " +
                                                           std::to_string(contributions.size()));
  require_input(chunks(count) <= wire::kMaxChunks, "partition of " + std::to_string(count) + " codes needs " +
                                                       std::to_string(chunks(count)) + " packets, more than " +
                                                       std::to_string(wire::kMaxChunks));
  auto operation = Operation::codes(partition, codes.data(), count, aggregate, contributions.data(), config_);
  if (group_.is_left_behind(partition)) {
    operation->abstain();
  }
  return submit(std::move(operation));
}

Session::OperationPtr Session::submit(std::shared_ptr<Operation> operation) {
  operation->divide(group_.engines());
  {
    const std::lock_guard lock(mutex_);
    if (const Failure* failure = group_.failure(); failure != nullptr) {
      failure->raise();
    }
    // Either all engines have it or none: the caller of a push that throws takes the buffers back.
    for (const auto& poller : pollers_) {
      make_room(poller->submitted);
    }
    for (const auto& poller : pollers_) {
      poller->submitted.push_back(operation);
      poller->has_submitted.store(true, std::memory_order_release);
    }
  }
  wake_all();
  return operation;
}

bool Session::wait(const OperationPtr& operation, Duration timeout) {
  const auto is_known = [&] { return operation->differs() || operation->done(); };
  if (!is_known()) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, is_known)) {
      return false;
    }
  }
  if (!operation->differs() && operation->failure()) {
    operation->failure()->raise();
  }
  return true;
}

void Session::close() {
  const std::lock_guard lock(close_mutex_);
  closing_.store(true, std::memory_order_release);
  wake_all();
  for (const auto& poller : pollers_) {
    if (poller->thread.joinable()) {
      poller->thread.join();
    }
  }
  const std::lock_guard waking(mutex_);
  for (const auto& poller : pollers_) {
    poller->io.reset();  // sockets and devices do not wait for whoever still has this session
  }
}

std::uint64_t Session::count(Count which) const noexcept {
  std::uint64_t total = 0;
  for (std::size_t thread = 0; thread < pollers_.size(); ++thread) {
    const std::uint64_t own = count(which, thread);
    total = which == Count::kSmoothedRttUs ? std::max(total, own) : total + own;
  }
  return total;
}

void Session::wake_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& poller : pollers_) {
    if (poller->io != nullptr) {
      poller->io->wake();
    }
  }
}

void Session::run(Poller& poller) {
  while (!closing_.load(std::memory_order_acquire)) {
    take_submitted(poller);
    const SessionEngine::Step step = poller.engine.step(Clock::now());
    if (step.changed) {
      publish(poller);
    }
    if (step.told) {
      wake_all();
    }
    if (!step.received) {
      sleep(poller);
    }
  }
  take_submitted(poller);
  poller.engine.end({Failure::Kind::kTransport, "the session is closed"});
  publish(poller);
}

void Session::sleep(Poller& poller) {
  const TimePoint now = Clock::now();
  const TimePoint until = std::min(poller.engine.next_timer(), now + kLongestSleep);
  if (until > now) {
    poller.io->wait(std::chrono::ceil<Duration>(until - now));
  }
}

void Session::take_submitted(Poller& poller) {
  if (!poller.has_submitted.load(std::memory_order_acquire)) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    poller.taking.swap(poller.submitted);
    poller.has_submitted.store(false, std::memory_order_relaxed);
  }
  for (std::shared_ptr<Operation>& operation : poller.taking) {
    poller.engine.submit(std::move(operation), Clock::now());
  }
  poller.taking.clear();
}

void Session::publish(Poller& poller) {
  {
    const std::lock_guard lock(mutex_);
    if (poller.engine.connected() && !std::exchange(poller.connected, true)) {
      ++connected_;
    }
    // A submission that came after the last take_submitted() ends here.
    if (const Failure* failure = group_.failure(); failure != nullptr) {
      for (const std::shared_ptr<Operation>& operation : std::exchange(poller.submitted, {})) {
        operation->leave(failure);
      }
    }
  }
  changed_.notify_all();
}

}  // namespace thc
