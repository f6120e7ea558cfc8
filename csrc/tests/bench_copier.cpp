// What a call of a copier takes where the driver's launch does nothing, and what of it the check takes that every block
// lies wholly in its pools. No test: it prints microseconds. To run it:
//   c++ -O3 -std=c++20 -pthread -Icsrc csrc/tests/bench_copier.cpp csrc/{driver,memory,swap,timing}/*.cpp -ldl
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "forwarding_driver.hpp"
#include "swap/block_copier.hpp"
#include "swap/pack_ids.hpp"

namespace {

using namespace kvbench;

class LaunchesNothing final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid, void**, Stream) override {}
  void record(Event, Stream) override {}
};

constexpr std::size_t kPoolBytes = std::size_t{1} << 28;
constexpr std::size_t kBlockBytes = 4096;

template <typename Call>
double microseconds(std::size_t calls, const Call& call) {
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
  return took.count() / static_cast<double>(calls);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void bench(std::size_t blocks) {
  const auto driver = std::make_shared<LaunchesNothing>();
  const OwnedStream stream(driver);
  const Buffer host(driver, MemoryKind::allocated, kPoolBytes), device(driver, MemoryKind::device, kPoolBytes);
  std::mt19937 random(1);
  DescriptorList list;
  for (std::size_t i = 0; i < blocks; ++i) {
    list.sources.push_back(host.address() + random() % (kPoolBytes / kBlockBytes) * kBlockBytes);
    list.destinations.push_back(device.address() + random() % (kPoolBytes / kBlockBytes) * kBlockBytes);
    list.bytes.push_back(kBlockBytes);
  }
  CopyWay way;
  way.sms = 4;
  way.inline_up_to = 3968;
  way.any = std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{.method = SmMethod::bulk});
  std::vector<CopyTable> tables(2);
  tables[0].ways = tables[1].ways = {0};
  tables[1].direction = Direction::d2h;
  BlockCopier copier(driver, {way}, tables);
  const Ends ends{{Place::pinned, host.address(), kPoolBytes}, {Place::device, device.address(), kPoolBytes}};
  const BlockSizes sizes = BlockSizes::presumed(kBlockBytes);
  std::vector<Ids> ids(blocks);
  const std::size_t calls = 4'000'000 / (blocks + 400);
  std::vector<double> whole, differences;
  for (int pair = 0; pair < 41; ++pair) {
    const auto pack = [&](std::size_t size) {
      return microseconds(calls, [&] { pack_ids(list.view(), sizes, ends.bounds(size), ids.data()); });
    };
    whole.push_back(microseconds(calls, [&] { copier.copy(list.view(), stream.handle()); }));
    const double begins = pack(1), ends_too = pack(kBlockBytes);
    differences.push_back(ends_too - begins);
  }
  std::printf("%zu blocks: a call %.3f us; that blocks end in their pools takes %+.4f us of it\n", blocks,
              median(whole), median(differences));
}

}  // namespace

int main() {
  for (const std::size_t blocks : {64, 10'000}) bench(blocks);
}
