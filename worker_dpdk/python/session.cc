#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "python/bound_session.h"
#include "python/packet_io_factory.h"
#include "python/register_comm.h"

namespace thc::python {
namespace {

/// EAL and devices may take seconds, in which other Python threads go on.
Session::PacketIos open_packet_ios(const IoConfig& config) {
  const py::gil_scoped_release release;
  return make_packet_ios(config);
}

}  // namespace

void register_session(py::module_& module) {
  py::class_<BoundOperation>(module, "Operation").def_property_readonly("done", &BoundOperation::done);
  py::class_<BoundSession>(module, "Session")
      .def(py::init([](const SessionConfig& config, const IoConfig& io_config) {
             return std::make_unique<BoundSession>(config, open_packet_ios(io_config));
           }),
           py::arg("config"), py::arg("io"))
      .def("push_norms", &BoundSession::push_norms, py::arg("partition"), py::arg("norms"), py::arg("max_norms"),
           py::kw_only(), py::arg("compared") = 0)
      .def("push_codes", &BoundSession::push_codes, py::arg("partition"), py::arg("codes"), py::arg("aggregate"),
           py::arg("contributions"))
      .def("wait", &BoundSession::wait, py::arg("operation"), py::arg("timeout_s"))
      .def("close", &BoundSession::close)
      .def("counters", &BoundSession::counters)
      .def("thread_counters", &BoundSession::thread_counters)
      .def_property_readonly("config", &BoundSession::config);
}

}  // namespace thc::python
