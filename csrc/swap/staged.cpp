#include "swap/staged.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "swap/address_order.hpp"
#include "swap/block_listing.hpp"
#include "swap/spare.hpp"

namespace kvbench {
namespace {

/// Whether the blocks of a list lie in runs on the host that are long enough, in the order of the list.
bool in_long_runs(std::span<const Address> host, std::span<const std::size_t> bytes) {
  std::size_t runs = 1, total = bytes[0];
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    runs += host[i] != host[i - 1] + bytes[i - 1] ? 1 : 0;
    total += bytes[i];
  }
  return total >= runs * kLeastRunBytes;
}

class StagedCopier final : public ListCopier {
 public:
  StagedCopier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots,
               std::shared_ptr<StagingRings> rings)
      : driver_(kernels.any->driver()),
        kernels_(std::move(kernels)),
        direction_(options.direction),
        sms_(options.sms),
        slots_(std::move(slots)),
        rings_(std::move(rings)),
        order_(direction_) {}

  void reserve(std::size_t entries) override {
    rings_->reserve();
    slots_->reserve(entries * (sizeof(Row) + sizeof(u32)), SmOptions{}.lists);
    order_.reserve(entries);
  }

  bool copy(const Descriptors& descriptors, Stream stream) override {
    refuse_legacy_stream(stream);
    if (driver_->capturing(stream)) throw DriverError("copy", "not supported while a graph is captured on the stream");
    if (descriptors.route) descriptors.route->check(descriptors);
    if (descriptors.size() == 0) return true;
    if (std::ranges::max(descriptors.bytes) > kStagedPageBytes) return false;
    Descriptors list = descriptors;
    if (!list.sizes.read) list.sizes = BlockSizes(list.bytes);
    // Sorted only where needed: an engine's lists mostly have the order of its pages.
    ordered_ = !in_long_runs(host_of(list), list.bytes);
    if (ordered_) list = order_.arrange(list);
    if (ordered_ && !in_long_runs(host_of(list), list.bytes)) return false;
    StagingRing* const ring = rings_->take(stream);
    if (!ring) return false;
    submit(list, *ring, stream);
    return true;
  }
  std::size_t calls() const override { return calls_; }
  std::size_t descriptors() const override { return count_; }

 private:
  [[nodiscard]] std::span<const Address> host_of(const Descriptors& list) const {
    return direction_ == Direction::h2d ? list.sources : list.destinations;
  }
  [[nodiscard]] std::span<const Address> device_of(const Descriptors& list) const {
    return direction_ == Direction::h2d ? list.destinations : list.sources;
  }

  void submit(const Descriptors& list, StagingRing& ring, Stream stream) {
    divide(list.bytes);
    const std::size_t table_bytes = BlockListing(list, kernels_.piece_bytes(), direction_).table_bytes();
    ListSlot& slot = slots_->take(table_bytes + page_ends_.size() * sizeof(Row));
    written_ = 0;
    count_ = list.size();
    calls_ = 0;
    ring.begin(stream);
    try {
      std::size_t begin = 0;
      for (const std::size_t end : page_ends_) {
        submit_page(list, begin, end, ring, slot, stream);
        begin = end;
      }
    } catch (...) {
      end_list(ring, slot);
      throw;
    }
    end_list(ring, slot);
  }

  static void end_list(StagingRing& ring, ListSlot& slot) {
    slot.launched(ring.kernels());
    ring.end();
  }

