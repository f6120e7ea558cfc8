#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "check.hpp"
#include "driver/host.hpp"
#include "driver/resources.hpp"
#include "forwarding_driver.hpp"
#include "swap/swap.hpp"
#include "timing/timed_swap.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kBlock = 512;
constexpr std::size_t kBlocks = 64;

/// Two buffers and descriptors that take every block of one, back to front, to the other.
struct Bench {
  explicit Bench(bool with_batch = true)
      : driver(open_host(with_batch)),
        stream(driver),
        source(driver, MemoryKind::allocated, kBlock * kBlocks),
        destination(driver, MemoryKind::device, kBlock * kBlocks) {
    const auto bytes = source.host(kBlock * kBlocks);
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
  }

  DescriptorList reversed() const {
    DescriptorList list;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      list.sources.push_back(source.address() + (kBlocks - 1 - i) * kBlock);
      list.destinations.push_back(destination.address() + i * kBlock);
      list.bytes.push_back(kBlock);
    }
    return list;
  }

  DescriptorList ascending() const {
    DescriptorList list = reversed();
    for (std::size_t i = 0; i < kBlocks; ++i) list.sources[i] = source.address() + i * kBlock;
    return list;
  }

  bool arrived(const DescriptorList& list) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (std::memcmp(reinterpret_cast<const void*>(list.destinations[i]),
                      reinterpret_cast<const void*>(list.sources[i]), list.bytes[i]) != 0) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<Swap> batched(DescriptorList list, BatchOptions options = {}) {
    auto swap = make_batched(driver, std::move(list), Direction::h2d, options);
    swap->prepare();
    return swap;
  }

  void run(Swap& swap) {
    swap.prepare();
    swap.submit(stream.handle());
    stream.synchronize();
  }

  std::shared_ptr<HostDriver> driver;
  OwnedStream stream;
  Buffer source;
  Buffer destination;
};

void both_ways_of_copying_move_the_bytes() {
  Bench bench;
  const auto per_block = make_per_block(bench.driver, bench.reversed(), Direction::h2d);
  bench.run(*per_block);
  check::that(bench.arrived(bench.reversed()), "per_block moved every block");
  check::equal(per_block->calls(), kBlocks, "calls of per_block");
  const auto batched = bench.batched(bench.ascending());
  bench.run(*batched);
  check::that(bench.arrived(bench.ascending()), "batched moved every block");
  check::equal(batched->calls(), 1U, "calls of batched");
}

void descriptors_per_call_cuts_the_batch() {
  Bench bench;
  const auto swap = bench.batched(bench.reversed(), {.descriptors_per_call = 10});
  bench.run(*swap);
  check::equal(swap->calls(), 7U, "calls");
  check::that(bench.arrived(bench.reversed()), "every slice moved");
}

void coalescing_merges_what_adjoins_on_both_sides() {
  Bench bench;
  const auto contiguous = bench.batched(bench.ascending(), {.descriptors_per_call = 1, .coalesce = true});
  check::equal(contiguous->calls(), 1U, "calls for contiguous blocks");
  bench.run(*contiguous);
  check::that(bench.arrived(bench.ascending()), "merged blocks moved");
  check::that(contiguous->coalesce_us() > 0, "the time of merging is told");
  const auto reversed = bench.batched(bench.reversed(), {.descriptors_per_call = 1, .coalesce = true});
  check::equal(reversed->calls(), kBlocks, "calls for reversed blocks");
}

