#include <algorithm>
#include <cmath>
#include <utility>

#include "swap/address_order.hpp"
#include "swap/swap.hpp"

namespace kvbench {
namespace {

/// Breaks runs, by their first descriptors, where a region ends: a copy across two registrations is an invalid
/// argument.
void break_at_regions(const Descriptors& list, std::vector<std::size_t>& first, std::vector<std::size_t>& broken) {
  const auto in_one_region = [&](std::size_t begin, std::size_t last) {
    return list.route->in_one_region(list.sources[begin], list.destinations[begin],
                                     list.sources[last] + list.bytes[last] - list.sources[begin]);
  };
  broken.clear();
  for (std::size_t run = 0; run < first.size(); ++run) {
    const std::size_t end = run + 1 < first.size() ? first[run + 1] : list.size();
    broken.push_back(first[run]);
    if (in_one_region(first[run], end - 1)) continue;
    for (std::size_t i = first[run] + 1; i < end; ++i) {
      if (!in_one_region(broken.back(), i)) broken.push_back(i);
    }
  }
  first.swap(broken);
}

/// Descriptors per call of a sliced list. The copy engine starts when a call returns. Each further slice costs host
/// time, and nothing hides the submission of the last: the sum is least if a slice grows with the square root of the
/// list. The factor was the best on an H200 with driver 580.
std::size_t slice_of(std::size_t descriptors) {
  constexpr std::size_t kLeast = 32;
  return std::max(kLeast, static_cast<std::size_t>(std::lround(2 * std::sqrt(static_cast<double>(descriptors)))));
}

class BatchCopier final : public ListCopier {
 public:
  BatchCopier(std::shared_ptr<Driver> driver, Direction direction, BatchOptions options)
      : driver_(std::move(driver)), direction_(direction), options_(options), order_(direction) {}

  bool copy(const Descriptors& descriptors, Stream stream) override {
    refuse_legacy_stream(stream);
    if (descriptors.route) descriptors.route->check(descriptors);
    arrange(descriptors);
    stride_ = stride_of(descriptors.size());
    for (std::size_t begin = 0; begin < submitted_.size(); begin += stride_) {
      const std::size_t count = std::min(stride_, submitted_.size() - begin);
      prime(submitted_.bytes.subspan(begin, count), stream);
      try {
        driver_->copy_batch(submitted_.destinations.subspan(begin, count), submitted_.sources.subspan(begin, count),
                            submitted_.bytes.subspan(begin, count), options_.attributes, direction_, stream);
      } catch (const DriverError& error) {
        throw error.descriptor() ? error.at(original_index(begin + *error.descriptor())) : error;
      }
    }
    return true;
  }

  void reserve(std::size_t entries) override {
    if (options_.by_host_address) order_.reserve(entries);
    if (!options_.merge) return;
    merged_.reserve(entries + 1);
    merged_first_.reserve(entries + 1);
  }

  std::size_t calls() const override { return (submitted_.size() + stride_ - 1) / stride_; }
  std::size_t descriptors() const override { return submitted_.size(); }

 private:
  /// Sorts and merges as the options ask; without either, the caller's arrays go to the driver as they are.
  void arrange(const Descriptors& descriptors) {
    submitted_ = descriptors;
    if (options_.by_host_address) submitted_ = order_.arrange(descriptors);
    if (!options_.merge) return;
    merge_adjacent(submitted_, merged_, merged_first_);
    submitted_ = merged_.view();
  }

  /// On an idle stream cuMemcpyBatchAsync copies small blocks on the CPU, inside the call. Between calls the stream
  /// becomes idle if the thread is delayed for longer than the copies of the last call take.
  void prime(std::span<const std::size_t> bytes, Stream stream) {
    if (options_.prime_up_to_bytes == 0 || std::ranges::min(bytes) > options_.prime_up_to_bytes) return;
    if (driver_->idle(stream)) driver_->delay(options_.prime_ns, stream);
  }

  [[nodiscard]] std::size_t stride_of(std::size_t descriptors) const {
    if (options_.sliced) return slice_of(descriptors);
    return options_.descriptors_per_call > 0 ? options_.descriptors_per_call : std::max<std::size_t>(descriptors, 1);
  }

  [[nodiscard]] std::size_t original_index(std::size_t index) const {
    return order_.original(options_.merge ? merged_first_[index] : index);
  }

  std::shared_ptr<Driver> driver_;
  Direction direction_;
  BatchOptions options_;
  HostOrder order_;
  DescriptorList merged_;
  std::vector<std::size_t> merged_first_;
  Descriptors submitted_;  ///< what the last list gave to the driver
  std::size_t stride_ = 1;
};

}  // namespace

void merge_adjacent(const Descriptors& descriptors, DescriptorList& merged, std::vector<std::size_t>& first) {
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
  if (descriptors.route) {
    break_at_regions(descriptors, first, merged.bytes);
    runs = first.size();
  }
  merged.resize(runs);
  for (std::size_t run = 0; run < runs; ++run) {
    const std::size_t begin = first[run];
    const std::size_t last = (run + 1 < runs ? first[run + 1] : count) - 1;
    merged.sources[run] = source[begin];
    merged.destinations[run] = destination[begin];
    merged.bytes[run] = source[last] + bytes[last] - source[begin];
  }
}

std::unique_ptr<Swap> make_batched(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction,
                                   BatchOptions options) {
  if (driver->batch_entry() == BatchEntry::none) {
    return keep_list(make_loop_copier(std::move(driver), direction), descriptors, true);
  }
  return keep_list(make_batch_copier(std::move(driver), direction, options), descriptors);
}

std::unique_ptr<ListCopier> make_batch_copier(std::shared_ptr<Driver> driver, Direction direction,
                                              BatchOptions options) {
  if (driver->batch_entry() == BatchEntry::none) return make_loop_copier(std::move(driver), direction);
  return std::make_unique<BatchCopier>(std::move(driver), direction, options);
}

}  // namespace kvbench
