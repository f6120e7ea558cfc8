#include <vector>

#include "bench.hpp"
#include "check.hpp"

namespace {

using namespace kvbench;

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
      {"a hung stream ends with its owner", a_hung_stream_ends_with_its_owner},
      {"buffers know their bounds", buffers_know_their_bounds},
  });
}
