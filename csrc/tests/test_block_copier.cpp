#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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
  bool idle(Stream) override { return !pending; }
  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    ++allocated;
    return ForwardingDriver::allocate(kind, bytes);
  }

  bool pending = false;

 private:
  BatchEntry entry_;
};

/// The host device, which notes what a copier requests: launches, batched calls, delays and questions.
class AskedDriver : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char* name, std::size_t) override {
    names.emplace_back(name);
    return names.size();
  }
  Previous enter() const noexcept override {
    ++entered;
    return kPrevious;
  }
  void leave(Previous previous) const noexcept override {
    check::equal(previous.context, kPrevious.context, "what was current before");
    --entered;
  }
  void launch(Kernel kernel, Grid grid, void** arguments, Stream) override {
    check::equal(entered, 1, "the device is current");
    noted.push_back(names[kernel - 1] + " " + std::to_string(grid.blocks));
    if (during_launch) during_launch();
    launched = *static_cast<List*>(arguments[0]);
    pieces.clear();
    for (u32 i = 0; i < launched.pieces; ++i) pieces.push_back(read_piece(launched, i, SmShape{}.piece_bytes));
  }
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    check::equal(entered, 1, "the device is current");
    if (fails_at) throw DriverError("batch", "REFUSED", std::exchange(fails_at, std::nullopt));
    noted.push_back("batch " + std::to_string(bytes.size()) +
                    (attributes.order == AccessOrder::any ? " any" : " stream"));
    ForwardingDriver::copy_batch(destinations, sources, bytes, attributes, direction, stream);
  }
  void copy(Address, Address, std::size_t, Direction, Stream) override { noted.emplace_back("copy"); }
  BatchEntry batch_entry() const override { return entry; }
  void delay(std::uint64_t, Stream) override { noted.emplace_back("delay"); }
  Region region_of(Address address) override {
    ++regions;
    const auto at = std::ranges::find_if(known, [=](const Region& region) { return region.holds(address); });
    return at != known.end() ? *at : ForwardingDriver::region_of(address);
  }
  bool capturing(Stream stream) override { return captured || ForwardingDriver::capturing(stream); }
  bool idle(Stream) override {
    ++questions;
    return !pending;
  }

  void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept override {
    ++released;
    ForwardingDriver::release(kind, memory, bytes);
  }

  /// Returns what was noted since the last call.
  std::vector<std::string> take() { return std::exchange(noted, {}); }

  std::vector<std::string> names;
  std::vector<std::string> noted;
  List launched{};
  std::vector<Piece> pieces;  ///< of the last launch
  int questions = 0;
  int regions = 0;
  int released = 0;
  std::vector<Region> known;  ///< beside the host device's
  bool pending = false;
  bool captured = false;
  std::optional<std::size_t> fails_at;  ///< the descriptor of the next call that the driver refuses
  BatchEntry entry = BatchEntry::host;
  std::function<void()> during_launch;
  mutable int entered = 0;
  static constexpr Previous kPrevious{.context = 7};
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

  /// Ways: 0 batched, 1 primed, 2 a kernel on 3 SMs, 3 merged, 4 the kernel on one SM, 5 single copies, 6 seven a call,
  /// 7 staged by 3 SMs, else 4.
  std::unique_ptr<BlockCopier> copier(std::vector<CopyTable> tables, std::size_t max_entries = 0,
                                      std::vector<BlockCopier::Pool> pools = {}) {
    std::vector<CopyWay> ways(8);
    ways[6].batch.descriptors_per_call = 7;
    ways[5].one_by_one = true;
    ways[3].batch.by_host_address = ways[3].batch.merge = ways[3].batch.sliced = true;
    ways[1].batch.prime_ns = 2000;
    ways[1].batch.prime_up_to_bytes = 1 << 20;
    ways[2].sms = 3;
    ways[2].aligned = kernel(SmMethod::bulk);
    ways[2].any = kernel(SmMethod::lanes);
    ways[4] = ways[7] = ways[2];
    ways[4].sms = 1;
    ways[7].staged = true;
    ways[7].otherwise = 4;
    return std::make_unique<BlockCopier>(driver, std::move(ways), std::move(tables), max_entries, pools);
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
    Descriptors list = descriptors;
    list.source_order_any = any;
    copier.copy(list, stream.handle());
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

void a_list_follows_the_table_of_what_it_runs_beside() {
  CopierBench bench;
  std::vector<CopyTable> tables = both_ways(0);
  for (CopyTable table : both_ways(2)) {
    table.beside = 2;
    tables.push_back(table);
  }
  const auto copier = bench.copier(tables);
  check::that(bench.copied(*copier, bench.list(4, 96)) == Noted{"batch 4 stream"}, "alone");
  Descriptors list = bench.list(4, 96);
  list.beside = 2;
  check::that(bench.copied(*copier, list) == Noted{"kvbench_sm_bulk 3"}, "beside");
  check::that(copier->serves(2) && !copier->serves(1) && !copier->serves(9), "what it has tables for");
  list.beside = 1;
  check::thrown<std::invalid_argument>([&] { copier->copy(list, bench.stream.handle()); });
  tables.back().beside = 3;
  check::thrown<std::invalid_argument>([&] { bench.copier(tables); });  // beside something in one direction alone
}

void a_way_by_kernel_is_held_at_its_pace() {
  CopierBench bench;
  for (const double pace_gbps : {0.0, 24.0}) {
    CopyWay way;
    way.sms = 3;
    way.any = bench.kernel(SmMethod::lanes);
    way.pace_gbps = pace_gbps;
    BlockCopier copier(bench.driver, {way}, both_ways(0));
    for (const Direction direction : {Direction::h2d, Direction::d2h}) {
      bench.check_launched(copier, bench.list(1000, 64, direction));
      check::equal(bench.driver->launched.ps_per_byte, pace_gbps > 0 ? 3U * 16 * 1000 / 24 : 0U, "pace");
    }
  }
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

void lists_of_pages_are_staged_and_others_counted() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(7));
  const auto staged = [&](Direction direction) { return bench.list(2 * kPoolBytes / 3 / kBlock, kBlock, direction); };
  for (int i = 0; i < 2; ++i) {
    check::that(bench.copied(*copier, staged(Direction::h2d)) == Noted{"copy", "kvbench_sm_bulk 3"}, "h2d");
    check::that(bench.copied(*copier, staged(Direction::d2h)) == Noted{"kvbench_sm_bulk 3", "copy"}, "d2h");
  }
  check::equal(copier->not_staged(), std::size_t{0}, "lists that were not staged");
  check::that(bench.copied(*copier, bench.list(1000, kBlock - 16)) == Noted{"kvbench_sm_bulk 1"}, "blocks with gaps");
  check::equal(copier->not_staged(), std::size_t{1}, "lists that were not staged");
  bench.list(1000, kBlock);
  bench.lists.back().destinations[700] = bench.device.address() + kPoolBytes - 16;
  const auto error = check::thrown<InvalidEntry>([&] { bench.copied(*copier, bench.lists.back().view()); });
  check::equal(error.entry(), std::size_t{700}, "the entry that is refused");
  check::that(bench.driver->take().empty(), "nothing is submitted");
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
  for (const auto side : {&DescriptorList::sources, &DescriptorList::destinations}) {
    for (const std::size_t entry : {0, 2, 3}) {
      bench.list(4, 64);
      (bench.lists.back().*side)[entry] += 8;
      const Descriptors list = bench.lists.back().view();
      check::that(bench.copied(*copier, list) == Noted{"kvbench_sm_lanes 3"}, "one odd address");
      bench.check_launched(*copier, list);
    }
  }
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
  bench.driver->known = {{Place::pinned, larger.begin, kBlock}};
  ask(larger.begin);
  bench.driver->known = {larger};
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
  bench.driver->known = {{Place::pinned, Address{1} << 44, 2 * kReach}};  // read by nobody
  bench.list(1000, 64);
  for (Address& source : bench.lists.back().sources) {
    source = source - bench.host.address() + bench.driver->known[0].begin + kReach;
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
        check::thrown<std::invalid_argument>([&] { copier->copy(list.view(), bench.stream.handle()); });
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
      check::thrown<std::invalid_argument>([&] { copier->copy(list.view(), bench.stream.handle()); });
      check::that(bench.driver->take().empty(), "nothing was submitted");
    }
  }
}

