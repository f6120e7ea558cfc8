#include "bind/bind.hpp"
#include "driver/driver.hpp"

namespace kvbench::bind {

void probe(nb::module_& m) {
  m.def(
      "copy_arrays",
      [](Driver& driver, const Words& destinations, const Words& sources, const Words& sizes, Address attributes,
         Address attribute_firsts, std::size_t attribute_count, Direction direction, Stream stream) {
        if (destinations.size() != sizes.size() || sources.size() != sizes.size()) {
          throw nb::value_error("copy_arrays: destinations, sources and sizes must have the same length");
        }
        const nb::gil_scoped_release release;
        driver.copy_arrays(
            {destinations.data(), sources.data(), sizes.data(), sizes.size(), reinterpret_cast<const void*>(attributes),
             reinterpret_cast<const std::size_t*>(attribute_firsts), attribute_count},
            direction, stream);
      },
      "driver"_a, "destinations"_a, "sources"_a, "sizes"_a, "attributes"_a, "attribute_firsts"_a, "attribute_count"_a,
      "direction"_a, "stream"_a,
      "One batched copy that reads exactly these arrays: the last five arguments are as the driver's call takes them, "
      "`attributes` and `attribute_firsts` as addresses.");
  m.def("copy", &Driver::copy, "driver"_a, "destination"_a, "source"_a, "size_bytes"_a, "direction"_a, "stream"_a,
        nb::call_guard<nb::gil_scoped_release>(), "One asynchronous copy.");
  m.def("register_pages", &Driver::register_pages, "driver"_a, "address"_a, "size_bytes"_a,
        nb::call_guard<nb::gil_scoped_release>(), "Pin pages that the caller mapped, until unregister_pages.");
  m.def("unregister_pages", &Driver::unregister_pages, "driver"_a, "address"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace kvbench::bind
