#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench.hpp"
#include "check.hpp"
#include "forwarding_driver.hpp"
#include "kernels/piece_map.hpp"
#include "swap/block_copier.hpp"

namespace {
thread_local std::size_t allocated = 0;
}

void* operator new(std::size_t bytes) {
  ++allocated;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace kvbench;

/// The host device, whose submissions do nothing, and so allocate nothing themselves.
class QuietDriver final : public ForwardingDriver {
 public:
  explicit QuietDriver(BatchEntry entry) : entry_(entry) {}
  BatchEntry batch_entry() const override { return entry_; }
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid, void**, Stream) override {}
  void record(Event, Stream) override {}
  void delay(std::uint64_t, Stream) override {}
  void copy(Address, Address, std::size_t, Direction, Stream) override {}
  void copy_batch(std::span<const Address>, std::span<const Address>, std::span<const std::size_t>, BatchAttributes,
                  Direction, Stream) override {}
  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    ++allocated;
    return ForwardingDriver::allocate(kind, bytes);
  }

 private:
  BatchEntry entry_;
};

/// The host device, which notes what a copier requests: launches, batched calls, delays and questions.
class AskedDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char* name, std::size_t) override {
    names.emplace_back(name);
    return names.size();
  }
  void launch(Kernel kernel, Grid grid, void** arguments, Stream) override {
    noted.push_back(names[kernel - 1] + " " + std::to_string(grid.blocks));
    launched = *static_cast<List*>(arguments[0]);
    pieces.clear();
    for (u32 i = 0; i < launched.pieces; ++i) pieces.push_back(read_piece(launched, i, SmShape{}.piece_bytes));
  }
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    noted.push_back("batch " + std::to_string(bytes.size()) +
                    (attributes.order == AccessOrder::any ? " any" : " stream"));
    ForwardingDriver::copy_batch(destinations, sources, bytes, attributes, direction, stream);
  }
  void delay(std::uint64_t, Stream) override { noted.emplace_back("delay"); }
  Region region_of(Address address) override {
    ++regions;
    return known.holds(address) ? known : ForwardingDriver::region_of(address);
  }
  bool idle(Stream) override {
    ++questions;
    return !pending;
  }

  /// Returns what was noted since the last call.
  std::vector<std::string> take() { return std::exchange(noted, {}); }

  std::vector<std::string> names;
  std::vector<std::string> noted;
  List launched{};
  std::vector<Piece> pieces;  ///< of the last launch
  int questions = 0;
  int regions = 0;
  Region known{};  ///< beside the host device's
  bool pending = false;
};

using Noted = std::vector<std::string>;

constexpr std::size_t kPoolBytes = std::size_t{4} << 20;

template <class OneDriver>
struct BenchOf {
  explicit BenchOf(std::shared_ptr<OneDriver> with = std::make_shared<OneDriver>())
      : driver(std::move(with)),
        stream(driver),
        host(driver, MemoryKind::allocated, kPoolBytes),
        device(driver, MemoryKind::device, kPoolBytes) {}

