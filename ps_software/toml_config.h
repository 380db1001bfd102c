// Lets CLI11 read its configuration file with toml++.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace thc::ps {

/// Keys are the long names of options without the dashes in front.
class TomlConfig final : public CLI::ConfigTOML {
 public:
  /// Throws CLI::FileError when the file is no TOML.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
};

}  // namespace thc::ps
