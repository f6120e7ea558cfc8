#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>

#include "bytes.hpp"
#include "cpu_probe.hpp"
#include "cuda_driver.hpp"
#include "host_driver.hpp"
#include "resources.hpp"
#include "sm_copy.hpp"
#include "swap.hpp"
#include "timed_swap.hpp"

namespace nb = nanobind;
using namespace kvbench;
using namespace nb::literals;

namespace {

using Words = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Ids = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::uint64_t> view(const Words& words) { return {words.data(), words.size()}; }

template <typename T>
std::vector<T> copied(const nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
  return {array.data(), array.data() + array.size()};
}

std::span<const std::byte> view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

DescriptorList list_of(const Words& sources, const Words& destinations, const Words& bytes) {
  if (sources.size() != bytes.size() || destinations.size() != bytes.size()) {
    throw nb::value_error("sources, destinations and bytes have different lengths");
  }
  return {copied(sources), copied(destinations), copied(bytes)};
}

nb::object& engine_error() {
  static nb::object* type = nullptr;
  if (type == nullptr) {
    type = new nb::object(nb::steal(PyErr_NewExceptionWithDoc(
        "kvbench._engine.EngineError",
        "A call of the driver failed: `call`, the driver's error `name`, and `descriptor` (index or None).",
        PyExc_RuntimeError, nullptr)));
  }
  return *type;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError& error) {
    nb::object said = engine_error()(error.what());
    said.attr("call") = error.call();
    said.attr("name") = error.name();
    said.attr("descriptor") = error.descriptor();
    PyErr_SetObject(engine_error().ptr(), said.ptr());
  }
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The swap engine: descriptors submitted on streams, timed without Python in between.";
  m.attr("SOURCE_HASH") = KVBENCH_SOURCE_HASH;
  m.attr("EngineError") = engine_error();
  nb::register_exception_translator(translate);
  // At interpreter exit whoever still holds a device (a test session, a plug-in) would be told of a leak.
  nb::set_leak_warnings(false);

  nb::enum_<Direction>(m, "Direction").value("h2d", Direction::h2d).value("d2h", Direction::d2h);
  nb::enum_<AccessOrder>(m, "AccessOrder")
      .value("stream", AccessOrder::stream)
      .value("during_api_call", AccessOrder::during_api_call)
      .value("any", AccessOrder::any);
  nb::enum_<StreamState>(m, "StreamState").value("idle", StreamState::idle).value("busy", StreamState::busy);
  nb::enum_<MemoryKind>(m, "MemoryKind")
      .value("device", MemoryKind::device)
      .value("allocated", MemoryKind::allocated)
      .value("registered", MemoryKind::registered);
  nb::enum_<BatchEntry>(m, "BatchEntry")
      .value("none", BatchEntry::none)
      .value("cuda_12_8", BatchEntry::cuda_12_8)
      .value("cuda_13_0", BatchEntry::cuda_13_0)
      .value("host", BatchEntry::host);
  nb::enum_<FaultKind>(m, "FaultKind")
      .value("none", FaultKind::none)
      .value("error_at_call", FaultKind::error_at_call)
      .value("error_at_descriptor", FaultKind::error_at_descriptor)
      .value("hang", FaultKind::hang)
      .value("crash", FaultKind::crash)
      .value("slow", FaultKind::slow)
      .value("corrupt", FaultKind::corrupt)
      .value("stray", FaultKind::stray);

  nb::class_<DeviceInfo>(m, "DeviceInfo", "What the driver says of a device.")
      .def_ro("kind", &DeviceInfo::kind)
      .def_ro("title", &DeviceInfo::title)
      .def_ro("pci_bus_id", &DeviceInfo::pci_bus_id)
      .def_ro("driver_version", &DeviceInfo::driver_version)
      .def_ro("compute_major", &DeviceInfo::compute_major)
      .def_ro("compute_minor", &DeviceInfo::compute_minor)
      .def_ro("sm_count", &DeviceInfo::sm_count)
      .def_ro("numa_node", &DeviceInfo::numa_node);

