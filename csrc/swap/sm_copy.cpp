#include "swap/sm_copy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/piece_map.hpp"
#include "swap/block_listing.hpp"

namespace kvbench {
namespace {

/// The bytes of a list, at most: the last piece of a block can be shorter.
std::size_t bytes_of(const List& list, std::size_t piece_bytes) {
  if (list.lengths_at > 0) return list.pieces * piece_bytes;
  return list.pieces / list.pieces_a_block * list.block_bytes;
}

/// Launches a kernel over lists. A short list is passed with the launch, which copies it. A longer one is written into
/// a slot of pinned memory, from which the kernel reads it.
class SmCopier final : public ListCopier {
 public:
  /// Makes slots of its own unless some are given.
  SmCopier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots)
      : kernels_(std::move(kernels)),
        options_(options),
        piece_bytes_(kernels_.piece_bytes()),
        inline_up_to_(std::min<std::size_t>(options.inline_up_to, kInlineTableBytes)),
        slots_(slots ? std::move(slots) : std::make_shared<ListSlots>(kernels_.any->driver(), options.lists)) {
    reserve_slots(options.list_bytes);
  }

  void reserve(std::size_t entries) override { reserve_slots(entries * (sizeof(Row) + sizeof(u32))); }
  bool copy(const Descriptors& descriptors, Stream stream) override {
    refuse_legacy_stream(stream);
    count_ = descriptors.size();
    // A size that leaves its region could need a table of any length.
    if (descriptors.route && !descriptors.sizes.equal()) descriptors.route->check(descriptors);
    const BlockListing listing(descriptors, piece_bytes_, options_.direction);
    if (launch_packed(listing, descriptors.route, stream)) return true;
    return launch(listing, descriptors.route, stream);
  }
  std::size_t calls() const override { return 1; }
  std::size_t descriptors() const override { return count_; }

 private:
  void reserve_slots(std::size_t table_bytes) {
    if (table_bytes > inline_up_to_) slots_->reserve(table_bytes, options_.lists);
  }

  /// Launches nothing, and returns false, if the addresses of the list's `route` are not those of a kernel.
  bool launch(const BlockListing& listing, const Route* route, Stream stream) {
    const std::size_t bytes = listing.table_bytes();
    if (bytes == 0) return true;
    ListSlot* slot = bytes <= inline_up_to_ ? nullptr : &slots_->take(bytes);
    const SmKernel& kernel = kernels_.serving(listing.write(slot ? table_of(*slot) : inline_.table));
    if (route && route->other_address()) return false;
    submit(listing.head(kernel.shape().piece_bytes), kernel, slot, bytes, stream);
    return true;
  }

  /// The same by ids; also returns false if the list cannot be packed.
  bool launch_packed(const BlockListing& listing, const Route* route, Stream stream) {
    const std::size_t bytes = listing.packed_bytes();
    if (bytes == 0) return false;
    const SmKernel& kernel = kernels_.serving(0);
    List list = listing.head(kernel.shape().piece_bytes);
    ListSlot* slot = bytes <= inline_up_to_ ? nullptr : &slots_->take(bytes);
    if (!listing.pack(slot ? table_of(*slot) : inline_.table, list)) return false;
    if (route && route->other_address()) return false;
    submit(list, kernel, slot, bytes, stream);
    return true;
  }

  /// How long one of `warps` takes for a byte, so that all keep the pace.
  [[nodiscard]] u32 ps_per_byte(u32 warps) const {
    constexpr double kMost = std::numeric_limits<u32>::max();
    const double gbps = options_.pace_gbps;
    return gbps > 0 ? static_cast<u32>(std::min(kMost, std::round(1e3 * warps / gbps))) : 0;
  }
  static void* table_of(const ListSlot& slot) { return reinterpret_cast<void*>(slot.pinned.address()); }

  void submit(List list, const SmKernel& kernel, ListSlot* slot, std::size_t bytes, Stream stream) {
    const unsigned grid = std::min(list.pieces, options_.sms);  // thread blocks without pieces would only start and end
    const std::size_t list_bytes = bytes_of(list, kernel.shape().piece_bytes);
    const unsigned cluster = cluster_of(grid, list_bytes, kernel.driver()->info());
    list.ps_per_byte = ps_per_byte(std::min(list.pieces, grid * kernel.shape().warps));
    if (!slot) {
      inline_.list = list;
      std::array<void*, 1> arguments{&inline_};
      kernel.launch(bytes, grid, cluster, arguments.data(), stream);
      return;
    }
    list.table = slot->pinned.device_address();
    std::array<void*, 1> arguments{&list};
    kernel.launch(0, grid, cluster, arguments.data(), stream);
    slot->launched(stream);
  }

  SmKernels kernels_;
  SmOptions options_;
  std::size_t piece_bytes_;
  std::size_t inline_up_to_;
  InlineList inline_{};
  std::shared_ptr<ListSlots> slots_;
  std::size_t count_ = 0;
};

}  // namespace

unsigned cluster_of(unsigned blocks, std::size_t bytes, const DeviceInfo& info) {
  constexpr int kFromMajor = 9;
  constexpr std::size_t kFromBytes = std::size_t{4} << 20;
  const bool many = 2 * blocks > static_cast<unsigned>(info.sm_count);
  if (info.compute_major < kFromMajor || many || bytes < kFromBytes) return 1;
  return blocks % 4 == 0 ? 4 : blocks % 2 == 0 ? 2 : 1;
}

const SmKernel& SmKernels::serving(Address bits) const { return aligned && bits % kAlignment == 0 ? *aligned : *any; }

std::size_t SmKernels::piece_bytes() const {
  const std::size_t of_any = any->shape().piece_bytes;
  return aligned ? std::min<std::size_t>(of_any, aligned->shape().piece_bytes) : of_any;
}

SmKernel::SmKernel(std::shared_ptr<Driver> driver, std::span<const std::byte> cubin, SmShape shape)
    : driver_(std::move(driver)),
      shape_(shape),
      shared_bytes_(shape.method == SmMethod::bulk ? shape.warps * shape.depth * (shape.piece_bytes + kLineBytes) : 0) {
  constexpr std::array kMethods{"kvbench_sm_lanes", "kvbench_sm_words", "kvbench_sm_bulk"};
  const std::string name = kMethods[static_cast<std::size_t>(shape.method)];
  const auto load = [&](const std::string& of) { return driver_->load_kernel(cubin, of.c_str(), shared_bytes_); };
  reads_ = load(name);
  inline_ = load(name + "_inline");
  short_ = load(name + "_short");
}

void SmKernel::launch(std::size_t inline_bytes, unsigned blocks, unsigned cluster, void** arguments,
                      Stream stream) const {
  const Kernel kernel = inline_bytes == 0 ? reads_ : inline_bytes <= kShortTableBytes ? short_ : inline_;
  driver_->launch(kernel, {blocks, shape_.warps * 32, shared_bytes_, cluster}, arguments, stream);
}

std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<const SmKernel> kernel, Descriptors descriptors, SmOptions options) {
  descriptors.sizes = BlockSizes(descriptors.bytes);
  options.list_bytes = BlockListing(descriptors, kernel->shape().piece_bytes, options.direction).table_bytes();
  return keep_list(make_sm_copier({.aligned = nullptr, .any = std::move(kernel)}, options), descriptors);
}

std::unique_ptr<ListCopier> make_sm_copier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots) {
  return std::make_unique<SmCopier>(std::move(kernels), options, std::move(slots));
}

}  // namespace kvbench
