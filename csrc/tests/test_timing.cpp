#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "check.hpp"
#include "forwarding_driver.hpp"
#include "timing/swap_loop.hpp"
#include "timing/timed_swap.hpp"

namespace {

using namespace kvbench;

void a_stream_runs_in_order_and_a_sample_tells_its_state() {
  Bench bench;
  // Long enough that a thread which has to wait for its core does not outlast it.
  constexpr std::uint64_t kDelayNs = 400'000'000;
  TimedRegion region(bench.driver, bench.stream.handle(), kDelayNs);
  const auto swap = bench.batched(bench.reversed());
  const Sample idle = region.measure(Bench::submission(*swap), StreamState::idle);
  check::that(!idle.pending_before && !idle.pending_after, "idle: nothing was pending");
  check::that(idle.wall_us >= idle.caller_us && idle.caller_us > 0, "idle: wall time contains the caller's");
  const Sample busy = region.measure(Bench::submission(*swap), StreamState::busy);
  check::that(busy.pending_before && busy.pending_after, "busy: the delay was pending");
  check::that(busy.wall_us > kDelayNs / 4e3, "busy: wall time contains the rest of the delay");
  check::that(busy.gpu_us < kDelayNs / 2e3, "busy: the event time does not contain the delay");
}

void a_gate_holds_a_swap_back_and_its_opening_starts_the_clock() {
  Bench bench;
  constexpr std::uint64_t kDelayNs = 400'000'000;
  TimedRegion region(bench.driver, bench.stream.handle(), kDelayNs);
  const auto swap = bench.batched(bench.reversed());
  const Sample gated = region.measure(Bench::submission(*swap), StreamState::gated);
  check::that(gated.pending_before && gated.pending_after, "gated: the event was not reached");
  check::that(gated.wall_us > kDelayNs / 4e3, "gated: wall time contains the rest of the delay");
  check::that(gated.gpu_us > 0 && gated.gpu_us < kDelayNs / 2e3, "gated: from the opening of the gate");
  const Sample opened = region.measure(Bench::submission(*swap), StreamState::opened);
  check::that(!opened.pending_before && !opened.pending_after, "opened: the event was reached");
  check::that(opened.wall_us < kDelayNs / 4e3 && opened.gpu_us == 0, "opened: nothing to wait for");
  const Sample early =
      TimedRegion(bench.driver, bench.stream.handle(), 1000)
          .measure([](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }, StreamState::gated);
  check::that(!early.pending_after, "gated: the gate opened before the submission was done");
  TimedRegion brief(bench.driver, bench.stream.handle(), 1000);
  const Sample late = brief.measure(Bench::submission(*swap), StreamState::gated, {.delay_ns = kDelayNs});
  check::that(late.wall_us > kDelayNs / 4e3, "gated: the queue's delay is added");
}

void a_swap_behind_a_gate_waits_for_it() {
  Bench bench;
  OwnedStream other(bench.driver);
  OwnedEvent gate(bench.driver);
  OwnedEvent after(bench.driver);
  bench.driver->delay(50'000'000, other.handle());
  gate.record(other.handle());
  gate.hold(bench.stream.handle());
  after.record(bench.stream.handle());
  check::that(!after.completed(), "later work waits");
  after.wait();
  check::that(gate.completed(), "until the event is reached");
}

/// Counts what is asked of events and of the stream while a sample runs.
class CountingDriver final : public ForwardingDriver {
 public:
  void record(Event event, Stream stream) override {
    recorded = event;
    last_is_over = false;
    ++records;
    ForwardingDriver::record(event, stream);
  }
  bool completed(Event event) override {
    if (event != recorded) ++queries_of_others;
    const bool done = ForwardingDriver::completed(event);
    last_is_over = last_is_over || (done && event == recorded);
    return done;
  }
  bool idle(Stream stream) override {
    ++queries_of_others;
    return ForwardingDriver::idle(stream);
  }

  void copy(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    ++copies;
    ForwardingDriver::copy(destination, source, bytes, direction, stream);
  }

  Event recorded = 0;
  bool last_is_over = false;  ///< whether the event that was recorded last was seen to be over
  int copies = 0;
  int records = 0;
  int queries_of_others = 0;
};

void an_idle_sample_asks_only_for_its_own_end() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  const Sample sample = region.measure([](Stream) {}, StreamState::idle);
  check::equal(driver->queries_of_others, 0, "queries of other events and of the stream");
  check::equal(driver->records, 2, "records: the start and the end");
  check::that(!sample.pending_after, "nothing was pending");
}

