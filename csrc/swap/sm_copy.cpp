#include "swap/sm_copy.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/piece_map.hpp"
#include "swap/pack_ids.hpp"

namespace kvbench {
namespace {

std::size_t pieces_of(std::size_t bytes, std::size_t piece_bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }

u32 checked_pieces(std::size_t pieces) {
  if (pieces > std::numeric_limits<u32>::max()) throw DriverError("sm_copy", "2^32 pieces or more");
  return static_cast<u32>(pieces);
}

/// A list: its head and its bytes.
class Listing {
 public:
  explicit Listing(Direction direction) {
    head_.pieces_a_block = 1;
    head_.host_is_source = direction == Direction::h2d ? 1 : 0;
  }
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;
  virtual ~Listing() = default;
  /// The head for a kernel with pieces of this size.
  [[nodiscard]] virtual List head(std::size_t piece_bytes) const = 0;
  /// 0 if nothing is to be copied.
  [[nodiscard]] virtual std::size_t table_bytes() const = 0;
  /// Descriptors or rows of blocks that the caller's arrays name.
  [[nodiscard]] virtual std::size_t descriptors() const = 0;
  /// Writes the current list of the caller and returns the bitwise or of its addresses and sizes.
  virtual Address write(void* table) const = 0;
  /// The length of the same list in half of the bytes, by ids (see List); 0 if there can be none.
  [[nodiscard]] virtual std::size_t packed_bytes() const { return 0; }
  /// Writes that, and completes its head. Returns false if it cannot be: addresses and sizes must be multiples of 16,
  /// all sizes those of the first block, all addresses within 32 GiB of it.
  virtual bool pack(void*, List&) const { return false; }

 protected:
  List head_{};
};

/// One row per block if all have the same size, else one row and one length per piece of `piece_bytes`.
class DescriptorListing final : public Listing {
 public:
  DescriptorListing(Descriptors descriptors, std::size_t piece_bytes, Direction direction)
      : Listing(direction),
        descriptors_(descriptors),
        piece_bytes_(piece_bytes),
        sizes_(descriptors.sizes ? *descriptors.sizes : BlockSizes(descriptors.bytes)) {
    if (sizes_.equal()) {
      head_.block_bytes = sizes_.first;
      rows_ = sizes_.first == 0 ? 0 : descriptors_.size();
      return;
    }
    for (const std::size_t bytes : descriptors_.bytes) rows_ += pieces_of(bytes, piece_bytes_);
    head_.pieces = checked_pieces(rows_);
    head_.lengths_at = rows_ * sizeof(Row);
  }

  List head(std::size_t piece_bytes) const override {
    List head = head_;
    if (!sizes_.equal()) return head;
    const std::size_t pieces_a_block = pieces_of(sizes_.first, piece_bytes);
    head.pieces = checked_pieces(rows_ * pieces_a_block);
    head.pieces_a_block = static_cast<u32>(pieces_a_block);
    return head;
  }
  std::size_t table_bytes() const override { return rows_ * (sizeof(Row) + (sizes_.equal() ? 0 : sizeof(u32))); }
  std::size_t descriptors() const override { return descriptors_.size(); }

  Address write(void* table) const override {
    auto* row = static_cast<Row*>(table);
    Address bits = sizes_.first | sizes_.differing;
    if (sizes_.equal()) {
      for_each_on(descriptors_.route, descriptors_.sources, descriptors_.destinations, [&](std::size_t i) {
        bits |= descriptors_.sources[i] | descriptors_.destinations[i];
        row[i] = {descriptors_.sources[i], descriptors_.destinations[i]};
      });
      return bits;
    }
    auto* length = reinterpret_cast<u32*>(row + rows_);
    for_each_on(descriptors_.route, descriptors_.sources, descriptors_.destinations, [&](std::size_t i) {
      bits |= descriptors_.sources[i] | descriptors_.destinations[i];
      for (std::size_t at = 0; at < descriptors_.bytes[i]; at += piece_bytes_) {
        *row++ = {descriptors_.sources[i] + at, descriptors_.destinations[i] + at};
        *length++ = static_cast<u32>(std::min(piece_bytes_, descriptors_.bytes[i] - at));
      }
    });
    return bits;
  }

  std::size_t packed_bytes() const override {
    if (rows_ == 0 || !sizes_.equal()) return 0;
    const Address bits = sizes_.first | descriptors_.sources[0] | descriptors_.destinations[0];
    return bits % SmKernels::kAlignment == 0 ? sizeof(Row) + rows_ * sizeof(Ids) : 0;
  }