void descriptors_go_in_the_order_of_their_host_addresses() {
  Bench bench;
  DescriptorList list = bench.ascending();
  for (std::size_t i = 0; i < kBlocks / 2; ++i) {  // both sides alike, so that in order they merge again
    std::swap(list.sources[i], list.sources[kBlocks - 1 - i]);
    std::swap(list.destinations[i], list.destinations[kBlocks - 1 - i]);
  }
  const auto merged = bench.batched(list, {.coalesce = true, .by_host_address = true});
  check::equal(merged->calls(), 1U, "calls once they are in order");
  bench.run(*merged);
  check::that(bench.arrived(list), "every block moved");
  merged->retarget(bench.ascending().sources, bench.ascending().destinations);
  bench.run(*merged);
  check::that(bench.arrived(bench.ascending()), "the blocks of the next list moved");
  bench.driver->arm({.kind = FaultKind::error_at_descriptor, .at = 3});
  const auto alone = bench.batched(list, {.by_host_address = true});
  const auto error = check::thrown<DriverError>([&] { alone->submit(bench.stream.handle()); });
  check::equal(error.descriptor().value_or(0), kBlocks - 1 - 3, "the place in the caller's list");
  bench.stream.synchronize();
}

void other_blocks_are_copied_once_they_are_prepared() {
  for (const bool with_batch : {true, false}) {
    Bench bench(with_batch);
    for (const bool coalesce : {true, false}) {
      for (const auto& swap : {bench.batched(bench.ascending(), {.coalesce = coalesce}).release(),
                               make_per_block(bench.driver, bench.ascending(), Direction::h2d).release()}) {
        const std::unique_ptr<Swap> owned(swap);
        bench.run(*owned);
        const DescriptorList next = bench.reversed();
        owned->retarget(next.sources, next.destinations);
        bench.run(*owned);
        check::that(bench.arrived(next), "the blocks of the next list arrived");
        check::thrown<std::invalid_argument>([&] { owned->retarget(next.sources, {}); });
        check::thrown<std::invalid_argument>([&] { owned->retarget_ids({}, {}); });
      }
    }
  }
}

void a_device_without_batch_falls_back_and_says_so() {
  Bench bench(false);
  const auto swap = bench.batched(bench.reversed());
  bench.run(*swap);
  check::that(swap->fell_back(), "the fallback is told");
  check::equal(swap->calls(), kBlocks, "calls of the fallback");
  check::that(bench.arrived(bench.reversed()), "the fallback moved every block");
}

void the_legacy_stream_is_refused() {
  Bench bench;
  for (const Stream legacy : {Stream{0}, Stream{1}}) {
    for (const auto& swap : {bench.batched(bench.reversed()).release(),
                             make_per_block(bench.driver, bench.reversed(), Direction::h2d).release()}) {
      const std::unique_ptr<Swap> owned(swap);
      const auto error = check::thrown<DriverError>([&] { owned->submit(legacy); });
      check::that(std::string(error.what()).find("legacy default stream") != std::string::npos, error.what());
    }
  }
}

void errors_carry_the_descriptor() {
  Bench bench;
  bench.driver->arm({.kind = FaultKind::error_at_descriptor, .at = 23});
  const auto batched = bench.batched(bench.reversed(), {.descriptors_per_call = 10});
  const auto in_batch = check::thrown<DriverError>([&] { batched->submit(bench.stream.handle()); });
  check::equal(in_batch.descriptor().value_or(0), 23U, "descriptor of the third slice");
  bench.driver->arm({.kind = FaultKind::error_at_call, .at = 5});
  const auto per_block = make_per_block(bench.driver, bench.reversed(), Direction::h2d);
  const auto single = check::thrown<DriverError>([&] { per_block->submit(bench.stream.handle()); });
  check::equal(single.descriptor().value_or(0), 5U, "descriptor of the single copy");
  bench.stream.synchronize();
}

void a_merged_descriptor_is_named_by_its_first() {
  Bench bench;
  DescriptorList pairs = bench.ascending();
  for (std::size_t i = 0; i < kBlocks; i += 2) {  // pairs adjoin, pairs among each other do not
    pairs.sources[i] = bench.source.address() + (kBlocks - 2 - i) * kBlock;
    pairs.sources[i + 1] = pairs.sources[i] + kBlock;
  }
  bench.driver->arm({.kind = FaultKind::error_at_descriptor, .at = 7});
  const auto swap = bench.batched(pairs, {.coalesce = true});
  const auto error = check::thrown<DriverError>([&] { swap->submit(bench.stream.handle()); });
  check::equal(error.descriptor().value_or(0), 14U, "first descriptor of the eighth pair");
}

