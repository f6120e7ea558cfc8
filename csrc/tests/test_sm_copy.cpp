#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.hpp"
#include "driver/resources.hpp"
#include "forwarding_driver.hpp"
#include "kernels/piece_map.hpp"
#include "swap/sm_copy.hpp"
#include "swap/spare.hpp"

namespace {

using namespace kvbench;

/// The host device with a GPU's launch: it reads the list as the kernel does and copies its pieces at once.
class LaunchingDriver final : public ForwardingDriver {
 public:
  static DeviceInfo hopper() {
    DeviceInfo info;
    info.compute_major = 9;
    info.sm_count = 132;
    return info;
  }
  void copy(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    ForwardingDriver::copy(destination, source, bytes, direction, stream);
    ++copies;
  }
  const DeviceInfo& info() const override { return device; }
  Kernel load_kernel(std::span<const std::byte>, const char* name, std::size_t) override {
    names.emplace_back(name);
    return names.size();
  }

  void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) override {
    synchronize(stream);
    launched = names[kernel - 1];
    last_grid = grid;
    List list;
    if (launched.ends_with("_inline") || launched.ends_with("_short")) {
      auto* given = static_cast<InlineList*>(arguments[0]);
      list = given->list;
      list.table = reinterpret_cast<u64>(given->table);
    } else {
      list = *static_cast<List*>(arguments[0]);
    }
    host_is_source = list.host_is_source != 0;
    ps_per_byte = list.ps_per_byte;
    for (u32 piece = 0; piece < list.pieces; ++piece) {
      const Piece read = read_piece(list, piece, piece_bytes);
      check::that(read.bytes > 0 && read.bytes <= piece_bytes, "a piece is neither empty nor too large");
      std::memcpy(reinterpret_cast<void*>(read.destination), reinterpret_cast<const void*>(read.source), read.bytes);
      moved += read.bytes;
    }
  }

  DeviceInfo device = hopper();
  u32 piece_bytes = 0;
  u32 ps_per_byte = 0;
  std::vector<std::string> names;
  std::string launched;
  Grid last_grid;
  bool host_is_source = false;
  std::size_t copies = 0;
  std::size_t moved = 0;
};

struct Bench {
  explicit Bench(SmShape shape = {}, std::size_t bytes = 1 << 20)
      : stream(driver), source(driver, MemoryKind::allocated, bytes), destination(driver, MemoryKind::device, bytes) {
    driver->piece_bytes = shape.piece_bytes;
    kernel = std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, shape);
    std::iota(reinterpret_cast<std::uint32_t*>(source.address()),
              reinterpret_cast<std::uint32_t*>(source.address() + bytes), 1U);
    std::memset(reinterpret_cast<void*>(destination.address()), 0, bytes);
  }

  void run(Swap& swap) {
    swap.submit(stream.handle());
    stream.synchronize();
  }

  static bool same(Address a, Address b, std::size_t bytes) {
    return std::memcmp(reinterpret_cast<void*>(a), reinterpret_cast<void*>(b), bytes) == 0;
  }

  std::shared_ptr<LaunchingDriver> driver = std::make_shared<LaunchingDriver>();
  OwnedStream stream;
  Buffer source;
  Buffer destination;
  std::shared_ptr<SmKernel> kernel;
};

/// Blocks of `sizes`, one behind the other, back to front on the other side.
DescriptorList laid_out(const Bench& bench, const std::vector<std::size_t>& sizes) {
  DescriptorList list;
  const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  std::size_t at = 0;
  for (const std::size_t bytes : sizes) {
    list.sources.push_back(bench.source.address() + at);
    list.destinations.push_back(bench.destination.address() + total - at - bytes);
    list.bytes.push_back(bytes);
    at += bytes;
  }
  return list;
}

