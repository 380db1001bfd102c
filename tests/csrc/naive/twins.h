// Runs a kernel's naive twin, and the kernel with every instruction set of the machine.
#pragma once

#include <functional>

#include "csrc/kernel_fixture.h"
#include "csrc/naive/kernels.h"

namespace thc::testing {

/// The kernels, or their naive twins.
struct Kernels {
  bool naive;

  template <class... Arguments>
  void pack(const Arguments&... arguments) const {
    naive ? thc::naive::pack(arguments...) : thc::pack(arguments...);
  }
  template <class... Arguments>
  void unpack(const Arguments&... arguments) const {
    naive ? thc::naive::unpack(arguments...) : thc::unpack(arguments...);
  }
  template <class... Arguments>
  void block_norms(const Arguments&... arguments) const {
    naive ? thc::naive::block_norms(arguments...) : thc::block_norms(arguments...);
  }
  template <class... Arguments>
  void rotate(const Arguments&... arguments) const {
    naive ? thc::naive::rotate(arguments...) : thc::rotate(arguments...);
  }
  template <class... Arguments>
  void inverse_rotate(const Arguments&... arguments) const {
    naive ? thc::naive::inverse_rotate(arguments...) : thc::inverse_rotate(arguments...);
  }
  template <class... Arguments>
  std::size_t quantize(const Arguments&... arguments) const {
    return naive ? thc::naive::quantize(arguments...) : thc::quantize(arguments...);
  }
  template <class... Arguments>
  void encode_nearest(const Arguments&... arguments) const {
    naive ? thc::naive::encode_nearest(arguments...) : thc::encode_nearest(arguments...);
  }
  template <class... Arguments>
  void decode_nearest(const Arguments&... arguments) const {
    naive ? thc::naive::decode_nearest(arguments...) : thc::decode_nearest(arguments...);
  }
  template <class... Arguments>
  void recode_nearest(const Arguments&... arguments) const {
    naive ? thc::naive::recode_nearest(arguments...) : thc::recode_nearest(arguments...);
  }
  template <class... Arguments>
  void decode(const Arguments&... arguments) const {
    naive ? thc::naive::decode(arguments...) : thc::decode(arguments...);
  }
  void from_fp32(const float* in, std::size_t count, Floats out) const {
    naive ? thc::naive::from_fp32(in, count, out) : thc::from_fp32(in, count, out);
  }
};

class BesideNaiveTwin : public EveryInstructionSet {
 protected:
  /// Results with the naive twins and with the instruction set under test.
  template <typename Result>
  void expect_same(const std::function<Result(const Kernels&)>& run) {
    const Result expected = run({.naive = true});
    use_instruction_set(GetParam());
    EXPECT_EQ(run({.naive = false}), expected);
  }
};

}  // namespace thc::testing
