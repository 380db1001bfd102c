#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "python/register.h"

namespace thc::python {
namespace {

std::terminate_handler others = nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

bool python_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#else
  return _Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#endif
}

/// Python up to 3.13 unwinds a thread that returns from C++ while Python ends: a destructor of pybind11 or torch then
/// calls terminate(), without an exception. The thread waits here, as in Python 3.14. Exceptions are still fatal.
[[noreturn]] void wait_if_unwound() {
  const bool unwound = std::current_exception() == nullptr && gettid() != getpid();
  while (unwound && python_ends()) pause();
  others();
  std::abort();
}

}  // namespace

void let_threads_wait_at_the_end() { others = std::set_terminate(wait_if_unwound); }

}  // namespace thc::python
