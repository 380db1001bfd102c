// One register function per noun, beside the functions of byteps_thc/csrc/python/register.h; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace thc::python {

void register_hello(pybind11::module_& module);
void register_stages(pybind11::module_& module);
void register_slot_pool(pybind11::module_& module);

}  // namespace thc::python
