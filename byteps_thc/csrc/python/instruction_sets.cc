#include <pybind11/stl.h>

#include "python/register.h"
#include "thc/instruction_set.h"

namespace thc::python {

namespace py = pybind11;

void register_instruction_sets(py::module_& module) {
  module.def("instruction_sets", &instruction_sets);
  module.def(
      "use_instruction_set", [](const std::optional<std::string>& name) { use_instruction_set(name); },
      py::arg("name").none(true));
}

}  // namespace thc::python
