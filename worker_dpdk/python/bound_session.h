// thc::Session for Python: keeps arrays alive while they are in flight and lets Ctrl-C through.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session/session.h"

namespace thc::python {

namespace py = pybind11;

/// What push_*() returns to Python.
struct BoundHandle {
  Session::Handle operation;
  bool done() const noexcept { return operation->done(); }
};

/// All methods are called with the GIL held and release it while they block.
class BoundSession {
 public:
  /// Blocks until connected. Throws what Session does.
  BoundSession(SessionConfig config, std::unique_ptr<io::PacketIo> packet_io);
  ~BoundSession() { close(); }
  BoundSession(const BoundSession&) = delete;
  BoundSession& operator=(const BoundSession&) = delete;

  BoundHandle push_norms(std::uint16_t partition, const py::array& norms, py::array max_norms);
  BoundHandle push_codes(std::uint16_t partition, py::array codes, py::array aggregate, py::array contributions);
  bool wait(const BoundHandle& handle, std::optional<double> timeout_s);
  void close();
  py::dict counters() const;
  const SessionConfig& config() const noexcept { return session_.config(); }

 private:
  BoundHandle keep(Session::Handle handle, py::list arrays);

  Session session_;
  std::vector<std::pair<Session::Handle, py::list>> in_flight_;  ///< and the arrays of each
};

}  // namespace thc::python
