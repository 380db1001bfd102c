// Checked access to NumPy arrays: errors name the expected array and the passed one.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "thc/errors.h"
#include "thc/float_format.h"

namespace thc::python {

namespace py = pybind11;

inline std::string describe(const py::array& array) {
  return py::str("{} of shape {}").format(array.dtype(), array.attr("shape")).cast<std::string>();
}

[[noreturn]] inline void refuse(const char* name, const std::string& expected, const std::string& got) {
  throw InputError(std::string(name) + ": expected " + expected + ", got " + got);
}

inline bool is_native(const py::dtype& dtype, char kind, std::size_t bytes) {
  const bool native_order = dtype.byteorder() == '=' || dtype.byteorder() == '|';
  return dtype.kind() == kind && static_cast<std::size_t>(dtype.itemsize()) == bytes && native_order;
}

template <typename T>
bool holds(const py::array& array) {
  constexpr char kKind = std::is_floating_point_v<T> ? 'f' : 'u';
  return is_native(array.dtype(), kKind, sizeof(T));
}

template <typename T>
std::string type_name() {
  return (std::is_floating_point_v<T> ? "float" : "uint") + std::to_string(8 * sizeof(T));
}

/// Refuses arrays that are not C-contiguous or do not have `size` elements.
inline void check_layout(const py::array& array, const char* name, const std::string& type, std::size_t size) {
  const std::string expected = "C-contiguous " + type + "[" + std::to_string(size) + "]";
  if (static_cast<std::size_t>(array.size()) != size) {
    refuse(name, expected, describe(array));
  }
  if ((array.flags() & py::array::c_style) == 0) {
    refuse(name, expected, "an array that is not C-contiguous (use numpy.ascontiguousarray)");
  }
}

/// Elements of an array that is only read.
template <typename T>
const T* input(const py::array& array, const char* name, std::size_t size) {
  if (!holds<T>(array)) {
    refuse(name, type_name<T>(), describe(array));
  }
  check_layout(array, name, type_name<T>(), size);
  return static_cast<const T*>(array.data());
}

/// Elements of an array that is written in place.
template <typename T>
T* output(py::array& array, const char* name, std::size_t size) {
  const T* data = input<T>(array, name, size);
  if (!array.writeable()) {
    refuse(name, "a writeable array", "a read-only one");
  }
  return const_cast<T*>(data);
}

/// float32, float16, or uint16 with the bits of bfloat16.
inline FloatFormat float_format(const py::array& array, const char* name) {
  if (holds<float>(array)) {
    return FloatFormat::kFp32;
  }
  if (is_native(array.dtype(), 'f', 2)) {
    return FloatFormat::kFp16;
  }
  if (holds<std::uint16_t>(array)) {
    return FloatFormat::kBf16;
  }
  refuse(name, "float32, float16 or uint16 (bfloat16 bits)", describe(array));
}

inline ConstFloats float_input(const py::array& array, const char* name, std::size_t size) {
  const FloatFormat format = float_format(array, name);
  check_layout(array, name, "floats", size);
  return {array.data(), format};
}

inline Floats float_output(py::array& array, const char* name, std::size_t size) {
  const ConstFloats floats = float_input(array, name, size);
  if (!array.writeable()) {
    refuse(name, "a writeable array", "a read-only one");
  }
  return {const_cast<void*>(floats.data), floats.format};
}

}  // namespace thc::python