void faults_change_bytes() {
  Bench bench;
  for (const FaultKind kind : {FaultKind::corrupt, FaultKind::stray}) {
    bench.driver->arm({.kind = kind, .at = kBlocks / 2});
    const auto swap = bench.batched(bench.ascending());
    bench.run(*swap);
    // A stray byte lands in the next block, which is copied after it and so covers it, unless the order is reversed.
    check::equal(bench.arrived(bench.ascending()), kind == FaultKind::stray, "all blocks arrived");
  }
}

void a_stream_runs_in_order_and_a_sample_tells_its_state() {
  Bench bench;
  // Long enough that a thread which has to wait for its core does not outlast it.
  constexpr std::uint64_t kDelayNs = 400'000'000;
  TimedRegion region(bench.driver, bench.stream.handle(), kDelayNs);
  const auto swap = bench.batched(bench.reversed());
  const Sample idle = region.measure(*swap, StreamState::idle);
  check::that(!idle.pending_before && !idle.pending_after, "idle: nothing was pending");
  check::that(idle.wall_us >= idle.submit_us, "idle: wall time contains the submission");
  check::that(idle.gpu_us > 0, "idle: the events are apart");
  const Sample busy = region.measure(*swap, StreamState::busy);
  check::that(busy.pending_before && busy.pending_after, "busy: the delay was pending");
  check::that(busy.wall_us > kDelayNs / 4e3, "busy: wall time contains the rest of the delay");
  check::that(busy.gpu_us < kDelayNs / 2e3, "busy: the event time does not contain the delay");
}

/// Counts what is asked of events and of the stream while a sample runs.
class CountingDriver final : public ForwardingDriver {
 public:
  void record(Event event, Stream stream) override {
    recorded = event;
    ++records;
    ForwardingDriver::record(event, stream);
  }
  bool completed(Event event) override {
    if (event != recorded) ++queries_of_others;
    return ForwardingDriver::completed(event);
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
  int copies = 0;
  int records = 0;
  int queries_of_others = 0;
};

void an_idle_sample_asks_only_for_its_own_end() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  const Sample sample = region.measure([] {}, [](Stream) {}, StreamState::idle);
  check::equal(driver->queries_of_others, 0, "queries of other events and of the stream");
  check::equal(driver->records, 2, "records: the start and the end");
  check::that(!sample.pending_after, "nothing was pending");
}

void cpu_time_leaves_out_what_a_submission_slept() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 100'000'000);
  for (const StreamState state : {StreamState::idle, StreamState::busy}) {
    const Sample slept =
        region.measure([] {}, [](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }, state);
    check::that(slept.submit_us >= 30'000, "the submission's time");
    check::that(slept.cpu_us < 15'000, "its CPU time");
    const Sample worked = region.measure([] {},
                                         [](Stream) {
                                           const auto end =
                                               std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
                                           while (std::chrono::steady_clock::now() < end) {
                                           }
                                         },
                                         state);
    check::that(worked.cpu_us > 3'000 && worked.cpu_us <= worked.submit_us, "CPU time of a thread at work");
  }
}

void sustained_swaps_run_behind_each_other_and_ask_only_for_their_end() {
  const auto driver = std::make_shared<CountingDriver>();
  const OwnedStream stream(driver);
  TimedRegion region(driver, stream.handle(), 1000);
  Buffer source(driver, MemoryKind::allocated, 64 * kBlock), destination(driver, MemoryKind::device, 64 * kBlock);
  std::vector<std::unique_ptr<Swap>> owned;
  std::vector<Submission> swaps;
  for (unsigned char i = 0; i < 8; ++i) {
    std::memset(source.host(64 * kBlock).data() + i * kBlock, i + 1, kBlock);
    owned.push_back(make_per_block(
        driver, {{source.address() + i * kBlock}, {destination.address() + i * kBlock}, {kBlock}}, Direction::h2d));
    swaps.push_back({[swap = owned.back().get()] { swap->prepare(); },
                     [swap = owned.back().get()](Stream to) { swap->submit(to); }});
  }
  int attempts = 0;
  swaps.front().prepare = [&attempts, swap = owned.front().get()] {
    ++attempts;
    swap->prepare();
  };
  const Sample taken = region.sustained(swaps, 2);
  check::that(std::memcmp(reinterpret_cast<void*>(source.address()), reinterpret_cast<void*>(destination.address()),
                          8 * kBlock) == 0,
              "every swap ran");
  check::equal(driver->copies, attempts * 8, "swaps");
  check::equal(driver->records, 4 * attempts, "two event records a chain");
  check::that(taken.wall_us > 0 && taken.submit_us >= taken.cpu_us, "the times");
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 0); });
  check::thrown<std::invalid_argument>([&] { region.sustained(swaps, 4); });
  check::thrown<std::invalid_argument>([&] { region.sustained({}, 1); });
}

