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
  /// app: whose options the keys must be; it outlives this.
  explicit TomlConfig(const CLI::App& app) : app_(app) {}

  /// Throws CLI::FileError, with the line, when the file is no TOML, has tables or unknown keys.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const CLI::App& app_;
};

}  // namespace thc::ps
