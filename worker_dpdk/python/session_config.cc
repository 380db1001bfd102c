#include "session/session_config.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/address.h"
#include "io/name_lookup.h"
#include "python/register_comm.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::python {
namespace {

namespace py = pybind11;

/// Throws ConfigurationError unless `seconds` is finite. 30 years are as good as for ever, and fit every clock.
Duration from_seconds(double seconds, const char* name) {
  if (!std::isfinite(seconds)) {
    throw ConfigurationError(std::string(name) + " = " + std::to_string(seconds) + " is not a number of seconds");
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::clamp(seconds, -1e9, 1e9)));
}

/// Other Python threads go on meanwhile.
std::vector<io::Endpoint> resolve_servers(const std::vector<std::string>& servers, double lookup_s) {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(from_seconds(lookup_s, "lookup_s"));
  const py::gil_scoped_release release;
  return io::resolve_servers(servers, wire::kUdpPort, patience);
}

}  // namespace

void register_session_config(py::module_& module) {
  module.def(
      "resolve_server",
      [](const std::string& server, double lookup_s) { return io::to_string(resolve_servers({server}, lookup_s)[0]); },
      py::arg("server"), py::kw_only(), py::arg("lookup_s"));
  py::class_<SessionConfig>(module, "SessionConfig")
      .def(py::init([](unsigned bits, const std::vector<std::uint16_t>& table) {
             return SessionConfig{.table = LookupTable(bits, table)};
           }),
           py::kw_only(), py::arg("bits"), py::arg("table"))
      .def(
          "set_servers",
          [](SessionConfig& config, const std::vector<std::string>& servers, double lookup_s) {
            config.servers = resolve_servers(servers, lookup_s);
          },
          py::arg("servers"), py::kw_only(), py::arg("lookup_s"))
      .def_property_readonly("servers",
                             [](const SessionConfig& config) {
                               std::vector<std::string> texts;
                               for (const io::Endpoint server : config.servers) texts.push_back(io::to_string(server));
                               return texts;
                             })
      .def(
          "set_job",
          [](SessionConfig& config, std::uint16_t job, std::uint8_t worker, std::uint8_t workers, std::uint8_t quorum) {
            config.job_id = job;
            config.worker_id = worker;
            config.num_workers = workers;
            config.quorum = quorum;
          },
          py::kw_only(), py::arg("job"), py::arg("worker"), py::arg("workers"), py::arg("quorum"))
      .def(
          "set_timeouts",
          [](SessionConfig& config, double connect_s, double operation_s, double loss_s) {
            config.connect_timeout = from_seconds(connect_s, "connect_s");
            config.operation_timeout = from_seconds(operation_s, "operation_s");
            config.loss_timeout = from_seconds(loss_s, "loss_s");
          },
          py::kw_only(), py::arg("connect_s"), py::arg("operation_s"), py::arg("loss_s"))
      .def_property(
          "loss_tolerant", [](const SessionConfig& config) { return config.delivery == Delivery::kLossTolerant; },
          [](SessionConfig& config, bool tolerant) {
            config.delivery = tolerant ? Delivery::kLossTolerant : Delivery::kReliable;
          })
      .def_readwrite("value_bits", &SessionConfig::value_bits)
      .def_readwrite("codes_per_packet", &SessionConfig::codes_per_packet)
      .def_readwrite("run", &SessionConfig::run)
      .def_readwrite("settings_hash", &SessionConfig::settings_hash)
      .def_readwrite("arithmetic", &SessionConfig::arithmetic)
      .def_property_readonly("quorum", [](const SessionConfig& config) { return config.quorum; });
}

}  // namespace thc::python
