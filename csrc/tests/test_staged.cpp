#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "forwarding_driver.hpp"
#include "kernels/piece_map.hpp"
#include "swap/spare.hpp"
#include "swap/staged.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Which of the streams that could go on does.
enum class Schedule : std::uint8_t { kernels_first, copies_first, random };

/// The host device with a GPU's launch, whose streams run when a test drains them, in any order that events allow.
class ScheduledDriver final : public ForwardingDriver {
 public:
  using Mark = std::shared_ptr<bool>;

  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid grid, void** arguments, Stream stream) override {
    grids.push_back(grid.blocks);
    kernel_stream_ = stream;
    const List list = *static_cast<const List*>(arguments[0]);
    push(stream, [list] {
      for (u32 i = 0; i < list.pieces; ++i) {
        const Piece piece = read_piece(list, i, SmShape{}.piece_bytes);
        move(piece.destination, piece.source, piece.bytes);
      }
    });
  }
  void copy(Address destination, Address source, std::size_t bytes, Direction, Stream stream) override {
    if (fails_at && (*fails_at)-- == 0) throw DriverError("copy", "INJECTED_ERROR");
    copied.push_back(bytes);
    push(stream, [=] { move(destination, source, bytes); });
  }
  void fill(Address at, std::uint8_t value, std::size_t bytes, Stream stream) override {
    push(stream, [=] { std::memset(reinterpret_cast<void*>(at), value, bytes); });
  }
  void record(Event event, Stream stream) override {
    const Mark mark = marks_[event] = std::make_shared<bool>(false);
    push(stream, [mark] { *mark = true; });
  }
  void wait(Stream stream, Event event) override {
    if (marks_.contains(event)) hold(stream, marks_[event]);
  }
  bool completed(Event event) override { return !marks_.contains(event) || *marks_[event]; }
  bool capturing(Stream) override { return captured; }

  void hold(Stream stream, Mark mark) {
    tasks_[stream].push_back({std::move(mark), [] {}});
  }
  /// Runs the streams until nothing can go on.
  void drain(Schedule schedule) {
    for (std::vector<Stream> ready = ready_streams(); !ready.empty(); ready = ready_streams()) {
      const auto at_kernels = std::ranges::find(ready, kernel_stream_);
      const bool kernels = at_kernels != ready.end() && (schedule == Schedule::kernels_first || ready.size() == 1);
      if (at_kernels != ready.end() && !kernels && schedule == Schedule::copies_first) ready.erase(at_kernels);
      const Stream stream = kernels ? kernel_stream_ : ready[random_() % ready.size()];
      const auto task = std::move(tasks_[stream].front().second);
      tasks_[stream].pop_front();
      task();
    }
  }

  std::vector<unsigned> grids;      ///< of every launch
  std::vector<std::size_t> copied;  ///< the size of every copy
  std::optional<std::size_t> fails_at;
  bool captured = false;

 private:
  static void move(Address to, Address from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  }
  void push(Stream stream, std::function<void()> task) { tasks_[stream].emplace_back(nullptr, std::move(task)); }
  std::vector<Stream> ready_streams() const {
    std::vector<Stream> ready;
    for (const auto& [stream, tasks] : tasks_) {
      if (!tasks.empty() && (!tasks.front().first || *tasks.front().first)) ready.push_back(stream);
    }
    return ready;
  }

  std::map<Stream, std::deque<std::pair<Mark, std::function<void()>>>> tasks_;
  std::map<Event, Mark> marks_;
  Stream kernel_stream_ = 0;
  std::mt19937 random_{5};
};

/// Blocks in shuffled runs on the host, shuffled on the device, and a copier of such lists.
struct Bench {
  static constexpr std::size_t kRoom = 48 * kMiB;

