#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "driver/cuda.hpp"
#include "driver/resources.hpp"
#include "fake_cuda.hpp"
#include "swap/swap.hpp"
#include "timing/timed_swap.hpp"

namespace {

using namespace kvbench;

std::string library(int version) { return FAKE_CUDA_FOLDER "/libfake_cuda_" + std::to_string(version) + ".so"; }

/// What the driver of this version was asked for; it is loaded.
FakeCuda& asked_of(int version) {
  void* const loaded = dlopen(library(version).c_str(), RTLD_NOW | RTLD_NOLOAD);
  return *reinterpret_cast<FakeCuda* (*)()>(dlsym(loaded, "fake_cuda"))();
}

template <typename Function>
Function* exported(int version, const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen(library(version).c_str(), RTLD_NOW), name));
}

/// Three descriptors of `sizes` bytes, 64 bytes apart.
struct Three {
  Three(const std::shared_ptr<Driver>& on, std::vector<std::size_t> sizes)
      : driver(on), host(on, MemoryKind::allocated, 192), device(on, MemoryKind::device, 192) {
    on->bind_thread();
    list.bytes = std::move(sizes);
    std::memset(reinterpret_cast<void*>(host.address()), 7, 192);
    std::memset(reinterpret_cast<void*>(device.address()), 0, 192);
  }

  std::unique_ptr<Swap> swap(BatchAttributes attributes = {}) {
    for (std::size_t i = 0; i < 3; ++i) {
      list.sources.push_back(host.address() + 64 * i);
      list.destinations.push_back(device.address() + 64 * i);
    }
    return make_batched(driver, list.view(), Direction::h2d, {.attributes = attributes});
  }

  int sum() const {
    int total = 0;
    for (std::size_t i = 0; i < 192; ++i) total += reinterpret_cast<const unsigned char*>(device.address())[i];
    return total;
  }

  std::shared_ptr<Driver> driver;
  Buffer host;
  Buffer device;
  DescriptorList list;
};

void each_driver_age_gets_its_own_signature() {
  check::that(open_cuda(0, library(12040))->batch_entry() == BatchEntry::none, "12.4 has no batched copy");
  check::that(open_cuda(0, library(12080))->batch_entry() == BatchEntry::cuda_12_8, "12.8 has nine arguments");
  check::that(open_cuda(0, library(13000))->batch_entry() == BatchEntry::cuda_13_0, "13.0 has eight arguments");
  // A driver may answer a request for a version that it does not have with the entry of another one.
  check::equal(asked_of(12040).batch_version, 0, "12.4 is not asked");
  check::equal(asked_of(12080).batch_version, 12080, "12.8 is asked for its own");
  check::equal(asked_of(13000).batch_version, 13000, "13.0 is asked for its own");
}

void every_age_moves_the_bytes() {
  for (const int version : {12040, 12080, 13000}) {
    const auto driver = open_cuda(0, library(version));
    const OwnedStream stream(driver);
    Three three(driver, {1, 20, 64});
    const auto swap = three.swap();
    swap->submit(stream.handle());
    check::equal(three.sum(), 7 * 85, "bytes moved by " + std::to_string(version));
    check::equal(swap->fell_back(), version == 12040, "fallback of " + std::to_string(version));
  }
}

void the_driver_gets_the_access_order_and_the_overlap_flag() {
  for (const int version : {12080, 13000}) {
    const auto driver = open_cuda(0, library(version));
    const OwnedStream stream(driver);
    for (const AccessOrder order : {AccessOrder::stream, AccessOrder::during_api_call, AccessOrder::any}) {
      for (const bool overlap : {false, true}) {
        Three three(driver, {1, 20, 64});
        three.swap({order, overlap})->submit(stream.handle());
        check::equal(asked_of(version).order, static_cast<int>(order), "access order");
        check::equal(asked_of(version).flags, overlap ? 1U : 0U, "flags");
        check::that(!asked_of(version).hints, "no location is named");
      }
    }
  }
}

void registered_memory_is_unregistered_and_unmapped() {
  const auto driver = open_cuda(0, library(13000));
  for (const MemoryKind kind : {MemoryKind::registered, MemoryKind::shared}) {
    void* pages = nullptr;
    {
      const Buffer buffer(driver, kind, 8192);
      pages = reinterpret_cast<void*>(buffer.address());
      check::that(asked_of(13000).registered.contains(pages), "the pages are registered");
      check::equal(msync(pages, 8192, MS_ASYNC), 0, "mapped");
    }
    check::that(asked_of(13000).registered.empty(), "the pages are unregistered");
    check::equal(msync(pages, 8192, MS_ASYNC), -1, "mapped after its release");
  }
}