void a_sample_begins_when_the_events_before_it_are_over() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  const auto submit = [&](Stream) { check::that(driver->last_is_over, "the last event was seen to be over"); };
  region.measure(submit, StreamState::idle);
  check::equal(driver->records, 2, "idle: the start, and the end");
  region.measure(submit, StreamState::opened);
  check::equal(driver->records, 5, "opened: the gate too");
}

void work_is_the_last_before_a_submission_on_an_idle_stream() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  for (const StreamState state : {StreamState::idle, StreamState::opened, StreamState::busy, StreamState::gated}) {
    int records_at_work = -1;
    driver->records = 0;
    region.measure(
        [&](Stream) {
          const bool pending = state == StreamState::busy || state == StreamState::gated;
          check::that(records_at_work >= 0, "the work comes before the submission");
          check::equal(records_at_work, pending ? 0 : driver->records, "events recorded before the work");
        },
        state, {}, [&] { records_at_work = driver->records; });
  }
}

void a_sample_leaves_out_what_was_on_the_stream_before() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  bench.driver->delay(200'000'000, bench.stream.handle());
  const Sample gated = region.measure([](Stream) {}, StreamState::gated);
  check::that(gated.gpu_us < 100'000, "the gate opens on a stream without other work");
}

/// Its clock counts submissions: 100 us for each between two events.
class SubmissionClock final : public ForwardingDriver {
 public:
  void record(Event event, Stream stream) override {
    at_[event] = submissions;
    ForwardingDriver::record(event, stream);
  }
  double elapsed_us(Event start, Event end) override { return 100.0 * (at_[end] - at_[start]); }
  int submissions = 0;

 private:
  std::map<Event, int> at_;
};

void a_chain_is_divided_by_the_swaps_that_it_has_more() {
  const auto driver = std::make_shared<SubmissionClock>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  const TimedRegion::Submit slow = [&](Stream) {
    ++driver->submissions;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // so that the longer chain takes longer
  };
  const Sample taken = region.sustained(std::vector<TimedRegion::Submit>(10, slow), 2);
  check::equal(taken.gpu_us, 100.0, "six swaps more take six times as long");
}

void cpu_time_leaves_out_what_a_submission_slept() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 100'000'000);
  for (const StreamState state : {StreamState::idle, StreamState::busy}) {
    const Sample slept =
        region.measure([](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }, state);
    check::that(slept.caller_us >= 30'000, "the submission's time");
    check::that(slept.cpu_us < 15'000, "its CPU time");
    const Sample worked = region.measure(
        [](Stream) {
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
          while (std::chrono::steady_clock::now() < end) {
          }
        },
        state);
    check::that(worked.cpu_us > 3'000 && worked.cpu_us <= worked.caller_us, "CPU time of a thread at work");
  }
}

void the_cpu_time_of_a_chain_is_no_more_than_its_time() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const TimedRegion::Submit sleeps = [](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const TimedRegion::Submit works = [](Stream) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  std::vector<TimedRegion::Submit> chain(4, sleeps);
  chain.resize(10, works);
  const Sample sample = region.sustained(chain, 4);
  check::that(sample.cpu_us <= sample.caller_us, "CPU time within the caller's time");
}

/// Notes whether the device is current.
class CurrentDriver final : public ForwardingDriver {
 public:
  Previous enter() const noexcept override {
    is_current = true;
    return 0;
  }
  mutable bool is_current = false;
};

void a_loop_is_current_again_after_a_submission_that_was_not() {
  const auto driver = std::make_shared<CurrentDriver>();
  const OwnedStream stream(driver);
  std::size_t submissions = 0;
  const auto elsewhere = [&](Stream) {
    check::that(driver->is_current, "current at a submission");
    driver->is_current = false;  // as Python code can leave it
    ++submissions;
  };
  SwapLoop loop(driver, stream.handle(), elsewhere, {});
  while (submissions < 3) loop.run(std::chrono::milliseconds(1));
  check::that(driver->is_current, "current after the loop");
}

void sustained_swaps_run_behind_each_other_and_ask_only_for_their_end() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  Buffer source(driver, MemoryKind::allocated, 64 * kBlock), destination(driver, MemoryKind::device, 64 * kBlock);
  std::deque<DescriptorList> lists;
  std::vector<std::unique_ptr<Swap>> owned;
  std::vector<TimedRegion::Submit> swaps;
  for (unsigned char i = 0; i < 8; ++i) {
    std::memset(source.host(64 * kBlock).data() + i * kBlock, i + 1, kBlock);
    lists.push_back({{source.address() + i * kBlock}, {destination.address() + i * kBlock}, {kBlock}});
    owned.push_back(make_per_block(driver, lists.back().view(), Direction::h2d));
    swaps.emplace_back(Bench::submission(*owned.back()));
  }
  int attempts = 0;
  swaps.front() = [&attempts, swap = owned.front().get()](Stream to) {
    ++attempts;
    swap->submit(to);
  };
  const Sample taken = region.sustained(swaps, 2);
  check::that(std::memcmp(reinterpret_cast<void*>(source.address()), reinterpret_cast<void*>(destination.address()),
                          8 * kBlock) == 0,
              "every swap ran");
  check::equal(driver->copies, attempts * 8, "swaps");
  check::equal(driver->records, 4 * attempts, "two event records a chain");
  check::that(taken.wall_us > 0 && taken.caller_us >= taken.cpu_us, "the times");
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 0); });
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 4); });
  check::thrown<std::invalid_argument>([&] { region.sustained({}, 1); });
}

