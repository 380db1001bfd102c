// thc::Session for Python: keeps arrays alive while in flight, and handles Ctrl-C.
#pragma once

#include <pybind11/numpy.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/session.h"
#include "thc/errors.h"

namespace thc::python {

namespace py = pybind11;

/// Runs `attempt(slice)` without the GIL until it is true or the time ends, with signal handlers in between.
template <typename Attempt>
bool wait_in_slices(std::optional<double> timeout_s, Attempt attempt) {
  using Seconds = std::chrono::duration<double>;
  constexpr Duration kSlice{100'000};
  if (timeout_s && std::isnan(*timeout_s)) {
    throw InputError("timeout is not a number");
  }
  const TimePoint start = Clock::now();
  while (true) {
    Duration slice = kSlice;
    if (timeout_s) {
      const Seconds left = Seconds(*timeout_s) - (Clock::now() - start);
      slice = std::chrono::ceil<Duration>(std::clamp(left, Seconds(0), Seconds(kSlice)));
    }
    {
      const py::gil_scoped_release release;
      if (attempt(slice)) {
        return true;
      }
    }
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
    if (timeout_s && Clock::now() - start >= Seconds(*timeout_s)) {
      return false;
    }
  }
}

struct BoundOperation {
  Session::OperationPtr operation;
  bool done() const noexcept { return operation->done(); }
};

/// Call methods with the GIL; they release it while they block. A forked child has no polling thread: methods that need
/// it throw TransportError, and close() leaves the parent's session alone.
class BoundSession {
 public:
  /// Blocks until connected. `began`: of the connect timeout. Throws as Session.
  BoundSession(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io, TimePoint began);
  ~BoundSession();
  BoundSession(const BoundSession&) = delete;
  BoundSession& operator=(const BoundSession&) = delete;

  BoundOperation push_norms(std::uint16_t partition, const py::array& norms, py::array max_norms, std::size_t compared);
  BoundOperation push_codes(std::uint16_t partition, const py::array& codes, py::array aggregate,
                            py::array contributions);
  bool wait(const BoundOperation& bound, std::optional<double> timeout_s);
  void close();
  py::dict counters() const;
  /// Per server: port and seconds of the longest unanswered packet.
  py::list unanswered() const;
  /// Per server: seconds since anything arrived.
  py::list heard() const;
  bool is_of_switch() const noexcept { return session_->is_of_switch(); }
  const SessionConfig& config() const noexcept { return session_->config(); }

 private:
  using InFlight = std::pair<Session::OperationPtr, py::list>;

  bool is_inherited() const noexcept { return getpid() != owner_; }
  Session& session() const;
  /// Drops finished arrays, which may run Python code. Reserves memory: keep() must not fail after a submission.
  void make_room();
  BoundOperation keep(Session::OperationPtr operation, py::list arrays) noexcept;

  const pid_t owner_ = getpid();
  std::unique_ptr<Session> session_;
  std::vector<InFlight> in_flight_;  ///< operations and their arrays
};

}  // namespace thc::python
