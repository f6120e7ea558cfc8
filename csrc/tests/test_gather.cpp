#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "gated_driver.hpp"
#include "swap/gather.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kPoolRows = 64;

/// The host device with the graph of one gather: a launch of it reads the ids as the kernel does.
class GatheringDriver final : public ForwardingDriver {
 public:
  explicit GatheringDriver(std::size_t bytes) : row_bytes(bytes) {}
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid grid, void** arguments, Stream) override {
    grids.push_back(grid);
    source_base = *static_cast<u64*>(arguments[0]);
    destination_base = *static_cast<u64*>(arguments[1]);
    ids = reinterpret_cast<const RowIds*>(*static_cast<Address*>(arguments[2]));
    rows = *static_cast<u32*>(arguments[3]);
  }
  void begin_capture(Stream) override {}
  Graph end_capture_into_graph(Stream) override {
    ++graphs;
    return 7;
  }
  void transfer(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    reinterpret_cast<HostStream*>(stream)->submit([] { work_for(100'000); });  // what does not wait is late
    ForwardingDriver::transfer(destination, source, bytes, direction, stream);
  }
  void launch_graph(Graph graph, Stream stream) override {
    check::equal(graph, Graph{7}, "the graph that was captured");
    for (u32 row = 0; row < rows; ++row) {
      copy(destination_base + ids[row].destination * row_bytes, source_base + ids[row].source * row_bytes, row_bytes,
           Direction::h2d, stream);
    }
  }
  void destroy_graph(Graph) noexcept override { --graphs; }

  std::size_t row_bytes;
  int graphs = 0;
  std::vector<Grid> grids;  ///< of the launches that were captured

 private:
  u64 source_base = 0;
  u64 destination_base = 0;
  const RowIds* ids = nullptr;
  u32 rows = 0;
};

/// Pools whose rows begin anywhere, and what the device's has to hold.
struct Pools {
  explicit Pools(std::size_t row_bytes = 576, unsigned seed = 1)
      : random(seed),
        driver(std::make_shared<GatheringDriver>(row_bytes)),
        stream(driver),
        host(driver, MemoryKind::allocated, (kPoolRows + 1) * row_bytes),
        device(driver, MemoryKind::device, (kPoolRows + 1) * row_bytes),
        first_source(host.address() + random() % row_bytes),
        first_destination(device.address() + random() % row_bytes),
        expected(device.bytes(), std::byte{0x5a}) {
    for (unsigned char& byte : host.host(host.bytes())) byte = static_cast<unsigned char>(random());
    std::memset(reinterpret_cast<void*>(device.address()), 0x5a, device.bytes());
  }

  /// Writes other rows into a list; no destination comes twice.
  void draw(std::vector<Address>& sources, std::vector<Address>& destinations) {
    std::vector<std::size_t> rows(kPoolRows);
    std::iota(rows.begin(), rows.end(), 0U);
    std::ranges::shuffle(rows, random);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      sources[i] = first_source + random() % kPoolRows * driver->row_bytes;
      destinations[i] = first_destination + rows[i] * driver->row_bytes;
      std::memcpy(expected.data() + destinations[i] - device.address(), reinterpret_cast<void*>(sources[i]),
                  driver->row_bytes);
    }
  }
  [[nodiscard]] bool as_expected() const {
    driver->synchronize(stream.handle());
    return std::memcmp(expected.data(), reinterpret_cast<void*>(device.address()), expected.size()) == 0;
  }
  [[nodiscard]] Address source(std::size_t row) const { return first_source + row * driver->row_bytes; }
  [[nodiscard]] Address destination(std::size_t row) const { return first_destination + row * driver->row_bytes; }

  std::mt19937_64 random;
  std::shared_ptr<GatheringDriver> driver;
  OwnedStream stream;
  Buffer host;
  Buffer device;
  Address first_source, first_destination;
  std::vector<std::byte> expected;
};

/// Rows of any size from anywhere, by one graph that reads what was staged last; all other bytes stay.
void gathers_what_was_staged_and_nothing_else() {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const std::size_t row_bytes : {1U, 13U, 576U, 1160U}) {
      Pools pools(row_bytes, seed);
      const std::size_t rows = std::array<std::size_t, 4>{1, 2, kPoolRows - 1, kPoolRows}[seed % 4];
      std::vector<Address> sources(rows), destinations(rows);
      pools.draw(sources, destinations);
      {
        GatherSwap swap({pools.driver, {}, row_bytes}, sources, destinations, seed + 1);
        for (int list = 0; list < 3; ++list) {
          if (list > 0) pools.draw(sources, destinations);
          swap.stage();
          swap.submit(pools.stream.handle());
          check::that(pools.as_expected(), "the pool of the device");
        }
        check::equal(swap.calls(), std::size_t{1}, "launches of a graph");
        check::equal(swap.descriptors(), rows, "descriptors");
        check::equal(pools.driver->grids.size(), std::size_t{1}, "captures");
        check::equal(pools.driver->grids[0].blocks, seed + 1, "thread blocks");
        check::equal(pools.driver->grids[0].threads, 1024U, "threads of a block");
        check::equal(pools.driver->graphs, 1, "graphs");
      }
      check::equal(pools.driver->graphs, 0, "graphs left");
    }
  }
}

void refuses_the_legacy_stream() {
  const Pools pools;
  const std::vector<Address> sources{pools.source(9)}, destinations{pools.destination(0)};
  GatherSwap swap({pools.driver, {}, pools.driver->row_bytes}, sources, destinations, 1);
  swap.stage();
  check::thrown<DriverError>([&] { swap.submit(Stream{0}); });
}

void refuses_no_rows_and_too_many() {
  const Pools pools;
  const Address row = pools.source(0);
  for (const std::size_t rows : {std::size_t{0}, std::size_t{1} << 32}) {
    const std::span list(&row, rows);  // of which nothing is read
    check::thrown<std::invalid_argument>([&] { GatherSwap({pools.driver, {}, 576}, list, list, 1); });
  }
}

void refuses_rows_between_rows() {
  const Pools pools;
  for (const std::size_t wrong : {1, 2}) {
    for (const auto& [off_source, off_destination] : {std::pair{16, 0}, std::pair{0, 16}, std::pair{-1, 0}}) {
      std::vector<Address> sources{pools.source(9), pools.source(2), pools.source(3)};
      std::vector<Address> destinations{pools.destination(0), pools.destination(1), pools.destination(3)};
      sources[wrong] += static_cast<Address>(off_source);
      destinations[wrong] += static_cast<Address>(off_destination);
      GatherSwap swap({pools.driver, {}, pools.driver->row_bytes}, sources, destinations, 1);
      check::thrown<std::invalid_argument>([&] { swap.stage(); });
    }
  }
}

}  // namespace

int main() {
  return check::run({
      {"gathers what was staged and nothing else", gathers_what_was_staged_and_nothing_else},
      {"refuses no rows and too many", refuses_no_rows_and_too_many},
      {"refuses rows between rows", refuses_rows_between_rows},
      {"refuses the legacy stream", refuses_the_legacy_stream},
  });
}
