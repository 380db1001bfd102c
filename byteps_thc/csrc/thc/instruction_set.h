// Instruction sets of the kernels, which use the best one.
#pragma once

#include <string>
#include <vector>

namespace thc {

/// Instruction sets compiled in and supported by this machine, best first.
std::vector<std::string> instruction_sets();

}  // namespace thc
