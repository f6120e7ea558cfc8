#include <algorithm>
#include <stdexcept>
#include <utility>

#include "swap/swap.hpp"

namespace kvbench {

void DescriptorList::retarget(std::span<const Address> new_sources, std::span<const Address> new_destinations) {
  if (new_sources.size() != size() || new_destinations.size() != size()) {
    throw std::invalid_argument("retarget: the number of descriptors must not change");
  }
  std::ranges::copy(new_sources, sources.begin());
  std::ranges::copy(new_destinations, destinations.begin());
}

void Swap::retarget_ids(std::span<const std::uint32_t>, std::span<const std::uint32_t>) {
  throw std::invalid_argument("retarget_ids: the swap has descriptors, not ids");
}

void refuse_legacy_stream(Stream stream) {
  constexpr Stream kStreamLegacy = 1;  // CU_STREAM_LEGACY
  if (stream == 0 || stream == kStreamLegacy) {
    throw DriverError("submit", "the legacy default stream is not supported; create a stream");
  }
}

namespace {

class PerBlockSwap final : public Swap {
 public:
  PerBlockSwap(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction)
      : driver_(std::move(driver)), descriptors_(std::move(descriptors)), direction_(direction) {}

  void retarget(std::span<const Address> sources, std::span<const Address> destinations) override {
    descriptors_.retarget(sources, destinations);
  }

  void prepare() override {}

  void submit(Stream stream) override {
    refuse_legacy_stream(stream);
    for (std::size_t i = 0; i < descriptors_.size(); ++i) {
      try {
        driver_->copy(descriptors_.destinations[i], descriptors_.sources[i], descriptors_.bytes[i], direction_, stream);
      } catch (const DriverError& error) {
        throw error.at(i);
      }
    }
  }

  std::size_t calls() const override { return descriptors_.size(); }

 private:
  std::shared_ptr<Driver> driver_;
  DescriptorList descriptors_;
  Direction direction_;
};

}  // namespace

std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction) {
  return std::make_unique<PerBlockSwap>(std::move(driver), std::move(descriptors), direction);
}

}  // namespace kvbench