void a_sustained_swap_costs_what_one_more_costs() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  // The first of a chain meets an idle stream and may take any time: it must not count.
  const auto nap = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  std::vector<TimedRegion::Submit> swaps(8, [&](Stream) { nap(5); });
  swaps[0] = swaps[2] = [&](Stream) { nap(60); };
  const auto is_one_more = [](double us) { return us >= 4'000 && us < 30'000; };
  Sample taken;
  // A busy host holds chains up: one of several tells the time.
  for (int attempt = 0; attempt < 10 && !(is_one_more(taken.wall_us) && is_one_more(taken.caller_us)); ++attempt) {
    taken = region.sustained(swaps, 2);
  }
  check::that(is_one_more(taken.wall_us), "one more swap");
  check::that(is_one_more(taken.caller_us) && taken.cpu_us < 4'000, "its submission");
  check::that(taken.chain_us > taken.wall_us, "the long chain, with its first swap, for each of its swaps");
}

void a_chain_that_always_waits_behind_the_longer_one_is_measured() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto nap = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  std::vector<TimedRegion::Submit> swaps(8, [&](Stream) { nap(3); });
  bool behind_longer = true;
  const auto begins = [&](bool longer) {
    return [&, longer](Stream) { nap(std::exchange(behind_longer, longer) ? 60 : 3); };
  };
  swaps[0] = begins(false);
  swaps[2] = begins(true);
  const Sample taken = region.sustained(swaps, 2);
  check::that(taken.wall_us > 0, "four swaps more take longer");
}

void chains_that_never_grow_longer_are_refused() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  std::vector<TimedRegion::Submit> swaps(4, [](Stream) {});
  swaps[0] = [](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); };
  check::thrown<std::runtime_error>([&] { region.sustained(swaps, 1); });
}

void sustained_swaps_that_fail_leave_nothing_in_flight() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  const TimedRegion::Submit one = Bench::submission(*swap);
  bench.driver->arm({.kind = FaultKind::error_at_call, .at = 3});
  check::thrown<DriverError>([&] { region.sustained(std::vector<TimedRegion::Submit>(5, one), 2); });
  check::that(bench.driver->idle(bench.stream.handle()), "the stream has settled");
}

void a_delay_is_measured_by_itself() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 50'000'000);
  for (const std::uint64_t delay_ns : {std::uint64_t{1'000'000}, std::uint64_t{20'000'000}}) {
    const double measured_us = region.measure_delay_us(delay_ns);
    check::that(measured_us >= static_cast<double>(delay_ns) / 1e3, "no shorter than what was asked for");
  }
  check::that(region.measure_delay_us(0) < 50'000, "the delay in front does not count");
  check::that(bench.driver->idle(bench.stream.handle()), "nothing is left on the stream");
}

/// Which streams `queue` and the measured swap are submitted on, numbered as they come.
std::vector<std::size_t> dealt(Queue queue) {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  std::vector<Stream> seen;
  std::vector<std::size_t> order;
  region.measure(
      [&](Stream stream) {
        if (std::ranges::find(seen, stream) == seen.end()) seen.push_back(stream);
        order.push_back(static_cast<std::size_t>(std::ranges::find(seen, stream) - seen.begin()));
      },
      StreamState::busy, queue);
  check::that(!seen.empty() && seen.front() == bench.stream.handle(), "the pool begins with the region's own stream");
  return order;
}

void a_queue_is_dealt_over_its_streams_in_turn() {
  using Order = std::vector<std::size_t>;
  check::that(dealt({}) == Order{0}, "without a queue");
  check::that(dealt({.depth = 3}) == Order{0, 0, 0, 0}, "three on one stream");
  check::that(dealt({.depth = 4, .streams = 3}) == Order{0, 1, 2, 0, 1}, "four on three streams");
}