void a_block_larger_than_all_memory_is_refused() {
  for (const std::size_t way : {0, 2}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    bench.list(4, std::size_t{1} << 62);  // in 64 bits, the sum is 0
    for (const std::size_t entry : {0, 1}) {
      const auto error =
          check::thrown<InvalidEntry>([&] { copier->copy(bench.lists.back().view(), bench.stream.handle()); });
      check::equal(error.entry(), entry, "entry");
      check::that(bench.driver->take().empty(), "nothing was submitted");
      bench.lists.back().bytes.front() = 64;
    }
  }
}

void each_list_has_its_access_order() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(0));
  for (const bool any : {true, false, true}) {
    const Noted expected{any ? "batch 4 any" : "batch 4 stream"};
    check::that(bench.copied(*copier, bench.list(4, 64), any) == expected, "the order of this list");
  }
}

void a_table_has_a_row_for_each_range_of_sizes() {
  CopierBench bench;
  std::vector<CopyTable> tables = both_ways(0);
  tables.front() = {
      .direction = Direction::h2d, .pending = false, .size_limits = {100}, .count_limits = {4}, .ways = {0, 1, 3, 4}};
  const auto copier = bench.copier(tables);
  const auto way = [&](std::size_t count, std::size_t bytes) {
    return copier->way_of(count, count * bytes, Direction::h2d, true);
  };
  check::equal(way(1, 64), std::size_t{0}, "few small blocks");
  check::equal(way(10, 64), std::size_t{1}, "many small blocks");
  check::equal(way(1, 1000), std::size_t{3}, "few large blocks");
  check::equal(way(10, 1000), std::size_t{4}, "many large blocks");
}

void a_driver_without_batched_copies_gets_single_ones() {
  CopierBench bench;
  bench.driver->entry = BatchEntry::none;
  for (const std::size_t way : {0, 1, 3}) {
    const auto copier = bench.copier(both_ways(way));
    check::that(bench.copied(*copier, bench.list(3, 64)) == Noted{"copy", "copy", "copy"}, "one for each block");
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
  check::that(bench.copied(*copier, bench.lists.front().view(), true) == Noted{"batch 3 any"}, "in its order");
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
      Descriptors descriptors = list.view();
      descriptors.source_order_any = any;
      copier.copy(descriptors, bench.stream.handle());
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
        copier->copy(bench.list(1, 64), bench.stream.handle());  // which looks the pools up
        if (!reserved) check::that(copy_every_kind(*copier, bench, 2000) > 0, "the first lists make room");
        for (const std::size_t entries : {2000, 3, 1000, 2000}) {
          check::equal(copy_every_kind(*copier, bench, entries), std::size_t{0}, "allocations");
        }
      }
    }
  }
}

void room_is_made_for_lists_behind_pending_work_too() {
  QuietBench bench(std::make_shared<QuietDriver>(BatchEntry::host));
  bench.driver->pending = true;
  const auto copier = bench.copier({always(0, Direction::h2d), always(2, Direction::h2d, true),
                                    always(0, Direction::d2h), always(2, Direction::d2h, true)},
                                   2000);
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    const Descriptors list = bench.list(2000, 4200, direction);         // so large that pending work matters
    copier->copy(bench.list(1, 64, direction), bench.stream.handle());  // which looks the pools up
    const std::size_t before = allocated;
    copier->copy(list, bench.stream.handle());
    check::equal(allocated, before, "allocations");
  }
}

/// Calls of every way that are refused, with the message, before anything is submitted; the copier works on.
template <typename Error, class OneBench>
Error refused(OneBench& bench, BlockCopier& copier, const Descriptors& list) {
  const Error error = check::thrown<Error>([&] { copier.copy(list, bench.stream.handle()); });
  check::that(bench.driver->take().empty(), "nothing was submitted");
  check::equal(bench.driver->entered, 0, "what was current is current again");
  check::that(!bench.copied(copier, bench.list(4, 64)).empty(), "the next list is submitted");
  return error;
}

