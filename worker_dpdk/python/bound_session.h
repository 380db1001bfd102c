// thc::Session for Python: keeps arrays alive while they are in flight and lets Ctrl-C through.
#pragma once

#include <pybind11/numpy.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/session.h"

namespace thc::python {

namespace py = pybind11;

/// What push_*() returns to Python.
struct BoundOperation {
  Session::OperationPtr operation;
  bool done() const noexcept { return operation->done(); }
};

/// All methods are called with the GIL held and release it while they block. A forked child has no polling thread: in
/// it, methods that need one throw TransportError, and close() leaves the parent's session alone.
class BoundSession {
 public:
  /// Blocks until connected. Throws what Session does.
  BoundSession(const SessionConfig& config, std::unique_ptr<io::PacketIo> packet_io);
  ~BoundSession();
  BoundSession(const BoundSession&) = delete;
  BoundSession& operator=(const BoundSession&) = delete;

  BoundOperation push_norms(std::uint16_t partition, const py::array& norms, py::array max_norms, std::size_t compared);
  BoundOperation push_codes(std::uint16_t partition, const py::array& codes, py::array aggregate,
                            py::array contributions);
  bool wait(const BoundOperation& bound, std::optional<double> timeout_s);
  void close();
  py::dict counters() const;
  /// Of each server: how many seconds what it has not answered is unanswered, and at which port.
  py::list unanswered() const;
  /// Of each server: how many seconds ago anything arrived.
  py::list heard() const;
  bool is_of_switch() const noexcept { return session_->is_of_switch(); }
  const SessionConfig& config() const noexcept { return session_->config(); }

 private:
  using InFlight = std::pair<Session::OperationPtr, py::list>;

  bool is_inherited() const noexcept { return getpid() != owner_; }
  Session& session() const;
  /// Lets go of the arrays of what is done, which may run any Python code, and makes the next keep() safe from failure:
  /// what is submitted must be kept.
  void make_room();
  BoundOperation keep(Session::OperationPtr operation, py::list arrays) noexcept;

  const pid_t owner_ = getpid();
  std::unique_ptr<Session> session_;
  std::vector<InFlight> in_flight_;  ///< operations and their arrays
};

}  // namespace thc::python
