#include "thc/instruction_set.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "hwy/highway.h"

namespace thc {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    // Highway's name in lower case; "avx3" is its word for AVX-512.
    std::string name = hwy::TargetName(target);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    names.push_back(name);
  }
  return names;
}

}  // namespace thc
