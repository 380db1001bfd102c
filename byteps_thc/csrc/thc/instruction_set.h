// Which instruction set the kernels use: the best one of the machine, unless a test or benchmark limits it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace thc {

inline constexpr std::string_view kNaive = "naive";

/// Instruction sets compiled in and supported by this machine, best first; the last is "naive", the scalar twins.
std::vector<std::string> instruction_sets();

/// Limits all kernels of the process to one of instruction_sets(); nullopt: back to the best. Not to be called while
/// kernels run. Throws ConfigurationError for a name that is not in instruction_sets().
void use_instruction_set(std::optional<std::string_view> name);

/// Whether the scalar twins are selected.
bool naive_selected() noexcept;

}  // namespace thc
