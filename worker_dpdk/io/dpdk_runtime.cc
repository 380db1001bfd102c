#include "io/dpdk_runtime.h"

#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <semaphore>
#include <utility>

#include "io/eal_arguments.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

/// A registered thread has a cache of free buffers. Beyond RTE_MAX_LCORE threads the pool works without one, slower.
class PollingThread {
 public:
  PollingThread() noexcept : registered_(rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0) {}
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
  if (!has_option(args, {"-l", "-c", "--lcores"})) full.push_back(single_lcore_option(cpus));
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

/// Shared with the interrupt thread, which may come after the pause.
struct HandlerPause::Interrupt {
  const int descriptor = eventfd(1, EFD_CLOEXEC);
  rte_intr_handle* const handle = rte_intr_instance_alloc(0);
  std::binary_semaphore begun{0};
  std::binary_semaphore over{0};

  Interrupt() = default;
  ~Interrupt() {
    rte_intr_instance_free(handle);
    close(descriptor);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static void handle_it(void* argument) {
    Interrupt& raised = **static_cast<std::shared_ptr<Interrupt>*>(argument);
    raised.begun.release();
    raised.over.acquire();  // ends with the HandlerPause or the process
    rte_intr_callback_unregister_pending(raised.handle, handle_it, argument, [](rte_intr_handle*, void* ended) {
      delete static_cast<std::shared_ptr<Interrupt>*>(ended);
    });
  }
};

HandlerPause::HandlerPause() noexcept : interrupt_(std::make_shared<Interrupt>()) {
  constexpr std::chrono::seconds kLongestHandler{10};
  rte_intr_handle* const handle = interrupt_->handle;
  auto argument = std::make_unique<std::shared_ptr<Interrupt>>(interrupt_);
  if (rte_intr_fd_set(handle, interrupt_->descriptor) == 0 && rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) == 0 &&
      rte_intr_callback_register(handle, Interrupt::handle_it, argument.get()) == 0) {
    [[maybe_unused]] const auto* const of_the_handler = argument.release();
    static_cast<void>(interrupt_->begun.try_acquire_for(kLongestHandler));
  }
}

HandlerPause::~HandlerPause() { interrupt_->over.release(); }

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
  std::vector<std::string> words = complete_arguments(eal_args_, cpus);
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

void DpdkRuntime::prepare_this_thread() noexcept { thread_local const PollingThread prepared; }

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

int DpdkRuntime::start_port(std::uint16_t port_id) {
  const std::lock_guard lock(mutex_);
  return rte_eth_dev_start(port_id);
}

void DpdkRuntime::release(std::uint16_t port_id) noexcept {
  const std::lock_guard lock(mutex_);
  {
    const HandlerPause pause;
    rte_eth_dev_stop(port_id);  // no effect on a stopped device
  }
  // The thread may hold events of descriptors that are closed now. A device that got the same numbers would have its
  // handler called and wait in it for a message, for ever. The thread reaches a second pause by new events alone.
  const HandlerPause until_new_events;
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
