#include "compressor_settings.h"

#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include "thc/errors.h"

namespace thc::byteps {
namespace {

template <typename Number>
Number parse_number(std::string_view text, const std::string& key) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw ConfigurationError("THC's compressor: " + key + " has '" + std::string(text) + "', which is not a number");
  }
  return number;
}

const std::string& find(const std::unordered_map<std::string, std::string>& keywords, const std::string& key) {
  const auto found = keywords.find(key);
  if (found == keywords.end()) throw ConfigurationError("THC's compressor needs the setting " + key);
  return found->second;
}

std::vector<std::uint16_t> parse_values(std::string_view list, const std::string& key) {
  std::vector<std::uint16_t> values;
  while (true) {
    const std::size_t comma = list.find(',');
    values.push_back(parse_number<std::uint16_t>(list.substr(0, comma), key));
    if (comma == std::string_view::npos) return values;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

CompressorSettings CompressorSettings::parse(const std::unordered_map<std::string, std::string>& keywords) {
  const auto bits = parse_number<unsigned>(find(keywords, "thc_bits"), "thc_bits");
  const auto coordinates = parse_number<std::size_t>(find(keywords, "thc_coordinates"), "thc_coordinates");
  const std::vector<std::uint16_t> values = parse_values(find(keywords, "thc_table"), "thc_table");
  return {coordinates, LookupTable(bits, values)};
}

}  // namespace thc::byteps