  /// Finds the pages: each has as many blocks as fit.
  void divide(std::span<const std::size_t> bytes) {
    page_ends_.clear();
    std::size_t left = kStagedPageBytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] > left) {
        page_ends_.push_back(i);
        left = kStagedPageBytes;
      }
      left -= bytes[i];
    }
    page_ends_.push_back(bytes.size());
  }

  /// Submits the page of the entries from `begin` to `end`, which lie one behind the other there.
  void submit_page(const Descriptors& list, std::size_t begin, std::size_t end, StagingRing& ring, ListSlot& slot,
                   Stream stream) {
    StagingRing::Page& page = ring.next_page();
    const auto host = host_of(list).subspan(begin, end - begin), device = device_of(list).subspan(begin, end - begin);
    const auto bytes = list.bytes.subspan(begin, end - begin);
    staged_.resize(bytes.size());
    std::exclusive_scan(bytes.begin(), bytes.end(), staged_.begin(), page.address);
    const bool gathers = direction_ == Direction::d2h;
    const auto launch = [&] {
      gathers ? run_kernel({device, staged_, bytes, list.sizes}, ring, slot)
              : run_kernel({staged_, device, bytes, list.sizes}, ring, slot);
    };
    const auto copy = [&] {
      gathers ? copy_runs({staged_, host, bytes, {}, false, list.route}, begin, stream)
              : copy_runs({host, staged_, bytes, {}, false, list.route}, begin, stream);
    };
    page.empty.hold(gathers ? ring.kernels() : stream);
    gathers ? launch() : copy();
    page.full.record(gathers ? ring.kernels() : stream);
    page.full.hold(gathers ? stream : ring.kernels());
    gathers ? copy() : launch();
    page.empty.record(gathers ? stream : ring.kernels());
  }

  /// One launch between blocks and a page, whose list is written behind those before it in the slot.
  void run_kernel(const Descriptors& page, const StagingRing& ring, const ListSlot& slot) {
    const BlockListing listing(page, kernels_.piece_bytes(), direction_);
    const Address bits = listing.write(reinterpret_cast<void*>(slot.pinned.address() + written_));
    const SmKernel& kernel = kernels_.serving(bits);
    List rows = listing.head(kernel.shape().piece_bytes);
    rows.table = slot.pinned.device_address() + written_;
    written_ += (listing.table_bytes() + sizeof(Row) - 1) / sizeof(Row) * sizeof(Row);
    std::array<void*, 1> arguments{&rows};
    const unsigned grid = std::min(rows.pieces, sms_);
    kernel.launch(0, grid, cluster_of(grid, kStagedPageBytes, driver_->info()), arguments.data(), ring.kernels());
    ++calls_;
  }

  /// One copy for each run of blocks that adjoin on the host.
  void copy_runs(const Descriptors& page, std::size_t begin, Stream stream) {
    merge_adjacent(page, runs_, run_firsts_);
    for (std::size_t run = 0; run < runs_.bytes.size(); ++run) {
      try {
        driver_->copy(runs_.destinations[run], runs_.sources[run], runs_.bytes[run], direction_, stream);
      } catch (const DriverError& error) {
        const std::size_t entry = begin + run_firsts_[run];
        throw error.at(ordered_ ? order_.original(entry) : entry);
      }
    }
    calls_ += runs_.bytes.size();
  }

  std::shared_ptr<Driver> driver_;
  SmKernels kernels_;
  Direction direction_;
  unsigned sms_;
  std::shared_ptr<ListSlots> slots_;
  std::shared_ptr<StagingRings> rings_;
  HostOrder order_;
  bool ordered_ = false;  ///< whether the last list was sorted
  std::vector<std::size_t> page_ends_;
  std::size_t written_ = 0;      ///< bytes of the slot that hold lists of pages
  std::vector<Address> staged_;  ///< where each block of a page lies there
  DescriptorList runs_;
  std::vector<std::size_t> run_firsts_;  ///< the first entry of each in its page
  std::size_t calls_ = 0;
  std::size_t count_ = 0;
};

}  // namespace

StagingRing::StagingRing(const std::shared_ptr<Driver>& driver)
    : buffer_(driver, MemoryKind::device, kPages * kStagedPageBytes),
      kernels_(driver, Priority::high),
      begin_(driver, EventKind::mark),
      kernels_end_(driver, EventKind::mark),
      end_(driver, EventKind::mark) {
  Address address = buffer_.address();
  for (auto& page : pages_) {
    page = std::make_unique<Page>(driver, address);
    address += kStagedPageBytes;
  }
}

void StagingRing::begin(Stream stream) {
  begin_.record(stream);
  begin_.hold(kernels());
  stream_ = stream;
  open_ = true;  // until it has ended: if that fails, nothing is known of what is in flight
}

void StagingRing::end() {
  kernels_end_.record(kernels());
  kernels_end_.hold(stream_);
  end_.record(stream_);
  open_ = false;
}

void StagingRings::reserve() {
  if (rings_.empty()) rings_.push_back(std::make_unique<StagingRing>(driver_));
}

StagingRing* StagingRings::take(Stream stream) {
  const auto free = std::ranges::find_if(rings_, [=](const auto& ring) { return ring->serves(stream); });
  if (free != rings_.end()) return free->get();
  if (rings_.size() == kMost) return nullptr;
  return rings_.emplace_back(std::make_unique<StagingRing>(driver_)).get();
}

std::unique_ptr<ListCopier> make_staged_copier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots,
                                               std::shared_ptr<StagingRings> rings) {
  return std::make_unique<StagedCopier>(std::move(kernels), options, std::move(slots), std::move(rings));
}

std::unique_ptr<Swap> make_staged(SmKernels kernels, Descriptors descriptors, SmOptions options) {
  const std::shared_ptr<Driver> driver = kernels.any->driver();
  std::shared_ptr<ListCopier> copier =
      make_staged_copier(std::move(kernels), options, Spare<ListSlots>::take(driver, SmOptions{}.lists),
                         Spare<StagingRings>::take(driver));
  copier->reserve(descriptors.size());
  return keep_list(std::move(copier), descriptors);
}

}  // namespace kvbench
