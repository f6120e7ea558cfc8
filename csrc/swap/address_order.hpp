#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "swap/swap.hpp"

namespace kvbench {

/// The order of addresses, by a radix sort: for thousands of addresses several times as fast as comparing. Allocates
/// only for more addresses than before.
class AddressOrder {
 public:
  void reserve(std::size_t count) {
    entries_.reserve(count);
    scratch_.reserve(count);
    indices_.reserve(count);
  }
  /// Sorts `addresses`. Returns true, and leaves indices() as they are, if they ascend already.
  bool sort(std::span<const Address> addresses);
  /// The indices of the addresses in ascending order; of equal ones, in their order.
  [[nodiscard]] std::span<const std::uint32_t> indices() const { return indices_; }

 private:
  std::vector<Address> entries_, scratch_;  ///< above the index, the bits in which addresses differ
  std::vector<std::uint32_t> indices_;
};

/// Lists in ascending order of their addresses on the host.
class HostOrder {
 public:
  explicit HostOrder(Direction direction) : direction_(direction) {}

  void reserve(std::size_t entries) {
    order_.reserve(entries);
    ordered_.reserve(entries);
  }
  /// Returns the list in this order: the caller's arrays if they ascend already, otherwise arrays that hold until the
  /// next call.
  Descriptors arrange(const Descriptors& descriptors);
  /// The index in the caller's arrays of entry `index` of the last list.
  [[nodiscard]] std::size_t original(std::size_t index) const { return sorted_ ? order_.indices()[index] : index; }

 private:
  Direction direction_;
  AddressOrder order_;
  bool sorted_ = false;
  DescriptorList ordered_;
};

}  // namespace kvbench