  std::shared_ptr<const SmKernel> kernel(SmMethod method) {
    return std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{.method = method});
  }

  /// Ways: 0 batched, 1 primed, 2 a kernel on 3 SMs, 3 merged, 4 the kernel on one SM.
  std::unique_ptr<BlockCopier> copier(std::vector<CopyTable> tables, std::size_t max_entries = 0) {
    std::vector<CopyWay> ways(5);
    ways[3].batch.by_host_address = ways[3].batch.merge = ways[3].batch.sliced = true;
    ways[1].batch.prime_ns = 2000;
    ways[1].batch.prime_up_to_bytes = 1 << 20;
    ways[2].sms = 3;
    ways[2].aligned = kernel(SmMethod::bulk);
    ways[2].any = kernel(SmMethod::lanes);
    ways[4] = ways[2];
    ways[4].sms = 1;
    return std::make_unique<BlockCopier>(driver, std::move(ways), std::move(tables), max_entries);
  }

  /// `count` blocks of `bytes`, kept as long as the bench.
  Descriptors list(std::size_t count, std::size_t bytes, Direction direction = Direction::h2d) {
    DescriptorList& kept = lists.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      const Address ends[] = {host.address() + i * kBlock, device.address() + i * kBlock};
      kept.sources.push_back(ends[direction == Direction::h2d ? 0 : 1]);
      kept.destinations.push_back(ends[direction == Direction::h2d ? 1 : 0]);
      kept.bytes.push_back(bytes);
    }
    return kept.view();
  }

  /// Copies a list of small blocks by a kernel, and checks the pieces of its launch.
  void check_launched(BlockCopier& copier, const Descriptors& descriptors) {
    check::equal(copied(copier, descriptors).size(), std::size_t{1}, "launches");
    check::equal(driver->pieces.size(), descriptors.size(), "pieces");
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      check::equal(driver->pieces[i].source, descriptors.sources[i], "source");
      check::equal(driver->pieces[i].destination, descriptors.destinations[i], "destination");
      check::equal(std::size_t{driver->pieces[i].bytes}, descriptors.bytes[i], "bytes");
    }
  }

  Noted copied(BlockCopier& copier, const Descriptors& descriptors, bool any = false) {
    copier.copy(descriptors, any, stream.handle());
    driver->synchronize(stream.handle());
    return driver->take();
  }

  std::shared_ptr<OneDriver> driver;
  OwnedStream stream;
  Buffer host;
  Buffer device;
  std::deque<DescriptorList> lists;
};

using CopierBench = BenchOf<AskedDriver>;
using QuietBench = BenchOf<QuietDriver>;

/// A table with one way for everything.
CopyTable always(std::size_t way, Direction direction, bool pending = false) {
  return {.direction = direction, .pending = pending, .size_limits = {}, .count_limits = {}, .ways = {way}};
}

std::vector<CopyTable> both_ways(std::size_t way) { return {always(way, Direction::h2d), always(way, Direction::d2h)}; }

void the_table_decides_by_size_and_count() {
  CopierBench bench;
  // Up to 100 bytes and 4 blocks a kernel, beyond either limit batched copies.
  const CopyTable table{
      .direction = Direction::h2d, .pending = false, .size_limits = {100}, .count_limits = {4}, .ways = {2, 0, 0, 0}};
  const auto copier = bench.copier({table, always(0, Direction::d2h)});
  check::that(bench.copied(*copier, bench.list(4, 96)) == Noted{"kvbench_sm_bulk 3"}, "few small blocks");
  check::that(bench.copied(*copier, bench.list(2, 96)) == Noted{"kvbench_sm_bulk 2"}, "no more SMs than pieces");
  check::that(bench.copied(*copier, bench.list(5, 96)) == Noted{"batch 5 stream"}, "more blocks");
  check::that(bench.copied(*copier, bench.list(4, 112)) == Noted{"batch 4 stream"}, "larger blocks");
  check::that(bench.copied(*copier, bench.list(4, 96, Direction::d2h)) == Noted{"batch 4 stream"}, "d2h");
}

void the_stream_is_asked_only_where_its_answer_matters() {
  CopierBench bench;
  const auto copier = bench.copier({always(2, Direction::h2d), always(0, Direction::h2d, true),
                                    always(0, Direction::d2h), always(0, Direction::d2h, true)});
  constexpr std::size_t kLarge = kPoolBytes / 2;
  check::that(bench.copied(*copier, bench.list(4, kLarge)) == Noted{"kvbench_sm_bulk 3"}, "an idle stream");
  bench.driver->pending = true;
  check::that(bench.copied(*copier, bench.list(4, kLarge)) == Noted{"batch 4 stream"}, "a stream with pending work");
  check::equal(bench.driver->questions, 2, "questions");
  bench.copied(*copier, bench.list(4, kLarge, Direction::d2h));
  check::equal(bench.driver->questions, 2, "questions, where both tables name one way");
  check::that(bench.copied(*copier, bench.list(4, 64)) == Noted{"kvbench_sm_bulk 3"}, "a small list");
  check::equal(bench.driver->questions, 2, "questions, where a swap is about as short as one");
}

