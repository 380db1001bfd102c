#include "python/register.h"
#include "python/table_input.h"
#include "thc/bit_stream.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

template <typename Sum>
void lookup_sum_of(ThreadPool* pool, const std::uint8_t* codes, const LookupTable& table, Accumulate mode,
                   py::array& aggregate) {
  const auto count = static_cast<std::size_t>(aggregate.size());
  Sum* sums = output<Sum>(aggregate, "aggregate", count);
  const py::gil_scoped_release unlocked;
  threaded::lookup_sum(pool, codes, count, table, mode, sums);
}

void lookup_sum_array(const py::array& codes, const py::array& values, py::array aggregate, unsigned bits, bool add,
                      ThreadPool* pool) {
  const LookupTable table = table_input(values, bits);
  const auto count = static_cast<std::size_t>(aggregate.size());
  const auto* packed = input<std::uint8_t>(codes, "codes", code_bytes(count, bits));
  const Accumulate mode = add ? Accumulate::kAdd : Accumulate::kWrite;
  if (holds<std::uint16_t>(aggregate)) {
    lookup_sum_of<std::uint16_t>(pool, packed, table, mode, aggregate);
  } else if (!holds<std::uint8_t>(aggregate)) {
    refuse("aggregate", "uint8 or uint16", describe(aggregate));
  } else if (table.granularity() > 0xff) {
    refuse("aggregate", "uint16, because the granularity is " + std::to_string(table.granularity()), "uint8");
  } else {
    lookup_sum_of<std::uint8_t>(pool, packed, table, mode, aggregate);
  }
}

}  // namespace

void register_aggregation(py::module_& module) {
  module.def("lookup_sum", &lookup_sum_array, py::arg("codes"), py::arg("values"), py::arg("aggregate"), py::kw_only(),
             py::arg("bits"), py::arg("add"), py::arg("pool") = py::none());
}

}  // namespace thc::python
