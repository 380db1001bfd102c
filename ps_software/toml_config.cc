#include "toml_config.h"

#include <toml++/toml.h>

#include <sstream>
#include <string>

namespace thc::ps {
namespace {

std::string to_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return stream.str();
}

[[noreturn]] void fail(const toml::source_region& where, const std::string& what) {
  throw CLI::FileError("configuration file, line " + std::to_string(where.begin.line) + ": " + what,
                       CLI::ExitCodes::FileError);
}

void check_key(const CLI::App& app, const std::string& name, const toml::node& node) {
  if (node.is_table() || node.is_array_of_tables()) {
    fail(node.source(), "[" + name + "] is a table; options are top-level keys, such as dpdk-mtu = 9000");
  }
  if (app.get_option_no_throw("--" + name) == nullptr) {
    fail(node.source(), "unknown key '" + name + "'; keys are the long names of options in thc-ps --help");
  }
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> entries;
  try {
    for (const auto& [key, node] : toml::parse(input)) {
      CLI::ConfigItem& entry = entries.emplace_back();
      entry.name = key.str();
      check_key(app_, entry.name, node);
      if (const toml::array* values = node.as_array()) {
        for (const toml::node& value : *values) entry.inputs.push_back(to_text(value));
      } else {
        entry.inputs.push_back(to_text(node));
      }
    }
  } catch (const toml::parse_error& error) {
    fail(error.source(), "not valid TOML: " + std::string(error.description()));
  }
  return entries;
}

}  // namespace thc::ps