void huge_pages_that_are_not_there_are_refused_with_those_that_are_free() {
  const auto driver = open_cuda(0, library(13000));
  for (const auto& [kind, name] : {std::pair(MemoryKind::huge_2mib, "524288 huge pages of 2 MiB are needed, "),
                                   std::pair(MemoryKind::huge_1gib, "1024 huge pages of 1 GiB are needed, ")}) {
    const auto error = check::thrown<DriverError>([&] { driver->allocate(kind, (std::size_t{1} << 40) - 1); });
    check::that(std::string(error.what()).find(name) != std::string::npos, error.what());
  }
  check::that(asked_of(13000).registered.empty(), "nothing is registered");
}

void the_failing_index_is_reported_where_the_driver_reports_it() {
  const auto old_driver = open_cuda(0, library(12080));
  const OwnedStream old_stream(old_driver);
  const auto with_index =
      check::thrown<DriverError>([&] { Three(old_driver, {1, 13, 1}).swap()->submit(old_stream.handle()); });
  check::equal(std::string(with_index.what()), "cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE (descriptor 1)", "12.8");
  const auto past_the_end =
      check::thrown<DriverError>([&] { Three(old_driver, {1, 17, 1}).swap()->submit(old_stream.handle()); });
  check::equal(std::string(past_the_end.what()), "cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE", "past the end");
  const auto new_driver = open_cuda(0, library(13000));
  const OwnedStream new_stream(new_driver);
  const auto without =
      check::thrown<DriverError>([&] { Three(new_driver, {1, 13, 1}).swap()->submit(new_stream.handle()); });
  check::equal(std::string(without.what()), "cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE", "13.0");
}

void what_is_missing_is_named() {
  const auto no_library = check::thrown<DriverError>([] { open_cuda(0, "libno_such_cuda.so"); });
  check::equal(no_library.call(), "dlopen(libno_such_cuda.so)", "call");
  const auto no_device = check::thrown<DriverError>([] { open_cuda(3, library(13000)); });
  check::equal(std::string(no_device.what()), "cuDeviceGet: CUDA_ERROR_INVALID_VALUE", "missing device");
  check::equal(count_cuda_devices(library(13000)), 2, "devices");
}

void a_delay_needs_its_kernel() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  const auto error = check::thrown<DriverError>([&] { driver->delay(1, stream.handle()); });
  check::equal(error.call(), "delay", "call");
  OwnedEvent start(driver), end(driver);
  start.record(stream.handle());
  end.record(stream.handle());
  check::equal(end.us_since(start), 500.0, "the time between the events");
}

void content_needs_its_kernels() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  Buffer pool(driver, MemoryKind::device, 64);
  const std::vector<std::uint64_t> zero{0}, bytes{64};
  const Ranges ranges{zero, bytes, zero};
  const auto write = check::thrown<DriverError>([&] { pool.write(ranges, 7, stream.handle()); });
  check::equal(write.call(), "write_content", "call");
  const auto audit = check::thrown<DriverError>([&] { static_cast<void>(pool.audit(ranges, 7, stream.handle())); });
  check::equal(audit.call(), "audit_content", "call");
}

void a_sample_is_taken_through_the_driver_s_events() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  Three three(driver, {1, 20, 64});
  TimedRegion region(driver, stream.handle(), 1000);
  const auto swap = three.swap();
  const auto submit = [&](Stream on) { swap->submit(on); };
  region.measure(submit, StreamState::idle);
  check::equal(three.sum(), 7 * 85, "bytes moved");
  // Without the delay nothing may be queued: it would run before the whole queue stands.
  const auto error =
      check::thrown<DriverError>([&] { region.measure(submit, StreamState::busy, {.depth = 2, .streams = 2}); });
  check::equal(error.call(), "delay", "call");
}

void a_stream_waits_for_a_word_of_at_least_a_value() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  driver->wait_for_word(stream.handle(), 4096, 7);
  check::equal(asked_of(13000).waited_word, 4096U, "the word");
  check::equal(asked_of(13000).waited_value, 7U, "the least value");
}

