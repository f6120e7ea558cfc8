#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind/bind.hpp"
#include "swap/gather.hpp"
#include "swap/sm_copy.hpp"
#include "swap/staged.hpp"

namespace kvbench::bind {

void sm_kernels(nb::module_& m) {
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

}  // namespace kvbench::bind
