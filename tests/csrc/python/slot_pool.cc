#include "thc/slot_pool.h"

#include <pybind11/native_enum.h>

#include <cstdint>
#include <string_view>

#include "csrc/python/register_test.h"
#include "python/arrays.h"
#include "python/table_input.h"

namespace thc::python {
namespace {

/// A SlotReply that owns its result: Python may keep it while the slot is reused.
struct OwnedReply {
  SlotOutcome outcome;
  std::uint8_t contributions;
  std::uint64_t bitmap;
  std::uint16_t count;
  py::bytes result;
};

SlotPool make_pool(const py::array& values, unsigned bits, std::uint32_t slots, std::uint32_t norm_slots,
                   std::uint32_t codes_per_packet, unsigned workers, unsigned quorum, unsigned value_bits) {
  return SlotPool({.slots = slots,
                   .norm_slots = norm_slots,
                   .codes_per_packet = codes_per_packet,
                   .workers = workers,
                   .quorum = quorum,
                   .value_bits = value_bits},
                  table_input(values, bits));
}

OwnedReply contribute(SlotPool& pool, std::uint32_t slot, std::uint32_t round, std::uint8_t worker, bool retransmit,
                      bool abstain, std::uint16_t partition, std::uint16_t chunk, std::uint16_t count,
                      const py::bytes& payload) {
  const auto bytes = static_cast<std::string_view>(payload);
  // The pool checks every field but the payload's length, and never reads a payload whose other fields are bad.
  if (const std::size_t expected = pool.payload_bytes(slot, count); bytes.size() != expected) {
    refuse("payload", std::to_string(expected) + " bytes", std::to_string(bytes.size()));
  }
  const SlotReply reply = pool.contribute({.slot = slot,
                                           .round = round,
                                           .worker = worker,
                                           .retransmit = retransmit,
                                           .abstain = abstain,
                                           .partition = partition,
                                           .chunk = chunk,
                                           .count = count,
                                           .payload = reinterpret_cast<const std::uint8_t*>(bytes.data())});
  const py::bytes result(reinterpret_cast<const char*>(reply.result.data()), reply.result.size());
  return {reply.outcome, reply.contributions, reply.bitmap, reply.count, result};
}

}  // namespace

void register_slot_pool(py::module_& module) {
  py::native_enum<SlotOutcome>(module, "SlotOutcome", "enum.Enum")
      .value("ABSORBED", SlotOutcome::kAbsorbed)
      .value("COMPLETED", SlotOutcome::kCompleted)
      .value("REPLAY", SlotOutcome::kReplay)
      .value("INCOMPLETE", SlotOutcome::kIncomplete)
      .value("DUPLICATE", SlotOutcome::kDuplicate)
      .value("STRAGGLER", SlotOutcome::kStraggler)
      .value("ORDER_MISMATCH", SlotOutcome::kOrderMismatch)
      .value("INVALID", SlotOutcome::kInvalid)
      .finalize();
  py::class_<OwnedReply>(module, "SlotReply")
      .def_readonly("outcome", &OwnedReply::outcome)
      .def_readonly("contributions", &OwnedReply::contributions)
      .def_readonly("bitmap", &OwnedReply::bitmap)
      .def_readonly("count", &OwnedReply::count)
      .def_readonly("result", &OwnedReply::result);
  py::class_<SlotPool>(module, "SlotPool")
      .def(py::init(&make_pool), py::arg("values"), py::kw_only(), py::arg("bits"), py::arg("slots"),
           py::arg("norm_slots"), py::arg("codes_per_packet"), py::arg("workers"), py::arg("quorum"),
           py::arg("value_bits"))
      .def("contribute", &contribute, py::kw_only(), py::arg("slot"), py::arg("round"), py::arg("worker"),
           py::arg("retransmit"), py::arg("abstain") = false, py::arg("partition"), py::arg("chunk"), py::arg("count"),
           py::arg("payload"))
      .def("reset", &SlotPool::reset)
      .def_property_readonly("slots_in_use", &SlotPool::slots_in_use);
}

}  // namespace thc::python
