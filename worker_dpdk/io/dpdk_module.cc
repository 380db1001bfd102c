#include "io/dpdk_module.h"

#include <exception>

#include "thc/errors.h"

namespace thc::io {
namespace {

std::vector<std::unique_ptr<PacketIo>> open(const DpdkConfig& config, DpdkFailure& failure) noexcept {
  using Kind = DpdkFailure::Kind;
  try {
    return open_dpdk_ios(config);
  } catch (const ConfigurationError& error) {
    failure = {Kind::kConfiguration, error.what()};
  } catch (const DpdkUnavailableError& error) {
    failure = {Kind::kUnavailable, error.what()};
  } catch (const std::exception& error) {
    failure = {Kind::kTransport, error.what()};
  }
  return {};
}

}  // namespace
}  // namespace thc::io

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): the name of a symbol, see kDpdkModuleSymbol
__attribute__((visibility("default"))) extern const thc::io::DpdkModule thc_dpdk_module;
const thc::io::DpdkModule thc_dpdk_module{THC_VERSION, thc::io::open};
}
