#include "thc/instruction_set.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>

#include "hwy/highway.h"
#include "thc/errors.h"

namespace thc {
namespace {

std::atomic<bool> naive_flag{false};

/// Highway's name in lower case; "avx3" is its word for AVX-512.
std::string target_name(std::int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

void choose_targets(std::int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: what the machine supports
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<std::int64_t> machine_targets() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedAndGeneratedTargets();
}

}  // namespace

std::vector<std::string> instruction_sets() {
  // Static: asking the machine briefly lifts a limit set by use_instruction_set.
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const std::int64_t target : machine_targets()) {
      all.push_back(target_name(target));
    }
    all.emplace_back(kNaive);
    return all;
  }();
  return names;
}

void use_instruction_set(std::optional<std::string_view> name) {
  const std::vector<std::string> names = instruction_sets();
  if (name && std::find(names.begin(), names.end(), *name) == names.end()) {
    std::string message = "instruction set \"" + std::string(*name) + "\" is not one of:";
    for (const std::string& known : names) {
      message += " " + known;
    }
    throw ConfigurationError(message);
  }
  naive_flag = name == kNaive;
  std::int64_t only = 0;
  for (const std::int64_t target : machine_targets()) {
    if (name && target_name(target) == *name) {
      only = target;
    }
  }
  choose_targets(only);
}

bool naive_selected() noexcept { return naive_flag.load(std::memory_order_relaxed); }

}  // namespace thc