  Bench(Direction toward, const std::vector<std::size_t>& sizes, std::size_t blocks_a_run)
      : direction(toward), host(driver, MemoryKind::allocated, kRoom), device(driver, MemoryKind::device, kRoom) {
    list.bytes = sizes;
    (onward() ? list.sources : list.destinations) = placed(host.address(), blocks_a_run);
    (onward() ? list.destinations : list.sources) = placed(device.address(), 1);
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      for (std::size_t byte = 0; byte < list.bytes[i]; byte += 61)
        at(list.sources[i])[byte] = static_cast<unsigned char>(random());
    }
    copier = make_staged_copier({.aligned = nullptr, .any = kernel}, {.sms = 4, .direction = direction}, slots, rings);
  }

  bool onward() const { return direction == Direction::h2d; }
  static unsigned char* at(Address address) { return reinterpret_cast<unsigned char*>(address); }

  /// Runs in a new order, with a gap behind each.
  std::vector<Address> placed(Address base, std::size_t blocks_a_run) {
    std::vector<std::size_t> runs((list.bytes.size() + blocks_a_run - 1) / blocks_a_run);
    std::iota(runs.begin(), runs.end(), std::size_t{0});
    std::ranges::shuffle(runs, random);
    std::vector<Address> found(list.bytes.size());
    for (const std::size_t run : runs) {
      const std::size_t end = std::min(list.bytes.size(), (run + 1) * blocks_a_run);
      for (std::size_t i = run * blocks_a_run; i < end; base += list.bytes[i++]) found[i] = base;
      base += 16;
    }
    return found;
  }
  /// The same blocks in an order that is neither side's.
  void shuffle_entries() {
    const DescriptorList before = list;
    std::vector<std::size_t> order(list.bytes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
    list.take(before.view(), order);
  }

  bool submit(const OwnedStream& to) { return copier->copy(list.view(), to.handle()); }
  void blank() {
    for (std::size_t i = 0; i < list.bytes.size(); ++i) std::memset(at(list.destinations[i]), 0xA5, list.bytes[i]);
  }
  std::size_t arrived() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      count += std::memcmp(at(list.sources[i]), at(list.destinations[i]), list.bytes[i]) == 0 ? 1 : 0;
    }
    return count;
  }
  void check_arrived() const { check::equal(arrived(), list.bytes.size(), "blocks that arrived"); }

  Direction direction;
  std::mt19937 random{3};
  std::shared_ptr<ScheduledDriver> driver = std::make_shared<ScheduledDriver>();
  OwnedStream stream{driver}, other_stream{driver};
  Buffer host, device;
  DescriptorList list;
  std::shared_ptr<SmKernel> kernel = std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{});
  std::shared_ptr<ListSlots> slots = std::make_shared<ListSlots>(driver, 2);
  std::shared_ptr<StagingRings> rings = std::make_shared<StagingRings>(driver);
  std::unique_ptr<ListCopier> copier;
};

constexpr Schedule kSchedules[] = {Schedule::kernels_first, Schedule::copies_first, Schedule::random};
constexpr Direction kDirections[] = {Direction::h2d, Direction::d2h};

/// 37.5 MiB: more pages than buffers, the last not full, and runs of 400 KiB that do not divide a page.
std::vector<std::size_t> equal_blocks() { return std::vector<std::size_t>(9600, 4096); }

/// Sizes of no alignment, in runs of 500 KiB.
std::vector<std::size_t> mixed_blocks() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 6000; ++i) sizes.push_back(i % 3 == 0 ? 576 : i % 3 == 1 ? 4097 : 9000);
  return sizes;
}

void every_block_arrives_in_whatever_order_the_streams_run() {
  for (const Direction direction : kDirections) {
    for (const auto& [sizes, blocks_a_run] : {std::pair(equal_blocks(), 100), std::pair(mixed_blocks(), 110)}) {
      for (const Schedule schedule : kSchedules) {
        Bench bench(direction, sizes, static_cast<std::size_t>(blocks_a_run));
        for (int swap = 0; swap < 3; ++swap) {
          if (swap > 0) bench.shuffle_entries();
          bench.blank();
          check::that(bench.submit(bench.stream), "the list is one of pages");
          bench.driver->drain(schedule);
          bench.check_arrived();
        }
      }
    }
  }
}

