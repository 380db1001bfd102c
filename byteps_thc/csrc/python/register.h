// Parts of module.cc.
#pragma once

#include <pybind11/pybind11.h>

namespace thc::python {

/// Classes of arguments; before the kernels, whose signatures name them.
void register_arguments(pybind11::module_& module);
void register_servers(pybind11::module_& module);
void register_segments(pybind11::module_& module);
void register_block_codes(pybind11::module_& module);

/// Keeps threads that are in C++ when Python ends, such as gloo's, from aborting the process.
void let_threads_wait_at_the_end();

}  // namespace thc::python
