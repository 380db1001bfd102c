// One register function per noun of _comm; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace thc::python {

void register_session_config(pybind11::module_& module);
void register_session(pybind11::module_& module);

}  // namespace thc::python
