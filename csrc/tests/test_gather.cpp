#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "forwarding_driver.hpp"
#include "swap/gather.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kRowBytes = 576;
constexpr std::size_t kPoolRows = 64;

/// The host device with the graph of one gather: a launch of it reads the ids as the kernel does.
class GatheringDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid grid, void** arguments, Stream) override {
    ctas = grid.blocks;
    source_base = *static_cast<u64*>(arguments[0]);
    destination_base = *static_cast<u64*>(arguments[1]);
    ids = reinterpret_cast<const RowIds*>(*static_cast<Address*>(arguments[2]));
    rows = *static_cast<u32*>(arguments[3]);
  }
  Graph end_capture_into_graph(Stream stream) override {
    end_capture(stream);
    ++graphs;
    return 7;
  }
  void launch_graph(Graph graph, Stream stream) override {
    check::equal(graph, Graph{7}, "the graph that was captured");
    for (u32 row = 0; row < rows; ++row) {
      copy(destination_base + ids[row].destination * kRowBytes, source_base + ids[row].source * kRowBytes, kRowBytes,
           Direction::h2d, stream);
    }
  }
  void destroy_graph(Graph) noexcept override { --graphs; }

  int graphs = 0;
  unsigned ctas = 0;

 private:
  u64 source_base = 0;
  u64 destination_base = 0;
  const RowIds* ids = nullptr;
  u32 rows = 0;
};

struct Pools {
  Pools() : stream(driver), host(driver, MemoryKind::allocated, bytes()), device(driver, MemoryKind::device, bytes()) {
    auto filled = host.host(bytes());
    std::iota(filled.begin(), filled.end(), static_cast<unsigned char>(1));
  }
  static std::size_t bytes() { return kPoolRows * kRowBytes + 16; }
  /// Rows begin 16 bytes into a pool, so that no base is a multiple of a row.
  [[nodiscard]] Address source(std::size_t row) const { return host.address() + 16 + row * kRowBytes; }
  [[nodiscard]] Address destination(std::size_t row) const { return device.address() + 16 + row * kRowBytes; }
  [[nodiscard]] bool arrived(std::size_t from, std::size_t to) const {
    return std::memcmp(reinterpret_cast<void*>(source(from)), reinterpret_cast<void*>(destination(to)), kRowBytes) == 0;
  }

  std::shared_ptr<GatheringDriver> driver = std::make_shared<GatheringDriver>();
  OwnedStream stream;
  Buffer host;
  Buffer device;
};

void gathers_what_was_staged() {
  const Pools pools;
  std::vector<Address> sources{pools.source(9), pools.source(2)};
  std::vector<Address> destinations{pools.destination(0), pools.destination(5)};
  {
    GatherSwap swap({pools.driver, {}, kRowBytes}, sources, destinations, 4);
    swap.stage();
    swap.submit(pools.stream.handle());
    pools.driver->synchronize(pools.stream.handle());
    check::that(pools.arrived(9, 0) && pools.arrived(2, 5), "both rows arrived");
    check::that(!pools.arrived(1, 1), "a row that was not asked for stays");
    sources = {pools.source(30), pools.source(31)};
    swap.stage();
    swap.submit(pools.stream.handle());
    pools.driver->synchronize(pools.stream.handle());
    check::that(pools.arrived(30, 0) && pools.arrived(31, 5), "the rows of the next list arrived");
    check::equal(pools.driver->ctas, 4U, "thread blocks");
  }
  check::equal(pools.driver->graphs, 0, "graphs left");
}

void refuses_the_legacy_stream() {
  const Pools pools;
  const std::vector<Address> sources{pools.source(9)}, destinations{pools.destination(0)};
  GatherSwap swap({pools.driver, {}, kRowBytes}, sources, destinations, 1);
  swap.stage();
  check::thrown<DriverError>([&] { swap.submit(Stream{0}); });
}

void refuses_rows_between_rows() {
  const Pools pools;
  for (const auto& [off_source, off_destination] : {std::pair{16, 0}, std::pair{0, 16}}) {
    const std::vector<Address> sources{pools.source(9), pools.source(2) + off_source};
    const std::vector<Address> destinations{pools.destination(0), pools.destination(1) + off_destination};
    GatherSwap swap({pools.driver, {}, kRowBytes}, sources, destinations, 1);
    check::thrown<std::invalid_argument>([&] { swap.stage(); });
  }
}

}  // namespace

int main() {
  return check::run({
      {"gathers what was staged", gathers_what_was_staged},
      {"refuses rows between rows", refuses_rows_between_rows},
      {"refuses the legacy stream", refuses_the_legacy_stream},
  });
}
