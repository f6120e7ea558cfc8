#include <algorithm>
#include <chrono>
#include <utility>

#include "swap.hpp"

namespace kvbench {

void coalesce(const DescriptorList& descriptors, DescriptorList& merged, std::vector<std::size_t>& first) {
  merged.sources.clear();
  merged.destinations.clear();
  merged.bytes.clear();
  first.clear();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    const bool adjoins = !merged.bytes.empty() &&
                         merged.sources.back() + merged.bytes.back() == descriptors.sources[i] &&
                         merged.destinations.back() + merged.bytes.back() == descriptors.destinations[i];
    if (adjoins) {
      merged.bytes.back() += descriptors.bytes[i];
    } else {
      merged.sources.push_back(descriptors.sources[i]);
      merged.destinations.push_back(descriptors.destinations[i]);
      merged.bytes.push_back(descriptors.bytes[i]);
      first.push_back(i);
    }
  }
}

namespace {

class BatchedSwap final : public Swap {
 public:
  BatchedSwap(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction, BatchOptions options)
      : driver_(std::move(driver)), descriptors_(std::move(descriptors)), direction_(direction), options_(options) {}

  void prepare() override {
    if (!options_.coalesce) return;
    const auto start = std::chrono::steady_clock::now();
    kvbench::coalesce(descriptors_, merged_, merged_first_);
    coalesce_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  void submit(Stream stream) override {
    refuse_legacy_stream(stream);
    // cuMemcpyBatchAsync copies on the CPU, inside the call, when the stream is idle at that moment.
    if (options_.prime_ns > 0 && driver_->idle(stream)) driver_->delay(options_.prime_ns, stream);
    const DescriptorList& list = submitted();
    const std::size_t stride = descriptors_per_call();
    for (std::size_t begin = 0; begin < list.size(); begin += stride) {
      const std::size_t count = std::min(stride, list.size() - begin);
      try {
        driver_->copy_batch(std::span(list.destinations).subspan(begin, count),
                            std::span(list.sources).subspan(begin, count), std::span(list.bytes).subspan(begin, count),
                            options_.attributes, direction_, stream);
      } catch (const DriverError& error) {
        throw error.descriptor() ? error.at(original_index(begin + *error.descriptor())) : error;
      }
    }
  }

  std::size_t calls() const override {
    const std::size_t stride = descriptors_per_call();
    return (submitted().size() + stride - 1) / stride;
  }

  double coalesce_us() const override { return coalesce_us_; }

 private:
  const DescriptorList& submitted() const { return options_.coalesce ? merged_ : descriptors_; }

  std::size_t descriptors_per_call() const {
    return options_.descriptors_per_call > 0 ? options_.descriptors_per_call
                                             : std::max<std::size_t>(submitted().size(), 1);
  }

  std::size_t original_index(std::size_t index) const { return options_.coalesce ? merged_first_[index] : index; }

  std::shared_ptr<Driver> driver_;
  DescriptorList descriptors_;
  Direction direction_;
  BatchOptions options_;
  DescriptorList merged_;
  std::vector<std::size_t> merged_first_;
  double coalesce_us_ = 0;
};

/// What runs on a driver without cuMemcpyBatchAsync: the loop over single copies, which says that it is one.
class FallbackSwap final : public Swap {
 public:
  explicit FallbackSwap(std::unique_ptr<Swap> loop) : loop_(std::move(loop)) {}
  void prepare() override { loop_->prepare(); }
  void submit(Stream stream) override { loop_->submit(stream); }
  std::size_t calls() const override { return loop_->calls(); }
  bool fell_back() const override { return true; }

 private:
  std::unique_ptr<Swap> loop_;
};

}  // namespace

std::unique_ptr<Swap> make_batched(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction,
                                   BatchOptions options) {
  if (driver->batch_entry() == BatchEntry::none) {
    return std::make_unique<FallbackSwap>(make_per_block(std::move(driver), std::move(descriptors), direction));
  }
  return std::make_unique<BatchedSwap>(std::move(driver), std::move(descriptors), direction, options);
}

}  // namespace kvbench