void an_entry_lies_wholly_in_one_region() {
  constexpr std::size_t kHuge = std::size_t{1} << 62;
  for (const std::size_t way : {0, 1, 2, 3, 5}) {
    for (const std::size_t entries : {1, 5, 1000}) {
      for (const std::size_t entry : {std::size_t{0}, entries / 2, entries - 1}) {
        CopierBench bench;
        const auto copier = bench.copier(both_ways(way));
        for (const Direction direction : {Direction::h2d, Direction::d2h}) {
          for (const bool at_source : {true, false}) {
            bench.list(entries, 64, direction);
            DescriptorList& list = bench.lists.back();
            auto& side = at_source ? list.sources : list.destinations;
            const Address pool = side[0];
            side[entry] = pool + kPoolBytes - 64;
            check::that(!bench.copied(*copier, list.view()).empty(), "the last block of a pool");
            for (const Address address : {pool + kPoolBytes - 48, pool - 16, pool + kPoolBytes}) {
              if (bench.driver->region_of(address).holds(address, 64)) continue;  // pinned for a list of the copier
              side[entry] = address;
              check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), entry, "entry");
            }
            side[entry] = pool + kPoolBytes - 64;
            for (const std::size_t bytes : {std::size_t{80}, 2 * kPoolBytes, kHuge - 1, kHuge, 2 * kHuge - 1}) {
              list.bytes[entry] = bytes;
              check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), entry, "entry");
            }
          }
        }
      }
    }
  }
}

void an_entry_has_the_number_that_it_has_in_the_callers_list() {
  for (const std::size_t way : {0, 2}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    bench.list(6, 64);
    DescriptorList& list = bench.lists.back();
    list.bytes = {0, 64, 0, 48, 0, 64};
    if (way == 0) {
      bench.driver->fails_at = 1;
      check::equal(refused<DriverError>(bench, *copier, list.view()).descriptor().value_or(0), std::size_t{3}, "entry");
    }
    list.bytes[5] = kPoolBytes;
    check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), std::size_t{5}, "entry beyond its pool");
    list.bytes[5] = std::size_t{1} << 63;
    check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), std::size_t{5},
                 "entry of a negative size");
  }
}

void a_negative_size_is_named_before_any_other_fault() {
  for (const std::size_t way : {0, 2, 3, 5}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    for (const std::size_t wrong : {0, 3}) {
      bench.list(7, 64);
      DescriptorList& list = bench.lists.back();
      list.sources[wrong] = 4096;
      list.bytes[2] = ~std::size_t{0};  // where a look at three sizes does not see it
      check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), std::size_t{2}, "entry");
      list.bytes[2] = 64;
      check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), wrong, "entry of no memory");
    }
  }
}

void memory_that_is_nobodys_is_refused_by_its_name() {
  for (const std::size_t way : {0, 2}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    bench.driver->known = {{.place = Place::managed, .begin = 1 << 20, .bytes = 1 << 20, .device = 0},
                           {.place = Place::other_device, .begin = 1 << 21, .bytes = 1 << 20, .device = 1}};
    for (const std::size_t entry : {0, 3}) {
      for (const auto& [address, name] :
           {std::pair(Address{1} << 20, "managed memory of cuda:0"), std::pair(Address{1} << 21, "memory of cuda:1"),
            std::pair(Address{4096}, "pageable memory")}) {
        for (const bool at_source : {true, false}) {
          bench.list(4, 64);
          (at_source ? bench.lists.back().sources : bench.lists.back().destinations)[entry] = address;
          const auto error = refused<InvalidEntry>(bench, *copier, bench.lists.back().view());
          check::equal(error.entry(), entry, "entry");
          check::that(std::string(error.what()).find(name) != std::string::npos, error.what());
        }
      }
    }
  }
}

void runs_are_not_merged_across_registrations() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(3));
  constexpr std::size_t kHalf = 8 * kBlock;
  bench.driver->known = {{Place::pinned, bench.host.address(), kHalf},
                         {Place::pinned, bench.host.address() + kHalf, kHalf}};
  bench.list(16, kBlock);
  check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"batch 2 stream"}, "one for each registration");
  check::equal(copier->descriptors(), std::size_t{2}, "descriptors");
  bench.lists.back().sources[7] += 16;
  bench.lists.back().destinations[7] += 16;
  check::equal(refused<InvalidEntry>(bench, *copier, bench.lists.back().view()).entry(), std::size_t{7},
               "an entry across both");
  check::that(bench.copied(*copier, bench.list(16, kBlock, Direction::d2h)) == Noted{"batch 2 stream"},
              "one for each registration that is written to");
}

struct Copied {
  Address source, destination;
  std::size_t bytes;
  bool operator==(const Copied&) const = default;
};

/// Memory of nobody at random, on the host and on the device: pools of slots, with gaps, adjoining, and in pieces that
/// were mapped. Notes what is copied.
class RandomMemory final : public AskedDriver {
 public:
  explicit RandomMemory(unsigned seed) : random(seed) {
    Address at = Address{1} << 44;
    for (const Place place : {Place::pinned, Place::device}) {
      for (int group = 0; group < 6; ++group) {
        at += random() % 2 * 16 * (random() % 600);
        const std::size_t bytes = 16 * (1 + random() % 500), gap = random() % 2 * 16 * (random() % 900);
        const bool mapped = place == Place::device && random() % 3 == 0;
        const bool read_only = place == Place::pinned && random() % 6 == 0;
        for (std::uint64_t slot = 1 + random() % 9; slot > 0; --slot, at += bytes + gap) {
          if (random() % 6 == 0) continue;
          known.push_back({place, at, bytes, mapped, false, read_only});
        }
      }
    }
  }

  Region region_of(Address address) override {
    ++regions;
    return first_of(address);
  }
  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream) override {
    copied.push_back({source, destination, bytes});
  }
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes, Direction direction, Stream stream) override {
    for (std::size_t i = 0; i < bytes.size(); ++i) copy(destinations[i], sources[i], bytes[i], direction, stream);
  }
  void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) override {
    AskedDriver::launch(kernel, grid, arguments, stream);
    for (const Piece& piece : pieces) copied.push_back({piece.source, piece.destination, piece.bytes});
  }

  /// The region of a block, or of its first byte if none holds all of it; by definition.
  Region at(Address address, std::size_t bytes = 1) const {
    const auto held = [&](const Region& region) { return region.holds(address, bytes); };
    if (const auto pool = std::ranges::find_if(vouched, held); pool != vouched.end()) return *pool;
    Region found = first_of(address);
    while (found.mapped && !found.holds(address, bytes)) {
      const Region next = first_of(found.end());
      if (!next.mapped || next.place != found.place) break;
      found.bytes += next.bytes;
    }
    return found;
  }

  std::vector<Copied> copied;
  std::vector<Region> vouched;
  std::mt19937_64 random;

 private:
  Region first_of(Address address) const {
    const auto found = std::ranges::find_if(known, [=](const Region& region) { return region.holds(address); });
    return found != known.end() ? *found : Region{};
  }
};

