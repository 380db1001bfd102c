#include "session/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "thc/errors.h"
#include "thc/kernel_random.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

// Without timers the polling thread sleeps until woken; this limits the harm of a lost wake-up.
constexpr Duration kLongestSleep{1'000'000};
// A delay beyond any wake-up and step: the process had no CPU.
constexpr Duration kAbsence{1'000};

SessionConfig resolve_for(const SessionConfig& config, const io::PacketIo& packet_io) {
  std::size_t smallest = SIZE_MAX;
  std::size_t common = SIZE_MAX;
  for (const io::Endpoint server : config.servers) {
    smallest = std::min(smallest, packet_io.max_datagram_bytes(server));
    common = std::min(common, packet_io.common_datagram_bytes(server));
  }
  return resolve(config, smallest, common);
}

void require_fits(std::size_t packets, const char* what) {
  if (packets > wire::kMaxChunks) {
    throw InputError(std::string("a partition has too many ") + what + ": they need " + std::to_string(packets) +
                     " packets, more than " + std::to_string(wire::kMaxChunks));
  }
}

}  // namespace

Session::Session(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io, TimePoint began)
    : io_(std::move(packet_io)),
      config_(resolve_for(config, *io_)),
      state_(config_.servers.size()),
      engine_(config_, *io_, state_, random_uint64(), began),
      thread_([this] { run(); }) {}

Session::~Session() { close(); }

bool Session::wait_connected(Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return connected_ || state_.failure() != nullptr; });
  if (const Failure* failure = state_.failure(); failure != nullptr) {
    failure->raise();
  }
  return connected_;
}

Session::OperationPtr Session::push_norms(std::uint16_t partition, std::span<const float> norms,
                                          std::span<float> max_norms, std::size_t compared) {
  const std::size_t per_packet = std::size_t{config_.codes_per_packet} * config_.value_bits / 32;
  require_fits((norms.size() + per_packet - 1) / per_packet, "norms");
  state_.begin_norms(partition);
  return submit(Operation::norms(partition, norms, max_norms, per_packet, compared));
}

Session::OperationPtr Session::push_codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count,
                                          void* aggregate, std::uint8_t* contributions) {
  require_fits(chunks(count), "codes");
  auto operation = Operation::codes(partition, codes, count, aggregate, contributions, config_);
  if (state_.is_left_behind(partition)) {
    operation->abstain();
  }
  return submit(std::move(operation));
}

Session::OperationPtr Session::submit(std::shared_ptr<Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    if (const Failure* failure = state_.failure(); failure != nullptr) {
      failure->raise();
    }
    submitted_.push_back(operation);
    has_submitted_.store(true, std::memory_order_release);
  }
  wake();
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
  wake();
  if (thread_.joinable()) {
    thread_.join();
  }
  const std::lock_guard waking(mutex_);
  io_.reset();  // the socket or device closes although others still hold this session
}

void Session::wake() noexcept {
  const std::lock_guard lock(mutex_);
  if (io_ != nullptr) {
    io_->wake();
  }
}

void Session::run() {
  TimePoint due = Clock::now();
  while (!closing_.load(std::memory_order_acquire)) {
    take_submitted();
    const TimePoint now = Clock::now();
    const SessionEngine::Step step = engine_.step(now, now - due > kAbsence);
    if (step.changed) {
      publish();
    }
    due = step.received ? now : std::max(now, sleep());
  }
  take_submitted();
  engine_.end({Failure::Kind::kTransport, "the session is closed"});
  publish();
}

TimePoint Session::sleep() {
  const TimePoint now = Clock::now();
  const TimePoint until = std::min(engine_.next_timer(), now + kLongestSleep);
  if (until > now) {
    io_->wait(std::chrono::ceil<Duration>(until - now));
  }
  return until;
}

void Session::take_submitted() {
  if (!has_submitted_.load(std::memory_order_acquire)) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    taking_.swap(submitted_);
    has_submitted_.store(false, std::memory_order_relaxed);
  }
  for (std::shared_ptr<Operation>& operation : taking_) {
    engine_.submit(std::move(operation), Clock::now());
  }
  taking_.clear();
}

void Session::publish() {
  {
    const std::lock_guard lock(mutex_);
    connected_ = connected_ || engine_.connected();
    // Fails submissions that came after the last take_submitted().
    if (const Failure* failure = state_.failure(); failure != nullptr) {
      for (const std::shared_ptr<Operation>& operation : std::exchange(submitted_, {})) {
        operation->finish(failure);
      }
    }
  }
  changed_.notify_all();
}

}  // namespace thc
