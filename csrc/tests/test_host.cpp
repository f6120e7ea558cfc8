#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "bench.hpp"
#include "check.hpp"
#include "gated_driver.hpp"
#include "swap/address_order.hpp"

namespace {

using namespace kvbench;

void both_ways_of_copying_move_the_bytes() {
  Bench bench;
  const auto per_block = bench.per_block(bench.reversed());
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

void merging_leaves_one_descriptor_for_what_adjoins_on_both_sides() {
  Bench bench;
  const auto contiguous = bench.batched(bench.ascending(), {.descriptors_per_call = 1, .merge = true});
  bench.run(*contiguous);
  check::equal(contiguous->calls(), 1U, "calls for contiguous blocks");
  check::equal(contiguous->descriptors(), 1U, "descriptors left");
  check::that(bench.arrived(bench.ascending()), "merged blocks moved");
  const auto reversed = bench.batched(bench.reversed(), {.descriptors_per_call = 1, .merge = true});
  bench.run(*reversed);
  check::equal(reversed->calls(), kBlocks, "calls for reversed blocks");
}

void descriptors_go_in_the_order_of_their_host_addresses() {
  Bench bench;
  DescriptorList list = bench.ascending();
  for (std::size_t i = 0; i < kBlocks / 2; ++i) {  // both sides alike, so that in order they merge again
    std::swap(list.sources[i], list.sources[kBlocks - 1 - i]);
    std::swap(list.destinations[i], list.destinations[kBlocks - 1 - i]);
  }
  const auto merged = bench.batched(list, {.by_host_address = true, .merge = true});
  bench.run(*merged);
  check::equal(merged->descriptors(), 1U, "descriptors left once they are in order");
  check::that(bench.arrived(list), "every block moved");
  bench.driver->arm({.kind = FaultKind::error_at_descriptor, .at = 3});
  const auto alone = bench.batched(list, {.by_host_address = true});
  const auto error = check::thrown<DriverError>([&] { alone->submit(bench.stream.handle()); });
  check::equal(error.descriptor().value_or(0), kBlocks - 1 - 3, "the index in the caller's list");
  bench.stream.synchronize();
}

void addresses_are_sorted_as_a_comparing_sort_sorts_them() {
  std::mt19937_64 random(11);
  AddressOrder order;
  for (const std::size_t count : {std::size_t{2}, std::size_t{511}, std::size_t{512}, std::size_t{5000}}) {
    for (const Address range : {Address{3}, Address{1} << 20, Address{1} << 34, ~Address{0}}) {
      std::vector<Address> addresses(count);
      for (Address& address : addresses) address = random() % range;
      addresses.front() = range;  // never in order
      std::vector<std::uint32_t> expected(count);
      std::iota(expected.begin(), expected.end(), 0U);
      std::ranges::stable_sort(expected, {}, [&](std::uint32_t index) { return addresses[index]; });
      check::that(!order.sort(addresses), "not in order");
      check::that(std::ranges::equal(order.indices(), expected), "the order");
    }
  }
  check::that(order.sort(std::vector<Address>{1, 1, 7}), "in order already");
}

void a_swap_reads_the_callers_arrays_at_every_submission() {
  for (const bool with_batch : {true, false}) {
    Bench bench(with_batch);
    for (const BatchOptions options : {BatchOptions{}, BatchOptions{.by_host_address = true, .merge = true}}) {
      DescriptorList& list = bench.kept(bench.ascending());
      const auto batched = make_batched(bench.driver, list.view(), Direction::h2d, options);
      const auto per_block = make_per_block(bench.driver, list.view(), Direction::h2d);
      for (Swap* swap : {batched.get(), per_block.get()}) {
        for (const DescriptorList& next : {bench.reversed(), bench.ascending()}) {
          std::ranges::copy(next.sources, list.sources.begin());
          bench.run(*swap);
          check::that(bench.arrived(next), "the blocks of the next list arrived");
        }
      }
    }
  }
}

void a_device_without_batch_falls_back_and_says_so() {
  Bench bench(false);
  const auto swap = bench.batched(bench.reversed());
  bench.run(*swap);
  check::that(swap->fell_back(), "the fallback is reported");
  check::equal(swap->calls(), kBlocks, "calls of the fallback");
  check::that(bench.arrived(bench.reversed()), "the fallback moved every block");
}

/// A device whose streams are `pending` or not, and which keeps the lengths of its delays.
class PrimedDriver final : public ForwardingDriver {
 public:
  bool idle(Stream) override { return !pending; }
  void delay(std::uint64_t delay_ns, Stream) override { delays_ns.push_back(delay_ns); }

  bool pending = false;
  std::vector<std::uint64_t> delays_ns;
};

void only_small_blocks_on_an_idle_stream_are_primed() {
  Bench bench;
  const auto delays = [&](bool pending, std::size_t up_to_bytes, std::size_t descriptors_per_call = 0) {
    const auto driver = std::make_shared<PrimedDriver>();
    const OwnedStream stream(driver);
    driver->pending = pending;
    const BatchOptions options{
        .descriptors_per_call = descriptors_per_call, .prime_ns = 2000, .prime_up_to_bytes = up_to_bytes};
    make_batched(driver, bench.kept(bench.reversed()).view(), Direction::h2d, options)->submit(stream.handle());
    driver->synchronize(stream.handle());
    return driver->delays_ns;
  };
  using Delays = std::vector<std::uint64_t>;
  check::that(delays(false, kBlock) == Delays{2000}, "an idle stream is primed");
  check::that(delays(false, kBlock, kBlocks / 2) == Delays(2, 2000), "before each call that meets an idle stream");
  check::that(delays(true, kBlock).empty(), "a busy stream is not primed");
  check::that(delays(false, kBlock - 1).empty(), "larger blocks are not primed");
  check::that(delays(false, 0).empty(), "nothing is primed unless asked for");
}

void each_slice_is_primed_by_its_own_sizes() {
  Bench bench;
  const auto driver = std::make_shared<PrimedDriver>();
  const OwnedStream stream(driver);
  DescriptorList list = bench.reversed();
  list.bytes.back() = kBlock / 2;
  const BatchOptions options{.descriptors_per_call = kBlocks / 2, .prime_ns = 2000, .prime_up_to_bytes = kBlock / 2};
  make_batched(driver, bench.kept(list).view(), Direction::h2d, options)->submit(stream.handle());
  driver->synchronize(stream.handle());
  check::equal(driver->delays_ns.size(), std::size_t{1}, "the second slice alone has a small block");
}

/// Notes the destinations of batches.
class NotingDriver final : public ForwardingDriver {
 public:
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    noted.assign(destinations.begin(), destinations.end());
    ForwardingDriver::copy_batch(destinations, sources, bytes, attributes, direction, stream);
  }

  std::vector<Address> noted;
};

void a_list_is_sorted_by_the_addresses_of_its_host_side() {
  Bench bench;
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    const auto driver = std::make_shared<NotingDriver>();
    const OwnedStream stream(driver);
    const DescriptorList& list = bench.kept(bench.reversed());  // sources descend
    make_batched(driver, list.view(), direction, {.by_host_address = true})->submit(stream.handle());
    driver->synchronize(stream.handle());
    const bool ascends = std::ranges::is_sorted(driver->noted);
    check::that(ascends == (direction == Direction::d2h), "d2h by destinations, h2d by sources");
  }
}

