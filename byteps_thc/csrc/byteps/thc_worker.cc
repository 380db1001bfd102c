// Compressor "thc" on BytePS's workers: of the tensor only the packed codes at its start are sent. The sums that come
// back are left as they are, for byteps_thc.decode. And what byteps_thc calls to have it used.
#include <string>
#include <unordered_map>
#include <utility>

#include "byteps/common/operations.h"
#include "registration.h"

namespace thc::byteps {
namespace {

namespace bps = ::byteps::common;
using bps::compressor::tensor_t;

class ThcWorker final : public bps::compressor::Compressor {
 public:
  ThcWorker(const CompressorSettings& settings, std::size_t size_bytes, bps::DataType type)
      : Compressor(size_bytes, type), code_bytes_(settings.code_bytes()) {}

  tensor_t Compress(tensor_t tensor) override { return {tensor.data, code_bytes_, tensor.dtype}; }
  tensor_t Decompress(tensor_t sums) override { return sums; }

 private:
  const std::size_t code_bytes_;
};

const bps::compressor::CompressorRegistry::Register registration(kRegisteredName, make_compressor<ThcWorker>);

}  // namespace
}  // namespace thc::byteps

extern "C" {

/// Declares the tensor `name` (with BytePS's prefix) and has it compressed with `count` settings, before it is used.
__attribute__((visibility("default"))) void thc_byteps_declare(const char* name, const char* const* keys,
                                                               const char* const* values, int count) {
  std::unordered_map<std::string, std::string> keywords;
  for (int i = 0; i < count; ++i) keywords.emplace(keys[i], values[i]);
  ::byteps::common::IsTensorDeclared(name);  // declares it when it is not
  ::byteps::common::RegisterCompressor(name, keywords);
}

/// Into how many BytePS partitions a tensor that has been used is cut, each with a compressor; 0: it is not compressed.
__attribute__((visibility("default"))) int thc_byteps_compressors(const char* name) {
  return static_cast<int>(::byteps::common::GetContextFromName(name).compressor_list.size());
}
}
