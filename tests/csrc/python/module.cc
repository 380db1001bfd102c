// _core_test: parts of thc_core for tests in Python, beyond byteps_thc._native._core. It has the kernels of _core, too,
// so that use_instruction_set limits all kernels that a test compares.
//
// rotate(gradient, residual, rotated, *, rotation_block, seed, tensor, round),
// quantize(rotated, max_norms, codes, *, coordinates, rotation_block, values, bits, threshold, seed, tensor, round,
// domain, phase, keep_error) -> clamped and inverse_rotate(rotated, out, *, rotation_block, seed, tensor, round) are
// the stages of encode and decode, see thc/rotation.h and thc/quantization.h. rotated[padded_size(n)] is overwritten by
// quantize with keep_error, and by inverse_rotate. pack(codes, packed, *, bits), unpack(packed, codes, *, bits): codes
// of a byte each to and from the packed stream. max_norms_be(norms, maximum, *, add): thc/lookup_sum.h, on bytes.
// table_hash(bits, values): what HELLO carries. SlotPool, SlotReply, SlotOutcome: the aggregator's state machine
// (thc/slot_pool.h), as thc-ps runs it. hello_verdict(datagram, first): thc-ps's refusal of a HELLO to the job that
// `first` began, as [reason, field, job_value]; zeros: none, None: the length is wrong. use_instruction_set(name): one
// of instruction_sets(); None: the best.
#include <pybind11/pybind11.h>

#include "csrc/python/register_test.h"
#include "python/register.h"
#include "python/translate_errors.h"

PYBIND11_MODULE(_core_test, module) {
  pybind11::module_::import(
      "byteps_thc._native._core");  // which registers ThreadPool and BlockTable, arguments of kernels
  thc::python::register_exceptions(module);
  thc::python::register_servers(module);
  thc::python::register_segments(module);
  thc::python::register_block_codes(module);
  thc::python::register_hello(module);
  thc::python::register_stages(module);
  thc::python::register_slot_pool(module);
}
