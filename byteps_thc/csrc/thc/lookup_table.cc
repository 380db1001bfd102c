#include "thc/lookup_table.h"

#include <algorithm>
#include <functional>
#include <string>

#include "thc/errors.h"

namespace thc {

void require_code_bits(unsigned bits) {
  if (!wire::is_code_bits(bits)) {
    throw ConfigurationError(std::string("bits must be ") + wire::kCodeBitsText + ", got " + std::to_string(bits));
  }
}

LookupTable::LookupTable(unsigned bits, std::span<const std::uint16_t> values) : bits_(bits) {
  require_code_bits(bits);
  if (values.size() != size()) {
    throw ConfigurationError("a lookup table for " + std::to_string(bits) + " bits has " + std::to_string(size()) +
                             " values, got " + std::to_string(values.size()));
  }
  if (values.front() != 0) {
    throw ConfigurationError("the first value of a lookup table must be 0, got " + std::to_string(values.front()));
  }
  if (values.back() == 0) {
    throw ConfigurationError("the last value of a lookup table is its granularity, 1 at least");
  }
  const auto last = values.begin() + std::min<std::ptrdiff_t>(values.back(), std::ssize(values) - 1);
  const auto repeat = std::adjacent_find(values.begin(), last + 1, std::greater_equal<>());
  if (repeat != last + 1) {
    throw ConfigurationError("lookup table values must increase strictly; values[" +
                             std::to_string(repeat - values.begin() + 1) + "] = " + std::to_string(repeat[1]) +
                             " follows " + std::to_string(repeat[0]));
  }
  if (std::any_of(last, values.end(), [&](std::uint16_t value) { return value != values.back(); })) {
    throw ConfigurationError("a lookup table that ends with " + std::to_string(values.back()) +
                             " has that value from code " + std::to_string(last - values.begin()) + " on");
  }
  std::copy(values.begin(), values.end(), values_.begin());
}

std::uint64_t LookupTable::hash() const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add_byte = [&hash](unsigned byte) { hash = (hash ^ byte) * 0x100000001b3U; };
  const auto add_be16 = [&add_byte](std::uint16_t value) {
    add_byte(value >> 8U);
    add_byte(value & 0xffU);
  };
  add_byte(bits_);
  add_be16(granularity());
  std::ranges::for_each(values(), add_be16);
  return hash;
}

unsigned LookupTable::value_bits_for(unsigned workers) const {
  const std::uint64_t largest = std::uint64_t{granularity()} * workers;
  if (largest <= 0xff) {
    return 8;
  }
  if (largest <= 0xffff) {
    return 16;
  }
  throw ConfigurationError("granularity * workers = " + std::to_string(granularity()) + " * " +
                           std::to_string(workers) + " = " + std::to_string(largest) +
                           " does not fit 16-bit aggregates (65535); use a smaller granularity");
}

}  // namespace thc
