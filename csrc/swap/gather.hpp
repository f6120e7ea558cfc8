#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "driver/resources.hpp"
#include "kernels/types.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// kernels/gather.cu for rows of one size, loaded on one device.
struct GatherKernel {
  GatherKernel(std::shared_ptr<Driver> on, std::span<const std::byte> cubin, std::size_t of_bytes)
      : driver(std::move(on)), row_bytes(of_bytes), loaded(driver->load_kernel(cubin, "kvbench_gather", 0)) {}

  std::shared_ptr<Driver> driver;
  std::size_t row_bytes;
  Kernel loaded;
};

/// A swap of equal rows whose ids lie on the device. stage() writes them there; submit() launches a graph with one
/// kernel that reads them, as a decode step with sparse attention does.
class GatherSwap final : public Swap {
 public:
  /// `ctas` thread blocks run it. The arrays stay the caller's.
  GatherSwap(const GatherKernel& kernel, std::span<const Address> sources, std::span<const Address> destinations,
             unsigned ctas);
  ~GatherSwap() override;

  /// Writes the ids of the caller's arrays to the device and waits for them. Throws std::invalid_argument unless all
  /// sources, and all destinations, lie whole rows apart.
  void stage();
  void submit(Stream stream) override;
  [[nodiscard]] std::size_t calls() const override { return 1; }
  [[nodiscard]] std::size_t descriptors() const override { return sources_.size(); }

 private:
  std::shared_ptr<Driver> driver_;
  std::span<const Address> sources_;
  std::span<const Address> destinations_;
  std::size_t row_bytes_;
  OwnedStream stream_;  ///< of the capture and of what stage() writes
  Buffer staged_;
  Buffer ids_;
  /// Addresses below a row: every row of a pool then has a number, wherever the pool begins.
  u64 source_base_, destination_base_;
  Graph graph_ = 0;
};

}  // namespace kvbench
