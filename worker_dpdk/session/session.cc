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

std::size_t smallest_path_bytes(const SessionConfig& config, const io::PacketIo& packet_io) {
  std::size_t smallest = SIZE_MAX;
  for (const io::Endpoint server : config.servers) {
    smallest = std::min(smallest, packet_io.max_datagram_bytes(server));
  }
  return smallest;
}

void require_input(bool condition, const std::string& message) {
  if (!condition) {
    throw InputError(message);
  }
}

}  // namespace

Session::Session(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io)
    : io_(std::move(packet_io)),
      config_(resolve(config, smallest_path_bytes(config, *io_))),
      engine_(config_, *io_, random_uint64(), Clock::now()),
      polling_thread_([this] { run(); }) {}

Session::~Session() { close(); }

bool Session::wait_connected(Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return connected_ || failure_; });
  if (failure_) {
    failure_->raise();
  }
  return connected_;
}

Session::OperationPtr Session::push_norms(std::uint16_t partition, std::span<const float> norms,
                                          std::span<float> max_norms) {
  require_input(max_norms.size() == norms.size(), "max_norms has " + std::to_string(max_norms.size()) +
                                                      " elements, norms " + std::to_string(norms.size()));
  const std::size_t per_packet = std::size_t{config_.codes_per_packet} * config_.value_bits / 32;
  require_input((norms.size() + per_packet - 1) / per_packet <= wire::kMaxChunks, "too many norms for one partition");
  return submit(Operation::norms(partition, norms, max_norms, per_packet));
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
  return submit(Operation::codes(partition, codes.data(), count, aggregate, contributions.data(), config_));
}

Session::OperationPtr Session::submit(std::shared_ptr<Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      failure_->raise();
    }
    submitted_.push_back(operation);
  }
  io_->wake();
  return operation;
}

bool Session::wait(const OperationPtr& operation, Duration timeout) {
  if (!operation->done()) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return operation->done(); })) {
      return false;
    }
  }
  if (operation->failure()) {
    operation->failure()->raise();
  }
  return true;
}

void Session::close() {
  const std::lock_guard lock(close_mutex_);
  closing_.store(true, std::memory_order_release);
  io_->wake();
  if (polling_thread_.joinable()) {
    polling_thread_.join();
  }
}

void Session::run() {
  while (!closing_.load(std::memory_order_acquire)) {
    take_submitted();
    const SessionEngine::Step step = engine_.step(Clock::now());
    if (step.changed) {
      publish();
    }
    if (!step.received) {
      const TimePoint now = Clock::now();
      const TimePoint until = std::min(engine_.next_timer(), now + kLongestSleep);
      if (until > now) {
        io_->wait(std::chrono::ceil<Duration>(until - now));
      }
    }
  }
  take_submitted();
  engine_.end({Failure::Kind::kTransport, "the session is closed"});
  publish();
}

void Session::take_submitted() {
  {
    const std::lock_guard lock(mutex_);
    taking_.swap(submitted_);
  }
  for (std::shared_ptr<Operation>& operation : taking_) {
    engine_.submit(std::move(operation), Clock::now());
  }
  taking_.clear();
}

void Session::publish() {
  {
    const std::lock_guard lock(mutex_);
    connected_ = engine_.connected();
    failure_ = engine_.failure();
    // A submission that came after the last take_submitted() ends here.
    if (failure_) {
      for (const std::shared_ptr<Operation>& operation : submitted_) {
        operation->finish(failure_);
      }
      submitted_.clear();
    }
  }
  changed_.notify_all();
}

}  // namespace thc
