// Compressor "thc" on BytePS's workers: sends the codes at a tensor's start, and leaves sums to Compressor.decode.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>  // on_exit
#include <exception>
#include <future>
#include <string>
#include <thread>
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

// Ends the process with its status, without BytePS's destructors: they join threads that wait for other processes.
void leave(int status, void* /*unused*/) {
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace
}  // namespace thc::byteps

#define THC_BYTEPS_EXPORT __attribute__((visibility("default")))

extern "C" {

/// Declares the tensor `name` (with BytePS's prefix) and has it compressed with `count` settings, before it is used.
THC_BYTEPS_EXPORT void thc_byteps_declare(const char* name, const char* const* keys, const char* const* values,
                                          int count) {
  std::unordered_map<std::string, std::string> keywords;
  for (int i = 0; i < count; ++i) keywords.emplace(keys[i], values[i]);
  ::byteps::common::IsTensorDeclared(name);  // declares it when it is not
  ::byteps::common::RegisterCompressor(name, keywords);
}

/// Makes this process end without BytePS's shutdown, which would wait for lost peers. At most one call, before exit().
THC_BYTEPS_EXPORT void thc_byteps_abandon() { on_exit(thc::byteps::leave, nullptr); }

/// Shuts BytePS down and returns 1. After the deadline, or if BytePS is still connecting, as thc_byteps_abandon; 0.
THC_BYTEPS_EXPORT int thc_byteps_shutdown(double deadline_s) {
  std::packaged_task<void()> shutdown(::byteps::common::byteps_shutdown);
  std::future<void> done = shutdown.get_future();
  std::thread(std::move(shutdown)).detach();
  const auto give_up = [] {
    thc_byteps_abandon();
    return 0;
  };
  if (done.wait_for(std::chrono::duration<double>(deadline_s)) != std::future_status::ready) return give_up();
  try {
    done.get();
  } catch (const std::exception&) {  // ps-lite has printed the reason
    return give_up();
  }
  return 1;
}
}
