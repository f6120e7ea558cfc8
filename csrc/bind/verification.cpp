#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "bind/bind.hpp"
#include "driver/resources.hpp"
#include "memory/bytes.hpp"

namespace kvbench::bind {

void verification(nb::module_& m) {
  m.def(
      "verify",
      [](Buffer& destination, Buffer& source, std::size_t bytes, const Words& source_offsets,
         const Words& destination_offsets, const Words& sizes, std::uint8_t poison) {
        const CopiedRanges ranges{view(source_offsets), view(destination_offsets), view(sizes)};
        Verdict verdict;
        {
          const nb::gil_scoped_release release;
          verdict = verify(destination.host(bytes), source.host(bytes), ranges, poison);
        }
        return std::tuple(verdict.wrong_bytes, verdict.first_wrong_offset, verdict.first_wrong_range);
      },
      "destination"_a, "source"_a, "size_bytes"_a, "source_offsets"_a, "destination_offsets"_a, "sizes"_a, "poison"_a,
      "Compare the first `bytes` of two host buffers: (wrong bytes, first wrong offset, its range or None).");
}

}  // namespace kvbench::bind
