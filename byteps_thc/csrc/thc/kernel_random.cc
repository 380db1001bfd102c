#include "thc/kernel_random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace thc {
namespace {

template <typename T>
T random_number() noexcept {
  T number;
  fill_random({reinterpret_cast<std::uint8_t*>(&number), sizeof(number)});
  return number;
}

}  // namespace

void fill_random(std::span<std::uint8_t> bytes) noexcept {
  // Up to 256 bytes come at once and in one piece; a signal may only interrupt a wait just after the machine's start.
  ssize_t got = 0;
  do {
    got = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(bytes.size())) return;
  std::perror("byteps_thc needs getrandom(2), of Linux 3.17 or newer");
  std::abort();  // going on with numbers that can be guessed would be worse
}

std::uint64_t random_uint64() noexcept { return random_number<std::uint64_t>(); }

std::uint32_t random_epoch() noexcept {
  std::uint32_t epoch = 0;
  while (epoch == 0) epoch = random_number<std::uint32_t>();
  return epoch;
}

}  // namespace thc