void queued_swaps_run_before_the_measured_one() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  for (const Queue queue : {Queue{.depth = 5}, Queue{.depth = 5, .streams = 3}}) {
    const auto swap = bench.batched(bench.reversed());
    bench.driver->arm({.kind = FaultKind::error_at_call, .at = 6});
    region.measure(Bench::submission(*swap), StreamState::busy, queue);  // calls 0 to 5
    check::that(bench.arrived(bench.reversed()), "every block moved");
    check::thrown<DriverError>([&] { swap->submit(bench.stream.handle()); });
    bench.driver->arm({.kind = FaultKind::error_at_call, .at = 5});
    check::thrown<DriverError>([&] { region.measure(Bench::submission(*swap), StreamState::busy, queue); });
  }
}

void a_sample_tells_whether_its_queue_stood() {
  Bench bench;
  constexpr std::uint64_t kDelayNs = 400'000'000;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  for (const std::size_t streams : {1U, 3U}) {
    const Sample held = region.measure(Bench::submission(*swap), StreamState::busy,
                                       {.depth = 4, .streams = streams, .delay_ns = kDelayNs});
    check::that(held.depth_held && held.pending_before, "the whole queue waited behind the delay");
    check::that(held.wall_us > kDelayNs / 4e3, "wall time contains the rest of the delay");
    // A submission that waits lets the delay before it end.
    const Sample late = region.measure([&](Stream stream) { bench.driver->synchronize(stream); }, StreamState::busy,
                                       {.depth = 1, .streams = streams});
    check::that(!late.depth_held, "the queue had begun to run");
  }
  check::that(region.measure(Bench::submission(*swap), StreamState::idle).depth_held,
              "no queue, nothing that has started");
}

void a_queue_needs_a_busy_stream() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  for (const Queue queue : {Queue{.depth = 1}, Queue{.streams = 2}}) {
    check::thrown<std::invalid_argument>([&] { region.measure(Bench::submission(*swap), StreamState::idle, queue); });
  }
  check::thrown<std::invalid_argument>(
      [&] { region.measure(Bench::submission(*swap), StreamState::busy, {.streams = 0}); });
}

void a_failed_sample_leaves_nothing_in_flight() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 20'000'000);
  std::vector<Stream> seen;
  const auto refuse_the_fourth = [&](Stream stream) {
    seen.push_back(stream);
    if (seen.size() == 4) throw DriverError("submit", "REFUSED");
  };
  check::thrown<DriverError>([&] { region.measure(refuse_the_fourth, StreamState::busy, {.depth = 3, .streams = 3}); });
  for (const Stream stream : seen) check::that(bench.driver->idle(stream), "the stream has settled");
}

}  // namespace

int main() {
  return check::run({
      {"a sample tells the stream's state", a_stream_runs_in_order_and_a_sample_tells_its_state},
      {"a gate holds a swap back", a_gate_holds_a_swap_back_and_its_opening_starts_the_clock},
      {"a swap behind a gate waits for it", a_swap_behind_a_gate_waits_for_it},
      {"an idle sample asks only for its own end", an_idle_sample_asks_only_for_its_own_end},
      {"a sample begins when the events before it are over", a_sample_begins_when_the_events_before_it_are_over},
      {"work is the last before a submission on an idle stream",
       work_is_the_last_before_a_submission_on_an_idle_stream},
      {"a sample leaves out what was on the stream before", a_sample_leaves_out_what_was_on_the_stream_before},
      {"a chain is divided by the swaps that it has more", a_chain_is_divided_by_the_swaps_that_it_has_more},
      {"CPU time leaves out what a submission slept", cpu_time_leaves_out_what_a_submission_slept},
      {"the CPU time of a chain is no more than its time", the_cpu_time_of_a_chain_is_no_more_than_its_time},
      {"a loop is current again after a submission that was not",
       a_loop_is_current_again_after_a_submission_that_was_not},
      {"sustained swaps run behind each other", sustained_swaps_run_behind_each_other_and_ask_only_for_their_end},
      {"a sustained swap costs what one more costs", a_sustained_swap_costs_what_one_more_costs},
      {"a chain that always waits behind the longer one is measured",
       a_chain_that_always_waits_behind_the_longer_one_is_measured},
      {"chains that never grow longer are refused", chains_that_never_grow_longer_are_refused},
      {"sustained swaps that fail leave nothing in flight", sustained_swaps_that_fail_leave_nothing_in_flight},
      {"a delay is measured by itself", a_delay_is_measured_by_itself},
      {"a queue is dealt over its streams in turn", a_queue_is_dealt_over_its_streams_in_turn},
      {"queued swaps run before the measured one", queued_swaps_run_before_the_measured_one},
      {"a sample tells whether its queue stood", a_sample_tells_whether_its_queue_stood},
      {"a queue needs a busy stream", a_queue_needs_a_busy_stream},
      {"a failed sample leaves nothing in flight", a_failed_sample_leaves_nothing_in_flight},
  });
}
