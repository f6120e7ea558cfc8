#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "swap.hpp"

namespace kvbench {

/// The kernels of kernels/sm_copy.cu, loaded on one device.
class SmKernels {
 public:
  /// `cubin` is that source, compiled for the device of `driver`.
  SmKernels(std::shared_ptr<Driver> driver, std::span<const std::byte> cubin);

  /// A kernel, the largest piece it takes, and the shape in which it was built to run.
  struct Variant {
    Kernel kernel = 0;
    std::size_t piece_bytes = 0;
    unsigned threads = 0;
    unsigned shared_bytes = 0;
  };

  [[nodiscard]] const std::shared_ptr<Driver>& driver() const { return driver_; }
  /// Returns the kernel for a swap whose addresses and sizes have the bits of `address_bits` in common use and whose
  /// blocks have at most `largest_bytes`.
  [[nodiscard]] const Variant& choose(Address address_bits, std::size_t largest_bytes) const;

 private:
  std::shared_ptr<Driver> driver_;
  Variant lanes_;
  Variant bulk_large_;
  Variant bulk_small_;
  bool has_bulk_;
};

struct SmOptions {
  unsigned sms = 2;             ///< blocks of the grid
  std::size_t upload_from = 0;  ///< lists of at least so many rows are uploaded first, shorter ones read in place
};

/// One kernel launch that copies every descriptor.
std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<SmKernels> kernels, DescriptorList descriptors, SmOptions options);

}  // namespace kvbench