void between_kernels_the_stream_is_asked_for_larger_lists_only() {
  CopierBench bench;
  const auto copier =
      bench.copier({always(2, Direction::h2d), always(4, Direction::h2d, true), always(2, Direction::d2h)});
  constexpr std::size_t kLarge = kPoolBytes / 2;
  bench.driver->pending = true;
  check::that(bench.copied(*copier, bench.list(4, kLarge)) == Noted{"kvbench_sm_bulk 3"}, "8 MiB");
  check::equal(bench.driver->questions, 0, "questions");
  check::that(bench.copied(*copier, bench.list(32, kLarge)) == Noted{"kvbench_sm_bulk 1"}, "64 MiB");
  check::equal(bench.driver->questions, 1, "questions");
}

void what_is_not_aligned_takes_the_other_kernel() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  check::that(bench.copied(*copier, bench.list(4, 64)) == Noted{"kvbench_sm_bulk 3"}, "multiples of 16");
  check::that(bench.copied(*copier, bench.list(4, 65)) == Noted{"kvbench_sm_lanes 3"}, "another size");
  bench.list(4, 64);
  bench.lists.back().bytes.back() = 16;
  check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"kvbench_sm_bulk 3"}, "sizes that differ");
  bench.lists.back().bytes.back() = 15;
  check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"kvbench_sm_lanes 3"}, "one odd size");
  bench.list(4, 64);
  ++bench.lists.back().sources[2];
  check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"kvbench_sm_lanes 3"}, "one odd address");
}

void the_driver_is_asked_once_for_each_pool() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(0));
  for (int i = 0; i < 3; ++i) {
    bench.copied(*copier, bench.list(4, 64));
    bench.copied(*copier, bench.list(4, 64, Direction::d2h));
  }
  check::equal(bench.driver->regions, 2, "questions for two pools");
  const Buffer another(bench.driver, MemoryKind::allocated, kBlock);
  bench.list(1, 64);
  bench.lists.back().sources[0] = another.address();
  bench.copied(*copier, bench.lists.back().view());
  check::equal(bench.driver->regions, 3, "questions for three");
}

void a_pool_where_a_smaller_one_was_is_asked_for_once() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(0));
  const auto ask = [&](Address address) {
    bench.list(1, 64);
    bench.lists.back().sources[0] = address;
    bench.copied(*copier, bench.lists.back().view());
  };
  const Buffer pool(bench.driver, MemoryKind::allocated, 4 * kBlock);
  const Region larger{Place::pinned, pool.address(), 4 * kBlock};
  bench.driver->known = Region{Place::pinned, larger.begin, kBlock};
  ask(larger.begin);
  bench.driver->known = larger;
  ask(larger.begin + 2 * kBlock);
  const int before = bench.driver->regions;
  for (const std::size_t block : {0, 1, 2, 3}) ask(larger.begin + block * kBlock);
  check::equal(bench.driver->regions, before, "questions for the larger pool");
}

void blocks_of_many_pools_are_one_list() {
  for (const std::size_t way : {0, 2}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    bench.list(1000, 64);
    DescriptorList& list = bench.lists.back();
    std::deque<Buffer> pools;
    for (int i = 0; i < 10; ++i) pools.emplace_back(bench.driver, MemoryKind::device, kPoolBytes);
    for (std::size_t i = 0; i < 1000; ++i) list.destinations[i] = pools[i % 10].address() + i * kBlock;
    check::equal(bench.copied(*copier, list.view()).size(), std::size_t{1}, "submissions");
    const int before = bench.driver->regions;
    check::that(before <= 11, "a question for each pool");
    bench.copied(*copier, list.view());
    check::equal(bench.driver->regions, before, "questions for known pools");
  }
}

void a_kernel_gets_the_blocks_of_one_pool_and_of_many() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  bench.check_launched(*copier, bench.list(1000, 64));
  check::that(bench.driver->launched.ids_at > 0, "by ids");
  std::deque<Buffer> pools;
  for (int i = 0; i < 10; ++i) pools.emplace_back(bench.driver, MemoryKind::device, kPoolBytes);
  for (const std::size_t entries : {1000, 991}) {  // the last lies in another pool than the first, or in the same
    bench.list(entries, 64);
    DescriptorList& list = bench.lists.back();
    for (std::size_t i = 0; i < entries; ++i) list.destinations[i] = pools[i % 10].address() + i * kBlock;
    bench.check_launched(*copier, list.view());
  }
}

