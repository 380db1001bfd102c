// The DPDK environment (EAL) of this process.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace thc::io {

/// While it lives, EAL's interrupt thread runs no driver's handler: memif's share unguarded state with stop and close.
class HandlerPause {
 public:
  HandlerPause() noexcept;
  ~HandlerPause();
  HandlerPause(const HandlerPause&) = delete;
  HandlerPause& operator=(const HandlerPause&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Starts EAL once and hands out its devices. Thread-safe.
class DpdkRuntime {
 public:
  /// The running EAL, started now when it is not. Throws DpdkUnavailableError: EAL does not start, or runs with other
  /// arguments already.
  static DpdkRuntime& start(const std::vector<std::string>& eal_args);

  /// The number of a device. Throws DpdkUnavailableError when there is none of this name.
  static std::uint16_t port_of(const std::string& device);

  /// Takes a device for one user. Throws ConfigurationError when it is taken, otherwise as port_of().
  std::uint16_t claim(const std::string& device);
  void release(std::uint16_t port_id) noexcept;

  /// Before one of `threads` threads polls: gives it a cache of free buffers for as long as it lives, and moves it to
  /// the CPUs near the device when it may run there and there is one for each. Cheap when it was done before.
  void prepare_this_thread(std::size_t threads) const noexcept;

  /// Names of all devices.
  static std::vector<std::string> devices();

  DpdkRuntime(const DpdkRuntime&) = delete;
  DpdkRuntime& operator=(const DpdkRuntime&) = delete;

 private:
  explicit DpdkRuntime(std::vector<std::string> eal_args);
  ~DpdkRuntime();

  std::vector<std::string> eal_args_;
  cpu_set_t polling_cpus_{};  // of the process's, those near the device; none where EAL's arguments name CPUs
  std::mutex mutex_;
  std::vector<std::uint16_t> claimed_;
};

}  // namespace thc::io
