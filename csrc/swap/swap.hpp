#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver/driver.hpp"

namespace kvbench {

/// The descriptors of one swap as three parallel arrays; entry i moves bytes[i] from sources[i] to destinations[i].
struct DescriptorList {
  std::vector<Address> sources;
  std::vector<Address> destinations;
  std::vector<std::size_t> bytes;

  [[nodiscard]] std::size_t size() const { return bytes.size(); }
  /// Replaces the addresses without allocating; the sizes stay the same. Throws std::invalid_argument if the number of
  /// addresses differs.
  void retarget(std::span<const Address> new_sources, std::span<const Address> new_destinations);
};

/// One swap that can be submitted repeatedly.
class Swap {
 public:
  Swap() = default;
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;
  virtual ~Swap() = default;

  /// Replaces the addresses for the next submission; their number, sizes and alignment must stay the same. They take
  /// effect at the next prepare(). Throws std::invalid_argument if the number of addresses differs, or for a swap with
  /// ids.
  virtual void retarget(std::span<const Address> sources, std::span<const Address> destinations) = 0;
  /// The same for the ids of blocks of tensors; std::invalid_argument for a swap of descriptors.
  virtual void retarget_ids(std::span<const std::uint32_t> source_ids, std::span<const std::uint32_t> destination_ids);
  /// Converts the descriptors to the driver's input; its time is a sample's prepare_us.
  virtual void prepare() = 0;
  /// Submits to `stream` and returns. A DriverError has the index of the descriptor if it is known.
  virtual void submit(Stream stream) = 0;
  /// Driver calls per submission.
  [[nodiscard]] virtual std::size_t calls() const = 0;
  /// Part of the last prepare() that merged adjacent descriptors.
  [[nodiscard]] virtual double coalesce_us() const { return 0; }
  /// True if the device lacks the requested call and single copies ran instead.
  [[nodiscard]] virtual bool fell_back() const { return false; }
};

/// Rejects the legacy default stream (handles 0 and 1), for which cuMemcpyBatchAsync returns only
/// CUDA_ERROR_INVALID_VALUE.
void refuse_legacy_stream(Stream stream);

/// One asynchronous copy per descriptor.
std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction);

struct BatchOptions {
  BatchAttributes attributes{};
  std::size_t descriptors_per_call = 0;  ///< maximum descriptors per call, 0: no limit
  bool coalesce = false;                 ///< merge consecutive descriptors that are adjacent on both sides
  bool by_host_address = false;          ///< submit in ascending order of the host side's addresses
  std::uint64_t prime_ns = 0;            ///< length of the delay before a call on an idle stream, 0: none
};

/// cuMemcpyBatchAsync, or single copies if the driver does not have it (then fell_back()).
std::unique_ptr<Swap> make_batched(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction,
                                   BatchOptions options);

/// Merges consecutive descriptors that are adjacent on both sides; `first` receives the index of each merged entry's
/// first descriptor. The vectors of `merged` and `first` are reused.
void coalesce(const DescriptorList& descriptors, DescriptorList& merged, std::vector<std::size_t>& first);

}  // namespace kvbench
