#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "swap/list_slots.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// The method of a copy kernel: `lanes` loads and stores with all threads (any size, any alignment). The others require
/// every address and size to be a multiple of 16: `words` does the same with fewer instructions, for few blocks, and
/// `bulk` moves pieces through a ring of stages in shared memory (sm_90 or newer).
enum class SmMethod : std::uint8_t { lanes, words, bulk };

/// The shape a kernel was compiled for: warps per thread block, stages or loads in flight per warp, bytes per piece.
struct SmShape {
  SmMethod method = SmMethod::lanes;
  unsigned warps = 16;
  unsigned depth = 8;
  unsigned piece_bytes = 4096;
};

/// A kernel of kernels/sm_copy.cu, loaded on one device.
class SmKernel {
 public:
  /// `cubin` is that source, compiled for the device of `driver` and for `shape`.
  SmKernel(std::shared_ptr<Driver> driver, std::span<const std::byte> cubin, SmShape shape);

  [[nodiscard]] std::shared_ptr<Driver> driver() const { return driver_; }
  [[nodiscard]] const SmShape& shape() const { return shape_; }
  /// Launches thread blocks, `cluster` side by side, with `arguments`, of which `inline_bytes` are the table of an
  /// inline list; 0: the list is read in place.
  void launch(std::size_t inline_bytes, unsigned blocks, unsigned cluster, void** arguments, Stream stream) const;

 private:
  std::shared_ptr<Driver> driver_;
  SmShape shape_;
  unsigned shared_bytes_;
  Kernel reads_;
  Kernel inline_;
  Kernel short_;
};

/// How many thread blocks of a grid lie side by side, where they slow the other work of the GPU less: a decode step
/// beside 4 of them took 1.53x in place of 1.93x (H200, d2h). To start them takes 0.5 to 1.5 us more, which a swap
/// of few `bytes` would notice. Of a grid that takes most of the GPU not all clusters would run at once: a part of it
/// can have a number of SMs that no cluster divides.
unsigned cluster_of(unsigned blocks, std::size_t bytes, const DeviceInfo& info);

/// The kernels of a copier: `aligned` serves lists whose addresses and sizes are multiples of 16, and may be null;
/// `any` serves every other list.
struct SmKernels {
  static constexpr Address kAlignment = 16;

  /// The kernel for a list, by the bitwise or of its addresses and sizes.
  [[nodiscard]] const SmKernel& serving(Address bits) const;
  /// The size of pieces that both kernels take.
  [[nodiscard]] std::size_t piece_bytes() const;

  std::shared_ptr<const SmKernel> aligned;
  std::shared_ptr<const SmKernel> any;
};

struct SmOptions {
  unsigned sms = 2;                      ///< thread blocks of the grid
  Direction direction = Direction::h2d;  ///< determines which side is on the host
  std::size_t inline_up_to = 0;          ///< a list of up to this many bytes is passed with the launch
  std::size_t lists = 2;                 ///< longer lists for which there are slots at once
  std::size_t list_bytes = 0;            ///< length of a list for which room is made at once
  double pace_gbps = 0;                  ///< the rate at which a kernel that was compiled for it is held; 0: none
};

/// One kernel launch that copies every descriptor.
std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<const SmKernel> kernel, Descriptors descriptors, SmOptions options);

/// The same for lists that differ, in `slots` that it may share with others, or in slots of its own.
std::unique_ptr<ListCopier> make_sm_copier(SmKernels kernels, SmOptions options,
                                           std::shared_ptr<ListSlots> slots = nullptr);

}  // namespace kvbench
