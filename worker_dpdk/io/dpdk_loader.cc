#include <dlfcn.h>

#include <string>
#include <string_view>
#include <utility>

#include "io/dpdk_io.h"
#include "io/dpdk_module.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

[[noreturn]] void throw_not_loaded(const std::string& why) {
  if (why.starts_with(std::string(kDpdkLibrary) + ":")) {
    throw DpdkUnavailableError(
        "this build has no DPDK: install DPDK 22.11 or newer with its headers (Debian: apt install libdpdk-dev) and "
        "build byteps_thc again from its source (pip install . in a clone or an unpacked sdist; released wheels are "
        "without DPDK), or use the kernel UDP back end");
  }
  throw DpdkUnavailableError("DPDK's libraries are not installed on this host (" + why +
                             "): install the version that byteps_thc was built with (Debian: apt install dpdk "
                             "librte-meta-net librte-meta-mempool), or use the kernel UDP back end");
}

/// Searches the caller's RUNPATH (see the CMakeLists.txt of the programs). Never unloads: EAL cannot start twice.
const DpdkModule& load() {
  void* library = dlopen(kDpdkLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw_not_loaded(dlerror());
  }
  const auto* module = static_cast<const DpdkModule*>(dlsym(library, kDpdkModuleSymbol));
  if (module == nullptr || std::string_view(module->version) != THC_VERSION) {
    throw DpdkUnavailableError(std::string(kDpdkLibrary) + " is of another version than " THC_VERSION +
                               ": install byteps_thc again");
  }
  return *module;
}

const DpdkModule& dpdk_module() {
  static const DpdkModule& module = load();  // a throw leaves it uninitialized, so the next call retries
  return module;
}

}  // namespace

bool dpdk_available() noexcept {
  try {
    dpdk_module();
    return true;
  } catch (...) {
    return false;
  }
}

std::vector<std::unique_ptr<PacketIo>> make_dpdk_ios(const DpdkConfig& config) { return dpdk_module().open(config); }

std::unique_ptr<PacketIo> make_dpdk_io(const DpdkConfig& config) {
  if (config.queues != 1) {
    throw ConfigurationError("one thread takes one queue, not " + std::to_string(config.queues));
  }
  return std::move(make_dpdk_ios(config).front());
}

}  // namespace thc::io
