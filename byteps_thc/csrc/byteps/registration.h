// Registration of both sides' compressors with BytePS.
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

/// Ends the process, as BytePS's own checks do: no exceptions are caught in BytePS's threads.
[[noreturn]] inline void stop(const std::string& reason) {
  ::byteps::common::LogMessageFatal(__FILE__, __LINE__) << reason;
  std::abort();
}

/// Makes the compressor of a tensor that was declared with compressor_type "thc".
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
