#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "python/bound_session.h"
#include "python/packet_io_factory.h"
#include "python/register_comm.h"
#include "session/inquiry.h"
#include "thc/errors.h"
#include "thc/kernel_random.h"

namespace thc::python {
namespace {

/// EAL and devices may take seconds, in which other Python threads go on.
std::unique_ptr<io::PacketIo> open_packet_io(const IoConfig& config) {
  const py::gil_scoped_release release;
  return make_packet_io(config);
}

/// A file with keys of single jobs may have none for this one, which no server would answer.
void check_key(const SessionConfig& config, const IoConfig& io_config) {
  if (!io_config.keys || io_config.keys->derive(config.job_id, io::Direction::kUp)) return;
  const std::string job = std::to_string(config.job_id);
  throw ConfigurationError("the key file has keys for single jobs, and none for job " + job + ": add a line \"" + job +
                           " KEY\" here and on the servers, or use a job that has a key");
}

/// Blocks until connected. Packets whose size is not given are as large as the path allows, or else as large as the job
/// has them, or the server takes them: a switch's are smaller, and so are those of workers with a smaller MTU. All
/// workers hear of it from the server that says so, and leave the others.
std::unique_ptr<BoundSession> connect(SessionConfig config, const IoConfig& io_config) {
  check_key(config, io_config);
  const bool is_auto = config.codes_per_packet == 0;
  for (;;) {
    try {
      return std::make_unique<BoundSession>(config, open_packet_io(io_config));
    } catch (const ServerRefusedError& error) {
      if (!is_auto || error.codes_per_packet() == 0) {
        throw;
      }
      config.codes_per_packet = error.codes_per_packet();  // fewer each time
      config.others_follow = true;
    }
  }
}

const char* name_of(Presence presence) noexcept {
  switch (presence) {
    case Presence::kThere:
      return "there";
    case Presence::kLeaving:
      return "leaving";
    case Presence::kOther:
      return "other";
    case Presence::kSilent:
      break;
  }
  return "silent";
}

/// With a socket of its own, beside a session's.
std::vector<std::string> ask(const SessionConfig& config, const IoConfig& io_config, double timeout_s) {
  const auto packet_io = open_packet_io(io_config);
  const py::gil_scoped_release release;
  const auto timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_s));
  std::vector<std::string> names;
  for (const Presence presence : ask_servers(config, *packet_io, random_uint64(), timeout)) {
    names.emplace_back(name_of(presence));
  }
  return names;
}

}  // namespace

void register_session(py::module_& module) {
  module.def("ask_servers", &ask, py::arg("config"), py::arg("io"), py::kw_only(), py::arg("timeout_s"));
  py::class_<BoundOperation>(module, "Operation").def_property_readonly("done", &BoundOperation::done);
  py::class_<BoundSession>(module, "Session")
      .def(py::init(&connect), py::arg("config"), py::arg("io"))
      .def("push_norms", &BoundSession::push_norms, py::arg("partition"), py::arg("norms"), py::arg("max_norms"),
           py::kw_only(), py::arg("compared") = 0)
      .def("push_codes", &BoundSession::push_codes, py::arg("partition"), py::arg("codes"), py::arg("aggregate"),
           py::arg("contributions"))
      .def("wait", &BoundSession::wait, py::arg("operation"), py::arg("timeout_s"))
      .def("close", &BoundSession::close)
      .def("counters", &BoundSession::counters)
      .def("unanswered", &BoundSession::unanswered)
      .def("heard", &BoundSession::heard)
      .def_property_readonly("config", &BoundSession::config);
}

}  // namespace thc::python