  nb::class_<Driver>(m, "Driver", "A device that takes swaps.")
      .def_prop_ro("info", &Driver::info)
      .def_prop_ro("batch_entry", &Driver::batch_entry)
      .def("free_memory",
           [](const Driver& driver) {
             const FreeMemory memory = driver.free_memory();
             return nb::make_tuple(memory.free_bytes, memory.total_bytes);
           })
      .def(
          "load_delay_kernel", [](Driver& driver, const nb::bytes& cubin) { driver.load_delay_kernel(view(cubin)); },
          "cubin"_a)
      .def(
          "fill",
          [](Driver& driver, Address address, std::uint8_t value, std::size_t bytes, Stream stream) {
            driver.fill(address, value, bytes, stream);
          },
          "address"_a, "value"_a, "size_bytes"_a, "stream"_a)
      .def(
          "transfer",
          [](Driver& driver, Address destination, Address source, std::size_t bytes, Direction direction,
             Stream stream) { driver.transfer(destination, source, bytes, direction, stream); },
          "destination"_a, "source"_a, "size_bytes"_a, "direction"_a, "stream"_a)
      .def("delay", &Driver::delay, "delay_ns"_a, "stream"_a)
      .def("synchronize", &Driver::synchronize, "stream"_a, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<HostDriver, Driver>(m, "HostDriver", "Plain memory with in-order streams, and faults to inject.")
      .def(
          "arm",
          [](HostDriver& driver, FaultKind kind, std::uint64_t at, double delay_us) {
            driver.arm({kind, at, delay_us});
          },
          "kind"_a, "at"_a = 0, "delay_us"_a = 0.0);
  m.def("open_host", &open_host, "with_batch"_a = true);
  m.def("open_cuda", &open_cuda, "ordinal"_a, "library"_a = "libcuda.so.1");
  m.def("count_cuda_devices", &count_cuda_devices, "library"_a = "libcuda.so.1");

  nb::class_<Buffer>(m, "Buffer", "Memory on the device or pinned on the host; released with the object.")
      .def(nb::init<std::shared_ptr<Driver>, MemoryKind, std::size_t>(), "driver"_a, "kind"_a, "size_bytes"_a)
      .def_prop_ro("address", &Buffer::address)
      .def_prop_ro("device_address", &Buffer::device_address)
      .def_prop_ro("size_bytes", &Buffer::bytes)
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
  nb::class_<OwnedStream>(m, "Stream", "A non-blocking stream of its own.")
      .def(nb::init<std::shared_ptr<Driver>>(), "driver"_a)
      .def_prop_ro("handle", &OwnedStream::handle)
      .def("synchronize", &OwnedStream::synchronize, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<OwnedEvent>(m, "Event", "A mark on a stream.")
      .def(nb::init<std::shared_ptr<Driver>>(), "driver"_a)
      .def("record", &OwnedEvent::record, "stream"_a)
      .def("wait", &OwnedEvent::wait, nb::call_guard<nb::gil_scoped_release>(),
           "Return once everything before the last record has completed; at once where there was none.");

  nb::class_<Swap>(m, "Swap", "One swap that can be submitted again and again.")
      .def("prepare", &Swap::prepare)
      .def("submit", &Swap::submit, "stream"_a)
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
         std::uint64_t prime_ns) {
        return make_batched(std::move(driver), list_of(sources, destinations, bytes), direction,
                            {{order, prefer_overlap}, descriptors_per_call, coalesce, prime_ns});
      },
      "driver"_a, "sources"_a, "destinations"_a, "sizes"_a, "direction"_a, nb::kw_only(), "order"_a,
      "prefer_overlap"_a = false, "descriptors_per_call"_a = 0, "coalesce"_a = false, "prime_ns"_a = 0);

