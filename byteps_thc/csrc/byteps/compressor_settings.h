// Settings of a tensor's compressor, as strings: that is how BytePS hands them from the worker to its servers.
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

  /// Keys thc_coordinates, thc_bits, and thc_table (values with commas between them). Throws ConfigurationError when
  /// one is missing or is not a number, or the table is not valid.
  static CompressorSettings parse(const std::unordered_map<std::string, std::string>& keywords);
};

}  // namespace thc::byteps
