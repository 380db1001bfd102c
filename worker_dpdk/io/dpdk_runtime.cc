#include "io/dpdk_runtime.h"

#include <pthread.h>
#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <semaphore>
#include <utility>

#include "io/eal_arguments.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

bool names_cpus(const std::vector<std::string>& args) { return has_option(args, {"-l", "-c", "--lcores"}); }

/// A registered thread has a cache of free buffers. Beyond RTE_MAX_LCORE threads the pool works without one, slower.
class PollingThread {
 public:
  PollingThread(const cpu_set_t& near, std::size_t threads) noexcept
      : registered_(rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0) {
    cpu_set_t cpus;
    if (pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) return;
    CPU_AND(&cpus, &cpus, &near);
    if (std::cmp_greater_equal(CPU_COUNT(&cpus), threads)) pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
  }
  ~PollingThread() {
    if (registered_) {
      rte_thread_unregister();
    }
  }
  PollingThread(const PollingThread&) = delete;
  PollingThread& operator=(const PollingThread&) = delete;

 private:
  const bool registered_;
};

std::string single_lcore_option(const cpu_set_t& cpus) {
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) {
      if (!list.empty()) {
        list += ',';
      }
      list += std::to_string(cpu);
    }
  }
  std::string option = "--lcores=0@(";
  option += list;
  return option += ')';
}

std::vector<std::string> complete_arguments(const std::vector<std::string>& args, const cpu_set_t& cpus) {
  std::vector<std::string> full{"thc"};
  full.insert(full.end(), args.begin(), args.end());
  if (!names_cpus(args)) full.push_back(single_lcore_option(cpus));
  if (!has_option(args, {"-a", "--allow", "-b", "--block", "--no-pci"})) full.emplace_back("--no-pci");
  // Shares nothing with other DPDK processes. EAL refuses --in-memory together with --no-huge.
  if (!has_option(args, {"--file-prefix", "--in-memory", "--no-shconf"})) {
    full.emplace_back(has_option(args, {"--no-huge"}) ? "--no-shconf" : "--in-memory");
  }
  if (!has_option(args, {"--telemetry", "--no-telemetry"})) full.emplace_back("--no-telemetry");
  if (!has_option(args, {"--log-level"})) full.emplace_back("--log-level=*:warning");
  return full;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

}  // namespace

struct HandlerPause::State {
  std::binary_semaphore begun{0};
  std::binary_semaphore over{0};
};

HandlerPause::HandlerPause() noexcept : state_(std::make_shared<State>()) {
  constexpr std::chrono::seconds kLongestHandler{10};
  // Alarms run in the interrupt thread, between handlers.
  const auto pause = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(argument));
    (*state)->begun.release();
    (*state)->over.acquire();  // ends with the HandlerPause or the process
  };
  auto argument = std::make_unique<std::shared_ptr<State>>(state_);
  if (rte_eal_alarm_set(1, pause, argument.get()) == 0) {
    [[maybe_unused]] const auto* const of_the_alarm = argument.release();
    static_cast<void>(state_->begun.try_acquire_for(kLongestHandler));
  }
}

HandlerPause::~HandlerPause() { state_->over.release(); }

DpdkRuntime& DpdkRuntime::start(const std::vector<std::string>& eal_args) {
  static DpdkRuntime runtime(eal_args);
  if (runtime.eal_args_ != eal_args) {
    throw DpdkUnavailableError(
        "DPDK runs in this process already, with \"" + join(runtime.eal_args_) +
        "\"; EAL starts once, so give the same arguments (and all devices) from the start, and as many threads: "
        "a \"secret\" or \"qpairs\" you did not give tells how many there are");
  }
  return runtime;
}

DpdkRuntime::DpdkRuntime(std::vector<std::string> eal_args) : eal_args_(std::move(eal_args)) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus);
  const cpu_set_t near = cpus_near_device(eal_args_, cpus, "/sys");
  if (!names_cpus(eal_args_)) polling_cpus_ = near;
  std::vector<std::string> words = complete_arguments(eal_args_, near);
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  const int rc = rte_eal_init(static_cast<int>(argv.size()), argv.data());
  const int error = rte_errno;
  pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);  // EAL pins its caller; undo that
  if (rc < 0) {
    throw DpdkUnavailableError("DPDK does not start (" + std::string(rte_strerror(error)) + ") with \"" + join(words) +
                               "\": see EAL's messages above; " + start_hint(eal_args_));
  }
}

void DpdkRuntime::prepare_this_thread(std::size_t threads) const noexcept {
  thread_local const PollingThread prepared(polling_cpus_, threads);
}

/// Skips rte_eal_cleanup(), which races with running handlers. The kernel frees EAL's resources.
DpdkRuntime::~DpdkRuntime() {
  alignas(HandlerPause) static unsigned char memory[sizeof(HandlerPause)];
  new (memory) HandlerPause;  // never destroyed: it lasts until the process ends
  std::uint16_t port_id = 0;
  RTE_ETH_FOREACH_DEV(port_id) {
    rte_eth_dev_stop(port_id);
    rte_eth_dev_close(port_id);
  }
}

std::uint16_t DpdkRuntime::port_of(const std::string& device) {
  std::uint16_t port_id = 0;
  if (rte_eth_dev_get_port_by_name(device.c_str(), &port_id) != 0) {
    throw DpdkUnavailableError("DPDK has no device \"" + device + "\"; it has: " + join(devices()) +
                               ". Name it by --vdev=... or -a <PCI address> in the EAL arguments");
  }
  return port_id;
}

std::uint16_t DpdkRuntime::claim(const std::string& device) {
  const std::lock_guard lock(mutex_);
  const std::uint16_t port_id = port_of(device);
  if (std::find(claimed_.begin(), claimed_.end(), port_id) != claimed_.end()) {
    throw ConfigurationError("DPDK device \"" + device + "\" is in use by another session of this process");
  }
  claimed_.push_back(port_id);
  return port_id;
}

void DpdkRuntime::release(std::uint16_t port_id) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(claimed_, port_id);
}

std::vector<std::string> DpdkRuntime::devices() {
  std::vector<std::string> names;
  std::uint16_t port_id = 0;
  RTE_ETH_FOREACH_DEV(port_id) {
    char name[RTE_ETH_NAME_MAX_LEN];
    if (rte_eth_dev_get_name_by_port(port_id, name) == 0) {
      names.emplace_back(name);
    }
  }
  return names;
}

}  // namespace thc::io
