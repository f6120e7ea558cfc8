#include "sm_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/piece_map.hpp"
#include "resources.hpp"

namespace kvbench {
namespace {

/// As the kernels read them.
struct Row {
  Address source;
  Address destination;
};

struct List {
  Address rows = 0;
  Address lengths = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t pieces = 0;
  std::uint32_t piece_bytes = 0;
  std::uint32_t pieces_a_block = 1;
};

constexpr int kFirstBulkMajor = 9;
constexpr std::size_t kBulkAlignment = 16;
constexpr std::size_t kSmallRow = 1024;

std::size_t pieces_of(std::size_t bytes, std::size_t piece_bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }

}  // namespace

SmKernels::SmKernels(std::shared_ptr<Driver> driver, std::span<const std::byte> cubin)
    : driver_(std::move(driver)), has_bulk_(driver_->info().compute_major >= kFirstBulkMajor) {
  lanes_ = {driver_->load_kernel(cubin, "kvbench_sm_copy_lanes", 0), 4096, 512, 0};
  if (!has_bulk_) return;
  // Warps x stages x bytes a stage, as the kernels are instantiated.
  constexpr unsigned kLarge = 8 * 6 * 4096, kSmall = 32 * 6 * 1024;
  bulk_large_ = {driver_->load_kernel(cubin, "kvbench_sm_copy_bulk_large", kLarge), 4096, 256, kLarge};
  bulk_small_ = {driver_->load_kernel(cubin, "kvbench_sm_copy_bulk_small", kSmall), 1024, 1024, kSmall};
}

const SmKernels::Variant& SmKernels::choose(Address address_bits, std::size_t largest_bytes) const {
  if (!has_bulk_ || address_bits % kBulkAlignment != 0) return lanes_;
  return largest_bytes <= kSmallRow ? bulk_small_ : bulk_large_;
}

namespace {

/// A list in pinned memory and its copy on the device; `done` marks the launch that read them last.
class Slot {
 public:
  Slot(const std::shared_ptr<Driver>& driver, std::size_t bytes, bool uploads)
      : pinned(driver, MemoryKind::allocated, bytes),
        uploaded(uploads ? std::make_unique<Buffer>(driver, MemoryKind::device, bytes) : nullptr),
        done(driver) {}

  Buffer pinned;
  std::unique_ptr<Buffer> uploaded;
  OwnedEvent done;
};

class SmCopySwap final : public Swap {
 public:
  SmCopySwap(std::shared_ptr<SmKernels> kernels, DescriptorList descriptors, SmOptions options)
      : kernels_(std::move(kernels)), descriptors_(std::move(descriptors)), options_(options) {
    Address bits = 0;
    std::size_t largest = 0, smallest = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < descriptors_.size(); ++i) {
      bits |= descriptors_.sources[i] | descriptors_.destinations[i] | descriptors_.bytes[i];
      largest = std::max(largest, descriptors_.bytes[i]);
      smallest = std::min(smallest, descriptors_.bytes[i]);
    }
    variant_ = kernels_->choose(bits, largest);
    uniform_ = largest == smallest;
    std::size_t pieces = 0;
    for (const std::size_t bytes : descriptors_.bytes) pieces += pieces_of(bytes, variant_.piece_bytes);
    if (pieces > std::numeric_limits<std::uint32_t>::max()) throw DriverError("sm_copy", "more than 2^32 pieces");
    rows_ = uniform_ ? descriptors_.size() : pieces;
    list_.pieces = static_cast<std::uint32_t>(pieces);
    list_.piece_bytes = static_cast<std::uint32_t>(variant_.piece_bytes);
    if (uniform_ && rows_ > 0) {
      list_.block_bytes = largest;
      list_.pieces_a_block = static_cast<std::uint32_t>(pieces_of(largest, variant_.piece_bytes));
    }
    list_bytes_ = std::max<std::size_t>(rows_ * (sizeof(Row) + (uniform_ ? 0 : sizeof(std::uint32_t))), 1);
    uploads_ = rows_ >= options_.upload_from;
    for (auto& slot : slots_) slot = std::make_unique<Slot>(kernels_->driver(), list_bytes_, uploads_);
  }

  /// Writes the list into the slot that was used least recently, once the launch that read it has completed.
  void prepare() override {
    next_ = (next_ + 1) % slots_.size();
    Slot& slot = *slots_[next_];
    slot.done.wait();
    auto* row = reinterpret_cast<Row*>(slot.pinned.address());
    if (uniform_) {
      for (std::size_t i = 0; i < rows_; ++i) row[i] = {descriptors_.sources[i], descriptors_.destinations[i]};
      return;
    }
    auto* length = reinterpret_cast<std::uint32_t*>(row + rows_);
    for (std::size_t i = 0; i < descriptors_.size(); ++i) {
      for (std::size_t at = 0; at < descriptors_.bytes[i]; at += variant_.piece_bytes) {
        *row++ = {descriptors_.sources[i] + at, descriptors_.destinations[i] + at};
        *length++ = static_cast<std::uint32_t>(std::min(variant_.piece_bytes, descriptors_.bytes[i] - at));
      }
    }
  }

  void submit(Stream stream) override {
    refuse_legacy_stream(stream);
    if (list_.pieces == 0) return;
    Driver& driver = *kernels_->driver();
    Slot& slot = *slots_[next_];
    List list = list_;
    list.rows = slot.pinned.device_address();
    if (uploads_) {
      driver.copy(slot.uploaded->address(), slot.pinned.address(), list_bytes_, Direction::h2d, stream);
      list.rows = slot.uploaded->address();
    }
    if (!uniform_) list.lengths = list.rows + rows_ * sizeof(Row);
    std::array<void*, 1> arguments{&list};
    // More blocks than pieces can fill would only start and end.
    const unsigned blocks = std::clamp<unsigned>(list_.pieces, 1, options_.sms);
    driver.launch(variant_.kernel, {blocks, variant_.threads, variant_.shared_bytes}, arguments.data(), stream);
    slot.done.record(stream);
  }

  std::size_t calls() const override { return uploads_ ? 2 : 1; }

 private:
  std::shared_ptr<SmKernels> kernels_;
  DescriptorList descriptors_;
  SmOptions options_;
  SmKernels::Variant variant_;
  bool uniform_ = true;
  bool uploads_ = false;
  std::size_t rows_ = 0;
  std::size_t list_bytes_ = 0;
  List list_;
  std::array<std::unique_ptr<Slot>, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<SmKernels> kernels, DescriptorList descriptors, SmOptions options) {
  return std::make_unique<SmCopySwap>(std::move(kernels), std::move(descriptors), options);
}

}  // namespace kvbench