void every_form_and_way_of_the_list_moves_every_block() {
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    const unsigned piece_bytes = 128U << (random() % 6);
    std::vector<std::size_t> sizes(1 + random() % 300, 1 + random() % 3000);
    if (i % 2 == 0) {
      for (auto& bytes : sizes) bytes = 1 + random() % 3000;
    }
    Bench bench({SmMethod::lanes, 16, 8, piece_bytes});
    const DescriptorList list = laid_out(bench, sizes);
    const Direction direction = i % 5 < 3 ? Direction::h2d : Direction::d2h;
    auto swap = make_sm_copy(bench.kernel, list.view(), {2, direction, i % 3 == 1 ? kInlineTableBytes : 0});
    bench.run(*swap);
    check::equal(bench.driver->host_is_source, direction == Direction::h2d, "the kernel is told the host's side");
    for (std::size_t block = 0; block < list.bytes.size(); ++block) {
      check::that(Bench::same(list.sources[block], list.destinations[block], list.bytes[block]), "a block arrived");
    }
    check::equal(bench.driver->moved, std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), "bytes moved");
    check::equal(bench.driver->copies, std::size_t{0}, "nothing but the launch");
    check::equal(swap->calls(), std::size_t{1}, "calls");
  }
}

void the_current_blocks_are_copied() {
  for (const std::size_t inline_up_to : {std::size_t{0}, std::size_t{kInlineTableBytes}}) {
    for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>(9, 700), {1, 900, 3, 300, 2000}}) {
      Bench bench({SmMethod::lanes, 16, 8, 256});
      DescriptorList list = laid_out(bench, sizes);
      auto swap = make_sm_copy(bench.kernel, list.view(), {2, Direction::h2d, inline_up_to});
      for (int round = 0; round < 4; ++round) {
        bench.run(*swap);
        for (std::size_t i = 0; i < list.bytes.size(); ++i) {
          check::that(Bench::same(list.sources[i], list.destinations[i], list.bytes[i]), "a block arrived");
        }
        for (Address& source : list.sources) source += 20'000;
        for (Address& destination : list.destinations) destination += 10'000;
      }
    }
  }
}

void short_lists_come_with_the_launch_and_the_grid_is_no_larger_than_the_work() {
  Bench bench({SmMethod::lanes, 16, 8, 4096});
  const DescriptorList few = laid_out(bench, {100, 100, 100});
  bench.run(*make_sm_copy(bench.kernel, few.view(), {8, Direction::h2d, kInlineTableBytes}));
  check::equal(bench.driver->launched, std::string("kvbench_sm_lanes_short"), "kernel");
  check::equal(bench.driver->last_grid.blocks, 3U, "blocks");
  check::equal(bench.driver->last_grid.threads, 512U, "threads");
  const DescriptorList more = laid_out(bench, std::vector<std::size_t>(kShortTableBytes / sizeof(Row) + 1, 100));
  bench.run(*make_sm_copy(bench.kernel, more.view(), {8, Direction::h2d, kInlineTableBytes}));
  check::equal(bench.driver->launched, std::string("kvbench_sm_lanes_inline"), "kernel of more parameters");
  const DescriptorList many = laid_out(bench, std::vector<std::size_t>(kInlineTableBytes / sizeof(Row) + 1, 100));
  bench.run(*make_sm_copy(bench.kernel, many.view(), {8, Direction::h2d, kInlineTableBytes}));
  check::equal(bench.driver->launched, std::string("kvbench_sm_lanes"), "kernel of a longer list");
  check::equal(bench.driver->last_grid.blocks, 8U, "blocks");
  bench.run(*make_sm_copy(bench.kernel, few.view(), {8, Direction::h2d, 0}));
  check::equal(bench.driver->launched, std::string("kvbench_sm_lanes"), "kernel of a list that is read");
  check::equal(bench.driver->last_grid.blocks, 3U, "blocks");
}