struct RandomBench : BenchOf<RandomMemory> {
  using BenchOf::BenchOf;

  Address block(Place place, std::size_t bytes) {
    for (;;) {
      const Region& region = driver->known[random() % driver->known.size()];
      if (region.place != place || region.bytes < bytes) continue;
      const std::size_t room = (region.bytes - bytes) / 16;
      const std::size_t offset = random() % 2 == 0 ? random() % (room + 1) : random() % 2 * room;
      return region.begin + 16 * offset;
    }
  }

  /// A list that mostly can be copied; runs of its blocks adjoin on both sides.
  DescriptorList& some() {
    DescriptorList& list = lists.emplace_back();
    const bool is_h2d = random() % 2 == 0, mixed = random() % 3 == 0;
    const std::size_t count = std::array<std::size_t, 5>{1, 2, 7, 60, 1100}[random() % 5];
    const std::size_t size = std::array<std::size_t, 3>{16, 15, 160}[random() % 3];
    const auto ends = is_h2d ? std::pair(Place::pinned, Place::device) : std::pair(Place::device, Place::pinned);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = !mixed ? size : random() % 8 == 0 ? 0 : 16 * (1 + random() % 6);
      const bool behind = i > 0 && random() % 3 > 0;
      list.sources.push_back(behind ? list.sources.back() + list.bytes.back() : block(ends.first, bytes));
      list.destinations.push_back(behind ? list.destinations.back() + list.bytes.back() : block(ends.second, bytes));
      list.bytes.push_back(bytes);
      const Ends& here = found(list, i);
      if (bytes > 0 && behind && wrong(list, i, here.from.region.place, here.to.region.place)) {
        list.sources.back() = block(ends.first, bytes);
        list.destinations.back() = block(ends.second, bytes);
      }
    }
    if (random() % 2 == 0) spoil(list, random() % count);
    return list;
  }
  void spoil(DescriptorList& list, std::size_t entry) {
    auto& side = random() % 2 == 0 ? list.sources : list.destinations;
    const Region region = driver->at(side[entry]);
    const std::size_t bytes = list.bytes[entry];
    const Address places[] = {region.begin - 1,
                              region.begin - 16,
                              region.end() - bytes + 1,
                              region.end() - bytes + 16,
                              region.end(),
                              region.begin + random() % 4096,
                              block(Place::device, 16),
                              block(Place::pinned, 16),
                              Address{4096}};
    if (random() % 4 > 0) {
      side[entry] = places[random() % std::size(places)];
    } else {
      list.bytes[entry] = region.end() - side[entry] + random() % 2 * (random() % 2 == 0 ? 1 : std::size_t{1} << 62);
    }
  }

  Ends found(const DescriptorList& list, std::size_t i) const {
    return {{driver->at(list.sources[i], list.bytes[i])}, {driver->at(list.destinations[i], list.bytes[i])}};
  }
  bool wrong(const DescriptorList& list, std::size_t i, Place from, Place to) const {
    const Ends ends = found(list, i);
    return ends.from.region.place != from || ends.to.region.place != to || from == to || from == Place::pageable ||
           to == Place::pageable || !ends.hold(list.sources[i], list.destinations[i], list.bytes[i]) ||
           ends.to.region.read_only;
  }
  bool together(const Copied& run, const Copied& next) const {
    const std::size_t bytes = run.bytes + next.bytes;
    return next.source == run.source + run.bytes && next.destination == run.destination + run.bytes &&
           driver->at(run.source, bytes).holds(run.source, bytes) &&
           driver->at(run.destination, bytes).holds(run.destination, bytes);
  }

  /// What a copier has to copy, in order, or the entry that it has to refuse.
  std::pair<std::vector<Copied>, std::optional<std::size_t>> wanted(const DescriptorList& list, bool merged) const {
    std::vector<Copied> copies;
    std::optional<Ends> first;
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      if (list.bytes[i] == 0) continue;
      if (!first) first = Ends{{driver->at(list.sources[i])}, {driver->at(list.destinations[i])}};
      if (wrong(list, i, first->from.region.place, first->to.region.place)) return {{}, i};
      copies.push_back({list.sources[i], list.destinations[i], list.bytes[i]});
    }
    if (!merged || !first) return {copies, {}};
    std::multimap<Address, Copied> sorted;
    for (const Copied& one : copies) {
      sorted.emplace(first->from.region.place == Place::pinned ? one.source : one.destination, one);
    }
    std::vector<Copied> runs;
    for (const auto& [at, next] : sorted) {
      if (!runs.empty() && together(runs.back(), next)) {
        runs.back().bytes += next.bytes;
      } else {
        runs.push_back(next);
      }
    }
    return {runs, {}};
  }

  std::mt19937_64& random = driver->random;
};