void a_stream_waits_for_an_event_through_the_driver() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  const OwnedEvent gate(driver);
  const int before = asked_of(13000).waits;
  gate.hold(stream.handle());
  check::equal(asked_of(13000).waits, before + 1, "waits");
}

void a_stream_of_a_priority_has_the_end_of_the_range() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream urgent(driver, Priority::high);
  check::equal(asked_of(13000).priority, -5, "high");
  const OwnedStream usual(driver);
  check::equal(asked_of(13000).priority, 0, "normal");
  const OwnedStream last(driver, Priority::low);
  check::equal(asked_of(13000).priority, 2, "low");
}

void each_device_keeps_to_its_context() {
  const auto first = open_cuda(0, library(12080));
  const auto second = open_cuda(1, library(12080));  // which makes its own context current
  check::that(!first->info().integrated && second->info().integrated, "which one shares the memory of the host");
  check::equal(first->free_memory().free_bytes, std::size_t{1}, "free memory of the first");
  check::equal(second->free_memory().free_bytes, std::size_t{2}, "free memory of the second");
  const OwnedStream stream(second);
  first->bind_thread();
  OwnedEvent event(second);
  event.record(stream.handle());
  Three three(second, {1, 20, 64});
  TimedRegion region(second, stream.handle(), 1000);
  first->bind_thread();  // as torch does when it looks at its own device
  const auto swap = three.swap();
  region.measure([&](Stream on) { swap->submit(on); }, StreamState::idle);
  check::equal(three.sum(), 7 * 85, "bytes moved");
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::allocated, MemoryKind::registered}) {
    first->bind_thread();
    const Buffer buffer(second, kind, 4096);
    check::equal(asked_of(12080).allocated_on, 1, "memory of the second is allocated in its context");
  }
  first->bind_thread();
  second->transfer(three.device.address(), three.host.address(), 192, Direction::h2d, stream.handle());
  first->bind_thread();
  second->register_pages(8192, 4096);
  check::equal(asked_of(12080).allocated_on, 1, "pages of the second are registered in its context");
  first->register_pages(12'288, 4096);
  second->unregister_pages(8192);
  check::equal(asked_of(12080).allocated_on, 1, "and unregistered");
  first->unregister_pages(12'288);
}

void a_call_that_failed_leaves_nothing_behind() {
  auto driver = open_cuda(1, library(13000));
  FakeCuda& asked = asked_of(13000);
  const auto fails = [&](const char* call, auto&& act) {
    asked.failing = call;
    check::thrown<DriverError>(act);
    asked.failing.clear();
  };
  fails("cuDeviceGetName", [] { open_cuda(0, library(13000)); });
  check::equal(asked.contexts, 1, "contexts that are retained");
  for (const char* call : {"cuMemHostRegister", "cuMemHostGetDevicePointer"}) {
    fails(call, [&] { driver->allocate(MemoryKind::registered, 8192); });
    check::that(asked.registered.empty(), "the pages are unregistered");
    check::equal(msync(asked.pages, 8192, MS_ASYNC), -1, "mapped");
  }
  fails("cuMemHostGetDevicePointer", [&] { driver->allocate(MemoryKind::allocated, 64); });
  check::equal(asked.pinned, 0, "pinned memory");
  {
    const OwnedStream stream(driver);
    driver->begin_capture(stream.handle());
    fails("cuGraphInstantiateWithFlags", [&] { driver->end_capture_into_graph(stream.handle()); });
    check::equal(asked.graphs, 0, "graphs");
  }
  driver.reset();
  check::equal(asked.contexts, 0, "contexts after the last driver");
}

void what_was_current_in_a_thread_is_current_again() {
  const auto use = exported<void(int)>(13000, "fake_cuda_use");
  const auto current = exported<int()>(13000, "fake_cuda_current");
  for (const int before : {-1, 0, 1}) {
    use(before);
    const auto unchanged = [&](const char* after) { check::equal(current(), before, after); };
    auto driver = open_cuda(1, library(13000));
    unchanged("opened");
    {
      const OwnedStream stream(driver);
      const OwnedEvent event(driver);
      unchanged("stream and event");
      for (const MemoryKind kind : {MemoryKind::device, MemoryKind::allocated, MemoryKind::registered}) {
        const Buffer buffer(driver, kind, 4096);
        unchanged("allocated");
        driver->fill(buffer.address(), 1, 64, stream.handle());
        unchanged("filled");
      }
      unchanged("released");
      event.hold(stream.handle());
      driver->free_memory();
      driver->region_of(4096);
      driver->load_kernel({}, "kernel", 0);
      unchanged("asked");
      {
        const CurrentDevice here(*driver);
        check::equal(current(), 1, "current in between");
      }
      unchanged("left");
    }
    driver.reset();
    unchanged("closed");
    check::equal(asked_of(13000).modules, 0, "modules that are loaded");
  }
  use(-1);
}

void each_kind_of_memory_has_its_place() {
  const auto driver = open_cuda(0, library(13000));
  const auto place = [&](FakeMemory memory) {
    asked_of(13000).memory = memory;
    return driver->region_of(8200);
  };
  check::that(place({.type = 1}).place == Place::pinned, "host");
  check::that(place({.type = 1, .device = 1}).place == Place::pinned, "host memory of another context");
  check::that(place({.type = 2}).place == Place::device, "device");
  check::that(place({.type = 2, .device = 1}).place == Place::other_device, "another device");
  check::equal(place({.type = 2, .device = 1}).device, 1, "its ordinal");
  for (const unsigned type : {1, 2, 4})
    check::that(place({.type = type, .managed = 1}).place == Place::managed, "managed");
  for (const unsigned type : {0, 3, 4}) check::that(place({.type = type}).place == Place::pageable, "neither");
  check::that(!place({.type = 1}).other_address, "the address for kernels");
  check::that(place({.type = 1, .kernel_offset = 4096}).other_address, "another address for kernels");
  check::that(place({.type = 2, .mapped = true}).mapped && !place({.type = 2}).mapped, "mapped");
  check::equal(asked_of(13000).mappings, 0, "handles of mappings that are held");
  check::that(place({.type = 1, .read_only = true}).read_only && !place({.type = 1}).read_only, "read-only");
  const Region region = place({.type = 2});
  check::equal(region.begin, Address{8192}, "begin");
  check::equal(region.bytes, std::size_t{4096}, "bytes");
}

void memory_that_is_mapped_ends_at_a_hole() {
  constexpr std::size_t kPiece = 2 << 20, kRange = 1024 * kPiece;
  const auto driver = open_cuda(0, library(13000));
  const Address begin = 5 * kRange, hole = begin + 300 * kPiece;
  asked_of(13000).memory = {.type = 2, .mapped = true, .range = kRange, .hole = hole};
  check::that(driver->region_of(hole).place == Place::pageable, "nothing is in the hole");
  const Region before = driver->region_of(hole - 5), behind = driver->region_of(hole + kPiece + 5);
  check::equal(before.end(), hole, "end before the hole");
  check::equal(behind.begin, hole + kPiece, "begin behind the hole");
  const Region first = driver->region_of(begin + 7), last = driver->region_of(begin + kRange - 1);
  check::equal(first.begin, begin, "begin of the range");
  check::equal(last.end(), begin + kRange, "end of the range");
  check::that(first.bytes > 10 * kPiece && first.bytes < kRange, "some of it at once");
  asked_of(13000).memory = {};
}

void a_thread_allocates_and_asks_while_another_one_captures() {
  const auto driver = open_cuda(0, library(13000));
  FakeCuda& asked = asked_of(13000);
  asked.captures = true;
  {
    const Buffer buffer(driver, MemoryKind::allocated, 4096);
    const OwnedStream stream(driver);
    const OwnedEvent event(driver);
    const CurrentDevice current(*driver);
    check::that(driver->idle(stream.handle()) && event.completed(), "asked");
  }
  check::that(!asked.spoiled, "the capture goes on");
  const OwnedStream stream(driver);
  check::thrown<DriverError>([&] { driver->idle(stream.handle()); });
  check::that(asked.spoiled, "the thread is as it was after that");
  asked.captures = asked.spoiled = false;
}

void a_process_has_one_device_and_loads_a_kernel_once() {
  FakeCuda& asked = asked_of(12080);
  const int contexts = asked.contexts, modules = asked.modules;
  auto driver = shared_cuda(1, library(12080));
  check::that(driver == shared_cuda(1, library(12080)), "the same device");
  check::that(driver != shared_cuda(0, library(12080)), "another device");
  const std::vector<std::byte> one(8, std::byte{1}), two(8, std::byte{2});
  driver->load_kernel(one, "kernel", 0);
  driver->load_kernel(one, "another", 0);
  driver->load_kernel(two, "kernel", 0);
  check::equal(asked.modules, modules + 2, "modules");
  driver.reset();
  check::equal(asked.contexts, contexts + 2, "contexts: a device stays");
  check::equal(asked.modules, modules + 2, "modules: a kernel stays");
}

void a_launch_requests_clusters_where_it_has_them() {
  const auto driver = open_cuda(0, library(12040));
  driver->bind_thread();
  const OwnedStream stream(driver);
  const Kernel kernel = driver->load_kernel({}, "kernel", 0);
  int argument = 0;
  std::array<void*, 1> arguments{&argument};
  for (const auto& [blocks, cluster] : {std::pair{12U, 4U}, {3U, 1U}, {2U, 2U}}) {
    const Grid grid{.blocks = blocks, .threads = 64, .shared_bytes = 48, .cluster = cluster};
    driver->launch(kernel, grid, arguments.data(), stream.handle());
    check::equal(asked_of(12040).grid, blocks, "blocks");
    check::equal(asked_of(12040).cluster, cluster == 1 ? 0U : cluster, "cluster");
  }
  check::thrown<DriverError>([&] {
    driver->launch(kernel, {.blocks = 3, .threads = 64, .shared_bytes = 48, .cluster = 2}, arguments.data(),
                   stream.handle());
  });
}

void a_capture_is_known_and_a_number_that_is_no_stream() {
  const auto driver = open_cuda(0, library(13000));
  const OwnedStream stream(driver);
  for (const int status : {0, 1, 2}) {
    asked_of(13000).capture_status = status;
    check::equal(driver->capturing(stream.handle()), status != 0, "captured");
  }
  asked_of(13000).capture_status = 0;
  check::that(!driver->capturing(2), "the stream of the thread");
  for (const Stream number : {Stream{3}, Stream{12'344}, stream.handle() + 1, ~Stream{7}}) {
    check::thrown<std::invalid_argument>([&] { driver->capturing(number); });
  }
}

}  // namespace

int main() {
  return check::run({
      {"each driver age gets its own signature", each_driver_age_gets_its_own_signature},
      {"every age moves the bytes", every_age_moves_the_bytes},
      {"the driver gets the access order and the overlap flag", the_driver_gets_the_access_order_and_the_overlap_flag},
      {"registered memory is unregistered and unmapped", registered_memory_is_unregistered_and_unmapped},
      {"huge pages that are not there are refused with those that are free",
       huge_pages_that_are_not_there_are_refused_with_those_that_are_free},
      {"the failing index is reported where the driver reports it",
       the_failing_index_is_reported_where_the_driver_reports_it},
      {"what is missing is named", what_is_missing_is_named},
      {"a delay needs its kernel", a_delay_needs_its_kernel},
      {"content needs its kernels", content_needs_its_kernels},
      {"a stream waits for a word of at least a value", a_stream_waits_for_a_word_of_at_least_a_value},
      {"a stream waits for an event through the driver", a_stream_waits_for_an_event_through_the_driver},
      {"a stream of a priority has the end of the range", a_stream_of_a_priority_has_the_end_of_the_range},
      {"each device keeps to its context", each_device_keeps_to_its_context},
      {"a call that failed leaves nothing behind", a_call_that_failed_leaves_nothing_behind},
      {"what was current in a thread is current again", what_was_current_in_a_thread_is_current_again},
      {"each kind of memory has its place", each_kind_of_memory_has_its_place},
      {"memory that is mapped ends at a hole", memory_that_is_mapped_ends_at_a_hole},
      {"a thread allocates and asks while another one captures",
       a_thread_allocates_and_asks_while_another_one_captures},
      {"a process has one device, and loads a kernel once", a_process_has_one_device_and_loads_a_kernel_once},
      {"a launch requests clusters where it has them", a_launch_requests_clusters_where_it_has_them},
      {"a capture is known, and a number that is no stream", a_capture_is_known_and_a_number_that_is_no_stream},
      {"a sample is taken through the driver's events", a_sample_is_taken_through_the_driver_s_events},
  });
}