void a_run_is_one_copy_and_a_page_one_launch() {
  for (const Direction direction : kDirections) {
    Bench bench(direction, equal_blocks(), 100);
    bench.submit(bench.stream);
    bench.driver->drain(Schedule::random);
    check::equal(bench.driver->grids.size(), std::size_t{10}, "launches for 37.5 MiB");
    check::that(std::ranges::all_of(bench.driver->grids, [](unsigned blocks) { return blocks == 4; }), "SMs");
    check::that(bench.driver->copied.size() >= 96 && bench.driver->copied.size() <= 96 + 9,
                "a copy for each run, or two where a page ends");
    check::equal(bench.copier->calls(), bench.driver->grids.size() + bench.driver->copied.size(), "calls");
    check::equal(bench.copier->descriptors(), std::size_t{9600}, "descriptors");
  }
}

void a_swap_follows_the_earlier_work_of_its_stream_and_later_work_follows_it() {
  for (const Direction direction : kDirections) {
    for (const Schedule schedule : kSchedules) {
      Bench bench(direction, std::vector<std::size_t>(600, 4096), 100);
      const Address out = bench.device.address() + 40 * kMiB;
      const auto& list = bench.list;
      for (const Address source : list.sources) bench.driver->fill(source, 7, 4096, bench.stream.handle());
      bench.submit(bench.stream);
      for (const Address source : list.sources) bench.driver->fill(source, 8, 4096, bench.stream.handle());
      for (std::size_t i = 0; i < list.bytes.size(); ++i) {
        bench.driver->copy(out + i * 4096, list.destinations[i], 4096, direction, bench.stream.handle());
      }
      bench.driver->drain(schedule);
      const unsigned char* seen = Bench::at(out);
      check::that(std::all_of(seen, seen + 600 * 4096, [](unsigned char byte) { return byte == 7; }),
                  "the swap moved what was there before it, and what followed saw it");
    }
  }
}

void swaps_in_flight_on_one_stream_share_a_ring_and_arrive_in_turn() {
  for (const Direction direction : kDirections) {
    for (const Schedule schedule : kSchedules) {
      Bench bench(direction, equal_blocks(), 100);
      bench.submit(bench.stream);
      bench.shuffle_entries();
      bench.submit(bench.stream);
      bench.submit(bench.stream);
      bench.driver->drain(schedule);
      bench.check_arrived();
    }
  }
}

void a_stream_waits_for_no_other_and_without_a_free_ring_nothing_is_submitted() {
  for (const Direction direction : kDirections) {
    Bench bench(direction, std::vector<std::size_t>(600, 4096), 100);
    const auto gate = std::make_shared<bool>(false);
    std::deque<OwnedStream> held;
    for (std::size_t i = 0; i + 1 < StagingRings::kMost; ++i) {
      const OwnedStream& stream = held.emplace_back(bench.driver);
      bench.driver->hold(stream.handle(), gate);
      check::that(bench.submit(stream), "a ring for each stream");
    }
    bench.blank();
    bench.submit(bench.stream);
    bench.driver->drain(Schedule::random);
    bench.check_arrived();

    bench.driver->hold(bench.stream.handle(), gate);
    check::that(bench.submit(bench.stream), "the ring that is idle");
    const std::size_t launches = bench.driver->grids.size();
    check::that(!bench.submit(bench.other_stream), "no ring is free");
    check::equal(bench.driver->grids.size(), launches, "launches");
    *gate = true;
    bench.driver->drain(Schedule::random);
    check::that(bench.submit(bench.other_stream), "all rings are free");
    bench.blank();
    bench.driver->drain(Schedule::random);
    bench.check_arrived();
  }
}

void lists_in_short_runs_and_large_blocks_are_not_staged() {
  for (const Direction direction : kDirections) {
    for (const auto& [sizes, blocks_a_run] :
         {std::pair(equal_blocks(), 63), std::pair(std::vector<std::size_t>{16384}, 1),
          std::pair(std::vector<std::size_t>{5 * kMiB, 4096}, 2)}) {
      Bench bench(direction, sizes, static_cast<std::size_t>(blocks_a_run));
      check::that(!bench.submit(bench.stream), "not a list of pages");
      check::that(bench.driver->grids.empty() && bench.driver->copied.empty(), "nothing is submitted");
      const auto swap = make_staged({.aligned = nullptr, .any = bench.kernel}, bench.list.view(), {4, direction});
      check::thrown<DriverError>([&] { swap->submit(bench.stream.handle()); });
    }
    Bench least(direction, std::vector<std::size_t>(64, 4096), 64);
    check::that(least.submit(least.stream), "256 KiB are a run");
    Bench one(direction, {kMiB}, 1);
    check::that(one.submit(one.stream), "one block");
    one.driver->drain(Schedule::random);
    one.check_arrived();
    Bench none(direction, {}, 1);
    check::that(none.submit(none.stream) && none.driver->grids.empty(), "no block");
  }
}

