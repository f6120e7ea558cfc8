#include "driver/resources.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "bind/bind.hpp"
#include "memory/bytes.hpp"

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
