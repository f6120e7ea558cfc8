#include <nanobind/stl/optional.h>

#include "bind/bind.hpp"
#include "driver/resources.hpp"

namespace kvbench::bind {

void verification(nb::module_& m) {
  nb::class_<Audit>(m, "Audit", "The result of an audit of ranges; the range is an index, or None if nothing is wrong.")
      .def_ro("wrong_bytes", &Audit::wrong_bytes)
      .def_ro("first_wrong_offset", &Audit::first_wrong_offset)
      .def_ro("first_wrong_range", &Audit::first_wrong_range)
      .def_ro("checked_bytes", &Audit::checked_bytes);
  m.def(
      "write_words",
      [](Buffer& buffer, const Words& offsets, const Words& sizes, const Words& source_offsets, std::uint64_t seed,
         Stream stream) { buffer.write({view(offsets), view(sizes), view(source_offsets)}, seed, stream); },
      "buffer"_a, "offsets"_a, "sizes"_a, "source_offsets"_a, "seed"_a, "stream"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Write into every range the bytes of a pool with `seed` from the range's source offset on; offsets and sizes in "
      "bytes. Ranges must not overlap. ValueError for a range outside of the buffer.");
  m.def(
      "audit_words",
      [](const Buffer& buffer, const Words& offsets, const Words& sizes, const Words& source_offsets,
         std::uint64_t seed,
         Stream stream) { return buffer.audit({view(offsets), view(sizes), view(source_offsets)}, seed, stream); },
      "buffer"_a, "offsets"_a, "sizes"_a, "source_offsets"_a, "seed"_a, "stream"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Compare every range with the bytes of a pool with `seed` from the range's source offset on.");
}

}  // namespace kvbench::bind
