#include <utility>

#include "swap/swap.hpp"

namespace kvbench {

void refuse_legacy_stream(Stream stream) {
  constexpr Stream kStreamLegacy = 1;  // CU_STREAM_LEGACY
  if (stream == 0 || stream == kStreamLegacy) {
    throw DriverError("submit", "the legacy default stream is not supported; create a stream");
  }
}

void copy_each(Driver& driver, const Descriptors& descriptors, Direction direction, Stream stream) {
  refuse_legacy_stream(stream);
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    try {
      driver.copy(descriptors.destinations[i], descriptors.sources[i], descriptors.bytes[i], direction, stream);
    } catch (const DriverError& error) {
      throw error.at(i);
    }
  }
}

namespace {

class PerBlockSwap final : public Swap {
 public:
  PerBlockSwap(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction)
      : driver_(std::move(driver)), descriptors_(descriptors), direction_(direction) {}

  void submit(Stream stream) override { copy_each(*driver_, descriptors_, direction_, stream); }
  std::size_t calls() const override { return descriptors_.size(); }
  std::size_t descriptors() const override { return descriptors_.size(); }

 private:
  std::shared_ptr<Driver> driver_;
  Descriptors descriptors_;
  Direction direction_;
};

}  // namespace

std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction) {
  return std::make_unique<PerBlockSwap>(std::move(driver), descriptors, direction);
}

}  // namespace kvbench