/// Whatever lies around: what is copied is what was asked for, each entry wholly in one region; and the driver is asked
/// once for what lies there.
void any_list_in_any_memory_is_copied_or_refused_at_its_first_wrong_entry() {
  std::size_t copied = 0, refused_ones = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const std::size_t way : {0, 2, 3, 5, 6}) {
      RandomBench bench(std::make_shared<RandomMemory>(seed));
      std::vector<BlockCopier::Pool> pools;
      std::vector<Region> vouched;
      for (unsigned pool = 0; pool < seed % 4; ++pool) {
        const Region one = bench.driver->at(bench.block(Place::pinned, 16)),
                     two = bench.driver->at(bench.block(Place::pinned, 16));
        const Address begin = std::min(one.begin, two.begin), end = std::max(one.end(), two.end());
        const bool read_only = one.read_only || two.read_only;
        if (!pools.empty() && read_only != vouched.front().read_only) continue;  // of two that overlap either may count
        pools.push_back({begin, end - begin});
        vouched.push_back({.place = Place::pinned, .begin = begin, .bytes = end - begin, .read_only = read_only});
      }
      bench.driver->vouched = vouched;
      const auto copier = bench.copier(both_ways(way), 0, pools);
      for (int round = 0; round < 6; ++round) {
        const DescriptorList& list = bench.some();
        const auto [copies, entry] = bench.wanted(list, way == 3);
        for (const bool again : {false, true}) {
          bench.driver->copied.clear();
          const int questions = bench.driver->regions;
          std::optional<std::size_t> refused_at;
          try {
            copier->copy(list.view(), bench.stream.handle());
          } catch (const InvalidEntry& error) {
            refused_at = error.entry();
          }
          check::that(refused_at == entry, "the entry that is refused");
          check::that(bench.driver->copied == copies, "what is copied");
          if (entry) break;
          if (copies.empty()) break;
          check::equal(copier->descriptors(), copies.size(), "descriptors");
          if (way == 6) check::equal(copier->calls(), (copies.size() + 6) / 7, "calls");
          if (again) check::equal(bench.driver->regions, questions, "questions for what is known");
        }
        entry ? ++refused_ones : ++copied;
      }
    }
  }
  check::that(copied > 75 && refused_ones > 75, "enough of both");
}

/// Slots of a pool of nobody: slot i begins at `begin` + i * `stride`; it is registered unless it is one of `missing`.
class SlotsDriver final : public AskedDriver {
 public:
  Region region_of(Address address) override {
    const std::size_t index = address < begin ? kSlots : (address - begin) / stride;
    if (index >= kSlots || (address - begin) % stride >= bytes || missing.contains(index)) {
      return address >= begin - stride && address < begin + (kSlots + 1) * stride ? Region{}
                                                                                  : AskedDriver::region_of(address);
    }
    ++asked[index];
    return {Place::pinned, begin + index * stride, bytes};
  }
  void copy_batch(std::span<const Address>, std::span<const Address>, std::span<const std::size_t> sizes,
                  BatchAttributes, Direction, Stream) override {
    noted.push_back("batch " + std::to_string(sizes.size()));
  }

  static constexpr std::size_t kSlots = 16'384;
  Address begin = Address{1} << 44;
  Address stride = 0;
  std::size_t bytes = 0;
  std::set<std::size_t> missing;
  std::map<std::size_t, int> asked;
};

struct SlotsBench : BenchOf<SlotsDriver> {
  SlotsBench(std::size_t slot_blocks, std::size_t stride_blocks, bool all = false) {
    driver->bytes = slot_blocks * kBlock;
    driver->stride = stride_blocks * kBlock;
    for (std::size_t i = 5; i < SlotsDriver::kSlots && !all; i += 7) driver->missing.insert(i);
    for (std::size_t i = 0; i < SlotsDriver::kSlots; ++i) {
      if (!driver->missing.contains(i)) order.push_back(i);
    }
    std::ranges::shuffle(order, random);
  }

  /// A block of each of these slots, in its last block or anywhere in it.
  DescriptorList& blocks(std::span<const std::size_t> slots, std::size_t size) {
    list(slots.size(), size);
    DescriptorList& made = lists.back();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::size_t block = random() % (driver->bytes / kBlock);
      made.sources[i] =
          driver->begin + slots[i] * driver->stride + (i % 3 == 0 ? driver->bytes - size : block * kBlock);
      made.destinations[i] = device.address() + i % (kPoolBytes / kBlock) * kBlock;
    }
    return made;
  }

  std::vector<std::size_t> order;
  std::mt19937_64 random{7};
};

const std::pair<std::size_t, std::size_t> kLayouts[] = {{8, 8}, {8, 16}, {5, 11}};  // adjacent, every other, with gaps

void thousands_of_slots_are_asked_for_once_each() {
  for (const std::size_t way : {0, 2, 5}) {
    for (const auto& [slot, stride] : kLayouts) {
      SlotsBench bench(slot, stride);
      const auto copier = bench.copier(both_ways(way));
      const std::span slots(bench.order);
      bench.copied(*copier, bench.blocks(slots, kBlock).view());
      check::equal(bench.driver->asked.size(), slots.size(), "slots that were asked for");
      const auto asked = bench.driver->asked;
      std::ranges::shuffle(bench.order, bench.random);
      bench.copied(*copier, bench.blocks(slots, kBlock - 16).view());
      check::that(bench.driver->asked == asked, "no slot is asked for again");
      check::that(std::ranges::all_of(asked, [](const auto& one) { return one.second == 1; }), "each was once");
    }
  }
}

void refuse_every_block_that_leaves_its_slot(SlotsBench& bench, std::size_t way, bool all, bool vouched) {
  std::vector<BlockCopier::Pool> pools;
  for (const std::size_t i : bench.order) {
    if (vouched) pools.push_back({bench.driver->begin + i * bench.driver->stride, bench.driver->bytes});
  }
  const auto copier = bench.copier(both_ways(way), 0, pools);
  const auto asked = bench.driver->asked;
  const std::span<const std::size_t> slots = std::span(bench.order).first(1100);
  bench.copied(*copier, bench.blocks(bench.order, kBlock).view());
  check::that(!vouched || bench.driver->asked == asked, "what was vouched for is not asked for");
  const Address begin = bench.driver->begin, bytes = bench.driver->bytes, apart = bench.driver->stride;
  const std::size_t last = *std::ranges::max_element(bench.order), before = all ? -1 : 5, behind = all ? last + 1 : 12;
  for (const std::size_t entry : {0, 500, 1099}) {
    for (const bool mixed : {false, true}) {
      DescriptorList& list = bench.blocks(slots, kBlock);
      if (mixed) list.bytes[7] = kBlock / 2;
      const Address here = begin + slots[entry] * apart;
      for (const Address wrong : {here + bytes - 16, here + bytes - kBlock + 1, begin + before * apart,
                                  begin + behind * apart + bytes - kBlock, begin - kBlock, begin + last * apart + bytes,
                                  begin - 16, here + bytes - 1}) {
        list.sources[entry] = wrong;
        check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), entry, "entry");
      }
      list.sources[entry] = here;
      list.bytes[entry] = bytes + 16;
      check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), entry, "entry of a large block");
    }
  }
}

