// byteps_thc._native._core: CPU kernels for Python. Signatures and semantics: byteps_thc/_native/_core.pyi.
#include <pybind11/pybind11.h>

#include "python/register.h"
#include "python/translate_errors.h"
#include "thc/wire_layout.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "CPU kernels of byteps_thc (see _core.pyi)";
  module.attr("ARITHMETIC") = thc::wire::kArithmeticVersion;
  thc::python::register_exceptions(module);
  thc::python::register_layout(module);
  thc::python::register_thread_pool(module);      // before the kernels, whose signatures name it
  thc::python::register_rotation_blocks(module);  // likewise
  thc::python::register_rotation(module);
  thc::python::register_segments(module);
  thc::python::register_quantization(module);
  thc::python::register_aggregation(module);
  thc::python::register_decode(module);
  thc::python::register_nearest(module);
  thc::python::register_instruction_sets(module);
}