void a_sustained_swap_costs_what_one_more_costs() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  bool first = true;
  // The first of a chain meets an idle stream and may take any time: it must not count.
  const Submission swap{[&] { first = true; },
                        [&](Stream) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(first ? 60 : 5));
                          first = false;
                        }};
  const std::vector<Submission> swaps(8, swap);
  const auto is_one_more = [](double us) { return us >= 4'000 && us < 30'000; };
  Sample taken;
  // A busy host holds chains up: one of several tells the time.
  for (int attempt = 0; attempt < 10 && !(is_one_more(taken.wall_us) && is_one_more(taken.submit_us)); ++attempt) {
    taken = region.sustained(swaps, 2);
  }
  check::that(is_one_more(taken.wall_us), "one more swap");
  check::that(is_one_more(taken.submit_us) && taken.cpu_us < 4'000, "its submission");
  check::that(taken.chain_us > taken.wall_us, "the long chain, with its first swap, for each of its swaps");
}

void chains_that_never_grow_longer_are_refused() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  std::vector<Submission> swaps(4, {[] {}, [](Stream) {}});
  swaps[0].submit = [](Stream) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); };
  check::thrown<std::runtime_error>([&] { region.sustained(swaps, 1); });
}

void sustained_swaps_that_fail_leave_nothing_in_flight() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  const Submission one{[&] { swap->prepare(); }, [&](Stream stream) { swap->submit(stream); }};
  bench.driver->arm({.kind = FaultKind::error_at_call, .at = 3});
  check::thrown<DriverError>([&] { region.sustained(std::vector<Submission>(5, one), 2); });
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
  region.measure([] {},
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
    region.measure(*swap, StreamState::busy, queue);  // calls 0 to 5
    check::that(bench.arrived(bench.reversed()), "every block moved");
    check::thrown<DriverError>([&] { swap->submit(bench.stream.handle()); });
    bench.driver->arm({.kind = FaultKind::error_at_call, .at = 5});
    check::thrown<DriverError>([&] { region.measure(*swap, StreamState::busy, queue); });
  }
}

void a_sample_tells_whether_its_queue_stood() {
  Bench bench;
  constexpr std::uint64_t kDelayNs = 400'000'000;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  for (const std::size_t streams : {1U, 3U}) {
    const Sample held =
        region.measure(*swap, StreamState::busy, {.depth = 4, .streams = streams, .delay_ns = kDelayNs});
    check::that(held.depth_held && held.pending_before, "the whole queue waited behind the delay");
    check::that(held.wall_us > kDelayNs / 4e3, "wall time contains the rest of the delay");
    // A submission that waits lets the delay before it end.
    const Sample late = region.measure([] {}, [&](Stream stream) { bench.driver->synchronize(stream); },
                                       StreamState::busy, {.depth = 1, .streams = streams});
    check::that(!late.depth_held, "the queue had begun to run");
  }
  check::that(region.measure(*swap, StreamState::idle).depth_held, "no queue, nothing that has started");
}

