// Maps thc/errors.h to the classes of byteps_thc/_base/errors.py; shared by the modules _core and _comm.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::python {

namespace py = pybind11;

/// A class of byteps_thc._base.errors, imported late: importing the package while its module loads is circular.
inline py::object error_class(const char* name) { return py::module_::import("byteps_thc._base.errors").attr(name); }

inline void raise_plain(const char* class_name, const Error& error) {
  py::set_error(error_class(class_name), error.what());
}

inline void raise_deadline(const DeadlineError& error) {
  py::list missing_workers;
  for (unsigned worker = 0; worker < wire::kMaxWorkers; ++worker) {
    if (((error.missing_workers() >> worker) & 1U) != 0) {
      missing_workers.append(worker);
    }
  }
  const py::object type = error_class("DeadlineError");
  py::set_error(type, type(error.what(), error.slot(), error.round(), py::tuple(missing_workers)));
}

/// Registers the translation for the calling module. Most derived classes come first.
inline void register_exceptions(py::module_& /*module*/) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const ConfigurationError& error) {
      raise_plain("ConfigurationError", error);
    } catch (const InputError& error) {
      raise_plain("InputError", error);
    } catch (const DpdkUnavailableError& error) {
      raise_plain("DpdkUnavailableError", error);
    } catch (const ServerRefusedError& error) {
      raise_plain("ServerRefusedError", error);
    } catch (const RestartError& error) {
      raise_plain("RestartError", error);
    } catch (const TransportError& error) {
      raise_plain("TransportError", error);
    } catch (const DeadlineError& error) {
      raise_deadline(error);
    } catch (const Error& error) {
      raise_plain("ThcError", error);
    }
  });
}

}  // namespace thc::python
