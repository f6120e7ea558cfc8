#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/bind.hpp"
#include "bind/descriptors.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

void swaps(nb::module_& m) {
  nb::enum_<AccessOrder>(m, "AccessOrder")
      .value("stream", AccessOrder::stream)
      .value("during_api_call", AccessOrder::during_api_call)
      .value("any", AccessOrder::any);
  nb::class_<Swap>(m, "Swap", "One swap that can be submitted repeatedly.")
      .def(
          "retarget",
          [](Swap& swap, const Words& sources, const Words& destinations) {
            swap.retarget(view(sources), view(destinations));
          },
          "sources"_a, "destinations"_a,
          "Replace the addresses for the next submission; number, sizes and alignment must stay the same. They take "
          "effect at the next prepare. ValueError if the number differs, or for a swap with ids.")
      .def(
          "retarget_ids",
          [](Swap& swap, const Ids& source_ids, const Ids& destination_ids) {
            swap.retarget_ids(view(source_ids), view(destination_ids));
          },
          "source_ids"_a, "destination_ids"_a, "The same for the ids of a swap made by sm_copy_tensors.")
      .def("prepare", &Swap::prepare, nb::call_guard<nb::gil_scoped_release>())
      .def("submit", &Swap::submit, "stream"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("calls", &Swap::calls)
      .def_prop_ro("coalesce_us", &Swap::coalesce_us)
      .def_prop_ro("fell_back", &Swap::fell_back);
  m.def(
      "per_block",
      [](std::shared_ptr<Driver> driver, const Words& sources, const Words& destinations, const Words& bytes,
         Direction direction) {
        return make_per_block(std::move(driver), list_of(sources, destinations, bytes), direction);
      },
      "driver"_a, "sources"_a, "destinations"_a, "sizes"_a, "direction"_a);
  m.def(
      "batched",
      [](std::shared_ptr<Driver> driver, const Words& sources, const Words& destinations, const Words& bytes,
         Direction direction, AccessOrder order, bool prefer_overlap, std::size_t descriptors_per_call, bool coalesce,
         bool by_host_address, std::uint64_t prime_ns) {
        return make_batched(std::move(driver), list_of(sources, destinations, bytes), direction,
                            {{order, prefer_overlap}, descriptors_per_call, coalesce, by_host_address, prime_ns});
      },
      "driver"_a, "sources"_a, "destinations"_a, "sizes"_a, "direction"_a, nb::kw_only(), "order"_a,
      "prefer_overlap"_a = false, "descriptors_per_call"_a = 0, "coalesce"_a = false, "by_host_address"_a = false,
      "prime_ns"_a = 0);
}

}  // namespace kvbench::bind
