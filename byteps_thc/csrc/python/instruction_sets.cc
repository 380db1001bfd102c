#include <pybind11/stl.h>

#include "python/register.h"
#include "thc/instruction_set.h"

namespace thc::python {

namespace py = pybind11;

void register_instruction_sets(py::module_& module) { module.def("instruction_sets", &instruction_sets); }

}  // namespace thc::python
