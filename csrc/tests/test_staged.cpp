#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "forwarding_driver.hpp"
#include "kernels/piece_map.hpp"
#include "swap/staged.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The host device with a GPU's launch, which copies its pieces in the order of its stream.
class LaunchingDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char* name, std::size_t) override {
    return std::string(name).ends_with("_inline") || std::string(name).ends_with("_short") ? 2 : 1;
  }
  void launch(Kernel kernel, Grid, void** arguments, Stream stream) override {
    ++launches;
    List list = *static_cast<List*>(arguments[0]);
    if (kernel == 2) list.table = reinterpret_cast<u64>(static_cast<InlineList*>(arguments[0])->table);
    std::vector<Address> from, to;
    std::vector<std::size_t> bytes;
    for (u32 i = 0; i < list.pieces; ++i) {
      const Piece piece = read_piece(list, i, SmShape{}.piece_bytes);
      from.push_back(piece.source);
      to.push_back(piece.destination);
      bytes.push_back(piece.bytes);
    }
    ForwardingDriver::copy_batch(to, from, bytes, {}, Direction::h2d, stream);
  }
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    if (fails_at != 0 && --fails_at == 0) throw DriverError("copy_batch", "INJECTED_ERROR", bytes.size() - 1);
    copied.insert(copied.end(), bytes.begin(), bytes.end());
    ForwardingDriver::copy_batch(destinations, sources, bytes, attributes, direction, stream);
  }

  Event create_event(EventKind kind) override {
    ++events;
    return ForwardingDriver::create_event(kind);
  }

  std::size_t launches = 0;
  std::size_t events = 0;
  std::size_t fails_at = 0;
  std::vector<std::size_t> copied;  ///< the sizes of the copies between host and device
};

/// Blocks that lie in shuffled pages on the host, and shuffled on the device.
struct Bench {
  Bench(Direction direction, std::vector<std::size_t> sizes, std::size_t blocks_a_page)
      : stream(driver),
        host(driver, MemoryKind::allocated, 40 * kMiB),
        device(driver, MemoryKind::device, 40 * kMiB),
        kernel(std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{})) {
    list.bytes = std::move(sizes);
    (direction == Direction::h2d ? list.sources : list.destinations) = placed(host.address(), blocks_a_page);
    (direction == Direction::h2d ? list.destinations : list.sources) = placed(device.address(), 1);
    swap = std::make_unique<StagedSwap>(driver, kernel, list.view(), SmOptions{4, direction, kInlineTableBytes});
  }

  /// Pages in a new order, each with a gap behind it.
  std::vector<Address> placed(Address base, std::size_t blocks_a_page) {
    std::vector<std::size_t> pages((list.bytes.size() + blocks_a_page - 1) / blocks_a_page);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = i;
    std::ranges::shuffle(pages, random);
    std::vector<Address> found(list.bytes.size());
    for (const std::size_t page : pages) {
      const std::size_t end = std::min(list.bytes.size(), (page + 1) * blocks_a_page);
      for (std::size_t i = page * blocks_a_page; i < end; base += list.bytes[i++]) found[i] = base;
      base += 16;
    }
    return found;
  }

  /// Writes new blocks into the sources, and other bytes where they go.
  void renew() {
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      auto* source = reinterpret_cast<unsigned char*>(list.sources[i]);
      for (std::size_t at = 0; at < list.bytes[i]; at += 61) source[at] = static_cast<unsigned char>(random());
      std::memset(reinterpret_cast<void*>(list.destinations[i]), 0xA5, list.bytes[i]);
    }
  }

  /// The same place in the second half of its buffer.
  static Address room(Address address) { return address + 20 * kMiB; }

  [[nodiscard]] bool arrived() const {
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      if (std::memcmp(reinterpret_cast<void*>(list.sources[i]), reinterpret_cast<void*>(list.destinations[i]),
                      list.bytes[i]) != 0)
        return false;
    }
    return true;
  }

  std::mt19937 random{3};
  std::shared_ptr<LaunchingDriver> driver = std::make_shared<LaunchingDriver>();
  OwnedStream stream;
  Buffer host;
  Buffer device;
  std::shared_ptr<SmKernel> kernel;
  DescriptorList list;
  std::unique_ptr<StagedSwap> swap;
};

std::vector<std::size_t> equal_blocks() { return std::vector<std::size_t>(6000, 4096); }

std::vector<std::size_t> mixed_blocks() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 6000; ++i) sizes.push_back(i % 3 == 0 ? 576 : i % 3 == 1 ? 4097 : 9000);
  return sizes;
}

void every_block_arrives_and_a_page_of_the_host_is_one_copy() {
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    for (const auto& sizes : {equal_blocks(), mixed_blocks()}) {
      Bench bench(direction, sizes, 100);
      for (int swap = 0; swap < 3; ++swap) {
        bench.renew();
        bench.driver->copied.clear();
        bench.driver->launches = 0;
        bench.swap->submit(bench.stream.handle());
        bench.stream.synchronize();
        check::that(bench.arrived(), "every block arrived");
        const std::size_t chunks = bench.driver->launches;
        check::that(chunks >= 4, "several chunks go through each of the two buffers");
        check::that(bench.swap->descriptors() >= 60 && bench.swap->descriptors() < 60 + chunks,
                    "a page is one copy, or two where a chunk ends");
        check::equal(bench.driver->copied.size(), bench.swap->descriptors(), "copies");
        check::equal(bench.swap->calls(), 2 * chunks, "calls");
        check::that(bench.swap->staging_bytes() < 17 * kMiB, "the ring is smaller than the swap");
      }
    }
  }
}

