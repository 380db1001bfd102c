// Cookies of CHALLENGE: who sends one back receives what is sent to its address. Nothing is remembered about it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "io/packet_io.h"
#include "job.h"
#include "thc/wire_layout.h"

namespace thc::ps {

class Cookies {
 public:
  /// A cookie is good for one to two of these.
  static constexpr std::chrono::seconds kPeriod{10};

  /// With a secret of its own.
  Cookies() noexcept;

  /// For a HELLO with this header and nonce, which came `from` there at this time.
  std::uint64_t make(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from, TimePoint now) const noexcept;
  /// Whether `cookie` was made for it in this period or the one before.
  bool accepts(std::uint64_t cookie, const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
               TimePoint now) const noexcept;

 private:
  std::uint64_t hash(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
                     std::int64_t period) const noexcept;

  std::array<std::uint8_t, 16> secret_;
};

}  // namespace thc::ps
