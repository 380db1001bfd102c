// One register function per noun; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace thc::python {

void register_layout(pybind11::module_& module);
void register_thread_pool(pybind11::module_& module);
void register_rotation(pybind11::module_& module);
void register_segments(pybind11::module_& module);
void register_quantization(pybind11::module_& module);
void register_aggregation(pybind11::module_& module);
void register_decode(pybind11::module_& module);
void register_rotation_blocks(pybind11::module_& module);
void register_nearest(pybind11::module_& module);
void register_instruction_sets(pybind11::module_& module);

}  // namespace thc::python