void swaps_behind_closed_gates_are_submitted_at_once_and_arrive_in_turn() {
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    Bench bench(direction, equal_blocks(), 50);
    const OwnedStream gatekeeper(bench.driver), other(bench.driver);
    OwnedEvent gate(bench.driver);
    bench.renew();
    bench.driver->delay(200'000'000, gatekeeper.handle());
    gate.record(gatekeeper.handle());
    gate.hold(bench.stream.handle());
    bench.swap->submit(bench.stream.handle());
    bench.swap->submit(bench.stream.handle());
    check::that(!gate.completed(), "the thread waited for nothing");
    // The same ring on a stream that is not gated: it must not overtake what is in the ring.
    bench.swap->submit(other.handle());
    bench.driver->synchronize(other.handle());
    bench.stream.synchronize();
    check::that(bench.arrived(), "every block arrived");
  }
}

void the_work_before_a_swap_comes_first_and_the_work_behind_it_last() {
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    Bench bench(direction, std::vector<std::size_t>(800, 4096), 50);
    bench.renew();
    bench.driver->delay(20'000'000, bench.stream.handle());
    for (const Address source : bench.list.sources) bench.driver->fill(source, 7, 4096, bench.stream.handle());
    bench.swap->submit(bench.stream.handle());
    for (const Address source : bench.list.sources) bench.driver->fill(source, 8, 4096, bench.stream.handle());
    for (const Address to : bench.list.destinations) {
      bench.driver->transfer(bench.room(to), to, 4096, direction, bench.stream.handle());
    }
    bench.stream.synchronize();
    const bool right = std::ranges::all_of(bench.list.destinations, [&](Address to) {
      const auto* seen = reinterpret_cast<const unsigned char*>(bench.room(to));
      return std::all_of(seen, seen + 4096, [](unsigned char byte) { return byte == 7; });
    });
    check::that(right, "the swap moved what was there before it, and what followed saw it");
  }
}

void the_time_of_the_kernels_is_part_of_the_swap() {
  Bench bench(Direction::d2h, equal_blocks(), 100);
  bench.renew();
  check::that(bench.swap->kernel_us(bench.stream.handle()) > 0, "the kernels took time");
  check::that(bench.arrived(), "every block arrived");
}

void an_error_names_the_block_and_leaves_the_ring_usable() {
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    Bench bench(direction, equal_blocks(), 100);
    bench.driver->fails_at = 2;
    const auto error = check::thrown<DriverError>([&] { bench.swap->submit(bench.stream.handle()); });
    bench.stream.synchronize();
    const std::size_t named = error.descriptor().value_or(bench.list.bytes.size());
    check::that(named < bench.list.bytes.size() && named % 100 == 0, "the first block of a page");
    bench.renew();
    bench.swap->submit(bench.stream.handle());
    bench.stream.synchronize();
    check::that(bench.arrived(), "every block arrived after the error");
  }
}

void a_swap_behind_one_that_failed_waits_for_what_was_submitted_of_it() {
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    Bench bench(direction, equal_blocks(), 50);
    const OwnedStream gatekeeper(bench.driver), other(bench.driver);
    OwnedEvent gate(bench.driver), end(bench.driver);
    bench.renew();
    bench.driver->delay(100'000'000, gatekeeper.handle());
    gate.record(gatekeeper.handle());
    gate.hold(bench.stream.handle());
    bench.driver->fails_at = 1;
    check::thrown<DriverError>([&] { bench.swap->submit(bench.stream.handle()); });
    bench.swap->submit(other.handle());
    end.record(other.handle());
    end.wait();
    check::that(gate.completed(), "the ring is in use up to the gate");
    bench.stream.synchronize();
    check::that(bench.arrived(), "every block arrived");
  }
}

void a_failed_timing_leaves_no_timing_behind() {
  Bench bench(Direction::d2h, equal_blocks(), 100);
  bench.driver->fails_at = 2;
  check::thrown<DriverError>([&] { bench.swap->kernel_us(bench.stream.handle()); });
  bench.driver->events = 0;
  bench.swap->submit(bench.stream.handle());
  bench.stream.synchronize();
  check::equal(bench.driver->events, std::size_t{0}, "events made by a swap that is not timed");
}

void a_block_larger_than_a_chunk_is_staged_whole() {
  Bench bench(Direction::h2d, {12 * kMiB, 100, 12 * kMiB, 7}, 2);
  bench.renew();
  bench.swap->submit(bench.stream.handle());
  bench.stream.synchronize();
  check::that(bench.arrived(), "every block arrived");
  check::equal(bench.swap->staging_bytes(), 24 * kMiB, "bytes of the ring");
}

void the_legacy_stream_is_refused() {
  Bench bench(Direction::d2h, {4096}, 1);
  check::thrown<DriverError>([&] { bench.swap->submit(0); });
}

}  // namespace

int main() {
  return check::run({
      {"every block arrives and a page of the host is one copy",
       every_block_arrives_and_a_page_of_the_host_is_one_copy},
      {"swaps behind closed gates are submitted at once and arrive in turn",
       swaps_behind_closed_gates_are_submitted_at_once_and_arrive_in_turn},
      {"the work before a swap comes first and the work behind it last",
       the_work_before_a_swap_comes_first_and_the_work_behind_it_last},
      {"the time of the kernels is part of the swap", the_time_of_the_kernels_is_part_of_the_swap},
      {"an error names the block and leaves the ring usable", an_error_names_the_block_and_leaves_the_ring_usable},
      {"a swap behind one that failed waits for what was submitted of it",
       a_swap_behind_one_that_failed_waits_for_what_was_submitted_of_it},
      {"a failed timing leaves no timing behind", a_failed_timing_leaves_no_timing_behind},
      {"a block larger than a chunk is staged whole", a_block_larger_than_a_chunk_is_staged_whole},
      {"the legacy stream is refused", the_legacy_stream_is_refused},
  });
}
