#include "python/bound_session.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>

#include "python/arrays.h"

namespace thc::python {

BoundSession::BoundSession(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io, TimePoint began)
    : session_(std::make_unique<Session>(config, std::move(packet_io), began)) {
  wait_in_slices(std::nullopt, [this](Duration slice) { return session_->wait_connected(slice); });
}

BoundSession::~BoundSession() {
  close();
  if (is_inherited()) {
    // Leaked: its thread and devices are the parent's. NOLINTNEXTLINE(bugprone-unused-return-value)
    static_cast<void>(session_.release());
  }
}

BoundOperation BoundSession::push_norms(std::uint16_t partition, const py::array& norms, py::array max_norms,
                                        std::size_t compared) {
  const auto count = static_cast<std::size_t>(norms.size());
  const float* up = input<float>(norms, "norms", count);
  float* down = output<float>(max_norms, "max_norms", count);
  py::list arrays(py::make_tuple(std::move(max_norms)));
  make_room();
  return keep(session().push_norms(partition, {up, count}, {down, count}, compared), std::move(arrays));
}

BoundOperation BoundSession::push_codes(std::uint16_t partition, const py::array& codes, py::array aggregate,
                                        py::array contributions) {
  const auto count = static_cast<std::size_t>(aggregate.size());
  const std::size_t code_bytes = (count * config().table.bits() + 7) / 8;
  const std::uint8_t* packed = input<std::uint8_t>(codes, "codes", code_bytes);
  const std::size_t chunks = session().chunks(count);
  std::uint8_t* workers = output<std::uint8_t>(contributions, "contributions", chunks);
  void* sums = config().value_bits == 8 ? static_cast<void*>(output<std::uint8_t>(aggregate, "aggregate", count))
                                        : output<std::uint16_t>(aggregate, "aggregate", count);
  py::list arrays(py::make_tuple(codes, std::move(aggregate), std::move(contributions)));
  make_room();
  return keep(session().push_codes(partition, packed, count, sums, workers), std::move(arrays));
}

bool BoundSession::wait(const BoundOperation& bound, std::optional<double> timeout_s) {
  Session& own = session();
  return wait_in_slices(timeout_s, [&](Duration slice) { return own.wait(bound.operation, slice); });
}

void BoundSession::close() {
  if (is_inherited()) {
    return;  // the parent keeps using it
  }
  {
    const py::gil_scoped_release release;
    session_->close();
  }
  const auto dropped = std::exchange(in_flight_, {});
}

py::dict BoundSession::counters() const {
  py::dict counts;
  for (std::size_t i = 0; i < kCounts; ++i) {
    counts[py::str(kCountNames[i].data(), kCountNames[i].size())] = session_->count(static_cast<Count>(i));
  }
  return counts;
}

py::list BoundSession::unanswered() const {
  py::list servers;
  for (std::size_t server = 0; server < config().servers.size(); ++server) {
    const Unanswered packet = session_->unanswered(server);
    servers.append(py::make_tuple(packet.for_ms * 1e-3, packet.port));
  }
  return servers;
}

py::list BoundSession::heard() const {
  py::list servers;
  const TimePoint now = Clock::now();
  for (std::size_t server = 0; server < config().servers.size(); ++server) {
    servers.append(std::chrono::duration<double>(now - session_->heard_at(server)).count());
  }
  return servers;
}

Session& BoundSession::session() const {
  if (is_inherited()) {
    throw TransportError("this session belongs to the parent process " + std::to_string(owner_) +
                         "; open one in each process");
  }
  return *session_;
}

void BoundSession::make_room() {
  {
    const auto done = std::partition(in_flight_.begin(), in_flight_.end(),
                                     [](const InFlight& entry) { return !entry.first->done(); });
    const std::vector<InFlight> dropped(std::make_move_iterator(done), std::make_move_iterator(in_flight_.end()));
    in_flight_.erase(done, in_flight_.end());
  }
  if (in_flight_.size() == in_flight_.capacity()) {
    in_flight_.reserve(2 * in_flight_.size() + 16);
  }
}

BoundOperation BoundSession::keep(Session::OperationPtr operation, py::list arrays) noexcept {
  in_flight_.emplace_back(operation, std::move(arrays));
  return {std::move(operation)};
}

}  // namespace thc::python
