#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/bind.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

void swaps(nb::module_& m) {
  nb::enum_<AccessOrder>(m, "AccessOrder")
      .value("stream", AccessOrder::stream)
      .value("during_api_call", AccessOrder::during_api_call)
      .value("any", AccessOrder::any);
  nb::class_<BatchOptions>(m, "BatchOptions", "How lists go to batched copies.")
      .def(
          "__init__",
          [](BatchOptions* self, AccessOrder order, bool prefer_overlap, std::size_t descriptors_per_call, bool sliced,
             bool by_host_address, bool merge, std::uint64_t prime_ns, std::size_t prime_up_to_bytes) {
            new (self)
                BatchOptions{{order, prefer_overlap}, descriptors_per_call, sliced, by_host_address, merge, prime_ns,
                             prime_up_to_bytes};
          },
          nb::kw_only(), "order"_a = AccessOrder::stream, "prefer_overlap"_a = false, "descriptors_per_call"_a = 0,
          "sliced"_a = false, "by_host_address"_a = false, "merge"_a = false, "prime_ns"_a = 0,
          "prime_up_to_bytes"_a = 0);
  nb::class_<Swap>(m, "Swap",
                   "One swap that can be submitted repeatedly. It reads the arrays that it was made of at every "
                   "submission; their lengths, the sizes and the alignment must stay the same.")
      .def("submit", &Swap::submit, "stream"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("calls", &Swap::calls)
      .def_prop_ro("descriptors", &Swap::descriptors)
      .def_prop_ro("fell_back", &Swap::fell_back);
  m.def(
      "per_block",
      [](std::shared_ptr<Driver> driver, const Words& sources, const Words& destinations, const Words& bytes,
         Direction direction) {
        return make_per_block(std::move(driver), list_of(sources, destinations, bytes), direction);
      },
      "driver"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "direction"_a,
      nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
  m.def(
      "batched",
      [](std::shared_ptr<Driver> driver, const Words& sources, const Words& destinations, const Words& bytes,
         Direction direction, const BatchOptions& options) {
        return make_batched(std::move(driver), list_of(sources, destinations, bytes), direction, options);
      },
      "driver"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "direction"_a,
      "options"_a, nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
}

}  // namespace kvbench::bind
