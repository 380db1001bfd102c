// byteps_thc._native._comm: a worker's session for Python. Signatures and semantics: byteps_thc/_native/_comm.pyi.
#include <pybind11/pybind11.h>

#include "python/register_comm.h"
#include "python/translate_errors.h"
#include "thc/wire_layout.h"

PYBIND11_MODULE(_comm, module) {
  module.doc() = "A worker's session with thc-ps or a switch (see _comm.pyi)";
  module.attr("ARITHMETIC") = thc::wire::kArithmeticVersion;
  thc::python::register_exceptions(module);
  thc::python::register_session_config(module);
  thc::python::register_session(module);
}
