#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "check.hpp"
#include "gated_driver.hpp"
#include "timing/swap_loop.hpp"
#include "timing/timed_swap.hpp"

namespace {

using namespace kvbench;

/// A region of a device without clocks, and a submission that it counts.
struct GatedBench {
  explicit GatedBench(std::uint64_t delay_ns = 1000) : stream(driver), region(driver, stream.handle(), delay_ns) {}

  std::shared_ptr<GatedDriver> driver = std::make_shared<GatedDriver>();
  OwnedStream stream;
  TimedRegion region;
  TimedRegion::Submit submit = [this](Stream) { ++driver->works; };
  TimedRegion::Submit waits = [this](Stream to) { driver->synchronize(to); };  ///< so that the delay before it ends
};

/// Clocks at one instant.
struct Instant {
  std::int64_t wall_ns = kvbench::wall_ns();
  std::int64_t cpu_ns = kvbench::thread_cpu_ns();
};

/// As GatedDriver; notes when each event is recorded, and lets a stream's own work take as long as that of the thread.
class NotingDriver final : public GatedDriver {
 public:
  void record(Event event, Stream stream) override {
    records.emplace_back();
    GatedDriver::record(event, stream);
  }
  bool completed(Event event) override {
    if (asked) asked();
    return GatedDriver::completed(event);
  }
  /// A swap of `count` works: `cpu_us` of the thread, and then as much of its stream, which holds up neither.
  void swap(Stream stream, int count, std::int64_t cpu_us) {
    Instant began;
    works += count;
    work_for(1000 * cpu_us);
    Submitted& submitted = swaps.emplace_back(stream, began);
    reinterpret_cast<HostStream*>(stream)->submit([&submitted, cpu_us] {
      work_for(1000 * cpu_us);
      submitted.arrived = {};
    });
    submitted.returned = {};
  }