void thread_blocks_lie_in_the_largest_clusters_that_divide_the_grid() {
  Bench bench({SmMethod::lanes, 16, 8, 4096}, 5 << 20);
  const auto cluster = [&](unsigned sms, const std::vector<std::size_t>& sizes = std::vector<std::size_t>(70, 61'440)) {
    const DescriptorList list = laid_out(bench, sizes);
    bench.run(*make_sm_copy(bench.kernel, list.view(), {.sms = sms}));
    check::equal(bench.driver->last_grid.blocks, sms, "blocks");
    return bench.driver->last_grid.cluster;
  };
  for (const auto& [sms, wanted] : std::map<unsigned, unsigned>{{1, 1}, {2, 2}, {3, 1}, {4, 4}, {6, 2}, {8, 4}}) {
    check::equal(cluster(sms), wanted, "cluster of " + std::to_string(sms) + " SMs");
  }
  check::equal(cluster(4, std::vector<std::size_t>(69, 60'000)), 1U, "cluster of a swap of few bytes");
  check::equal(cluster(4, std::vector<std::size_t>(1000, 100)), 1U, "cluster of many blocks of few bytes");
  std::vector<std::size_t> mixed(70, 61'440);
  mixed.back() = 100;
  check::equal(cluster(4, mixed), 4U, "cluster of two sizes");
  check::equal(cluster(64), 4U, "cluster of half of the GPU");
  check::equal(cluster(68), 1U, "cluster of more than half of the GPU");
  bench.driver->device.compute_major = 8;
  check::equal(cluster(4), 1U, "cluster where there are none");
}

void the_warps_keep_the_pace_together() {
  Bench bench({.method = SmMethod::lanes, .warps = 8, .piece_bytes = 1000});
  const auto ps_per_byte = [&](double pace_gbps, std::size_t pieces, unsigned sms = 4) {
    const DescriptorList list = laid_out(bench, std::vector<std::size_t>(pieces, 1000));
    bench.run(*make_sm_copy(bench.kernel, list.view(), {.sms = sms, .pace_gbps = pace_gbps}));
    return bench.driver->ps_per_byte;
  };
  check::equal(ps_per_byte(0, 100), 0U, "without a pace");
  check::equal(ps_per_byte(40, 100), 800U, "32 warps of 1.25 GB/s each");
  check::equal(ps_per_byte(40, 100, 3), 600U, "24 warps");
  check::equal(ps_per_byte(40, 10), 250U, "only 10 warps have a piece");
  check::equal(ps_per_byte(1e-9, 100), ~0U, "as slow as can be");
}

void a_list_comes_with_the_launch_only_if_it_fits_into_the_parameters() {
  constexpr std::size_t kRows = kInlineTableBytes / sizeof(Row);
  for (const std::size_t rows : {kRows, kRows + 1}) {
    Bench bench({SmMethod::lanes, 16, 8, 4096});
    const DescriptorList list = laid_out(bench, std::vector<std::size_t>(rows, 100));
    bench.run(*make_sm_copy(bench.kernel, list.view(), {8, Direction::h2d, std::size_t{1} << 20}));
    check::equal(bench.driver->launched.ends_with("_inline"), rows == kRows, "inline");
    for (std::size_t i = 0; i < rows; ++i) {
      check::that(Bench::same(list.sources[i], list.destinations[i], 100), "a block arrived");
    }
  }
}

void aligned_blocks_of_one_size_come_with_the_launch_in_half_of_the_bytes() {
  constexpr std::size_t kMost = (kInlineTableBytes - sizeof(Row)) / sizeof(Ids);
  constexpr std::size_t kFew = (kShortTableBytes - sizeof(Row)) / sizeof(Ids);
  for (const std::size_t rows : {std::size_t{1}, kFew, kFew + 1, kMost, kMost + 1}) {
    Bench bench({SmMethod::words, 16, 8, 4096});
    const DescriptorList list = laid_out(bench, std::vector<std::size_t>(rows, 1008));
    bench.run(*make_sm_copy(bench.kernel, list.view(), {8, Direction::h2d, kInlineTableBytes}));
    const std::string end = rows <= kFew ? "_short" : rows <= kMost ? "_inline" : "";
    check::equal(bench.driver->launched, "kvbench_sm_words" + end, "kernel");
    for (std::size_t i = 0; i < rows; ++i) {
      check::that(Bench::same(list.sources[i], list.destinations[i], 1008), "a block arrived");
    }
  }
}

void a_list_with_one_unaligned_block_keeps_its_addresses() {
  for (const std::size_t block : {0, 1, 2}) {
    for (const std::size_t inline_up_to : {std::size_t{0}, std::size_t{kInlineTableBytes}}) {
      Bench bench({SmMethod::lanes, 16, 8, 4096});
      DescriptorList list = laid_out(bench, {1008, 1008, 1008});
      list.sources[block] += 4;
      bench.run(*make_sm_copy(bench.kernel, list.view(), {8, Direction::h2d, inline_up_to}));
      for (std::size_t i = 0; i < 3; ++i) {
        check::that(Bench::same(list.sources[i], list.destinations[i], 1008), "a block arrived");
      }
    }
  }
}

/// Notes how lists come, without copying.
class NotingDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid, void** arguments, Stream) override { list = *static_cast<List*>(arguments[0]); }

  List list{};
};

void blocks_that_lie_too_far_apart_keep_their_addresses() {
  const auto driver = std::make_shared<NotingDriver>();
  const OwnedStream stream(driver);
  const auto kernel = std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{SmMethod::words});
  constexpr Address kReach = Address{8} << 32;
  for (const Address apart : {kReach - 64, kReach}) {
    for (const bool of_sources : {true, false}) {
      DescriptorList list;
      list.sources = {4096, 4096 + (of_sources ? apart : 64)};
      list.destinations = {1 << 20, (1 << 20) + (of_sources ? 64 : apart)};
      list.bytes = {64, 64};
      make_sm_copy(kernel, list.view(), {8, Direction::h2d, kInlineTableBytes})->submit(stream.handle());
      check::equal(driver->list.ids_at > 0, apart < kReach, "by ids");
    }
  }
}

void the_legacy_stream_is_refused() {
  Bench bench;
  const DescriptorList list = laid_out(bench, {100});
  for (const std::size_t inline_up_to : {std::size_t{0}, std::size_t{kInlineTableBytes}}) {
    auto swap = make_sm_copy(bench.kernel, list.view(), {2, Direction::h2d, inline_up_to});
    check::thrown<DriverError>([&] { swap->submit(0); });
  }
}

/// Leaves launches in flight until their stream is synchronized, or one is waited for: asked for many times in a row.
/// It notes where their lists lie, and whether the first was over at the last one, and counts what is allocated.
class PendingDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid, void** arguments, Stream) override {
    first_was_over = !marks.empty() && completed(marks.front());
    tables.push_back(static_cast<List*>(arguments[0])->table);
  }
  Event create_event(EventKind kind) override {
    timed += kind == EventKind::timed ? 1 : 0;
    return ForwardingDriver::create_event(kind);
  }
  void record(Event event, Stream stream) override {
    if (refuses_marks) throw DriverError("record", "INVALID_CONTEXT");
    marks.push_back(event);
    in_flight[event] = stream;
  }
  bool completed(Event event) override {
    ++questions;
    if (questions < opens_at) return false;
    if (questions == opens_at) in_flight.clear();
    constexpr int kWaitedFor = 20;
    asked = event == last_asked ? asked + 1 : 1;
    last_asked = event;
    if (asked == kWaitedFor) in_flight.erase(event);
    return !in_flight.contains(event);
  }
  void synchronize(Stream stream) override {
    std::erase_if(in_flight, [&](const auto& one) { return one.second == stream; });
  }
  Memory allocate(MemoryKind kind, std::size_t bytes) override {
    ++allocations;
    allocated_bytes += bytes;
    return ForwardingDriver::allocate(kind, bytes);
  }

  void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept override {
    released.push_back(memory.address);
    ForwardingDriver::release(kind, memory, bytes);
  }

  std::vector<Address> released;
  int opens_at = 0;  ///< the question at which all launches complete, if set
  int questions = 0;
  int timed = 0;  ///< events with a time stamp
  bool refuses_marks = false;
  std::vector<u64> tables;
  std::vector<Event> marks;
  std::map<Event, Stream> in_flight;
  Event last_asked = 0;
  int asked = 0;
  bool first_was_over = false;
  int allocations = 0;
  std::size_t allocated_bytes = 0;
};

