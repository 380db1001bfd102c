// Compressor "thc" on BytePS's servers: looks codes up for BytePS's reducer, and narrows sums of int32 to 16 bits.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "registration.h"
#include "thc/lookup_sum.h"

namespace thc::byteps {
namespace {

namespace bps = ::byteps::common;
using bps::compressor::tensor_t;

class ThcServer final : public bps::compressor::Compressor {
 public:
  ThcServer(const CompressorSettings& settings, std::size_t size_bytes, bps::DataType type)
      : Compressor(size_bytes, type), settings_(settings) {
    if (type != bps::BYTEPS_UINT8 && type != bps::BYTEPS_INT32) stop("THC's compressor takes uint8 and int32 tensors");
    if (size_bytes < settings_.coordinates * bps::getDataTypeLength(type)) {
      stop("THC's compressor: thc_coordinates is more than the tensor has");
    }
    if (type == bps::BYTEPS_INT32) {
      looked_up_.resize(settings_.coordinates);
      narrowed_.resize(settings_.coordinates);
    }
  }

  tensor_t Decompress(tensor_t codes) override {
    if (codes.size != settings_.code_bytes()) {
      stop("THC's compressor got " + std::to_string(codes.size) + " bytes of codes instead of " +
           std::to_string(settings_.code_bytes()) + ": do all workers have the same settings?");
    }
    const auto* packed = reinterpret_cast<const std::uint8_t*>(codes.data);
    if (_dtype == bps::BYTEPS_UINT8) {
      auto* values = reinterpret_cast<std::uint8_t*>(_buf.get());
      lookup_sum(packed, settings_.coordinates, settings_.table, Accumulate::kWrite, values);
    } else {
      lookup_sum(packed, settings_.coordinates, settings_.table, Accumulate::kWrite, looked_up_.data());
      std::copy(looked_up_.begin(), looked_up_.end(), reinterpret_cast<std::int32_t*>(_buf.get()));
    }
    return {_buf.get(), _size, _dtype};
  }

  tensor_t Compress(tensor_t sums) override {
    if (_dtype == bps::BYTEPS_UINT8) return sums;
    const auto* values = reinterpret_cast<const std::int32_t*>(sums.data);
    // Exact: the workers' configuration guarantees that granularity * workers fits 16 bits.
    std::transform(values, values + settings_.coordinates, narrowed_.begin(),
                   [](std::int32_t value) { return static_cast<std::uint16_t>(value); });
    return {narrowed_.data(), narrowed_.size() * sizeof(std::uint16_t), _dtype};
  }

 private:
  const CompressorSettings settings_;
  // int32 tensors only; a sum may still be on its way out of narrowed_ when the next codes are looked up.
  std::vector<std::uint16_t> looked_up_;
  std::vector<std::uint16_t> narrowed_;
};

const bps::compressor::CompressorRegistry::Register registration(kRegisteredName, make_compressor<ThcServer>);

}  // namespace
}  // namespace thc::byteps
