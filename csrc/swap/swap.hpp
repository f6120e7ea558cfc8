#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "driver/driver.hpp"
#include "swap/route.hpp"

namespace kvbench {

/// Whether blocks have one size.
struct BlockSizes {
  BlockSizes() = default;
  explicit BlockSizes(std::span<const std::size_t> bytes) : read(true), first(bytes.empty() ? 0 : bytes.front()) {
    // Equal if each equals the one before: a comparison of memory takes a third of the time of a loop.
    if (bytes.empty() || std::memcmp(bytes.data(), bytes.data() + 1, bytes.size_bytes() - sizeof(first)) == 0) return;
    for (const std::size_t size : bytes) differing |= size ^ first;
  }
  [[nodiscard]] bool equal() const { return differing == 0; }

  bool read = false;
  std::size_t first = 0;
  std::size_t differing = 0;  ///< bits in which some size differs from the first
};

/// The descriptors of one swap: three parallel arrays of the caller, who may change the addresses between submissions.
/// Entry i moves bytes[i] from sources[i] to destinations[i].
struct Descriptors {
  std::span<const Address> sources;
  std::span<const Address> destinations;
  std::span<const std::size_t> bytes;
  BlockSizes sizes = {};
  bool source_order_any = false;  ///< sources may be read ahead of earlier work; for what copies by a policy
  Route* route = nullptr;         ///< what every entry must follow, begun; null: unchecked
  std::size_t beside = 0;         ///< which tables serve, by what the swap runs beside; for what copies by a policy

  [[nodiscard]] std::size_t size() const { return bytes.size(); }
};

/// The same in arrays of its own.
struct DescriptorList {
  std::vector<Address> sources;
  std::vector<Address> destinations;
  std::vector<std::size_t> bytes;

  [[nodiscard]] Descriptors view() const { return {sources, destinations, bytes}; }
  void reserve(std::size_t entries) {
    sources.reserve(entries);
    destinations.reserve(entries);
    bytes.reserve(entries);
  }
  void resize(std::size_t entries) {
    sources.resize(entries);
    destinations.resize(entries);
    bytes.resize(entries);
  }
  /// Becomes the entries of a list that have these indices. `sizes` stay those of the whole list.
  Descriptors take(const Descriptors& list, const auto& indices) {
    const bool equal = list.sizes.read && list.sizes.equal();
    resize(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      sources[i] = list.sources[indices[i]];
      destinations[i] = list.destinations[indices[i]];
      if (!equal) bytes[i] = list.bytes[indices[i]];
    }
    Descriptors taken{sources, destinations, bytes, list.sizes, list.source_order_any, list.route, list.beside};
    if (equal) taken.bytes = list.bytes.first(indices.size());
    return taken;
  }
};

/// One swap that can be submitted repeatedly. It reads the caller's arrays at every submission.
class Swap {
 public:
  Swap() = default;
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;
  virtual ~Swap() = default;

  /// Does everything that depends on the arrays, submits to `stream` and returns without waiting for the copies. A
  /// DriverError has the index of the descriptor if it is known.
  virtual void submit(Stream stream) = 0;
  /// Driver calls of the last submission.
  [[nodiscard]] virtual std::size_t calls() const = 0;
  /// Descriptors that the last submission handed to the driver or the kernel; fewer than the caller's if it merged.
  [[nodiscard]] virtual std::size_t descriptors() const = 0;
  /// True if the device lacks the requested call and single copies ran instead.
  [[nodiscard]] virtual bool fell_back() const { return false; }
};

/// One way to copy lists that differ from call to call; for one thread at a time. A call allocates only for a longer
/// list than before, or for more lists in flight.
class ListCopier {
 public:
  ListCopier() = default;
  ListCopier(const ListCopier&) = delete;
  ListCopier& operator=(const ListCopier&) = delete;
  virtual ~ListCopier() = default;

  /// Makes room for lists of this many entries.
  virtual void reserve(std::size_t) {}
  /// As Swap::submit(), for these descriptors, whose arrays may change when it returns. Returns false, with nothing
  /// submitted, for a list that it does not serve, such as one whose addresses are not those of a kernel.
  virtual bool copy(const Descriptors& descriptors, Stream stream) = 0;
  /// Driver calls of the last list, and the descriptors that were handed to them.
  [[nodiscard]] virtual std::size_t calls() const = 0;
  [[nodiscard]] virtual std::size_t descriptors() const = 0;
};

/// Rejects the legacy default stream (handles 0 and 1), for which cuMemcpyBatchAsync returns only
/// CUDA_ERROR_INVALID_VALUE.
void refuse_legacy_stream(Stream stream);

/// A list that is kept, and submitted by a copier; `fell_back` as in Swap.
std::unique_ptr<Swap> keep_list(std::shared_ptr<ListCopier> copier, Descriptors descriptors, bool fell_back = false);

/// One asynchronous copy per descriptor.
std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction);
std::unique_ptr<ListCopier> make_loop_copier(std::shared_ptr<Driver> driver, Direction direction);

struct BatchOptions {
  BatchAttributes attributes{};
  std::size_t descriptors_per_call = 0;  ///< maximum descriptors per call, 0: no limit
  bool sliced = false;                   ///< as many descriptors per call as serve a list of its length best
  bool by_host_address = false;          ///< submit in ascending order of the host side's addresses
  bool merge = false;                    ///< make consecutive descriptors that are adjacent on both sides one
  std::uint64_t prime_ns = 0;            ///< length of the delay before a primed call on an idle stream
  std::size_t prime_up_to_bytes = 0;     ///< calls with a descriptor of at most this size are primed, 0: none
};

/// cuMemcpyBatchAsync, or single copies if the driver does not have it (then fell_back()).
std::unique_ptr<Swap> make_batched(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction,
                                   BatchOptions options);

/// The same for lists that differ.
std::unique_ptr<ListCopier> make_batch_copier(std::shared_ptr<Driver> driver, Direction direction,
                                              BatchOptions options);

/// Merges consecutive descriptors that are adjacent on both sides, and in one region of their route; `first` receives
/// the index of each merged entry's first descriptor. The vectors of `merged` and `first` are reused.
void merge_adjacent(const Descriptors& descriptors, DescriptorList& merged, std::vector<std::size_t>& first);

}  // namespace kvbench
