#include "toml_config.h"

#include <toml++/toml.h>

#include <sstream>

namespace thc::ps {
namespace {

std::string to_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return stream.str();
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> entries;
  try {
    for (const auto& [key, node] : toml::parse(input)) {
      CLI::ConfigItem& entry = entries.emplace_back();
      entry.name = key.str();
      if (const toml::array* values = node.as_array()) {
        for (const toml::node& value : *values) entry.inputs.push_back(to_text(value));
      } else {
        entry.inputs.push_back(to_text(node));
      }
    }
  } catch (const toml::parse_error& error) {
    std::ostringstream message;
    message << "configuration file is not valid TOML, line " << error.source().begin.line << ": "
            << error.description();
    throw CLI::FileError(message.str(), CLI::ExitCodes::FileError);
  }
  return entries;
}

}  // namespace thc::ps
