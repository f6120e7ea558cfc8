#include <algorithm>
#include <chrono>
#include <utility>

#include "swap/swap.hpp"

namespace kvbench {

void coalesce(const DescriptorList& descriptors, DescriptorList& merged, std::vector<std::size_t>& first) {
  const std::size_t count = descriptors.size();
  const Address* source = descriptors.sources.data();
  const Address* destination = descriptors.destinations.data();
  const std::size_t* bytes = descriptors.bytes.data();
  // Finds the beginnings of runs without a branch: an index inside a run is overwritten by the next one.
  first.resize(count + 1);
  std::size_t* begins = first.data();
  begins[0] = 0;
  std::size_t runs = count > 0 ? 1 : 0;
  for (std::size_t i = 1; i < count; ++i) {
    begins[runs] = i;
    runs += static_cast<std::size_t>((source[i] != source[i - 1] + bytes[i - 1]) |
                                     (destination[i] != destination[i - 1] + bytes[i - 1]));
  }
  first.resize(runs);
  merged.sources.resize(runs);
  merged.destinations.resize(runs);
  merged.bytes.resize(runs);
  for (std::size_t run = 0; run < runs; ++run) {
    const std::size_t begin = first[run];
    const std::size_t last = (run + 1 < runs ? first[run + 1] : count) - 1;
    merged.sources[run] = source[begin];
    merged.destinations[run] = destination[begin];
    merged.bytes[run] = source[last] + bytes[last] - source[begin];
  }
}

namespace {

class BatchedSwap final : public Swap {
 public:
  BatchedSwap(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction, BatchOptions options)
      : driver_(std::move(driver)), descriptors_(std::move(descriptors)), direction_(direction), options_(options) {}

  void retarget(std::span<const Address> sources, std::span<const Address> destinations) override {
    descriptors_.retarget(sources, destinations);
  }

  void prepare() override {
    if (options_.by_host_address) put_in_order();
    if (!options_.coalesce) return;
    const auto start = std::chrono::steady_clock::now();
    kvbench::coalesce(listed(), merged_, merged_first_);
    coalesce_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  void submit(Stream stream) override {
    refuse_legacy_stream(stream);
    const DescriptorList& list = submitted();
    const std::size_t stride = descriptors_per_call();
    for (std::size_t begin = 0; begin < list.size(); begin += stride) {
      const std::size_t count = std::min(stride, list.size() - begin);
      // On an idle stream cuMemcpyBatchAsync copies on the CPU, inside the call. Between calls the stream becomes idle
      // if the thread is delayed for longer than the copies of the last call take.
      if (options_.prime_ns > 0 && driver_->idle(stream)) driver_->delay(options_.prime_ns, stream);
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
  const DescriptorList& listed() const { return options_.by_host_address ? ordered_ : descriptors_; }
  const DescriptorList& submitted() const { return options_.coalesce ? merged_ : listed(); }

  void put_in_order() {
    const auto& host = direction_ == Direction::h2d ? descriptors_.sources : descriptors_.destinations;
    order_.resize(host.size());
    for (std::size_t i = 0; i < host.size(); ++i) order_[i] = {host[i], i};
    std::ranges::sort(order_);
    ordered_.sources.clear();
    ordered_.destinations.clear();
    ordered_.bytes.clear();
    for (const auto& [_, index] : order_) {
      ordered_.sources.push_back(descriptors_.sources[index]);
      ordered_.destinations.push_back(descriptors_.destinations[index]);
      ordered_.bytes.push_back(descriptors_.bytes[index]);
    }
  }

  std::size_t descriptors_per_call() const {
    return options_.descriptors_per_call > 0 ? options_.descriptors_per_call
                                             : std::max<std::size_t>(submitted().size(), 1);
  }

  std::size_t original_index(std::size_t index) const {
    const std::size_t place = options_.coalesce ? merged_first_[index] : index;
    return options_.by_host_address ? order_[place].second : place;
  }

  std::shared_ptr<Driver> driver_;
  DescriptorList descriptors_;
  Direction direction_;
  BatchOptions options_;
  std::vector<std::pair<Address, std::size_t>> order_;  ///< host address and index of each descriptor, ascending
  DescriptorList ordered_;
  DescriptorList merged_;
  std::vector<std::size_t> merged_first_;
  double coalesce_us_ = 0;
};

/// The fallback for drivers without cuMemcpyBatchAsync: a loop over single copies, which reports fell_back().
class FallbackSwap final : public Swap {
 public:
  explicit FallbackSwap(std::unique_ptr<Swap> loop) : loop_(std::move(loop)) {}
  void retarget(std::span<const Address> sources, std::span<const Address> destinations) override {
    loop_->retarget(sources, destinations);
  }
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
