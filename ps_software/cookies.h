#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "io/packet_io.h"
#include "job.h"
#include "thc/wire_layout.h"

namespace thc::ps {

/// A client that returns a cookie of CHALLENGE owns its address.
class Cookies {
 public:
  /// A cookie is valid for one to two periods.
  static constexpr std::chrono::seconds kPeriod{10};
  Cookies() noexcept;

  std::uint64_t make(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from, TimePoint now) const noexcept;
  /// Accepts cookies of this kPeriod and the one before. The server stores none.
  bool accepts(std::uint64_t cookie, const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
               TimePoint now) const noexcept;

 private:
  std::uint64_t hash(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
                     std::int64_t period) const noexcept;

  std::array<std::uint8_t, 16> secret_;
};

}  // namespace thc::ps