  struct Submitted {
    Stream stream;
    Instant began, returned{}, arrived{};
  };
  std::vector<Instant> records;
  std::deque<Submitted> swaps;
  std::function<void()> asked;  ///< whenever an event is asked about, if set
};

double us_between(const Instant& from, const Instant& to) { return to_us(to.wall_ns - from.wall_ns); }
double cpu_between(const Instant& from, const Instant& to) { return to_us(to.cpu_ns - from.cpu_ns); }

void within(double have, double least, double most, const std::string& what) {
  check::that(least - 1 <= have && have <= most + 1,
              what + ": " + std::to_string(have) + " in " + std::to_string(least) + " to " + std::to_string(most));
}

/// Every time lies between what a swap saw of it and what the events around the swap saw.
void the_times_of_a_sample_are_those_of_its_swap() {
  for (const StreamState state : {StreamState::idle, StreamState::busy, StreamState::gated, StreamState::opened,
                                  StreamState::unwaited, StreamState::unwaited_event}) {
    const bool pending = state == StreamState::busy || state == StreamState::gated;
    for (const std::size_t depth : {0U, 1U, 4U}) {
      for (const std::size_t streams : {1U, 3U}) {
        if ((depth > 0 || streams > 1) && state != StreamState::busy) continue;
        const auto driver = std::make_shared<NotingDriver>();
        const OwnedStream stream(driver);
        TimedRegion region(driver, stream.handle(), 1000);
        int submissions = 0;
        const Sample sample =
            region.measure([&](Stream to) { driver->swap(to, ++submissions, 700); }, state, {depth, streams, 5000});
        const Instant over;
        const auto& last = driver->swaps.back();
        const std::size_t records = driver->records.size();
        check::equal(driver->swaps.size(), depth + 1, "swaps");
        check::equal(driver->swaps[0].stream, stream.handle(), "the pool begins with the region's own stream");
        for (std::size_t i = 0; i <= depth; ++i) {
          check::equal(driver->swaps[i].stream == driver->swaps[i % streams].stream, true, "the stream of each");
          check::equal(std::ranges::count(driver->swaps, driver->swaps[i].stream, &NotingDriver::Submitted::stream),
                       static_cast<std::ptrdiff_t>((depth + streams - i % streams) / streams), "swaps of a stream");
        }
        check::equal(sample.event_us, 100.0 * submissions, "of the swap alone");
        check::equal(sample.chain_us, 0.0, "no chain");
        check::that(sample.pending_before == pending && sample.pending_after == pending && sample.depth_held, "state");
        check::that(driver->delays_ns == std::vector<std::uint64_t>(pending ? streams : 0, 6000), "delays");
        const Instant &start = driver->records[records - 2], &end = driver->records[records - 1];
        within(sample.caller_us, us_between(last.began, last.returned), us_between(start, end), "caller");
        within(sample.wall_us, us_between(last.began, last.arrived), us_between(start, over), "wall");
        within(sample.cpu_us, cpu_between(last.began, last.returned),
               std::min(sample.caller_us, cpu_between(start, pending ? end : over)), "CPU");
      }
    }
  }
}

void the_times_of_a_chain_are_those_of_its_swaps() {
  for (const auto& [count, lead] : {std::pair(2U, 1U), std::pair(8U, 2U), std::pair(5U, 4U)}) {
    const auto driver = std::make_shared<NotingDriver>();
    const OwnedStream stream(driver);
    TimedRegion region(driver, stream.handle(), 1000);
    int all = 0, measured = 0;
    std::vector<TimedRegion::Submit> chain;
    for (unsigned i = 0; i < count; ++i) {
      const int works = static_cast<int>(3 * i + 1);
      all += works;
      measured += i < lead ? 0 : works;
      chain.emplace_back([&driver, works](Stream to) { driver->swap(to, works, 100 * works); });
    }
    const Sample sample = region.sustained(chain, lead);
    const Instant over;
    const double others = count - lead;
    const Instant &start = driver->records[0], &led = driver->records[1], &end = driver->records[2];
    const auto& first = driver->swaps[lead];
    check::equal(driver->records.size(), std::size_t{3}, "records: the start, the end of the lead, and the end");
    check::equal(sample.event_us, 100.0 * measured / others, "each of the others");
    check::equal(sample.chain_us, 100.0 * all / count, "the whole chain for each of its swaps");
    check::that(!sample.pending_before && !sample.pending_after && sample.depth_held, "state");
    const auto& last = driver->swaps.back();
    within(sample.caller_us * others, us_between(first.began, last.returned), us_between(led, end), "caller");
    within(sample.cpu_us * others, cpu_between(first.began, last.returned), cpu_between(led, end), "CPU");
    within(sample.wall_us * count, us_between(driver->swaps[0].began, last.arrived), us_between(start, over), "wall");
  }
}

void a_loop_times_every_swap_and_writes_its_sets_in_turn() {
  const auto driver = std::make_shared<NotingDriver>();
  const OwnedStream stream(driver);
  std::vector<std::uint64_t> one(2), two(1), seen;
  const std::vector<std::uint64_t> ones{1, 2, 3, 4, 5, 6}, twos{7, 8};
  SwapLoop loop(
      driver, stream.handle(),
      [&](Stream to) {
        driver->swap(to, 1, 200);
        seen.insert(seen.end(), {one[0], one[1], two[0]});
      },
      {{one, ones}, {two, twos}}, false);
  bool ahead = true;
  driver->asked = [&] { ahead = ahead && one[0] == ones[driver->swaps.size() % 3 * 2]; };
  const Instant before;
  const LoopTimes times = loop.run(std::chrono::microseconds(3000));
  const Instant after;
  loop.finish();
  const std::size_t swaps = times.wall_us.size();
  check::equal(driver->swaps.size(), swaps + 1, "swaps");
  check::that(ahead, "the next set is written before a swap is waited for");
  check::equal(times.caller_us.size(), swaps, "times of the caller");
  double busy_us = 0;
  for (std::size_t i = 0; i < swaps; ++i) {
    const auto& swap = driver->swaps[i];
    const Instant& free = i > 0 ? driver->swaps[i - 1].arrived : before;
    within(times.caller_us[i], us_between(swap.began, swap.returned), us_between(free, driver->records[i]), "caller");
    within(times.wall_us[i], us_between(swap.began, swap.arrived),
           us_between(free, i + 1 < swaps ? driver->swaps[i + 1].began : after), "wall");
    busy_us += cpu_between(swap.began, swap.returned);
  }
  check::that(us_between(before, after) >= 3000, "for as long as it was told");
  if (swaps > 1) within(us_between(driver->swaps[0].began, driver->swaps[swaps - 2].arrived), 0, 3000, "and no longer");
  within(times.cpu_us, busy_us, cpu_between(before, after), "CPU");
  for (std::size_t i = 0; i < seen.size() / 3; ++i) {
    check::that(seen[3 * i] == ones[i % 3 * 2] && seen[3 * i + 1] == ones[i % 3 * 2 + 1], "a set of two");
    check::equal(seen[3 * i + 2], twos[i % 2], "a set of one");
  }
  for (const auto& [array, sets] : {std::pair(2, 3), std::pair(0, 2), std::pair(2, 0)}) {
    std::vector<std::uint64_t> column(static_cast<std::size_t>(array)), content(static_cast<std::size_t>(sets));
    check::thrown<std::invalid_argument>([&] { SwapLoop(driver, stream.handle(), {}, {{column, content}}, false); });
  }
}

void a_gated_loop_submits_to_a_stream_that_waits_until_the_submission_returns() {
  const auto driver = open_host();
  const OwnedStream stream(driver);
  int submissions = 0;
  std::atomic<int> begun = 0;
  bool early = false;
  const auto submit = [&](Stream to) {
    early = early || begun != submissions || driver->idle(to);
    ++submissions;
    reinterpret_cast<HostStream*>(to)->submit([&] { ++begun; });
    work_for(500'000);
    early = early || begun == submissions;
    if (submissions == 4) throw std::runtime_error("no more");
  };
  SwapLoop loop(driver, stream.handle(), submit, {}, true);
  for (int turn = 0; turn < 3; ++turn) loop.run(std::chrono::nanoseconds(0));
  check::thrown<std::runtime_error>([&] { loop.run(std::chrono::nanoseconds(0)); });
  driver->synchronize(stream.handle());
  check::that(!early, "nothing began before its submission returned");
  check::equal(begun.load(), 4, "and all did, that of the submission that failed too");
}

void a_gate_holds_a_swap_back_and_its_opening_starts_the_clock() {
  GatedBench bench;
  const Sample gated = bench.region.measure(bench.submit, StreamState::gated);
  check::that(gated.pending_before && gated.pending_after, "gated: the event was not reached");
  check::equal(gated.event_us, 100.0, "gated: from the opening of the gate");
  const Sample opened = bench.region.measure(bench.submit, StreamState::opened);
  check::that(!opened.pending_before && !opened.pending_after, "opened: the event was reached");
  check::equal(opened.event_us, 100.0, "opened: the event time contains the call");
  const Sample early = bench.region.measure(bench.waits, StreamState::gated);
  check::that(!early.pending_after, "gated: the gate opened before the submission was done");
  bench.region.measure(bench.submit, StreamState::gated, {.delay_ns = 5000});
  check::equal(bench.driver->delays_ns.back(), 6000U, "gated: the queue's delay is added");
}

void a_swap_behind_a_gate_waits_for_it() {
  Bench bench;
  OwnedStream other(bench.driver);
  OwnedEvent reached(bench.driver);
  OwnedEvent after(bench.driver);
  Gate gate;
  gate.hold(other.handle());
  reached.record(other.handle());
  reached.hold(bench.stream.handle());
  after.record(bench.stream.handle());
  check::that(!after.completed(), "later work waits");
  gate.open();
  after.wait();
  check::that(reached.completed(), "until the event is reached");
}

/// Counts what is asked of events and of the stream while a sample runs.
class CountingDriver final : public ForwardingDriver {
 public:
  void record(Event event, Stream stream) override {
    recorded = event;
    pending.insert(event);
    ++records;
    ForwardingDriver::record(event, stream);
  }
  bool completed(Event event) override {
    if (event != recorded) ++queries_of_others;
    const bool done = ForwardingDriver::completed(event);
    if (done) pending.erase(event);
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
  std::set<Event> pending;  ///< events that were recorded and not yet seen to be over
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
  const auto submit = [&](Stream) { check::that(driver->pending.empty(), "all events were seen to be over"); };
  region.measure(submit, StreamState::idle);
  check::equal(driver->records, 2, "idle: the start, and the end");
  region.measure(submit, StreamState::opened);
  check::equal(driver->records, 5, "opened: the gate too");
}

void an_unwaited_sample_asks_nothing_between_its_start_and_its_submission() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  for (const StreamState state : {StreamState::unwaited, StreamState::unwaited_event}) {
    const int before = state == StreamState::unwaited ? 1 : 2;  // the start, and the event of the other stream
    int records_at_work = -1;
    driver->records = driver->queries_of_others = 0;
    driver->pending.clear();
    const auto submit = [&](Stream) {
      check::equal(driver->records, before, "what is recorded before the call");
      check::equal(driver->pending.size(), static_cast<std::size_t>(before), "nobody looked whether it is over");
    };
    const Sample sample = region.measure(submit, state, {}, [&] { records_at_work = driver->records; });
    check::equal(records_at_work, 0, "work comes before the clock starts");
    check::equal(driver->records, before + 1, "and the end");
    check::equal(driver->queries_of_others, 0, "queries of other events and of the stream");
    check::that(!sample.pending_before && !sample.pending_after, "what was pending is not known");
  }
}

void work_is_the_last_before_a_submission_on_an_idle_stream() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  for (const StreamState state : {StreamState::idle, StreamState::opened, StreamState::busy, StreamState::gated}) {
    int records_at_work = -1;
    driver->records = 0;
    const Sample sample = region.measure(
        [&](Stream) {
          const bool pending = state == StreamState::busy || state == StreamState::gated;
          check::that(records_at_work >= 0, "the work comes before the submission");
          check::equal(records_at_work, pending ? 0 : driver->records, "events recorded before the work");
        },
        state, {}, [&] { records_at_work = driver->records; });
    const bool behind = state == StreamState::busy || state == StreamState::gated;
    check::that(behind || sample.event_us == 0, "the events of an idle stream would contain the work");
  }
}

void a_sample_leaves_out_what_was_on_the_stream_before() {
  GatedBench bench;
  bench.driver->delay(1, bench.stream.handle());
  bench.region.measure(bench.submit, StreamState::busy);
  check::that(bench.driver->was_idle.back(), "the delay of a sample meets a stream without other work");
}

void a_sample_waits_for_all_that_was_queued() {
  GatedBench bench;
  std::vector<Stream> seen;
  const auto submit = [&](Stream to) {
    seen.push_back(to);
    if (seen.size() == 3) reinterpret_cast<HostStream*>(to)->submit([] { work_for(20'000'000); });
  };
  bench.region.measure(submit, StreamState::busy, {.depth = 3, .streams = 3});
  check::that(bench.driver->idle(seen[2]), "the stream of the last one queued, which took longer than the sample");
}

/// Lets another thread work for this much CPU time.
void let_another_work(std::int64_t cpu_ns) {
  std::jthread([=] { work_for(cpu_ns); });
}

void cpu_time_is_that_of_the_submission_s_thread() {
  GatedBench bench;
  for (const StreamState state : {StreamState::idle, StreamState::busy}) {
    const Sample slept = bench.region.measure([](Stream) { let_another_work(20'000'000); }, state);
    check::that(slept.caller_us >= 20'000, "the submission's time");
    check::that(slept.cpu_us < 20'000, "without the work of another thread");
    const Sample worked = bench.region.measure([](Stream) { work_for(3'000'000); }, state);
    check::that(worked.cpu_us >= 3'000 && worked.cpu_us <= worked.caller_us, "CPU time of a thread at work");
  }
}

void the_cpu_time_of_a_chain_is_no_more_than_its_time() {
  GatedBench bench;
  std::vector<TimedRegion::Submit> chain(10, [&](Stream) {
    ++bench.driver->works;
    work_for(5'000'000);
  });
  chain[0] = [](Stream) { let_another_work(5'000'000); };
  const Sample sample = bench.region.sustained(chain, 1);
  check::that(sample.cpu_us <= sample.caller_us, "CPU time within the caller's time");
}

/// Notes whether the device is current.
class CurrentDriver final : public ForwardingDriver {
 public:
  void bind_thread() const noexcept override { is_current = true; }
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
  SwapLoop loop(driver, stream.handle(), elsewhere, {}, false);
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
  const Sample taken = region.sustained(swaps, 2);
  check::that(std::memcmp(reinterpret_cast<void*>(source.address()), reinterpret_cast<void*>(destination.address()),
                          8 * kBlock) == 0,
              "every swap ran");
  check::equal(driver->copies, 8, "swaps");
  check::equal(driver->records, 3, "event records: the start, the end of the lead, and the end");
  check::that(taken.event_us > 0 && taken.caller_us >= taken.cpu_us, "the times");
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 0); });
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 8); });
  check::thrown<std::invalid_argument>([&] { region.sustained({}, 1); });
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
  GatedBench bench(50'000);
  check::equal(bench.region.measure_delay_us(2000), 100.0, "the delay in front does not count");
  check::that(bench.driver->delays_ns == std::vector<std::uint64_t>{50'000, 2000}, "the delay in front, and the one");
  check::that(bench.driver->idle(bench.stream.handle()), "nothing is left on the stream");
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

/// Says that one event has completed, by the number of the question, and those that are asked about later too.
class OneEnded final : public ForwardingDriver {
 public:
  explicit OneEnded(int question) : ended_(question) {}
  bool completed(Event) override { return ++asked_ == ended_ || asked_ > 4; }

 private:
  int ended_;
  int asked_ = 0;
};

void a_queue_stands_if_all_of_its_streams_wait() {
  for (const int ended : {1, 2, 3, 4}) {  // the start, and the delay of each stream
    const auto driver = std::make_shared<OneEnded>(ended);
    const OwnedStream stream(driver);
    TimedRegion region(driver, stream.handle(), 1000);
    const Sample sample = region.measure([](Stream) {}, StreamState::busy, {.depth = 3, .streams = 3});
    check::equal(sample.pending_before, ended != 1, "the measured stream was pending");
    check::equal(sample.depth_held, ended == 1, "no swap of a stream had begun to run");
  }
}

void a_sample_tells_whether_its_queue_stood() {
  GatedBench bench;
  for (const std::size_t streams : {1U, 3U}) {
    const Sample held =
        bench.region.measure(bench.submit, StreamState::busy, {.depth = 4, .streams = streams, .delay_ns = 5000});
    check::that(held.depth_held && held.pending_before, "the whole queue waited behind the delay");
    check::equal(bench.driver->delays_ns.back(), 6000U, "the queue's delay is added");
    const Sample late = bench.region.measure(bench.waits, StreamState::busy, {.depth = 1, .streams = streams});
    check::that(!late.depth_held, "the queue had begun to run");
  }
  check::that(bench.region.measure(bench.submit, StreamState::idle).depth_held, "no queue, nothing that has started");
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
  GatedBench bench;
  std::vector<Stream> seen;
  const auto refuse_the_fourth = [&](Stream stream) {
    seen.push_back(stream);
    if (seen.size() == 4) throw DriverError("submit", "REFUSED");
  };
  check::thrown<DriverError>(
      [&] { bench.region.measure(refuse_the_fourth, StreamState::busy, {.depth = 3, .streams = 3}); });
  for (const Stream stream : seen) check::that(bench.driver->idle(stream), "the stream has settled");
}

}  // namespace

int main() {
  return check::run({
      {"the times of a sample are those of its swap", the_times_of_a_sample_are_those_of_its_swap},
      {"the times of a chain are those of its swaps", the_times_of_a_chain_are_those_of_its_swaps},
      {"a loop times every swap and writes its sets in turn", a_loop_times_every_swap_and_writes_its_sets_in_turn},
      {"a gate holds a swap back", a_gate_holds_a_swap_back_and_its_opening_starts_the_clock},
      {"a swap behind a gate waits for it", a_swap_behind_a_gate_waits_for_it},
      {"an idle sample asks only for its own end", an_idle_sample_asks_only_for_its_own_end},
      {"a sample begins when the events before it are over", a_sample_begins_when_the_events_before_it_are_over},
      {"an unwaited sample asks nothing between its start and its submission",
       an_unwaited_sample_asks_nothing_between_its_start_and_its_submission},
      {"work is the last before a submission on an idle stream",
       work_is_the_last_before_a_submission_on_an_idle_stream},
      {"a sample leaves out what was on the stream before", a_sample_leaves_out_what_was_on_the_stream_before},
      {"a sample waits for all that was queued", a_sample_waits_for_all_that_was_queued},
      {"CPU time is that of the submission's thread", cpu_time_is_that_of_the_submission_s_thread},
      {"the CPU time of a chain is no more than its time", the_cpu_time_of_a_chain_is_no_more_than_its_time},
      {"a gated loop submits to a stream that waits until the submission returns",
       a_gated_loop_submits_to_a_stream_that_waits_until_the_submission_returns},
      {"a loop is current again after a submission that was not",
       a_loop_is_current_again_after_a_submission_that_was_not},
      {"sustained swaps run behind each other", sustained_swaps_run_behind_each_other_and_ask_only_for_their_end},
      {"sustained swaps that fail leave nothing in flight", sustained_swaps_that_fail_leave_nothing_in_flight},
      {"a delay is measured by itself", a_delay_is_measured_by_itself},
      {"queued swaps run before the measured one", queued_swaps_run_before_the_measured_one},
      {"a queue stands if all of its streams wait", a_queue_stands_if_all_of_its_streams_wait},
      {"a sample tells whether its queue stood", a_sample_tells_whether_its_queue_stood},
      {"a queue needs a busy stream", a_queue_needs_a_busy_stream},
      {"a failed sample leaves nothing in flight", a_failed_sample_leaves_nothing_in_flight},
  });
}