struct PendingBench {
  PendingBench() : stream(driver), other(driver) {}

  std::shared_ptr<PendingDriver> driver = std::make_shared<PendingDriver>();
  OwnedStream stream;
  OwnedStream other;
  std::vector<Address> addresses = std::vector<Address>(100, 4096);
  std::vector<std::size_t> bytes = std::vector<std::size_t>(100, 512);
  std::unique_ptr<ListCopier> copier =
      make_sm_copier({nullptr, std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{})}, {});

  void submit(std::size_t entries, Stream to) {
    copier->copy(
        {std::span(addresses).first(entries), std::span(addresses).first(entries), std::span(bytes).first(entries)},
        to);
  }
};

void a_list_in_flight_is_not_overwritten_and_does_not_hold_the_caller() {
  PendingBench bench;
  for (std::size_t i = 0; i < ListSlots::kMost; ++i) bench.submit(2, bench.stream.handle());
  check::that(!bench.driver->first_was_over, "no call has waited");
  check::equal(std::set(bench.driver->tables.begin(), bench.driver->tables.end()).size(), ListSlots::kMost,
               "slots of lists in flight");
  for (const std::size_t oldest : {0U, 1U, 2U}) {
    bench.submit(2, bench.stream.handle());
    check::that(oldest > 0 || bench.driver->first_was_over, "one more waits for the first");
    check::equal(bench.driver->tables.back(), bench.driver->tables[oldest], "and takes the slot of the oldest");
  }
}

