#include "csrc/use_instruction_set.h"

#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "thc/errors.h"

namespace thc::testing {

void use_instruction_set(std::optional<std::string_view> name) {
  hwy::SetSupportedTargetsForTest(0);  // all that the machine supports
  const std::vector<std::string> names = instruction_sets();
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  std::int64_t only = 0;
  std::string message = "instruction set \"" + std::string(name.value_or("")) + "\" is not one of:";
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (name == names[i]) only = targets[i];
    message += " " + names[i];
  }
  if (name && only == 0) throw ConfigurationError(message);
  hwy::SetSupportedTargetsForTest(only);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace thc::testing
