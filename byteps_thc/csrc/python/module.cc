// byteps_thc._native._core: CPU kernels for Python. Signatures and semantics: byteps_thc/_native/_core.pyi.
#include <pybind11/pybind11.h>

#include "python/register.h"
#include "python/translate_errors.h"
#include "thc/wire_layout.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "CPU kernels of byteps_thc (see _core.pyi)";
  module.attr("ARITHMETIC") = thc::wire::kArithmeticVersion;
  thc::python::register_exceptions(module);
  thc::python::register_arguments(module);
  thc::python::register_servers(module);
  thc::python::register_segments(module);
  thc::python::register_block_codes(module);
  thc::python::let_threads_wait_at_the_end();
}