void among_thousands_of_slots_every_block_that_leaves_its_slot_is_refused() {
  for (const auto& [way, vouched] : {std::pair(0, false), {2, false}, {2, true}, {3, false}, {5, false}}) {
    for (const auto& [slot, stride] : kLayouts) {
      for (const bool all : {false, true}) {
        SlotsBench bench(slot, stride, all);
        refuse_every_block_that_leaves_its_slot(bench, static_cast<std::size_t>(way), all, vouched);
      }
    }
  }
}

void a_slot_that_was_not_asked_for_is_not_taken_for_one() {
  for (const auto& [slot, stride] : kLayouts) {
    SlotsBench bench(slot, stride);
    const auto copier = bench.copier(both_ways(2));
    const std::span<const std::size_t> slots(bench.order);
    bench.copied(*copier, bench.blocks(slots.first(slots.size() - 1), kBlock).view());
    const std::size_t unseen = slots.back();
    check::that(!bench.driver->asked.contains(unseen), "it was not asked for");
    bench.copied(*copier, bench.blocks(slots, kBlock).view());
    check::equal(bench.driver->asked[unseen], 1, "questions for it");
  }
}

void regions_of_many_sizes_are_asked_for_once_each() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  bench.list(3 * 70, kBlock);
  std::vector<Address>& sources = bench.lists.back().sources;
  sources.clear();
  Address begin = Address{1} << 44;
  for (std::size_t size = 1; size <= 70; ++size) {
    for (const std::size_t at : {std::size_t{0}, 2 * size, 5 * size + 1}) {  // the last is in no pool with the others
      sources.push_back(begin + at * kBlock);
      bench.driver->known.push_back({Place::pinned, sources.back(), size * kBlock});
    }
    begin += 7 * size * kBlock;
  }
  for (int round = 0; round < 2; ++round) {
    bench.check_launched(*copier, bench.lists.back().view());
    check::equal(bench.driver->regions, 3 * 70 + 1, "questions for them and the device");
    std::ranges::reverse(sources);
  }
}

void merging_keeps_to_slots_that_adjoin() {
  SlotsBench bench(8, 8);
  bench.driver->missing.clear();
  const auto copier = bench.copier(both_ways(3));
  bench.list(4000, kBlock);
  DescriptorList& list = bench.lists.back();
  for (std::size_t i = 0; i < 4000; ++i) list.sources[i] = bench.driver->begin + i * kBlock;
  check::equal(bench.copied(*copier, list.view()).empty(), false, "submitted");
  check::equal(copier->descriptors(), std::size_t{500}, "one for each registration");
}

void a_region_whose_memory_was_freed_is_forgotten() {
  for (const auto& [now, smaller] : std::initializer_list<std::pair<Place, std::size_t>>{
           {Place::pinned, 0}, {Place::device, 0}, {Place::pinned, 1}}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(2));
    constexpr std::size_t kSlot = 8 * kBlock;
    constexpr Address kBegin = Address{1} << 44;
    const auto list = [&](Address source) {
      bench.list(2, 64);
      bench.lists.back().sources = {kBegin, source};
      return bench.lists.back().view();
    };
    for (const std::size_t slot : {0, 1, 2}) {  // of a pool, or each smaller than the one before
      bench.driver->known.push_back({Place::pinned, kBegin + slot * 2 * kSlot, kSlot - slot * smaller * kBlock});
      bench.copied(*copier, list(kBegin + slot * 2 * kSlot));
    }
    const Address freed = kBegin + 2 * kSlot;
    bench.driver->known[1] = {now, freed - kBlock, 4 * kBlock};
    if (now == Place::pinned) {  // shows what lies there now
      bench.copied(*copier, list(freed - kBlock));
    } else {
      check::equal(refused<InvalidEntry>(bench, *copier, list(freed - kBlock)).entry(), std::size_t{1}, "entry");
    }
    check::equal(refused<InvalidEntry>(bench, *copier, list(freed + 4 * kBlock)).entry(), std::size_t{1}, "entry");
  }
}

void mapped_memory_beside_memory_that_is_not_is_asked_for_once() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  const Address begin = bench.device.address();
  bench.driver->known = {{.place = Place::device, .begin = begin, .bytes = 8 * kBlock, .mapped = true},
                         {.place = Place::device, .begin = begin + 8 * kBlock, .bytes = 8 * kBlock}};
  for (int i = 0; i < 3; ++i) bench.copied(*copier, bench.list(16, 64));
  check::equal(bench.driver->regions, 3, "questions for three regions");
}

void a_pool_that_its_caller_vouches_for_is_one_region() {
  SlotsBench bench(8, 16);
  const std::size_t bytes = SlotsDriver::kSlots * bench.driver->stride;
  bench.driver->missing.clear();
  const Address last_slot = bench.driver->begin + (SlotsDriver::kSlots - 1) * bench.driver->stride;
  const auto within = [&](std::size_t slot) {
    return BlockCopier::Pool{bench.driver->begin + slot * bench.driver->stride, kBlock};
  };
  const std::vector<BlockCopier::Pool> pools{
      within(30), {bench.driver->begin, bytes - 8 * kBlock}, within(60), {bench.device.address(), kPoolBytes}};
  const auto copier = bench.copier(both_ways(2), 0, pools);
  check::equal(bench.driver->asked.size(), std::size_t{4}, "slots that were asked for: where pools begin and end");
  DescriptorList& list = bench.blocks(bench.order, kBlock);
  bench.copied(*copier, list.view());
  check::equal(bench.driver->asked.size(), std::size_t{4}, "no others");
  list.sources[1000] = last_slot + 8 * kBlock - 16;
  check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), std::size_t{1000}, "beyond the pool");
  copier->forget();
  list.sources[1000] = bench.driver->begin + 7 * kBlock + 16;
  check::equal(refused<InvalidEntry>(bench, *copier, list.view()).entry(), std::size_t{1000}, "it was forgotten");
  for (const BlockCopier::Pool& wrong : {BlockCopier::Pool{bench.driver->begin, bytes}, BlockCopier::Pool{4096, 64},
                                         BlockCopier::Pool{bench.device.address() + 64, ~std::size_t{0} - 16},
                                         BlockCopier::Pool{bench.device.address() + 64, 0}}) {
    const auto error = check::thrown<std::invalid_argument>([&] { bench.copier(both_ways(2), 0, {wrong}); });
    check::that(std::string(error.what()).starts_with("pools: entry 0 "), error.what());
  }
}