  bool pack(void* table, List& head) const override {
    if (descriptors_.route) {
      // Most lists have one region on each side; the offsets in it are also what a check of the route computes.
      const Ends& ends = descriptors_.route->ends();
      const bool in_one = ends.left_by(descriptors_.sources.back(), descriptors_.destinations.back()) >> 63 == 0;
      const bool reached = std::max(ends.from.bytes, ends.to.bytes) <= kReach;
      if (in_one && reached && pack_within(ends, nullptr, table, head)) return true;
    }
    const auto around = [](Address first) { return Region{.begin = first - kReach / 2, .bytes = kReach}; };
    const Ends ends{around(descriptors_.sources.front()), around(descriptors_.destinations.front())};
    return pack_within(ends, descriptors_.route, table, head);
  }

 private:
  static constexpr Address kReach = Address{1} << (32 + kIdWord);

  /// Packs the list by ids from the start of `ends`. Returns false if it leaves them, or cannot be packed.
  bool pack_within(const Ends& ends, Route* route, void* table, List& head) const {
    auto* ids = reinterpret_cast<Ids*>(static_cast<Row*>(table) + 1);
    const PackedIds packed = pack_ids(descriptors_, sizes_, ends, ids);
    if (packed.offsets % SmKernels::kAlignment != 0 || packed.left >> 63 || packed.differing != 0) return false;
    if (route) check_entries(*route, descriptors_.sources, descriptors_.destinations);
    *static_cast<Row*>(table) = {ends.from.begin, ends.to.begin};
    head.ids_at = sizeof(Row);
    head.ids = static_cast<u32>(rows_);
    head.stride = SmKernels::kAlignment;
    return true;
  }

  Descriptors descriptors_;
  std::size_t piece_bytes_;
  BlockSizes sizes_;
  std::size_t rows_ = 0;
};

/// One row per tensor, and the ids of the blocks.
class TensorListing final : public Listing {
 public:
  TensorListing(TensorBlocks blocks, std::size_t piece_bytes, Direction direction)
      : Listing(direction), blocks_(blocks) {
    const std::size_t pieces_a_block = pieces_of(blocks_.block_bytes, piece_bytes);
    head_.ids_at = blocks_.source_bases.size() * sizeof(Row);
    head_.ids = static_cast<u32>(blocks_.source_ids.size());
    head_.stride = blocks_.stride;
    head_.block_bytes = blocks_.block_bytes;
    head_.pieces_a_block = static_cast<u32>(pieces_a_block);
    head_.pieces = checked_pieces(blocks_.source_bases.size() * blocks_.source_ids.size() * pieces_a_block);
  }

  List head(std::size_t) const override { return head_; }
  std::size_t table_bytes() const override { return head_.pieces == 0 ? 0 : head_.ids_at + head_.ids * sizeof(Ids); }
  std::size_t descriptors() const override { return blocks_.source_bases.size() * blocks_.source_ids.size(); }

  Address write(void* table) const override {
    Address bits = blocks_.stride | blocks_.block_bytes;
    auto* row = static_cast<Row*>(table);
    for (std::size_t i = 0; i < blocks_.source_bases.size(); ++i) {
      bits |= blocks_.source_bases[i] | blocks_.destination_bases[i];
      *row++ = {blocks_.source_bases[i], blocks_.destination_bases[i]};
    }
    auto* ids = reinterpret_cast<Ids*>(row);
    for (std::size_t i = 0; i < head_.ids; ++i) {
      ids[i] = {static_cast<u32>(blocks_.source_ids[i]), static_cast<u32>(blocks_.destination_ids[i])};
    }
    return bits;
  }

 private:
  TensorBlocks blocks_;
};

/// Launches a kernel over lists. A short list is passed with the launch, which copies it. A longer one is written into
/// a slot of pinned memory, from which the kernel reads it.
class SmQueue {
 public:
  /// Makes slots of its own unless some are given.
  SmQueue(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots = nullptr)
      : kernels_(std::move(kernels)),
        sms_(options.sms),
        inline_up_to_(std::min<std::size_t>(options.inline_up_to, kInlineTableBytes)),
        slots_(slots ? std::move(slots) : std::make_shared<ListSlots>(kernels_.any->driver(), options.lists)) {
    reserve(options.list_bytes);
  }

  /// Makes slots for lists of this size.
  void reserve(std::size_t table_bytes) {
    if (table_bytes > inline_up_to_) slots_->reserve(table_bytes);
  }

  void launch(const Listing& listing, Stream stream) {
    refuse_legacy_stream(stream);
    if (listing.table_bytes() == 0 || launch_packed(listing, stream)) return;
    if (listing.table_bytes() <= inline_up_to_) {
      const SmKernel& kernel = kernels_.serving(listing.write(inline_.table));
      launch_inline(listing.head(kernel.shape().piece_bytes), kernel, listing.table_bytes(), stream);
    } else {
      ListSlot& slot = slots_->take(listing.table_bytes());
      const SmKernel& kernel = kernels_.serving(listing.write(reinterpret_cast<void*>(slot.pinned.address())));
      launch_listed(listing.head(kernel.shape().piece_bytes), kernel, slot, stream);
    }
  }

