// What both sides' compressors have in common: how BytePS's registry makes them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "byteps/common/compressor/compressor.h"
#include "byteps/common/compressor/compressor_registry.h"
#include "compressor_settings.h"
#include "thc/errors.h"

namespace thc::byteps {

/// Ends the process. BytePS calls compressors in threads of its own, where nobody catches exceptions; its own checks
/// end the process too.
[[noreturn]] inline void stop(const std::string& reason) {
  ::byteps::common::LogMessageFatal(__FILE__, __LINE__) << reason;
  std::abort();
}

/// What the registry calls for each tensor that was declared with compressor_type "thc".
template <typename Side>
std::unique_ptr<::byteps::common::compressor::Compressor> make_compressor(
    const ::byteps::common::compressor::kwargs_t& keywords, std::size_t size_bytes, ::byteps::common::DataType type) {
  try {
    return std::make_unique<Side>(CompressorSettings::parse(keywords), size_bytes, type);
  } catch (const Error& error) {
    stop(error.what());
  }
}

/// The name under which the registry finds compressor_type "thc".
inline constexpr char kRegisteredName[] = "thc_compressor";

}  // namespace thc::byteps
