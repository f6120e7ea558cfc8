#include "driver/driver.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bind/bind.hpp"
#include "driver/cuda.hpp"
#include "driver/host.hpp"

namespace kvbench::bind {

void driver(nb::module_& m) {
  nb::enum_<Direction>(m, "Direction").value("h2d", Direction::h2d).value("d2h", Direction::d2h);
  nb::enum_<Priority>(m, "Priority")
      .value("normal", Priority::normal)
      .value("low", Priority::low)
      .value("high", Priority::high);
  nb::enum_<MemoryKind>(m, "MemoryKind")
      .value("device", MemoryKind::device)
      .value("allocated", MemoryKind::allocated)
      .value("registered", MemoryKind::registered)
      .value("shared", MemoryKind::shared)
      .value("huge_2mib", MemoryKind::huge_2mib)
      .value("huge_1gib", MemoryKind::huge_1gib)
      .value("mapped", MemoryKind::mapped);
  nb::enum_<BatchEntry>(m, "BatchEntry")
      .value("none", BatchEntry::none)
      .value("cuda_12_8", BatchEntry::cuda_12_8)
      .value("cuda_13_0", BatchEntry::cuda_13_0)
      .value("host", BatchEntry::host);
  nb::enum_<FaultKind> faults(m, "FaultKind");
  for (std::size_t i = 0; i < kFaultNames.size(); ++i) faults.value(kFaultNames[i], static_cast<FaultKind>(i));

  nb::class_<DeviceInfo>(m, "DeviceInfo", "The driver's facts about a device.")
      .def_ro("kind", &DeviceInfo::kind)
      .def_ro("title", &DeviceInfo::title)
      .def_ro("pci_bus_id", &DeviceInfo::pci_bus_id)
      .def_ro("compute_major", &DeviceInfo::compute_major)
      .def_ro("compute_minor", &DeviceInfo::compute_minor)
      .def_ro("sm_count", &DeviceInfo::sm_count)
      .def_ro("shared_bytes", &DeviceInfo::shared_bytes)
      .def_ro("numa_node", &DeviceInfo::numa_node)
      .def_ro("integrated", &DeviceInfo::integrated);

  nb::class_<Driver>(m, "Driver", "A device for swaps.")
      .def_prop_ro("info", &Driver::info)
      .def_prop_ro("batch_entry", &Driver::batch_entry)
      .def(
          "free_memory",
          [](const Driver& driver) {
            const FreeMemory memory = driver.free_memory();
            return std::pair(memory.free_bytes, memory.total_bytes);
          },
          "Free and total bytes of the device.")
      .def(
          "load_delay_kernel", [](Driver& driver, const nb::bytes& cubin) { driver.load_delay_kernel(view(cubin)); },
          "cubin"_a)
      .def(
          "load_content_kernels",
          [](Driver& driver, const nb::bytes& cubin) { driver.load_content_kernels(view(cubin)); }, "cubin"_a)
      .def("fill", &Driver::fill, "address"_a, "value"_a, "size_bytes"_a, "stream"_a)
      .def("transfer", &Driver::transfer, "destination"_a, "source"_a, "size_bytes"_a, "direction"_a, "stream"_a)
      .def("bind_thread", &Driver::bind_thread, "Make the device current for the calling thread.")
      .def("delay", &Driver::delay, "delay_ns"_a, "stream"_a)
      .def("synchronize", &Driver::synchronize, "stream"_a, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<HostDriver, Driver>(m, "HostDriver", "A device of plain memory with in-order streams and fault injection.")
      .def(
          "arm",
          [](HostDriver& driver, FaultKind kind, std::uint64_t at, double delay_us) {
            driver.arm({kind, at, delay_us});
          },
          "kind"_a, "at"_a = 0, "delay_us"_a = 0.0);
  m.def("open_host", &open_host, "with_batch"_a = true);
  m.def("open_cuda", &shared_cuda, "ordinal"_a, "library"_a = "libcuda.so.1");
  m.def("count_cuda_devices", &count_cuda_devices, "library"_a = "libcuda.so.1");
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
