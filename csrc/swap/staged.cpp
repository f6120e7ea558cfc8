#include "swap/staged.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/piece_map.hpp"
#include "swap/address_order.hpp"
#include "swap/spare.hpp"

namespace kvbench {
namespace {

std::size_t pieces_of(std::size_t bytes, std::size_t piece_bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }

/// Whether the blocks of a list lie in runs on the host that are long enough, in the order of the list.
bool in_long_runs(std::span<const Address> host, std::span<const std::size_t> bytes) {
  std::size_t runs = 1, total = bytes[0];
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    runs += host[i] != host[i - 1] + bytes[i - 1] ? 1 : 0;
    total += bytes[i];
  }
  return total >= runs * kLeastRunBytes;
}

/// The rows of a list for its kernels, page by page: a row per block if all have one size, else a row and a length per
/// piece.
class PageRows {
 public:
  PageRows(const Descriptors& list, std::size_t piece_bytes, Direction direction)
      : list_(list), piece_bytes_(piece_bytes) {
    head_.host_is_source = direction == Direction::h2d ? 1 : 0;
    head_.pieces_a_block = 1;
    if (list.sizes.equal()) {
      head_.block_bytes = list.sizes.first;
      rows_ = list.size();
    } else {
      for (const std::size_t bytes : list.bytes) rows_ += pieces_of(bytes, piece_bytes);
    }
  }
  [[nodiscard]] std::size_t bytes() const { return rows_ * (sizeof(Row) + (list_.sizes.equal() ? 0 : sizeof(u32))); }
  void begin(const ListSlot& slot) { slot_ = &slot; }

  /// Writes the rows of a page, whose blocks lie at `sources` and `destinations`, and returns their list for a kernel.
  List write(std::span<const Address> sources, std::span<const Address> destinations,
             std::span<const std::size_t> bytes, std::size_t piece_bytes) {
    auto* const table = reinterpret_cast<Row*>(slot_->pinned.address());
    auto* const lengths = reinterpret_cast<u32*>(table + rows_);
    const std::size_t first = written_;
    List list = head_;
    list.table = slot_->pinned.device_address() + first * sizeof(Row);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (list_.sizes.equal()) {
        table[written_++] = {sources[i], destinations[i]};
        continue;
      }
      for (std::size_t at = 0; at < bytes[i]; at += piece_bytes_) {
        lengths[written_] = static_cast<u32>(std::min(piece_bytes_, bytes[i] - at));
        table[written_++] = {sources[i] + at, destinations[i] + at};
      }
    }
    if (list_.sizes.equal())
      list.pieces_a_block = static_cast<u32>(pieces_of(list_.sizes.first, piece_bytes));
    else
      list.lengths_at = (rows_ - first) * sizeof(Row) + first * sizeof(u32);
    list.pieces = static_cast<u32>(written_ - first) * list.pieces_a_block;
    return list;
  }