void nothing_is_copied_to_memory_that_is_read_alone() {
  for (const std::size_t way : {0, 2}) {
    for (const std::size_t entry : {0, 3}) {
      CopierBench bench;
      const auto copier = bench.copier(both_ways(way));
      const Buffer pages(bench.driver, MemoryKind::allocated, 8 * kBlock);
      bench.driver->known = {
          {.place = Place::pinned, .begin = pages.address(), .bytes = 8 * kBlock, .read_only = true}};
      bench.list(4, 64, Direction::d2h);
      bench.lists.back().destinations[entry] = pages.address();
      const auto error = refused<InvalidEntry>(bench, *copier, bench.lists.back().view());
      check::equal(error.entry(), entry, "entry");
      check::that(std::string(error.what()).find("read-only") != std::string::npos, error.what());
      bench.list(4, 64);
      bench.lists.back().sources[entry] = pages.address();
      check::that(!bench.copied(*copier, bench.lists.back().view()).empty(), "it can be read");
      bench.driver->known[0].begin += 4 * kBlock;  // of a pool that is vouched for, a part
      const auto vouched = bench.copier(both_ways(way), 0, {{pages.address(), 8 * kBlock}});
      bench.list(4, 64, Direction::d2h);
      bench.lists.back().destinations[entry] = pages.address();
      check::equal(refused<InvalidEntry>(bench, *vouched, bench.lists.back().view()).entry(), entry, "entry");
    }
  }
}

void a_copier_that_ends_frees_nothing() {
  for (const std::size_t way : {2, 7}) {
    CopierBench bench;
    auto copier = bench.copier(both_ways(way));
    bench.copied(*copier, bench.list(2000, way == 7 ? kBlock : 64));
    const int before = bench.driver->released;
    copier.reset();
    check::equal(bench.driver->released, before, "buffers that were freed");
  }
}

void a_block_may_lie_across_memory_that_is_mapped_in_pieces() {
  for (const std::size_t way : {0, 2, 3}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    const Address pieces = bench.device.address() + kPoolBytes - 400 * kBlock;
    for (std::size_t piece = 0; piece < 4; ++piece) {
      bench.driver->known.push_back(
          {.place = Place::device, .begin = pieces + piece * 100 * kBlock, .bytes = 100 * kBlock, .mapped = true});
    }
    bench.list(4, 64);
    DescriptorList& list = bench.lists.back();
    for (Address& destination : list.destinations) destination += pieces - bench.device.address();
    list.destinations[2] = pieces + 100 * kBlock - 32;
    list.bytes.assign(4, 250 * kBlock);  // the first is in three pieces, none of them known
    check::equal(bench.copied(*copier, list.view()).size(), std::size_t{1}, "submissions");
    list.destinations[2] = pieces + 400 * kBlock - 32;
    const auto error = refused<InvalidEntry>(bench, *copier, list.view());
    check::equal(error.entry(), std::size_t{2}, "beyond the last piece");
    check::that(std::string(error.what()).find("32 bytes left in its device memory") != std::string::npos,
                error.what());
  }
}

void a_pool_that_has_grown_is_asked_for_again() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  bench.driver->known = {{Place::device, bench.device.address(), kBlock}};
  bench.copied(*copier, bench.list(1, 64));
  bench.driver->known.clear();
  check::equal(bench.copied(*copier, bench.list(4, kBlock)).size(), std::size_t{1}, "submissions");
}

void memory_that_kernels_reach_elsewhere_is_copied_without_them() {
  for (const std::size_t entry : {0, 2}) {
    for (const std::size_t bytes : {64, 65}) {
      CopierBench bench;
      const auto copier = bench.copier(both_ways(2));
      const Buffer elsewhere(bench.driver, MemoryKind::allocated, kBlock);
      bench.driver->known = {
          {.place = Place::pinned, .begin = elsewhere.address(), .bytes = kBlock, .other_address = true}};
      bench.list(4, bytes);
      bench.lists.back().sources[entry] = elsewhere.address();
      check::that(bench.copied(*copier, bench.lists.back().view()) == Noted{"batch 4 stream"}, "by copies");
    }
  }
}

void a_second_thread_is_refused_at_once() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  bool was_refused = false;
  bench.driver->during_launch = [&] {
    std::jthread([&] {
      for (const auto& call : {std::function([&] { copier->copy(Descriptors{}, bench.stream.handle()); }),
                               std::function([&] { copier->forget(); })}) {
        const auto error = check::thrown<std::runtime_error>(call);
        was_refused = std::string(error.what()).starts_with("another thread");
      }
    });
  };
  bench.copied(*copier, bench.list(4, 64));
  check::that(was_refused, "refused");
  bench.driver->during_launch = nullptr;
  check::equal(bench.copied(*copier, bench.list(4, 64)).size(), std::size_t{1}, "submissions after that");
}

void a_stream_that_is_captured_is_refused_before_anything_is_touched() {
  for (const std::size_t way : {0, 2}) {
    CopierBench bench;
    const auto copier = bench.copier(both_ways(way));
    for (const std::size_t entries : {0, 4, 2000}) {
      bench.list(entries, 64);
      const int regions = bench.driver->regions;
      bench.driver->captured = true;
      const auto error =
          check::thrown<DriverError>([&] { copier->copy(bench.lists.back().view(), bench.stream.handle()); });
      check::that(std::string(error.what()).find("captured") != std::string::npos, error.what());
      check::that(bench.driver->take().empty(), "nothing was submitted");
      check::equal(bench.driver->regions, regions, "questions");
      bench.driver->captured = false;
      bench.copied(*copier, bench.lists.back().view());
    }
  }
}

