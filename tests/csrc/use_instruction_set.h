// Limits the kernels to one instruction set.
#pragma once

#include <optional>
#include <string_view>

#include "thc/instruction_set.h"

namespace thc::testing {

/// Limits all kernels of the process to one of instruction_sets(); nullopt: back to the best. Not to be called while
/// kernels run. Throws ConfigurationError for a name that is not in instruction_sets().
void use_instruction_set(std::optional<std::string_view> name);

}  // namespace thc::testing
