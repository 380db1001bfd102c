// Exceptions of set-up and API misuse, never per packet; byteps_thc/_base/errors.py has the same classes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace thc {

/// Base of everything this library throws.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A setting is out of range or two settings contradict each other.
class ConfigurationError : public Error {
  using Error::Error;
};

/// An array has the wrong shape, dtype or memory layout.
class InputError : public Error {
  using Error::Error;
};

/// The network or a device failed (port in use, no buffers, no route).
class TransportError : public Error {
  using Error::Error;
};

/// DPDK is missing or did not start.
class DpdkUnavailableError : public TransportError {
  using TransportError::TransportError;
};

/// The server refused this worker (wire::ErrorReason).
class ServerRefusedError : public TransportError {
 public:
  explicit ServerRefusedError(const std::string& message, std::uint32_t codes_per_packet = 0)
      : TransportError(message), codes_per_packet_(codes_per_packet) {}
  /// Codes in a packet that the server would accept, fewer than the worker's; 0: another reason.
  std::uint32_t codes_per_packet() const noexcept { return codes_per_packet_; }

 private:
  std::uint32_t codes_per_packet_;
};

/// The server or a worker restarted, and results of this round are lost.
class RestartError : public TransportError {
  using TransportError::TransportError;
};

/// A wait ran out of time.
class DeadlineError : public Error {
 public:
  explicit DeadlineError(const std::string& message, std::uint32_t slot = 0, std::uint32_t round = 0,
                         std::uint64_t missing_workers = 0)
      : Error(message), slot_(slot), round_(round), missing_workers_(missing_workers) {}
  std::uint32_t slot() const noexcept { return slot_; }
  std::uint32_t round() const noexcept { return round_; }
  /// Bit w set: worker w had not contributed when the server last answered; 0 when it never answered.
  std::uint64_t missing_workers() const noexcept { return missing_workers_; }

 private:
  std::uint32_t slot_;
  std::uint32_t round_;
  std::uint64_t missing_workers_;
};

}  // namespace thc
