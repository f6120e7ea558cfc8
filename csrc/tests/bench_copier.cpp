// What a call of a copier takes where the driver's launch does nothing, by the number of registrations in which its
// blocks lie, and what the first block in a registration takes. No test: it prints nanoseconds. To run it:
//   c++ -O3 -std=c++20 -pthread -Icsrc csrc/tests/bench_copier.cpp csrc/{driver,memory,swap,timing}/*.cpp -ldl
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "forwarding_driver.hpp"
#include "swap/block_copier.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kPoolBytes = std::size_t{8} << 30;
constexpr Address kHost = Address{1} << 46;
constexpr Address kDevice = Address{1} << 45;

/// A driver of pools that nobody reads: that of the host in slots, every other one of which is registered.
class SlotsOnly final : public ForwardingDriver {
 public:
  explicit SlotsOnly(std::size_t slots) : bytes_(slots == 1 ? kPoolBytes : kPoolBytes / slots / 2) {}
  Kernel load_kernel(std::span<const std::byte>, const char*, std::size_t) override { return 1; }
  void launch(Kernel, Grid, void**, Stream) override {}
  void record(Event, Stream) override {}
  Region region_of(Address address) override {
    if (address < kHost) return {Place::device, kDevice, kPoolBytes};
    return {Place::pinned, kHost + (address - kHost) / bytes_ * bytes_, bytes_};
  }
  [[nodiscard]] std::size_t slot_bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
};

/// Of this thread's CPU: others may use the machine.
template <typename Call>
double nanoseconds(const Call& call) {
  const auto now = [] {
    timespec at{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) * 1e9 + static_cast<double>(at.tv_nsec);
  };
  const double began = now();
  call();
  return now() - began;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

/// Random blocks in every other slot.
DescriptorList blocks_in(std::size_t slots, std::size_t slot_bytes, std::size_t count, std::mt19937_64& random) {
  DescriptorList list;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = random() % (slot_bytes / kBlockBytes) * kBlockBytes;
    list.sources.push_back(kHost + random() % slots * 2 * slot_bytes + at);
    list.destinations.push_back(kDevice + random() % (kPoolBytes / kBlockBytes) * kBlockBytes);
    list.bytes.push_back(kBlockBytes);
  }
  return list;
}

void bench(std::size_t slots, std::size_t count) {
  const auto driver = std::make_shared<SlotsOnly>(slots);
  const OwnedStream stream(driver);
  std::mt19937_64 random(1);
  CopyWay way;
  way.sms = 4;
  way.inline_up_to = 3968;
  way.any = std::make_shared<SmKernel>(driver, std::span<const std::byte>{}, SmShape{.method = SmMethod::bulk});
  std::vector<CopyTable> tables(2);
  tables[0].ways = tables[1].ways = {0};
  tables[1].direction = Direction::d2h;
  std::vector<std::size_t> order(slots);
  for (std::size_t i = 0; i < slots; ++i) order[i] = i;
  std::ranges::shuffle(order, random);
  std::vector<double> first, known;
  for (int round = 0; round < 5; ++round) {
    BlockCopier copier(driver, {way}, tables);
    for (std::size_t begin = 0; begin < slots; begin += count) {
      DescriptorList list;
      for (std::size_t i = begin; i < std::min(begin + count, slots); ++i) {
        list.sources.push_back(kHost + order[i] * 2 * driver->slot_bytes());
        list.destinations.push_back(kDevice + i * kBlockBytes);
        list.bytes.push_back(kBlockBytes);
      }
      const double took = nanoseconds([&] { copier.copy(list.view(), stream.handle()); });
      first.push_back(took / static_cast<double>(list.bytes.size()));
    }
    std::vector<DescriptorList> lists;
    for (int i = 0; i < 20; ++i) lists.push_back(blocks_in(slots, driver->slot_bytes(), count, random));
    for (const DescriptorList& list : lists) {
      const double took = nanoseconds([&] { copier.copy(list.view(), stream.handle()); });
      known.push_back(took / static_cast<double>(count));
    }
  }
  std::printf(
      "%6zu blocks in %6zu registrations: %7.2f ns a block; %7.2f where each is the first, without the driver\n", count,
      slots, median(known), median(first));
}

}  // namespace

int main() {
  for (const std::size_t count : {64, 10'000}) {
    for (const std::size_t slots : {1, 256, 4'096, 16'384}) bench(slots, count);
  }
}
