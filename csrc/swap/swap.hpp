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
  /// Puts other addresses in place of these, without allocating; the sizes stay. Throws std::invalid_argument for
  /// another number of addresses.
  void retarget(std::span<const Address> new_sources, std::span<const Address> new_destinations);
};

/// One swap that can be submitted again and again.
class Swap {
 public:
  Swap() = default;
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;
  virtual ~Swap() = default;

  /// Takes the addresses of the next submission in place of the last ones; their number, the sizes and what the
  /// addresses are multiples of stay. They count from the next prepare() on. Throws std::invalid_argument for another
  /// number of addresses, or for a swap whose blocks are named by ids.
  virtual void retarget(std::span<const Address> sources, std::span<const Address> destinations) = 0;
  /// The same for the ids of blocks of tensors; std::invalid_argument for a swap of descriptors.
  virtual void retarget_ids(std::span<const std::uint32_t> source_ids, std::span<const std::uint32_t> destination_ids);
  /// Turns the descriptors into what the driver takes; its time is a sample's prepare_us.
  virtual void prepare() = 0;
  /// Submits on `stream` and returns. A DriverError carries the descriptor's index where it is known.
  virtual void submit(Stream stream) = 0;
  /// Driver calls that one submission makes.
  [[nodiscard]] virtual std::size_t calls() const = 0;
  /// Part of the last prepare() that went into merging adjacent descriptors.
  [[nodiscard]] virtual double coalesce_us() const { return 0; }
  /// True when the device lacks the call that was asked for and single copies ran in its place.
  [[nodiscard]] virtual bool fell_back() const { return false; }
};

/// The legacy default stream (handles 0 and 1) is refused here: cuMemcpyBatchAsync answers it with
/// CUDA_ERROR_INVALID_VALUE, which names nothing.
void refuse_legacy_stream(Stream stream);

/// One asynchronous copy a descriptor.
std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction);

struct BatchOptions {
  BatchAttributes attributes{};
  std::size_t descriptors_per_call = 0;  ///< the most in one call, 0: all in one
  bool coalesce = false;                 ///< merge list neighbours that are adjacent on both sides
  bool by_host_address = false;          ///< submit in ascending order of the host side's addresses
  std::uint64_t prime_ns = 0;            ///< length of the delay in front of a call on an idle stream, 0: none
};

/// cuMemcpyBatchAsync, or single copies where the driver has none (then fell_back()).
std::unique_ptr<Swap> make_batched(std::shared_ptr<Driver> driver, DescriptorList descriptors, Direction direction,
                                   BatchOptions options);

/// Merges list neighbours that are adjacent on both sides; `first` receives the index of each merged entry's first
/// descriptor. The vectors of `merged` and `first` are reused.
void coalesce(const DescriptorList& descriptors, DescriptorList& merged, std::vector<std::size_t>& first);

}  // namespace kvbench
