#include "session/operation.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thc/byte_order.h"

namespace thc {
namespace {

/// From and to unaligned memory; compilers vectorise the loops.
template <typename T>
void swap_bytes(const std::uint8_t* from, std::size_t count, std::uint8_t* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    value = to_big_endian(value);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

Operation::Operation(Stage stage, std::uint16_t partition, std::size_t count, std::size_t per_packet)
    : stage_(stage),
      partition_(partition),
      count_(count),
      per_packet_(per_packet),
      chunks_((count + per_packet - 1) / per_packet),
      last_chunk_count_(chunks_ == 0 ? 0 : count - (chunks_ - 1) * per_packet) {}

std::shared_ptr<Operation> Operation::norms(std::uint16_t partition, std::span<const float> norms,
                                            std::span<float> max_norms, std::size_t per_packet, std::size_t compared) {
  std::shared_ptr<Operation> operation(new Operation(Stage::kNorm, partition, norms.size(), per_packet));
  operation->compared_ = std::min({compared, norms.size(), per_packet});
  operation->norms_be_.resize(norms.size_bytes());
  swap_bytes<std::uint32_t>(reinterpret_cast<const std::uint8_t*>(norms.data()), norms.size(),
                            operation->norms_be_.data());
  // The sign of a NaN or a zero means nothing, and servers, which compare integers, reject it.
  for (std::size_t i = 0; i < operation->norms_be_.size(); i += sizeof(float)) {
    operation->norms_be_[i] &= 0x7f;
  }
  operation->payload_ = operation->norms_be_.data();
  operation->result_ = reinterpret_cast<std::uint8_t*>(max_norms.data());
  return operation;
}

std::shared_ptr<Operation> Operation::codes(std::uint16_t partition, const std::uint8_t* codes, std::size_t count,
                                            void* aggregate, std::uint8_t* contributions, const SessionConfig& config) {
  std::shared_ptr<Operation> operation(new Operation(Stage::kCodes, partition, count, config.codes_per_packet));
  operation->payload_ = codes;
  operation->bits_up_ = config.table.bits();
  operation->bytes_down_ = config.value_bits / 8;
  operation->result_ = static_cast<std::uint8_t*>(aggregate);
  operation->contributions_ = contributions;
  return operation;
}

void Operation::pad(std::size_t multiple) {
  if (last_chunk_count_ % multiple == 0) {
    return;
  }
  const auto own = chunk_payload(chunks_ - 1);
  const std::size_t own_bits = last_chunk_count_ * bits_up_;
  last_chunk_count_ += multiple - last_chunk_count_ % multiple;
  padded_.assign((last_chunk_count_ * bits_up_ + 7) / 8, 0);
  std::copy(own.begin(), own.end(), padded_.begin());
  if (own_bits % 8 != 0) {  // the rest of the byte becomes a code
    padded_[own_bits / 8] &= static_cast<std::uint8_t>(0xff00U >> own_bits % 8);
  }
}

std::size_t Operation::own_count(std::size_t chunk) const noexcept {
  return std::min(per_packet_, count_ - chunk * per_packet_);
}

std::span<const std::uint8_t> Operation::chunk_payload(std::size_t chunk) const noexcept {
  if (chunk + 1 == chunks_ && !padded_.empty()) {
    return padded_;
  }
  return {payload_ + chunk * per_packet_ * bits_up_ / 8, (chunk_count(chunk) * bits_up_ + 7) / 8};
}

void Operation::store(std::size_t chunk, const std::uint8_t* payload, std::size_t received,
                      std::uint8_t contributions) noexcept {
  const std::size_t count = std::min(own_count(chunk), received);
  std::uint8_t* to = result_ + chunk * per_packet_ * bytes_down_;
  if (bytes_down_ == 1) {
    std::memcpy(to, payload, count);
  } else if (bytes_down_ == 2) {
    swap_bytes<std::uint16_t>(payload, count, to);
  } else {
    swap_bytes<std::uint32_t>(payload, count, to);
  }
  if (contributions_ != nullptr) {
    contributions_[chunk] = contributions;
  }
  const bool has_compared = chunk == 0 && compared_ > 0;
  if (has_compared && (count < compared_ || std::memcmp(payload, norms_be_.data(), compared_ * sizeof(float)) != 0)) {
    differs_.store(true, std::memory_order_release);
  }
}

void Operation::store_nothing(std::size_t chunk) noexcept {
  std::memset(result_ + chunk * per_packet_ * bytes_down_, 0, own_count(chunk) * bytes_down_);
  if (contributions_ != nullptr) {
    contributions_[chunk] = 0;
  }
}

void Operation::finish(const Failure* failure) {
  if (failure != nullptr) {
    failure_ = *failure;
  }
  done_.store(true, std::memory_order_release);
}

}  // namespace thc