void after_a_fork_a_call_is_an_error() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  bench.copied(*copier, bench.list(4, 64));
  const pid_t child = fork();
  if (child == 0) {
    try {
      copier->copy(bench.lists.back().view(), bench.stream.handle());
    } catch (const DriverError& error) {
      _exit(std::string(error.what()).find("forked") != std::string::npos ? 0 : 2);
    }
    _exit(1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check::equal(status, 0, "status of the child");
  check::equal(bench.copied(*copier, bench.list(4, 64)).size(), std::size_t{1}, "submissions of the parent");
}

void a_pool_that_was_freed_can_be_forgotten() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  auto pool = std::make_optional<Buffer>(bench.driver, MemoryKind::allocated, kPoolBytes);
  const DescriptorList list{{pool->address()}, {bench.device.address()}, {64}};
  bench.copied(*copier, list.view());
  pool.reset();
  copier->forget();
  refused<InvalidEntry>(bench, *copier, list.view());
}

void kernels_are_loaded_when_the_copier_is_made() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  const std::size_t before = bench.driver->names.size();
  check::that(before > 0, "kernels are loaded");
  for (const std::size_t bytes : {64, 65}) {
    for (const std::size_t entries : {1, 100, 2000}) bench.copied(*copier, bench.list(entries, bytes));
  }
  check::equal(bench.driver->names.size(), before, "kernels");
}

void what_is_no_stream_is_refused() {
  CopierBench bench;
  const auto copier = bench.copier(both_ways(2));
  for (const Stream stream : {Stream{12'345}, ~Stream{0}, bench.stream.handle() + 8}) {
    check::thrown<std::invalid_argument>([&] { copier->copy(bench.list(4, 64), stream); });
  }
}

void what_a_copier_cannot_serve_is_refused() {
  CopierBench bench;
  check::thrown<std::invalid_argument>([&] { bench.copier({always(0, Direction::h2d)}); });
  check::thrown<std::invalid_argument>([&] { bench.copier(both_ways(8)); });
  for (const std::size_t otherwise : {0, 1}) {  // itself, or one that is not there
    std::vector<CopyWay> ways(1);
    ways[0].staged = true;
    ways[0].otherwise = otherwise;
    check::thrown<std::invalid_argument>([&] { BlockCopier(bench.driver, ways, both_ways(0)); });
  }
  const auto copier = bench.copier(both_ways(0));
  const std::vector<Address> here{bench.host.address()}, elsewhere{4096};
  const std::vector<std::size_t> bytes{64};
  for (const auto& sources : {elsewhere, here}) {
    check::thrown<std::invalid_argument>(
        [&] { copier->copy(Descriptors{sources, here, bytes}, bench.stream.handle()); });
  }
  check::thrown<DriverError>([&] { copier->copy(bench.list(1, 64), 0); });
}

}  // namespace

int main() {
  return check::run({
      {"any list in any memory is copied, or refused at its first wrong entry",
       any_list_in_any_memory_is_copied_or_refused_at_its_first_wrong_entry},
      {"the table decides by size and count", the_table_decides_by_size_and_count},
      {"a list follows the table of what it runs beside", a_list_follows_the_table_of_what_it_runs_beside},
      {"a way by kernel is held at its pace", a_way_by_kernel_is_held_at_its_pace},
      {"the stream is asked only where its answer matters", the_stream_is_asked_only_where_its_answer_matters},
      {"lists of pages are staged and others counted", lists_of_pages_are_staged_and_others_counted},
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
      {"a block larger than all memory is refused", a_block_larger_than_all_memory_is_refused},
      {"each list has its access order", each_list_has_its_access_order},
      {"a driver without batched copies gets single ones", a_driver_without_batched_copies_gets_single_ones},
      {"only loads are primed", only_loads_are_primed},
      {"entries of no bytes are left out", entries_of_no_bytes_are_left_out},
      {"a table has a row for each range of sizes", a_table_has_a_row_for_each_range_of_sizes},
      {"a call allocates nothing once a list as long was copied",
       a_call_allocates_nothing_once_a_list_as_long_was_copied},
      {"room is made for lists behind pending work too", room_is_made_for_lists_behind_pending_work_too},
      {"an entry lies wholly in one region", an_entry_lies_wholly_in_one_region},
      {"an entry has the number that it has in the callers list",
       an_entry_has_the_number_that_it_has_in_the_callers_list},
      {"a negative size is named before any other fault", a_negative_size_is_named_before_any_other_fault},
      {"thousands of slots are asked for once each", thousands_of_slots_are_asked_for_once_each},
      {"among thousands of slots every block that leaves its slot is refused",
       among_thousands_of_slots_every_block_that_leaves_its_slot_is_refused},
      {"a slot that was not asked for is not taken for one", a_slot_that_was_not_asked_for_is_not_taken_for_one},
      {"regions of many sizes are asked for once each", regions_of_many_sizes_are_asked_for_once_each},
      {"merging keeps to slots that adjoin", merging_keeps_to_slots_that_adjoin},
      {"a region whose memory was freed is forgotten", a_region_whose_memory_was_freed_is_forgotten},
      {"mapped memory beside memory that is not is asked for once",
       mapped_memory_beside_memory_that_is_not_is_asked_for_once},
      {"a pool that its caller vouches for is one region", a_pool_that_its_caller_vouches_for_is_one_region},
      {"nothing is copied to memory that is read alone", nothing_is_copied_to_memory_that_is_read_alone},
      {"a copier that ends frees nothing", a_copier_that_ends_frees_nothing},
      {"memory that is nobodys is refused by its name", memory_that_is_nobodys_is_refused_by_its_name},
      {"runs are not merged across registrations", runs_are_not_merged_across_registrations},
      {"a block may lie across memory that is mapped in pieces",
       a_block_may_lie_across_memory_that_is_mapped_in_pieces},
      {"a pool that has grown is asked for again", a_pool_that_has_grown_is_asked_for_again},
      {"memory that kernels reach elsewhere is copied without them",
       memory_that_kernels_reach_elsewhere_is_copied_without_them},
      {"a second thread is refused at once", a_second_thread_is_refused_at_once},
      {"a stream that is captured is refused before anything is touched",
       a_stream_that_is_captured_is_refused_before_anything_is_touched},
      {"after a fork a call is an error", after_a_fork_a_call_is_an_error},
      {"a pool that was freed can be forgotten", a_pool_that_was_freed_can_be_forgotten},
      {"kernels are loaded when the copier is made", kernels_are_loaded_when_the_copier_is_made},
      {"what is no stream is refused", what_is_no_stream_is_refused},
      {"what a copier cannot serve is refused", what_a_copier_cannot_serve_is_refused},
  });
}