void a_kernel_gets_the_blocks_of_a_pool_that_ids_do_not_reach() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  constexpr std::size_t kReach = std::size_t{64} << 30;
  bench.driver->known = {Place::pinned, Address{1} << 44, 2 * kReach};  // read by nobody
  bench.list(1000, 64);
  for (Address& source : bench.lists.back().sources) {
    source = source - bench.host.address() + bench.driver->known.begin + kReach;
  }
  bench.check_launched(*copier, bench.lists.back().view());
}

void an_entry_that_goes_another_way_is_refused() {
  for (const std::size_t way : {0, 2}) {
    for (const std::size_t entry : {1, 700, 999}) {
      CopierBench bench;
      const auto copier = bench.copier(both_ways(way));
      bench.list(1000, 64);
      DescriptorList& list = bench.lists.back();
      const auto refused = [&] {
        check::thrown<std::invalid_argument>([&] { copier->copy(list.view(), false, bench.stream.handle()); });
        check::that(bench.driver->take().empty(), "nothing was submitted");
      };
      std::swap(list.sources[entry], list.destinations[entry]);
      refused();
      list.sources[entry] = list.destinations[entry];
      refused();
      list.sources[entry] = 4096;
      refused();
      list.sources[entry] = ~Address{0};
      refused();
    }
  }
}

void a_size_that_differs_is_found_wherever_it_is() {
  for (const std::size_t entry : {1, 250, 700, 998}) {
    CopierBench bench;
    const auto batched = bench.copier(both_ways(0)), kernel = bench.copier(both_ways(2));
    bench.list(1000, 64);
    DescriptorList& list = bench.lists.back();
    bench.copied(*kernel, list.view());
    check::equal(bench.driver->launched.lengths_at, u64{0}, "a list of one size has no lengths");
    list.bytes[entry] = 48;
    bench.copied(*kernel, list.view());
    check::that(bench.driver->launched.lengths_at > 0, "a list of two sizes has lengths");
    list.bytes[entry] = 0;
    check::that(bench.copied(*batched, list.view()) == Noted{"batch 999 stream"}, "without the empty entry");
    list.bytes[entry] = std::size_t{1} << 63;
    for (BlockCopier* copier : {batched.get(), kernel.get()}) {
      check::thrown<std::invalid_argument>([&] { copier->copy(list.view(), false, bench.stream.handle()); });
      check::that(bench.driver->take().empty(), "nothing was submitted");
    }
  }
}

void sizes_that_add_up_to_too_much_are_refused() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  const auto refused = [&] {
    check::thrown<std::invalid_argument>(
        [&] { copier->copy(bench.lists.back().view(), false, bench.stream.handle()); });
    check::that(bench.driver->take().empty(), "nothing was submitted");
  };
  bench.list(4, std::size_t{1} << 62);  // 0 in 64 bits
  refused();
  ++bench.lists.back().bytes.back();
  refused();
}

void each_list_has_its_access_order() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(0));
  for (const bool any : {true, false, true}) {
    const Noted expected{any ? "batch 4 any" : "batch 4 stream"};
    check::that(bench.copied(*copier, bench.list(4, 64), any) == expected, "the order of this list");
  }
}

void only_loads_are_primed() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(1));
  check::that(bench.copied(*copier, bench.list(4, 64)) == (Noted{"delay", "batch 4 stream"}), "h2d");
  check::that(bench.copied(*copier, bench.list(4, 64, Direction::d2h)) == Noted{"batch 4 stream"}, "d2h");
}

void entries_of_no_bytes_are_left_out() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(0));
  bench.list(4, 64);
  bench.lists.back().bytes[1] = 0;
  check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"batch 3 stream"}, "one of four");
  check::that(bench.copied(*copier, bench.list(4, 0)).empty(), "all");
  check::that(bench.copied(*copier, Descriptors{}).empty(), "an empty list");
}