void a_queue_needs_a_busy_stream() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 1000);
  const auto swap = bench.batched(bench.reversed());
  for (const Queue queue : {Queue{.depth = 1}, Queue{.streams = 2}}) {
    check::thrown<std::invalid_argument>([&] { region.measure(*swap, StreamState::idle, queue); });
  }
  check::thrown<std::invalid_argument>([&] { region.measure(*swap, StreamState::busy, {.streams = 0}); });
}

void a_failed_sample_leaves_nothing_in_flight() {
  Bench bench;
  TimedRegion region(bench.driver, bench.stream.handle(), 20'000'000);
  std::vector<Stream> seen;
  const auto refuse_the_fourth = [&](Stream stream) {
    seen.push_back(stream);
    if (seen.size() == 4) throw DriverError("submit", "REFUSED");
  };
  check::thrown<DriverError>(
      [&] { region.measure([] {}, refuse_the_fourth, StreamState::busy, {.depth = 3, .streams = 3}); });
  for (const Stream stream : seen) check::that(bench.driver->idle(stream), "the stream has settled");
}

void a_hung_stream_ends_with_its_owner() {
  Bench bench;
  bench.driver->arm({.kind = FaultKind::hang, .at = 0});
  const auto swap = bench.batched(bench.reversed());
  swap->submit(bench.stream.handle());
  OwnedEvent event(bench.driver);
  event.record(bench.stream.handle());
  check::that(!bench.arrived(bench.reversed()), "nothing is copied behind a hang");
}

void buffers_know_their_bounds() {
  Bench bench;
  check::thrown<std::out_of_range>([&] { static_cast<void>(bench.destination.host(1)); });
  check::thrown<std::out_of_range>([&] { static_cast<void>(bench.source.host(kBlock * kBlocks + 1)); });
}

}  // namespace

int main() {
  return check::run({
      {"both ways of copying move the bytes", both_ways_of_copying_move_the_bytes},
      {"descriptors per call cuts the batch", descriptors_per_call_cuts_the_batch},
      {"coalescing merges what adjoins on both sides", coalescing_merges_what_adjoins_on_both_sides},
      {"descriptors go in the order of their host addresses", descriptors_go_in_the_order_of_their_host_addresses},
      {"other blocks are copied once they are prepared", other_blocks_are_copied_once_they_are_prepared},
      {"a device without batch falls back and says so", a_device_without_batch_falls_back_and_says_so},
      {"the legacy stream is refused", the_legacy_stream_is_refused},
      {"errors carry the descriptor", errors_carry_the_descriptor},
      {"a merged descriptor is named by its first", a_merged_descriptor_is_named_by_its_first},
      {"faults change bytes", faults_change_bytes},
      {"a sample tells the stream's state", a_stream_runs_in_order_and_a_sample_tells_its_state},
      {"an idle sample asks only for its own end", an_idle_sample_asks_only_for_its_own_end},
      {"CPU time leaves out what a submission slept", cpu_time_leaves_out_what_a_submission_slept},
      {"sustained swaps run behind each other", sustained_swaps_run_behind_each_other_and_ask_only_for_their_end},
      {"a sustained swap costs what one more costs", a_sustained_swap_costs_what_one_more_costs},
      {"chains that never grow longer are refused", chains_that_never_grow_longer_are_refused},
      {"sustained swaps that fail leave nothing in flight", sustained_swaps_that_fail_leave_nothing_in_flight},
      {"a delay is measured by itself", a_delay_is_measured_by_itself},
      {"a queue is dealt over its streams in turn", a_queue_is_dealt_over_its_streams_in_turn},
      {"queued swaps run before the measured one", queued_swaps_run_before_the_measured_one},
      {"a sample tells whether its queue stood", a_sample_tells_whether_its_queue_stood},
      {"a queue needs a busy stream", a_queue_needs_a_busy_stream},
      {"a failed sample leaves nothing in flight", a_failed_sample_leaves_nothing_in_flight},
      {"a hung stream ends with its owner", a_hung_stream_ends_with_its_owner},
      {"buffers know their bounds", buffers_know_their_bounds},
  });
}
