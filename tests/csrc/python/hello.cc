#include "thc/hello.h"

#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "csrc/python/register_test.h"

namespace thc::python {
namespace {

using Verdict = std::array<std::uint32_t, 3>;

ParsedHello parse(const pybind11::bytes& datagram) {
  const std::string_view bytes = datagram;
  return parse_hello({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, SIZE_MAX);
}

std::optional<Verdict> verdict(const pybind11::bytes& datagram, const pybind11::bytes& first) {
  const auto verdict_of = [](wire::ErrorReason reason, wire::ConfigField field, std::uint32_t job_value) {
    return Verdict{static_cast<std::uint32_t>(reason), static_cast<std::uint32_t>(field), job_value};
  };
  const ParsedHello parsed = parse(datagram);
  if (std::holds_alternative<std::monostate>(parsed)) return std::nullopt;
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    return verdict_of(refusal->reason, refusal->field, refusal->job_value);
  }
  const ParsedHello job = parse(first);
  const JobConfig& config = std::get<Hello>(job).config;
  const auto field = difference(std::get<Hello>(parsed).config, config);
  if (!field) return Verdict{};
  return verdict_of(wire::ErrorReason::kConfigMismatch, *field, value_of(*field, config).value_or(0));
}

}  // namespace

void register_hello(pybind11::module_& module) {
  module.def("hello_verdict", &verdict, pybind11::arg("datagram"), pybind11::arg("first"));
}

}  // namespace thc::python