/// Copies lists of both directions, of one size and of several, with and without entries of no bytes, in any order;
/// returns the number of allocations.
std::size_t copy_every_kind(BlockCopier& copier, QuietBench& bench, std::size_t entries) {
  std::size_t made = 0;
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    bench.list(entries, 64, direction);
    DescriptorList& list = bench.lists.back();
    const auto copy = [&](bool any) {
      const std::size_t before = allocated;
      copier.copy(list.view(), any, bench.stream.handle());
      made += allocated - before;
    };
    for (const bool any : {false, true}) copy(any);
    std::ranges::reverse(list.destinations);
    std::ranges::reverse(list.sources);
    copy(false);
    list.bytes[1] = 0;
    copy(false);
    list.bytes[1] = 48;
    copy(false);
  }
  return made;
}

void a_call_allocates_nothing_once_a_list_as_long_was_copied() {
  for (const BatchEntry entry : {BatchEntry::host, BatchEntry::none}) {
    for (std::size_t way = 0; way < 4; ++way) {
      for (const bool reserved : {false, true}) {
        QuietBench bench(std::make_shared<QuietDriver>(entry));
        const auto copier = bench.copier(both_ways(way), reserved ? 2000 : 0);
        if (!reserved) check::that(copy_every_kind(*copier, bench, 2000) > 0, "the first lists make room");
        for (const std::size_t entries : {2000, 3, 1000, 2000}) {
          check::equal(copy_every_kind(*copier, bench, entries), std::size_t{0}, "allocations");
        }
      }
    }
  }
}

void what_a_copier_cannot_serve_is_refused() {
  CopierBench bench;
  check::thrown<std::invalid_argument>([&] { bench.copier({always(0, Direction::h2d)}); });
  check::thrown<std::invalid_argument>([&] { bench.copier(both_ways(5)); });
  const auto copier = bench.copier(both_ways(0));
  const std::vector<Address> here{bench.host.address()}, elsewhere{4096};
  const std::vector<std::size_t> bytes{64};
  for (const auto& sources : {elsewhere, here}) {
    check::thrown<std::invalid_argument>(
        [&] { copier->copy(Descriptors{sources, here, bytes}, false, bench.stream.handle()); });
  }
  check::thrown<DriverError>([&] { copier->copy(bench.list(1, 64), false, 0); });
}

}  // namespace

int main() {
  return check::run({
      {"the table decides by size and count", the_table_decides_by_size_and_count},
      {"the stream is asked only where its answer matters", the_stream_is_asked_only_where_its_answer_matters},
      {"between kernels the stream is asked for larger lists only",
       between_kernels_the_stream_is_asked_for_larger_lists_only},
      {"what is not aligned takes the other kernel", what_is_not_aligned_takes_the_other_kernel},
      {"the driver is asked once for each pool", the_driver_is_asked_once_for_each_pool},
      {"a pool where a smaller one was is asked for once", a_pool_where_a_smaller_one_was_is_asked_for_once},
      {"blocks of many pools are one list", blocks_of_many_pools_are_one_list},
      {"a kernel gets the blocks of one pool and of many", a_kernel_gets_the_blocks_of_one_pool_and_of_many},
      {"a kernel gets the blocks of a pool that ids do not reach",
       a_kernel_gets_the_blocks_of_a_pool_that_ids_do_not_reach},
      {"an entry that goes another way is refused", an_entry_that_goes_another_way_is_refused},
      {"a size that differs is found wherever it is", a_size_that_differs_is_found_wherever_it_is},
      {"sizes that add up to too much are refused", sizes_that_add_up_to_too_much_are_refused},
      {"each list has its access order", each_list_has_its_access_order},
      {"only loads are primed", only_loads_are_primed},
      {"entries of no bytes are left out", entries_of_no_bytes_are_left_out},
      {"a call allocates nothing once a list as long was copied",
       a_call_allocates_nothing_once_a_list_as_long_was_copied},
      {"what a copier cannot serve is refused", what_a_copier_cannot_serve_is_refused},
  });
}
