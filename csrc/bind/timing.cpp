#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>
#include <nanobind/typing.h>

#include "bind/bind.hpp"
#include "timing/clock.hpp"
#include "timing/swap_loop.hpp"
#include "timing/timed_swap.hpp"

namespace kvbench::bind {
namespace {

using Submit = nb::typed<nb::callable, nb::object(Stream)>;
using Work = std::optional<nb::typed<nb::callable, nb::object()>>;
using Writable = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// `swap` is a Swap or a function that submits; the caller keeps it.
TimedRegion::Submit submit_of(nb::handle swap) {
  if (nb::isinstance<Swap>(swap)) {
    return [compiled = nb::cast<Swap*>(swap)](Stream stream) { compiled->submit(stream); };
  }
  return [swap](Stream stream) {
    const nb::gil_scoped_acquire gil;
    swap(stream);
  };
}

/// The caller keeps `work`, and can have released the interpreter.
TimedRegion::Work work_of(const Work& work) {
  if (!work) return {};
  return [&work] {
    const nb::gil_scoped_acquire gil;
    (*work)();
  };
}

void swap_loop(nb::module_& m) {
  nb::class_<LoopTimes>(m, "LoopTimes", "The swaps of a turn and the CPU time of all, in microseconds.")
      .def_ro("caller_us", &LoopTimes::caller_us)
      .def_ro("wall_us", &LoopTimes::wall_us)
      .def_ro("cpu_us", &LoopTimes::cpu_us);
  nb::class_<SwapLoop>(m, "SwapLoop", "Consecutive swaps on one stream.")
      .def(
          "__init__",
          [](SwapLoop* self, std::shared_ptr<Driver> driver, Stream stream, nb::object swap,
             const std::vector<std::pair<Writable, Words>>& columns, bool gated) {
            std::vector<ListColumn> lists;
            for (const auto& [array, sets] : columns) lists.push_back({{array.data(), array.size()}, view(sets)});
            new (self) SwapLoop(std::move(driver), stream, submit_of(swap), std::move(lists), gated);
          },
          "driver"_a, "stream"_a, "swap"_a, "columns"_a.noconvert(), "gated"_a, nb::keep_alive<1, 4>(),
          nb::keep_alive<1, 5>(),
          "`swap` is a Swap or a function that submits one; `columns` the arrays of its list, each with its content "
          "for "
          "all sets of blocks in turn. If `gated`, each submission meets a stream that waits until it returns.")
      .def(
          "run",
          [](SwapLoop& loop, double seconds) {
            return loop.run(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
          },
          "seconds"_a, nb::call_guard<nb::gil_scoped_release>(), "Swap for this long, at least once.")
      .def("finish", &SwapLoop::finish, nb::call_guard<nb::gil_scoped_release>(),
           "Run the swap of the list that is written.");
}

}  // namespace

void timing(nb::module_& m) {
  nb::enum_<StreamState>(m, "StreamState")
      .value("idle", StreamState::idle)
      .value("busy", StreamState::busy)
      .value("gated", StreamState::gated)
      .value("opened", StreamState::opened)
      .value("unwaited", StreamState::unwaited)
      .value("unwaited_event", StreamState::unwaited_event);
  nb::class_<Sample>(m, "Sample", "One timed swap, in microseconds.")
      .def_ro("caller_us", &Sample::caller_us)
      .def_ro("event_us", &Sample::event_us)
      .def_ro("wall_us", &Sample::wall_us)
      .def_ro("cpu_us", &Sample::cpu_us)
      .def_ro("chain_us", &Sample::chain_us)
      .def_ro("pending_before", &Sample::pending_before)
      .def_ro("pending_after", &Sample::pending_after)
      .def_ro("depth_held", &Sample::depth_held);
  nb::class_<Queue>(m, "Queue", "The swaps queued before the measured one.")
      .def(nb::init<std::size_t, std::size_t, std::uint64_t>(), "depth"_a = 0, "streams"_a = 1, "delay_ns"_a = 0);
  nb::class_<TimedRegion>(m, "TimedRegion", "Stream state, queue, events and clocks around one submission.")
      .def(nb::init<std::shared_ptr<Driver>, Stream, std::uint64_t>(), "driver"_a, "stream"_a, "busy_delay_ns"_a)
      .def(
          "measure",
          [](TimedRegion& region, Swap& swap, StreamState state, const Queue& queue, const Work& work) {
            return region.measure([&](Stream stream) { swap.submit(stream); }, state, queue, work_of(work));
          },
          "swap"_a, "state"_a, "queue"_a = Queue{}, "work"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "sustained",
          [](TimedRegion& region, const std::vector<Swap*>& swaps, std::size_t lead) {
            std::vector<TimedRegion::Submit> chain;
            for (Swap* swap : swaps) {
              if (swap == nullptr) throw nb::value_error("sustained: a swap is None");
              chain.emplace_back([swap](Stream stream) { swap->submit(stream); });
            }
            return region.sustained(chain, lead);
          },
          "swaps"_a, "lead"_a, nb::call_guard<nb::gil_scoped_release>(),
          "The time of each of `swaps` behind the first `lead`, in a chain that meets an idle stream. ValueError "
          "unless "
          "there are more.")
      .def("measure_delay_us", &TimedRegion::measure_delay_us, "delay_ns"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Microseconds between two events for which the stream is really busy if a delay of `delay_ns` is requested.")
      .def(
          "measure_python",
          [](TimedRegion& region, const Submit& submit, StreamState state, const Queue& queue, const Work& work) {
            // Calling `submit` from here times its launch and little other Python code.
            return region.measure([&](Stream stream) { submit(stream); }, state, queue, work_of(work));
          },
          "submit"_a, "state"_a, "queue"_a = Queue{}, "work"_a = nb::none())
      .def(
          "sustained_python",
          [](TimedRegion& region, const std::vector<Submit>& swaps, std::size_t lead) {
            const std::vector<TimedRegion::Submit> chain(swaps.begin(), swaps.end());
            return region.sustained(chain, lead);
          },
          "swaps"_a, "lead"_a, "The same for functions that submit.");

  swap_loop(m);
  m.def("probe_cpu_us", &probe_cpu_us, "Microseconds that a fixed piece of work takes on this thread's CPU.");
}

}  // namespace kvbench::bind
