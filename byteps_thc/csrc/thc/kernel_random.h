// Unpredictable random numbers of libsodium, which ends the program if the kernel has none.
#pragma once

#include <sodium.h>

#include <cstdint>

#include "thc/errors.h"

namespace thc {

/// Makes libsodium ready for all threads. Throws TransportError when the kernel has no random numbers for it.
inline void start_libsodium() {
  if (sodium_init() < 0) {
    throw TransportError("libsodium does not start: the kernel has no random numbers for it");
  }
}

inline std::uint64_t random_uint64() noexcept {
  [[maybe_unused]] static const int ready = sodium_init();
  std::uint64_t number = 0;
  randombytes_buf(&number, sizeof(number));
  return number;
}

}  // namespace thc