void an_error_names_the_first_block_of_its_run_and_leaves_the_ring_usable() {
  for (const Direction direction : kDirections) {
    for (const Schedule schedule : kSchedules) {
      Bench bench(direction, equal_blocks(), 100);
      bench.shuffle_entries();
      bench.driver->fails_at = 50;
      const auto error = check::thrown<DriverError>([&] { bench.submit(bench.stream); });
      auto host = bench.onward() ? bench.list.sources : bench.list.destinations;
      const Address named = host[error.descriptor().value_or(0)];
      std::ranges::sort(host);
      const auto place = std::ranges::find(host, named) - host.begin();
      check::that(place % 1024 == 0 || host[place - 1] + 4096 < named, "the first block of a run, or of a page");
      for (std::size_t again = 0; again < StagingRings::kMost; ++again) {
        bench.driver->fails_at = 50;
        check::thrown<DriverError>([&] { bench.submit(bench.stream); });
      }
      bench.driver->fails_at.reset();
      bench.shuffle_entries();
      bench.submit(bench.other_stream);
      bench.submit(bench.stream);
      bench.driver->drain(schedule);
      bench.check_arrived();
    }
  }
}

void a_swap_leaves_its_ring_to_the_next() {
  Bench bench(Direction::d2h, equal_blocks(), 100);
  const SmKernels kernels{.aligned = nullptr, .any = bench.kernel};
  for (int swap = 0; swap < 2; ++swap) {
    bench.blank();
    make_staged(kernels, bench.list.view(), {4, Direction::d2h})->submit(bench.stream.handle());
  }
  bench.driver->drain(Schedule::random);  // both are gone, and their copies in flight
  bench.check_arrived();
  const auto rings = Spare<StagingRings>::take(bench.driver);
  check::that(Spare<StagingRings>::take(bench.driver) != rings, "one set of rings served both");
}

void streams_that_cannot_be_ordered_are_refused() {
  Bench bench(Direction::d2h, equal_blocks(), 100);
  check::thrown<DriverError>([&] { bench.copier->copy(bench.list.view(), 0); });
  bench.driver->captured = true;
  check::thrown<DriverError>([&] { bench.submit(bench.stream); });
  check::that(bench.driver->grids.empty() && bench.driver->copied.empty(), "nothing is submitted");
}

}  // namespace

int main() {
  return check::run({
      {"every block arrives, in whatever order the streams run", every_block_arrives_in_whatever_order_the_streams_run},
      {"a run is one copy and a page one launch", a_run_is_one_copy_and_a_page_one_launch},
      {"a swap follows the earlier work of its stream, and later work follows it",
       a_swap_follows_the_earlier_work_of_its_stream_and_later_work_follows_it},
      {"swaps in flight on one stream share a ring and arrive in turn",
       swaps_in_flight_on_one_stream_share_a_ring_and_arrive_in_turn},
      {"a stream waits for no other, and without a free ring nothing is submitted",
       a_stream_waits_for_no_other_and_without_a_free_ring_nothing_is_submitted},
      {"lists in short runs and large blocks are not staged", lists_in_short_runs_and_large_blocks_are_not_staged},
      {"an error names the first block of its run and leaves the ring usable",
       an_error_names_the_first_block_of_its_run_and_leaves_the_ring_usable},
      {"a swap leaves its ring to the next", a_swap_leaves_its_ring_to_the_next},
      {"streams that cannot be ordered are refused", streams_that_cannot_be_ordered_are_refused},
  });
}
