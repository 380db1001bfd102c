// One register function per noun; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace thc::python {

void register_layout(pybind11::module_& module);

}  // namespace thc::python