void the_legacy_stream_is_refused() {
  Bench bench;
  for (const Stream legacy : {Stream{0}, Stream{1}}) {
    for (const auto& swap : {bench.batched(bench.reversed()).release(), bench.per_block(bench.reversed()).release()}) {
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
  const auto per_block = bench.per_block(bench.reversed());
  const auto single = check::thrown<DriverError>([&] { per_block->submit(bench.stream.handle()); });
  check::equal(single.descriptor().value_or(0), 5U, "descriptor of the single copy");
  bench.stream.synchronize();
}

void a_run_of_mixed_sizes_arrives_as_one_descriptor() {
  Bench bench;
  DescriptorList list;
  for (std::size_t at = 0, size = 1; at + size <= kBlock * kBlocks; at += size, size = size % 700 + 37) {
    list.sources.push_back(bench.source.address() + at);
    list.destinations.push_back(bench.destination.address() + at);
    list.bytes.push_back(size);
  }
  const auto merged = bench.batched(list, {.merge = true});
  bench.run(*merged);
  check::equal(merged->descriptors(), 1U, "descriptors");
  check::that(bench.arrived(list), "every block arrived");
  const auto* beyond = reinterpret_cast<const unsigned char*>(list.destinations.back() + list.bytes.back());
  const auto* end = reinterpret_cast<const unsigned char*>(bench.destination.address() + kBlock * kBlocks);
  check::that(std::all_of(beyond, end, [](unsigned char byte) { return byte == 0; }), "nothing behind them");
}

void a_merged_descriptor_is_named_by_its_first() {
  Bench bench;
  DescriptorList pairs = bench.ascending();
  for (std::size_t i = 0; i < kBlocks; i += 2) {  // pairs adjoin, pairs among each other do not
    pairs.sources[i] = bench.source.address() + (kBlocks - 2 - i) * kBlock;
    pairs.sources[i + 1] = pairs.sources[i] + kBlock;
  }
  bench.driver->arm({.kind = FaultKind::error_at_descriptor, .at = 7});
  const auto swap = bench.batched(pairs, {.merge = true});
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

void a_hung_stream_ends_with_its_owner() {
  Bench bench;
  bench.driver->arm({.kind = FaultKind::hang, .at = 0});
  const auto swap = bench.batched(bench.reversed());
  swap->submit(bench.stream.handle());
  OwnedEvent event(bench.driver);
  event.record(bench.stream.handle());
  check::that(!bench.arrived(bench.reversed()), "nothing is copied behind a hang");
}

void a_wait_is_for_the_record_before_it() {
  const std::shared_ptr<Driver> driver = open_host();
  OwnedStream slow(driver), fast(driver), waiting(driver);
  OwnedEvent event(driver);
  Gate gate;
  gate.hold(slow.handle());
  event.record(slow.handle());
  event.hold(waiting.handle());
  driver->delay(20'000'000, fast.handle());  // a wait that ended early is seen by then
  event.record(fast.handle());
  fast.synchronize();
  check::that(event.completed(), "the last record counts");
  check::that(!driver->idle(waiting.handle()), "a later record does not end the wait");
  gate.open();
  waiting.synchronize();
  slow.synchronize();
  check::that(event.completed(), "an earlier record, reached later, does not count");
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
      {"merging leaves one descriptor for what adjoins on both sides",
       merging_leaves_one_descriptor_for_what_adjoins_on_both_sides},
      {"descriptors go in the order of their host addresses", descriptors_go_in_the_order_of_their_host_addresses},
      {"addresses are sorted as a comparing sort sorts them", addresses_are_sorted_as_a_comparing_sort_sorts_them},
      {"a swap reads the caller's arrays at every submission", a_swap_reads_the_callers_arrays_at_every_submission},
      {"a device without batch falls back and says so", a_device_without_batch_falls_back_and_says_so},
      {"only small blocks on an idle stream are primed", only_small_blocks_on_an_idle_stream_are_primed},
      {"each slice is primed by its own sizes", each_slice_is_primed_by_its_own_sizes},
      {"a list is sorted by the addresses of its host side", a_list_is_sorted_by_the_addresses_of_its_host_side},
      {"the legacy stream is refused", the_legacy_stream_is_refused},
      {"errors carry the descriptor", errors_carry_the_descriptor},
      {"a run of mixed sizes arrives as one descriptor", a_run_of_mixed_sizes_arrives_as_one_descriptor},
      {"a merged descriptor is named by its first", a_merged_descriptor_is_named_by_its_first},
      {"faults change bytes", faults_change_bytes},
      {"a hung stream ends with its owner", a_hung_stream_ends_with_its_owner},
      {"a wait is for the record before it", a_wait_is_for_the_record_before_it},
      {"buffers know their bounds", buffers_know_their_bounds},
  });
}