 private:
  const Descriptors& list_;
  std::size_t piece_bytes_;
  List head_{};
  std::size_t rows_ = 0;
  std::size_t written_ = 0;
  const ListSlot* slot_ = nullptr;
};

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
    // Sorted only where needed: an engine's lists mostly have the order of its pages.
    ordered_ = !in_long_runs(host_of(descriptors), descriptors.bytes);
    Descriptors list = ordered_ ? order_.arrange(descriptors) : descriptors;
    if (ordered_ && !in_long_runs(host_of(list), list.bytes)) return false;
    StagingRing* const ring = rings_->take(stream);
    if (!ring) return false;
    list.sizes = descriptors.sizes.read ? descriptors.sizes : BlockSizes(descriptors.bytes);
    list.route = descriptors.route;
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
    PageRows rows(list, kernels_.piece_bytes(), direction_);
    ListSlot& slot = slots_->take(rows.bytes());
    rows.begin(slot);
    count_ = list.size();
    calls_ = 0;
    ring.begin(stream);
    try {
      for (std::size_t begin = 0; begin < list.size();) begin = submit_page(list, begin, rows, ring, stream);
    } catch (...) {
      end(ring, slot);
      throw;
    }
    end(ring, slot);
  }

  static void end(StagingRing& ring, ListSlot& slot) {
    slot.launched(ring.kernels());
    ring.end();
  }

  /// Submits the page that begins with entry `begin`, and returns the entry behind it.
  std::size_t submit_page(const Descriptors& list, std::size_t begin, PageRows& rows, StagingRing& ring,
                          Stream stream) {
    StagingRing::Page& page = ring.next_page();
    const std::size_t count = lay_out(list.bytes.subspan(begin), page.address);
    const auto host = host_of(list).subspan(begin, count), device = device_of(list).subspan(begin, count);
    const auto bytes = list.bytes.subspan(begin, count);
    const bool gathers = direction_ == Direction::d2h;
    const auto launch = [&] {
      const SmKernel& kernel = kernels_.serving(bits_of(device, bytes));
      List rows_of_page = gathers ? rows.write(device, staged_, bytes, kernel.shape().piece_bytes)
                                  : rows.write(staged_, device, bytes, kernel.shape().piece_bytes);
      std::array<void*, 1> arguments{&rows_of_page};
      const unsigned grid = std::min(rows_of_page.pieces, sms_);
      const unsigned cluster = cluster_of(grid, kStagedPageBytes, driver_->info());
      kernel.launch(0, grid, cluster, arguments.data(), ring.kernels());
      ++calls_;
    };
    const auto copy = [&] {
      const Descriptors to_host{staged_, host, bytes, {}, false, list.route};
      const Descriptors from_host{host, staged_, bytes, {}, false, list.route};
      copy_runs(gathers ? to_host : from_host, begin, stream);
    };
    page.empty.hold(gathers ? ring.kernels() : stream);
    gathers ? launch() : copy();
    page.full.record(gathers ? ring.kernels() : stream);
    page.full.hold(gathers ? stream : ring.kernels());
    gathers ? copy() : launch();
    page.empty.record(gathers ? stream : ring.kernels());
    return begin + count;
  }

  /// Puts the first of these blocks one behind the other from `address` on, in `staged_`, as many as fit into a page.
  std::size_t lay_out(std::span<const std::size_t> bytes, Address address) {
    staged_.clear();
    std::size_t left = kStagedPageBytes;
    for (const std::size_t size : bytes) {
      if (size > left) break;
      staged_.push_back(address + kStagedPageBytes - left);
      left -= size;
    }
    return staged_.size();
  }

  static Address bits_of(std::span<const Address> device, std::span<const std::size_t> bytes) {
    Address bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) bits |= device[i] | bytes[i];
    return bits;
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
  bool ordered_ = false;         ///< whether the last list was sorted
  std::vector<Address> staged_;  ///< where each block of a page lies on the device
  DescriptorList runs_;
  std::vector<std::size_t> run_firsts_;  ///< the first entry of each in its page
  std::size_t calls_ = 0;
  std::size_t count_ = 0;
};

/// Slots and rings of a swap, which it leaves to the next one of its device.
class Own {
 public:
  explicit Own(const std::shared_ptr<Driver>& driver)
      : slots(ListSlots::spare(driver, SmOptions{}.lists)), rings(StagingRings::spare(driver)) {}
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;
  ~Own() {
    ListSlots::keep(slots);
    StagingRings::keep(rings);
  }

  std::shared_ptr<ListSlots> slots;
  std::shared_ptr<StagingRings> rings;
};

class StagedSwap final : public Swap {
 public:
  StagedSwap(SmKernels kernels, Descriptors descriptors, SmOptions options)
      : own_(kernels.any->driver()),
        copier_(make_staged_copier(std::move(kernels), options, own_.slots, own_.rings)),
        swap_(keep_list(copier_, descriptors)) {
    copier_->reserve(descriptors.size());
  }
  void submit(Stream stream) override { swap_->submit(stream); }
  std::size_t calls() const override { return swap_->calls(); }
  std::size_t descriptors() const override { return swap_->descriptors(); }

 private:
  Own own_;
  std::shared_ptr<ListCopier> copier_;
  std::unique_ptr<Swap> swap_;
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

std::shared_ptr<StagingRings> StagingRings::spare(const std::shared_ptr<Driver>& driver) {
  auto rings = Spare<StagingRings>::take(driver);
  return rings ? rings : std::make_shared<StagingRings>(driver);
}

void StagingRings::keep(std::shared_ptr<StagingRings> rings) {
  if (!rings->rings_.empty()) Spare<StagingRings>::keep(std::move(rings));
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
  return std::make_unique<StagedSwap>(std::move(kernels), descriptors, options);
}

}  // namespace kvbench