  /// Returns false, with nothing launched, if the list cannot be packed.
  bool launch_packed(const Listing& listing, Stream stream) {
    const std::size_t bytes = listing.packed_bytes();
    if (bytes == 0) return false;
    const SmKernel& kernel = kernels_.serving(0);
    List list = listing.head(kernel.shape().piece_bytes);
    if (bytes <= inline_up_to_) {
      if (!listing.pack(inline_.table, list)) return false;
      launch_inline(list, kernel, bytes, stream);
    } else {
      ListSlot& slot = slots_->take(std::max(bytes, listing.table_bytes()));
      if (!listing.pack(reinterpret_cast<void*>(slot.pinned.address()), list)) return false;
      launch_listed(list, kernel, slot, stream);
    }
    return true;
  }

 private:
  void launch_inline(const List& list, const SmKernel& kernel, std::size_t table_bytes, Stream stream) {
    inline_.list = list;
    std::array<void*, 1> arguments{&inline_};
    kernel.launch(table_bytes, grid(list), arguments.data(), stream);
  }

  void launch_listed(List list, const SmKernel& kernel, ListSlot& slot, Stream stream) {
    list.table = slot.pinned.device_address();
    std::array<void*, 1> arguments{&list};
    kernel.launch(0, grid(list), arguments.data(), stream);
    slot.done.record(stream);
  }

  /// Additional thread blocks without pieces would only start and end.
  [[nodiscard]] unsigned grid(const List& list) const { return std::min(list.pieces, sms_); }

  SmKernels kernels_;
  unsigned sms_;
  std::size_t inline_up_to_;
  InlineList inline_{};
  std::shared_ptr<ListSlots> slots_;
};

class SmSwap final : public Swap {
 public:
  SmSwap(std::shared_ptr<const SmKernel> kernel, std::unique_ptr<Listing> listing, SmOptions options)
      : listing_(std::move(listing)), queue_({.aligned = nullptr, .any = std::move(kernel)}, options) {
    queue_.reserve(listing_->table_bytes());
  }

  void submit(Stream stream) override { queue_.launch(*listing_, stream); }
  std::size_t calls() const override { return 1; }
  std::size_t descriptors() const override { return listing_->descriptors(); }

 private:
  std::unique_ptr<Listing> listing_;
  SmQueue queue_;
};

class SmCopier final : public ListCopier {
 public:
  SmCopier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots)
      : piece_bytes_(kernels.piece_bytes()),
        direction_(options.direction),
        queue_(std::move(kernels), options, std::move(slots)) {}

  void reserve(std::size_t entries) override { queue_.reserve(entries * (sizeof(Row) + sizeof(u32))); }
  void copy(const Descriptors& descriptors, Stream stream) override {
    const DescriptorListing listing(descriptors, piece_bytes_, direction_);
    queue_.launch(listing, stream);
    count_ = descriptors.size();
  }
  bool copy_unread(const Descriptors& descriptors, Stream stream) override {
    count_ = descriptors.size();
    return queue_.launch_packed(DescriptorListing(descriptors, piece_bytes_, direction_), stream);
  }
  std::size_t calls() const override { return 1; }
  std::size_t descriptors() const override { return count_; }

 private:
  std::size_t count_ = 0;
  std::size_t piece_bytes_;
  Direction direction_;
  SmQueue queue_;
};

}  // namespace

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

void SmKernel::launch(std::size_t inline_bytes, unsigned sms, void** arguments, Stream stream) const {
  const Kernel kernel = inline_bytes == 0 ? reads_ : inline_bytes <= kShortTableBytes ? short_ : inline_;
  driver_->launch(kernel, {sms, shape_.warps * 32, shared_bytes_}, arguments, stream);
}

std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<const SmKernel> kernel, Descriptors descriptors, SmOptions options) {
  const std::size_t piece_bytes = kernel->shape().piece_bytes;
  auto listing = std::make_unique<DescriptorListing>(descriptors, piece_bytes, options.direction);
  return std::make_unique<SmSwap>(std::move(kernel), std::move(listing), options);
}

std::unique_ptr<Swap> make_sm_copy(std::shared_ptr<const SmKernel> kernel, TensorBlocks blocks, SmOptions options) {
  const std::size_t piece_bytes = kernel->shape().piece_bytes;
  auto listing = std::make_unique<TensorListing>(blocks, piece_bytes, options.direction);
  return std::make_unique<SmSwap>(std::move(kernel), std::move(listing), options);
}

std::unique_ptr<ListCopier> make_sm_copier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots) {
  return std::make_unique<SmCopier>(std::move(kernels), options, std::move(slots));
}

}  // namespace kvbench
