#include "thc/thread_pool.h"

#include <pybind11/pybind11.h>

#include "python/register.h"

namespace thc::python {

namespace py = pybind11;

void register_thread_pool(py::module_& module) {
  py::class_<ThreadPool>(module, "ThreadPool")
      .def(py::init<unsigned>(), py::arg("threads"))
      .def_property_readonly("threads", &ThreadPool::threads);
}

}  // namespace thc::python