  nb::enum_<SmMethod>(m, "SmMethod").value("lanes", SmMethod::lanes).value("bulk", SmMethod::bulk);
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
         Direction direction, unsigned sms, std::size_t inline_up_to, std::size_t upload_from) {
        return make_sm_copy(std::move(kernel), list_of(sources, destinations, sizes),
                            {sms, direction, inline_up_to, upload_from});
      },
      "kernel"_a, "sources"_a, "destinations"_a, "sizes"_a, "direction"_a, nb::kw_only(), "sms"_a, "inline_up_to"_a,
      "upload_from"_a);
  m.def(
      "sm_copy_tensors",
      [](std::shared_ptr<SmKernel> kernel, const Words& source_bases, const Words& destination_bases,
         const Ids& source_ids, const Ids& destination_ids, Direction direction, std::size_t stride,
         std::size_t block_bytes, unsigned sms, std::size_t inline_up_to, std::size_t upload_from) {
        if (source_bases.size() != destination_bases.size() || source_ids.size() != destination_ids.size()) {
          throw nb::value_error("the two sides have different numbers of tensors or blocks");
        }
        return make_sm_copy(std::move(kernel),
                            TensorBlocks{copied(source_bases), copied(destination_bases), copied(source_ids),
                                         copied(destination_ids), stride, block_bytes},
                            {sms, direction, inline_up_to, upload_from});
      },
      "kernel"_a, "source_bases"_a, "destination_bases"_a, "source_ids"_a, "destination_ids"_a, "direction"_a,
      nb::kw_only(), "stride"_a, "block_bytes"_a, "sms"_a, "inline_up_to"_a, "upload_from"_a);

  nb::class_<Sample>(m, "Sample", "One timed swap, in microseconds.")
      .def_ro("prepare_us", &Sample::prepare_us)
      .def_ro("coalesce_us", &Sample::coalesce_us)
      .def_ro("submit_us", &Sample::submit_us)
      .def_ro("gpu_us", &Sample::gpu_us)
      .def_ro("wall_us", &Sample::wall_us)
      .def_ro("cpu_us", &Sample::cpu_us)
      .def_ro("gap_us", &Sample::gap_us)
      .def_ro("pending_before", &Sample::pending_before)
      .def_ro("pending_after", &Sample::pending_after)
      .def_ro("depth_held", &Sample::depth_held);
  nb::class_<Queue>(m, "Queue", "The swaps that wait in front of the measured one.")
      .def(
          "__init__",
          [](Queue* self, std::size_t depth, std::size_t streams, std::uint64_t delay_ns) {
            new (self) Queue{depth, streams, delay_ns};
          },
          "depth"_a = 0, "streams"_a = 1, "delay_ns"_a = 0)
      .def_ro("depth", &Queue::depth)
      .def_ro("streams", &Queue::streams)
      .def_ro("delay_ns", &Queue::delay_ns);
  nb::class_<TimedRegion>(m, "TimedRegion", "Stream state, queue, events and clocks around one submission.")
      .def(nb::init<std::shared_ptr<Driver>, Stream, std::uint64_t>(), "driver"_a, "stream"_a, "busy_delay_ns"_a)
      .def("measure", nb::overload_cast<Swap&, StreamState, const Queue&>(&TimedRegion::measure), "swap"_a, "state"_a,
           "queue"_a = Queue{}, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "measure_python",
          [](TimedRegion& region, const nb::callable& prepare, const nb::callable& submit, StreamState state,
             const Queue& queue) {
            // `submit` is called from here, so that its launch and little else of Python is timed.
            return region.measure([&] { prepare(); }, [&](Stream stream) { submit(stream); }, state, queue);
          },
          "prepare"_a, "submit"_a, "state"_a, "queue"_a = Queue{});

  m.def("probe_cpu_us", &probe_cpu_us, "Microseconds that a fixed piece of work takes on this thread's CPU.");
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
        return nb::make_tuple(verdict.wrong_bytes, verdict.first_wrong_offset, verdict.first_wrong_range);
      },
      "destination"_a, "source"_a, "size_bytes"_a, "source_offsets"_a, "destination_offsets"_a, "sizes"_a, "poison"_a,
      "Compare the first `bytes` of two host buffers: (wrong bytes, first wrong offset, its range or None).");
}
