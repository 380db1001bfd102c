#include "session/session_engine.h"

#include <algorithm>
#include <utility>

#include "session/refusal.h"

namespace thc {
SessionEngine::SessionEngine(SessionConfig config, io::PacketIo& packet_io, std::uint64_t nonce, TimePoint now)
    : config_(std::move(config)),
      context_{.config = config_, .packet_io = packet_io, .counters = {}, .finished = {}, .failure = {}},
      connect_deadline_(now + config_.connect_timeout) {
  links_.reserve(config_.servers.size());
  for (const io::Endpoint server : config_.servers) {
    links_.emplace_back(server, context_, nonce, now);
  }
}

void SessionEngine::submit(std::shared_ptr<Operation> operation, TimePoint now) {
  operation->set_deadline(now + config_.operation_timeout);
  if (operation->chunks() == 0 || context_.failure) {
    context_.finished.push_back(std::move(operation));
    return;
  }
  links_[operation->partition() % links_.size()].enqueue(std::move(operation));
}

SessionEngine::Step SessionEngine::step(TimePoint now) {
  const bool received = receive(now);
  const bool was_connected = connected_;
  check_connected(now);
  if (!context_.failure) {
    for (ServerLink& link : links_) {
      link.run_timers(now);
      if (connected_) {
        link.send_new(now);
      }
    }
  }
  context_.packet_io.flush();
  if (context_.failure) {
    abandon();
  }
  const bool changed = publish_finished() || connected_ != was_connected;
  return {.received = received, .changed = changed};
}

bool SessionEngine::receive(TimePoint now) {
  const std::size_t count = context_.packet_io.receive(received_);
  context_.counters.set(Count::kUnauthenticated, context_.packet_io.counters().rx_unauthenticated);
  for (std::size_t i = 0; i < count && !context_.failure; ++i) {
    take(received_[i], now);
  }
  return count != 0;
}

void SessionEngine::take(const io::RxPacket& packet, TimePoint now) {
  const auto link =
      std::find_if(links_.begin(), links_.end(), [&](const ServerLink& l) { return l.is_shard(packet.from); });
  if (link == links_.end()) {
    context_.counters.add(Count::kForeign);
    return;
  }
  const auto message = parse_server_message({packet.data, packet.size_bytes}, config_);
  if (!message) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  if (link->address_of(message->header.slot) != packet.from) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  link->take(*message, now);
}

void SessionEngine::check_connected(TimePoint now) {
  if (connected_ || context_.failure) {
    return;
  }
  const auto absent = std::find_if(links_.begin(), links_.end(), [](const ServerLink& link) { return !link.joined(); });
  if (absent == links_.end()) {
    connected_ = true;
  } else if (now >= connect_deadline_) {
    context_.failure = absent->why_not_joined();
  }
}

void SessionEngine::abandon() {
  for (ServerLink& link : links_) {
    link.abandon();
  }
}

bool SessionEngine::publish_finished() {
  for (const std::shared_ptr<Operation>& operation : context_.finished) {
    // An operation that has all its chunks is complete even if the session fails in the same step.
    operation->finish(operation->remaining() == 0 ? std::nullopt : context_.failure);
  }
  const bool failed_now = context_.failure && !std::exchange(failure_published_, true);
  const bool any = !context_.finished.empty();
  context_.finished.clear();
  return any || failed_now;
}

TimePoint SessionEngine::next_timer() const noexcept {
  if (context_.failure) {
    return TimePoint::max();
  }
  TimePoint next = connected_ ? TimePoint::max() : connect_deadline_;
  for (const ServerLink& link : links_) {
    next = std::min(next, link.next_timer());
  }
  return next;
}

void SessionEngine::end(Failure failure) {
  for (ServerLink& link : links_) {
    link.send_goodbye();
  }
  context_.packet_io.flush();
  if (!context_.failure) {
    context_.failure = std::move(failure);
  }
  abandon();
  publish_finished();
}

}  // namespace thc
