#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/bind.hpp"
#include "swap/gather.hpp"
#include "swap/sm_copy.hpp"
#include "swap/staged.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

namespace {

void kernels(nb::module_& m) {
  nb::enum_<SmMethod>(m, "SmMethod")
      .value("lanes", SmMethod::lanes)
      .value("words", SmMethod::words)
      .value("bulk", SmMethod::bulk);
  nb::class_<SmKernel>(m, "SmKernel", "A copy kernel of one shape, loaded on one device.")
      .def(
          "__init__",
          [](SmKernel* self, std::shared_ptr<Driver> driver, const nb::bytes& cubin, SmMethod method, unsigned warps,
             unsigned depth, unsigned piece_bytes) {
            new (self) SmKernel(std::move(driver), view(cubin), {method, warps, depth, piece_bytes});
          },
          "driver"_a, "cubin"_a, nb::kw_only(), "method"_a, "warps"_a, "depth"_a, "piece_bytes"_a);
  m.def(
      "sm_copy",
      [](std::shared_ptr<SmKernel> kernel, const Words& sources, const Words& destinations, const Words& sizes,
         Direction direction, unsigned sms, std::size_t inline_up_to, double pace_gbps) {
        const SmOptions options{
            .sms = sms, .direction = direction, .inline_up_to = inline_up_to, .pace_gbps = pace_gbps};
        return make_sm_copy(std::move(kernel), list_of(sources, destinations, sizes), options);
      },
      "kernel"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "direction"_a,
      nb::kw_only(), "sms"_a, "inline_up_to"_a, "pace_gbps"_a = 0.0, nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(),
      nb::keep_alive<0, 4>());
  m.attr("STAGED_PAGE_BYTES") = kStagedPageBytes;
  m.def(
      "staged",
      [](std::shared_ptr<SmKernel> kernel, const Words& sources, const Words& destinations, const Words& sizes,
         Direction direction, unsigned sms) {
        return make_staged({.aligned = nullptr, .any = std::move(kernel)}, list_of(sources, destinations, sizes),
                           {.sms = sms, .direction = direction});
      },
      "kernel"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "direction"_a,
      nb::kw_only(), "sms"_a, nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
  nb::class_<GatherKernel>(m, "GatherKernel", "The gather kernel for rows of one size, loaded on one device.")
      .def(
          "__init__",
          [](GatherKernel* self, std::shared_ptr<Driver> driver, const nb::bytes& cubin, std::size_t row_bytes) {
            new (self) GatherKernel(std::move(driver), view(cubin), row_bytes);
          },
          "driver"_a, "cubin"_a, "row_bytes"_a);
  nb::class_<GatherSwap, Swap>(m, "GatherSwap",
                               "A swap of equal rows whose ids lie on the device, by a graph with one kernel.")
      .def(
          "__init__",
          [](GatherSwap* self, const GatherKernel& kernel, const Words& sources, const Words& destinations,
             unsigned ctas) {
            if (sources.size() != destinations.size()) throw nb::value_error("both sides must have the same rows");
            new (self) GatherSwap(kernel, view(sources), view(destinations), ctas);
          },
          "kernel"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "ctas"_a, nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>())
      .def("stage", &GatherSwap::stage, nb::call_guard<nb::gil_scoped_release>(),
           "Write the ids of the arrays to the device and wait for them.");
}

}  // namespace

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
  kernels(m);
}

}  // namespace kvbench::bind
