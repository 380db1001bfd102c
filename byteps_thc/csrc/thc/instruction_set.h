// Which instruction sets the kernels have here; they use the best one.
#pragma once

#include <string>
#include <vector>

namespace thc {

/// Instruction sets compiled in and supported by this machine, best first.
std::vector<std::string> instruction_sets();

}  // namespace thc
