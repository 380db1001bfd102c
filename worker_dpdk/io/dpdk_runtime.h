#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace thc::io {

/// Stops EAL's interrupt thread while it lives: memif's handlers share unguarded state with stop and close.
class HandlerPause {
 public:
  HandlerPause() noexcept;
  ~HandlerPause();
  HandlerPause(const HandlerPause&) = delete;
  HandlerPause& operator=(const HandlerPause&) = delete;

 private:
  struct Interrupt;
  std::shared_ptr<Interrupt> interrupt_;
};

/// The DPDK environment (EAL) of this process and its devices. Thread-safe.
class DpdkRuntime {
 public:
  /// Starts EAL on the first call. Throws DpdkUnavailableError if EAL does not start or runs with other arguments.
  static DpdkRuntime& start(const std::vector<std::string>& eal_args);

  /// Throws DpdkUnavailableError if no device has this name.
  static std::uint16_t port_of(const std::string& device);

  /// Reserves a device for one user. Throws ConfigurationError if it is in use, otherwise as port_of().
  std::uint16_t claim(const std::string& device);
  /// As rte_eth_dev_start(), but not while a device stops.
  int start_port(std::uint16_t port_id);
  /// Stops the device, for the next user.
  void release(std::uint16_t port_id) noexcept;
  /// Call before a thread polls: gives it a cache of buffers.
  static void prepare_this_thread() noexcept;
  static std::vector<std::string> devices();

  DpdkRuntime(const DpdkRuntime&) = delete;
  DpdkRuntime& operator=(const DpdkRuntime&) = delete;

 private:
  explicit DpdkRuntime(std::vector<std::string> eal_args);
  ~DpdkRuntime();

  std::vector<std::string> eal_args_;
  std::mutex mutex_;
  std::vector<std::uint16_t> claimed_;
};

}  // namespace thc::io
