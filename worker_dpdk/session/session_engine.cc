#include "session/session_engine.h"

#include <algorithm>
#include <utility>

#include "session/refusal.h"

namespace thc {
SessionEngine::SessionEngine(SessionConfig config, io::PacketIo& packet_io, SessionState& state, std::uint64_t nonce,
                             TimePoint now)
    : config_(std::move(config)),
      context_{.config = config_, .packet_io = packet_io, .state = state},
      connect_deadline_(now + config_.connect_timeout) {
  for (std::size_t server = 0; server < config_.servers.size(); ++server) {
    links_.emplace_back(server, context_, nonce, now);
  }
}

void SessionEngine::submit(std::shared_ptr<Operation> operation, TimePoint now) {
  if (operation->chunks() == 0) {
    context_.finished.push_back(std::move(operation));
  } else if (context_.failure()) {
    context_.abandoned.push_back(std::move(operation));
  } else {
    ServerLink& link = links_[operation->partition() % links_.size()];
    link.enqueue(std::move(operation), now + config_.operation_timeout);
  }
}

SessionEngine::Step SessionEngine::step(TimePoint now, bool was_away) {
  const std::size_t received = receive(now);
  const bool was_connected = connected_;
  if (!context_.failure()) {
    for (ServerLink& link : links_) {
      if (was_away) link.postpone_probes(now);
      link.run_timers(now, received < received_.size());
    }
  }
  check_connected(now);
  if (connected_ && !context_.failure()) {
    for (ServerLink& link : links_) {
      link.send_new(now);
    }
  }
  context_.packet_io.flush();
  if (context_.failure()) {
    abandon();
  }
  bool changed = end_operations() || connected_ != was_connected;
  changed |= std::exchange(context_.differs, false);
  return {.received = received != 0, .changed = changed};
}

std::size_t SessionEngine::receive(TimePoint now) {
  const std::size_t count = context_.packet_io.receive(received_);
  const io::IoCounters& io = context_.packet_io.counters();
  context_.counters.set(Count::kUnauthenticated, io.rx_unauthenticated);
  context_.counters.set(Count::kDamaged, io.rx_damaged);
  for (std::size_t i = 0; i < count && !context_.failure(); ++i) {
    take(received_[i], now);
  }
  return count;
}

void SessionEngine::take(const io::RxPacket& packet, TimePoint now) {
  const auto link =
      std::find_if(links_.begin(), links_.end(), [&](const ServerLink& l) { return l.is_shard(packet.from); });
  if (link == links_.end()) {
    context_.counters.add(Count::kForeign);
    return;
  }
  auto message = parse_server_message({packet.data, packet.size_bytes}, config_);
  if (!message) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  if (link->address_of(message->header.slot) != packet.from) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  message->congested |= packet.congested;
  link->take(*message, now);
}

void SessionEngine::check_connected(TimePoint now) {
  if (connected_ || context_.failure()) {
    return;
  }
  const auto absent = std::ranges::find_if_not(links_, &ServerLink::joined);
  if (absent == links_.end()) {
    connected_ = true;
  } else if (now >= connect_deadline_) {
    context_.fail(absent->why_not_joined());
  }
}

void SessionEngine::abandon() {
  for (ServerLink& link : links_) {
    link.abandon();
  }
}

bool SessionEngine::end_operations() {
  const bool ended = !context_.finished.empty() || !context_.abandoned.empty();
  for (const std::shared_ptr<Operation>& operation : context_.finished) {
    operation->finish(nullptr);
  }
  context_.finished.clear();
  // Operations with all chunks are complete even if the session fails in the same step.
  for (const std::shared_ptr<Operation>& operation : context_.abandoned) {
    operation->finish(context_.failure());
  }
  context_.abandoned.clear();
  const bool failed_now = context_.failure() && !std::exchange(failure_published_, true);
  return ended || failed_now;
}

TimePoint SessionEngine::next_timer() const noexcept {
  if (context_.failure()) {
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
  context_.fail(std::move(failure));
  abandon();
  end_operations();
}

}  // namespace thc
