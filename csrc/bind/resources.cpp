#include "driver/resources.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include "bind/bind.hpp"
#include "memory/content.hpp"

namespace kvbench::bind {

void resources(nb::module_& m) {
  nb::class_<Buffer>(m, "Buffer", "Memory on the device or pinned on the host; released with the object.")
      .def(nb::init<std::shared_ptr<Driver>, MemoryKind, std::size_t>(), "driver"_a, "kind"_a, "size_bytes"_a)
      .def_prop_ro("address", &Buffer::address)
      .def_prop_ro("device_address", &Buffer::device_address)
      .def_prop_ro("size_bytes", &Buffer::bytes)
      .def_prop_ro("populate_s", &Buffer::populate_s, "Seconds of its pages; allocated ones are pinned in this time.")
      .def_prop_ro("register_s", &Buffer::register_s, "Seconds of pinning pages that were populated before.")
      .def(
          "fill_random",
          [](Buffer& buffer, std::size_t bytes, std::uint64_t seed) { fill_random(buffer.host(bytes), seed); },
          "size_bytes"_a, "seed"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "fill_value",
          [](Buffer& buffer, std::size_t bytes, std::uint8_t value) { fill_value(buffer.host(bytes), value); },
          "size_bytes"_a, "value"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "array",
          [](nb::handle_t<Buffer> self) {
            auto& buffer = nb::cast<Buffer&>(self);
            return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(buffer.host(buffer.bytes()).data(),
                                                                     {buffer.bytes()}, self);
          },
          "The buffer as bytes; host buffers only.");
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
  nb::class_<OwnedStream>(m, "Stream", "A non-blocking stream.")
      .def(nb::init<std::shared_ptr<Driver>, Priority>(), "driver"_a, "priority"_a = Priority::normal)
      .def_prop_ro("handle", &OwnedStream::handle)
      .def("synchronize", &OwnedStream::synchronize, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<OwnedEvent>(m, "Event", "A mark on a stream.")
      .def(nb::init<std::shared_ptr<Driver>>(), "driver"_a)
      .def("record", &OwnedEvent::record, "stream"_a)
      .def("hold", &OwnedEvent::hold, "stream"_a, "Make later work on `stream` wait for the last record.")
      .def("completed", &OwnedEvent::completed, "Whether everything before the last record has completed.")
      .def("wait", &OwnedEvent::wait, nb::call_guard<nb::gil_scoped_release>(),
           "Return once everything before the last record has completed; without a record, return at once.")
      .def("us_since", &OwnedEvent::us_since, "start"_a, "Microseconds on the device since `start`; both completed.");
}

}  // namespace kvbench::bind