void a_longer_list_waits_for_none() {
  PendingBench bench;
  bench.submit(2, bench.stream.handle());
  bench.submit(100, bench.stream.handle());
  check::that(!bench.driver->completed(bench.driver->marks.front()), "no call has waited");
}

void a_longer_list_that_must_wait_takes_no_slot_too_small_for_it() {
  PendingBench bench;
  bench.addresses.resize(100'000, 4096);
  bench.bytes.resize(100'000, 512);
  for (std::size_t i = 0; i < ListSlots::kMost; ++i) bench.submit(2, bench.stream.handle());
  const std::set shorter(bench.driver->tables.begin(), bench.driver->tables.end());
  bench.submit(100'000, bench.stream.handle());
  check::that(!shorter.contains(bench.driver->tables.back()), "a slot with room for it");
}

void a_longer_list_takes_one_slot_of_its_own() {
  PendingBench bench;
  bench.addresses.resize(100'000, 4096);
  bench.bytes.resize(100'000, 512);
  for (std::size_t i = 0; i < ListSlots::kMost; ++i) bench.submit(2, bench.stream.handle());
  bench.driver->synchronize(bench.stream.handle());
  const std::size_t before = bench.driver->allocated_bytes;
  bench.submit(100'000, bench.stream.handle());
  check::that(bench.driver->allocated_bytes - before <= 2 * 100'000 * sizeof(Ids), "twice its table at most");
  bench.driver->synchronize(bench.stream.handle());
  const int slots = bench.driver->allocations;
  for (const std::size_t entries : {100'000, 1000, 2}) {
    bench.submit(entries, bench.stream.handle());
    bench.driver->synchronize(bench.stream.handle());
  }
  check::equal(bench.driver->allocations, slots, "slots");
}

void a_call_asks_once_for_each_list_in_flight() {
  PendingBench bench;
  for (int i = 0; i < 30; ++i) bench.submit(2, bench.stream.handle());
  bench.driver->questions = 0;
  bench.submit(2, bench.stream.handle());
  check::equal(bench.driver->questions, 30 + 1, "questions, one of which is the test's");
  check::equal(bench.driver->timed, 0, "events with a time stamp");
}

void a_slot_whose_launch_could_not_be_marked_is_not_written_again() {
  PendingBench bench;
  bench.driver->refuses_marks = true;
  check::thrown<DriverError>([&] { bench.submit(2, bench.stream.handle()); });
  bench.driver->refuses_marks = false;
  for (std::size_t i = 0; i < 2 * ListSlots::kMost; ++i) bench.submit(2, bench.stream.handle());
  check::equal(std::ranges::count(bench.driver->tables, bench.driver->tables.front()), 1, "lists in that slot");
}

void the_slots_of_a_copier_that_ends_are_kept_for_the_next() {
  PendingBench bench;
  auto slots = Spare<ListSlots>::take(bench.driver, 2);
  check::equal(bench.driver->allocations, 0, "slots before a list needs one");
  slots->take(1000).launched(bench.stream.handle());
  slots.reset();
  check::that(bench.driver->released.empty(), "nothing is freed");
  const auto next = Spare<ListSlots>::take(bench.driver, 2);
  const auto another = Spare<ListSlots>::take(bench.driver, 2);
  const int allocations = bench.driver->allocations;
  bench.driver->synchronize(bench.stream.handle());
  next->take(1000);
  check::equal(bench.driver->allocations, allocations, "the next copier has them");
  another->take(1000);
  check::equal(bench.driver->allocations, allocations + 1, "one that lives beside it has not");
}

void a_slot_that_a_launch_reads_is_never_freed() {
  PendingBench bench;
  for (const std::size_t entries : {2, 100, 1000, 10'000}) {
    bench.addresses.resize(entries, 4096);
    bench.bytes.resize(entries, 512);
    bench.submit(entries, bench.stream.handle());
  }
  check::that(bench.driver->released.empty(), "nothing is released while launches read it");
}

/// How often this thread has given up its CPU.
long sleeps() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

void to_wait_for_a_slot_leaves_the_cpu_to_others() {
  PendingBench bench;
  for (std::size_t i = 0; i < ListSlots::kMost; ++i) bench.submit(2, bench.stream.handle());
  constexpr int kQuestions = 200;
  bench.driver->opens_at = bench.driver->questions + 2 * static_cast<int>(ListSlots::kMost) + kQuestions;
  const long before = sleeps();
  bench.submit(2, bench.stream.handle());
  check::that(bench.driver->questions >= bench.driver->opens_at, "it waits for the gate");
  check::that(sleeps() - before >= kQuestions / 2, "it sleeps between two questions");
}

void a_slot_of_another_stream_is_taken_before_there_are_more() {
  PendingBench bench;
  bench.submit(2, bench.other.handle());
  bench.submit(2, bench.stream.handle());
  bench.driver->synchronize(bench.other.handle());
  const int before = bench.driver->allocations;
  for (int i = 0; i < 100; ++i) {
    bench.submit(2, bench.other.handle());
    bench.driver->synchronize(bench.other.handle());
  }
  check::that(!bench.driver->completed(bench.driver->marks[1]), "no call has waited");
  check::equal(bench.driver->allocations, before, "slots");
}

void lists_after_a_longer_one_find_as_many_slots_as_before() {
  PendingBench bench;
  const auto in_flight = [&](std::size_t entries) {
    for (int i = 0; i < 8; ++i) bench.submit(entries, bench.stream.handle());
    bench.driver->synchronize(bench.stream.handle());
  };
  in_flight(2);
  bench.submit(100, bench.stream.handle());
  bench.driver->synchronize(bench.stream.handle());
  const int before = bench.driver->allocations;
  in_flight(2);
  check::equal(bench.driver->allocations, before, "slots");
}

void many_calls_take_no_more_memory_than_the_first() {
  PendingBench bench;
  const auto call = [&](int number) {
    bench.submit(number % 2 == 0 ? 100 : 2, bench.stream.handle());
    if (number % 8 == 0) bench.driver->synchronize(bench.stream.handle());
    bench.driver->tables.clear();
    bench.driver->marks.clear();
  };
  for (int i = 0; i < 200; ++i) call(i);
  const int before = bench.driver->allocations;
  for (int i = 0; i < 100'000; ++i) call(i);
  check::that(bench.driver->allocations - before <= static_cast<int>(ListSlots::kMost), "slots");
}

void a_byte_of_several_destinations_is_one_of_those_that_go_there() {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    Bench bench({SmMethod::lanes, 16, 8, 256});
    std::vector<std::size_t> sizes(50, 700);
    if (round % 2 == 0) {
      for (auto& bytes : sizes) bytes = 1 + random() % 1500;
    }
    DescriptorList list = laid_out(bench, sizes);
    for (Address& destination : list.destinations) destination = bench.destination.address() + random() % 10'000;
    bench.run(*make_sm_copy(bench.kernel, list.view(), {2, Direction::h2d, round % 3 == 0 ? kInlineTableBytes : 0}));
    for (std::size_t at = 0; at < 11'500; ++at) {
      const Address to = bench.destination.address() + at;
      const auto byte = *reinterpret_cast<const unsigned char*>(to);
      bool covered = false, found = false;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (to - list.destinations[i] >= sizes[i]) continue;
        covered = true;
        found |= byte == *reinterpret_cast<const unsigned char*>(list.sources[i] + (to - list.destinations[i]));
      }
      check::that(covered ? found : byte == 0, "a byte of one of the blocks that go there, or none");
    }
  }
}

void nothing_to_copy_is_nothing_to_launch() {
  Bench bench;
  auto swap = make_sm_copy(bench.kernel, Descriptors{}, {2, Direction::h2d, kInlineTableBytes});
  bench.run(*swap);
  check::equal(bench.driver->launched, std::string(), "launched");
  const std::vector<Address> addresses{4096};
  const std::vector<std::size_t> bytes{0};
  const Descriptors empty{addresses, addresses, bytes};
  bench.run(*make_sm_copy(bench.kernel, empty, {2, Direction::h2d, kInlineTableBytes}));
  check::equal(bench.driver->launched, std::string(), "launched for an entry of no bytes");
}

}  // namespace

int main() {
  return check::run({
      {"every form and way of the list moves every block", every_form_and_way_of_the_list_moves_every_block},
      {"the current blocks are copied", the_current_blocks_are_copied},
      {"short lists come with the launch, the grid fits the work",
       short_lists_come_with_the_launch_and_the_grid_is_no_larger_than_the_work},
      {"thread blocks lie in the largest clusters that divide the grid",
       thread_blocks_lie_in_the_largest_clusters_that_divide_the_grid},
      {"the warps keep the pace together", the_warps_keep_the_pace_together},
      {"a list comes with the launch only if it fits",
       a_list_comes_with_the_launch_only_if_it_fits_into_the_parameters},
      {"aligned blocks of one size come with the launch in half of the bytes",
       aligned_blocks_of_one_size_come_with_the_launch_in_half_of_the_bytes},
      {"a list with one unaligned block keeps its addresses", a_list_with_one_unaligned_block_keeps_its_addresses},
      {"blocks that lie too far apart keep their addresses", blocks_that_lie_too_far_apart_keep_their_addresses},
      {"the legacy stream is refused", the_legacy_stream_is_refused},
      {"lists after a longer one find as many slots as before", lists_after_a_longer_one_find_as_many_slots_as_before},
      {"a list in flight is not overwritten, and does not hold the caller",
       a_list_in_flight_is_not_overwritten_and_does_not_hold_the_caller},
      {"a longer list waits for none", a_longer_list_waits_for_none},
      {"a longer list that must wait takes no slot too small for it",
       a_longer_list_that_must_wait_takes_no_slot_too_small_for_it},
      {"a longer list takes one slot of its own", a_longer_list_takes_one_slot_of_its_own},
      {"a call asks once for each list in flight", a_call_asks_once_for_each_list_in_flight},
      {"a slot whose launch could not be marked is not written again",
       a_slot_whose_launch_could_not_be_marked_is_not_written_again},
      {"the slots of a copier that ends are kept for the next", the_slots_of_a_copier_that_ends_are_kept_for_the_next},
      {"a slot that a launch reads is never freed", a_slot_that_a_launch_reads_is_never_freed},
      {"to wait for a slot leaves the CPU to others", to_wait_for_a_slot_leaves_the_cpu_to_others},
      {"a slot of another stream is taken before there are more",
       a_slot_of_another_stream_is_taken_before_there_are_more},
      {"many calls take no more memory than the first", many_calls_take_no_more_memory_than_the_first},
      {"a byte of several destinations is one of those that go there",
       a_byte_of_several_destinations_is_one_of_those_that_go_there},
      {"nothing to copy is nothing to launch", nothing_to_copy_is_nothing_to_launch},
  });
}
