#pragma once

#include <array>
#include <memory>
#include <vector>

#include "driver/resources.hpp"
#include "swap/address_order.hpp"
#include "swap/sm_copy.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// A swap through a ring of two buffers on the device, for blocks that lie together on the host and apart on the
/// device. d2h: a kernel gathers the blocks of a chunk into a buffer, in the order of their host addresses, and the
/// copy engine copies the buffer in as many pieces as the host side has. h2d: the reverse. A chunk is gathered while
/// the one before it is copied. Kernels run on the stream of the swap, copies on a stream of the object; events order
/// both, also between swaps on different streams.
class StagedSwap final : public Swap {
 public:
  /// Without a kernel, as on the device cpu, plain copies gather and scatter.
  StagedSwap(std::shared_ptr<Driver> driver, std::shared_ptr<const SmKernel> kernel, Descriptors descriptors,
             SmOptions options);
  /// Waits for the submissions in flight, on any stream: their buffers go.
  ~StagedSwap() override;

  void submit(Stream stream) override;
  std::size_t calls() const override { return calls_; }
  /// Pieces on the host.
  std::size_t descriptors() const override { return pieces_; }
  /// Device memory of the ring.
  [[nodiscard]] std::size_t staging_bytes() const { return 2 * slot_bytes_; }
  /// Submits the swap, waits for it, and returns for how many microseconds of it its kernels ran.
  double kernel_us(Stream stream);

 private:
  struct Slot {
    Slot(const std::shared_ptr<Driver>& driver, std::size_t bytes)
        : buffer(driver, MemoryKind::device, bytes), full(driver, EventKind::mark), empty(driver, EventKind::mark) {}

    Buffer buffer;
    OwnedEvent full;
    OwnedEvent empty;
  };

  /// Submits the chunk of `list` that begins at `begin` and returns where it ends.
  std::size_t submit_chunk(const Descriptors& list, std::size_t begin, Stream stream);
  /// Puts the blocks from `begin` on that fit into a slot one behind the other, from address `at` on, in `staged_` and
  /// `runs_`; returns where they end.
  std::size_t lay_out(const Descriptors& list, std::size_t begin, Address at);
  void run_kernel(const Descriptors& list, std::size_t begin, Stream stream);
  void copy_runs();

  std::shared_ptr<Driver> driver_;
  Descriptors descriptors_;
  Direction direction_;
  HostOrder order_;
  std::size_t slot_bytes_;
  OwnedStream copying_;
  OwnedEvent mark_;  ///< of h2d, the work before a submission; then the end of the last submission
  std::array<std::unique_ptr<Slot>, 2> slots_;
  std::size_t next_ = 0;
  std::unique_ptr<ListCopier> kernel_;
  std::unique_ptr<ListCopier> copies_;
  std::vector<Address> staged_;          ///< where each block of the chunk lies in the slot
  DescriptorList runs_;                  ///< what adjoins on the host, from or to the slot
  std::vector<std::size_t> run_firsts_;  ///< the first entry of each in the ordered list
  std::size_t calls_ = 0;
  std::size_t pieces_ = 0;
  std::vector<std::unique_ptr<OwnedEvent>>* times_ = nullptr;  ///< where kernel_us() wants marks around each kernel
};

}  // namespace kvbench
