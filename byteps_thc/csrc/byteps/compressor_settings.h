// Settings of a tensor's compressor, which BytePS passes to its servers as strings.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "thc/lookup_table.h"

namespace thc::byteps {

struct CompressorSettings {
  /// Coordinates of the tensor, with padding.
  std::size_t coordinates;
  LookupTable table;

  /// Bytes of the packed codes.
  std::size_t code_bytes() const noexcept { return (coordinates * table.bits() + 7) / 8; }

  /// Keys: thc_coordinates, thc_bits, thc_table (1,2,...). Throws ConfigurationError for a missing or invalid value.
  static CompressorSettings parse(const std::unordered_map<std::string, std::string>& keywords);
};

}  // namespace thc::byteps
