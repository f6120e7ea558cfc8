#include "swap/block_copier.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvbench {
namespace {

// To ask whether a stream is idle takes 1.3 to 2.4 us (H100 and H200, driver 580): 1% of the time of a swap of the
// first size. The SM count that is best on an idle stream was within 0.3% of the best behind pending work: there is
// little to gain between two kernels, so that they need a larger swap.
constexpr std::size_t kAskFromBytes = std::size_t{8} << 20;
constexpr std::size_t kAskOfKernelsFromBytes = std::size_t{64} << 20;

std::size_t range_of(std::span<const double> limits, double value) {
  return static_cast<std::size_t>(std::ranges::lower_bound(limits, value) - limits.begin());
}

std::size_t sum_of(const Descriptors& descriptors) {
  std::size_t sum = 0;
  bool fits = true;
  if (descriptors.sizes->equal()) {
    fits = !__builtin_mul_overflow(descriptors.size(), descriptors.sizes->first, &sum);
  } else {
    for (const std::size_t bytes : descriptors.bytes) fits = !__builtin_add_overflow(sum, bytes, &sum) && fits;
  }
  if (!fits) throw std::invalid_argument("sizes must add up to less than 2^64 bytes");
  return sum;
}

/// Whether a look at three sizes says that all are equal.
bool look_equal(std::span<const std::size_t> bytes) {
  if (bytes.empty() || bytes.front() == 0 || bytes.front() >> 63) return false;
  std::size_t sum = 0;
  return bytes[bytes.size() / 2] == bytes.front() && bytes.back() == bytes.front() &&
         !__builtin_mul_overflow(bytes.size(), bytes.front(), &sum);
}

std::size_t way_in(const CopyTable& table, double block_bytes, double blocks) {
  const std::size_t row = range_of(table.size_limits, block_bytes) * (table.count_limits.size() + 1);
  return table.ways[row + range_of(table.count_limits, blocks)];
}

void check(const CopyTable& table, std::size_t ways) {
  const std::size_t cells = (table.size_limits.size() + 1) * (table.count_limits.size() + 1);
  if (table.ways.size() != cells || std::ranges::any_of(table.ways, [=](std::size_t way) { return way >= ways; })) {
    throw std::invalid_argument("a table must name one of the ways for each of its ranges");
  }
}

}  // namespace

BlockCopier::BlockCopier(std::shared_ptr<Driver> driver, std::vector<CopyWay> ways, std::vector<CopyTable> tables,
                         std::size_t max_entries)
    : driver_(std::move(driver)),
      ways_(std::move(ways)),
      copiers_(ways_.size() * kCombinations),
      route_(driver_),
      slots_(std::make_shared<ListSlots>(driver_, SmOptions{}.lists)) {
  for (const CopyTable& table : tables) {
    check(table, ways_.size());
    tables_[index_of(table.direction, table.pending)] = table;
  }
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    CopyTable &free = tables_[index_of(direction, false)], &held = tables_[index_of(direction, true)];
    if (free.ways.empty()) free = held;
    if (held.ways.empty()) held = free;
    if (free.ways.empty()) throw std::invalid_argument("each direction needs a table");
    if (max_entries == 0) continue;
    for (const CopyTable* table : {&free, &held}) {
      for (const std::size_t way : table->ways) {
        for (const bool any : {false, true}) copier(way, direction, any).reserve(max_entries);
      }
    }
  }
  filled_.reserve(max_entries);
}

void BlockCopier::copy(Descriptors descriptors, bool source_order_any, Stream stream) {
  refuse_legacy_stream(stream);
  driver_->bind_thread();
  if (look_equal(descriptors.bytes)) {
    descriptors.sizes = BlockSizes::presumed(descriptors.bytes.front());
    if (submit(descriptors, source_order_any, stream)) return;
  }
  const BlockSizes sizes(descriptors.bytes);
  if ((sizes.first | sizes.differing) >> 63) throw std::invalid_argument("sizes must not be negative");
  if (sizes.equal() && sizes.first == 0) return;
  descriptors.sizes = sizes;
  submit(sizes.equal() ? descriptors : without_empty(descriptors), source_order_any, stream);
}

bool BlockCopier::submit(Descriptors descriptors, bool source_order_any, Stream stream) {
  const std::size_t total_bytes = sum_of(descriptors);
  const Direction direction = route_.begin(descriptors.sources.front(), descriptors.destinations.front());
  const auto [free, held] = ways_of(descriptors.size(), total_bytes, direction);
  const std::size_t way = free == held || driver_->idle(stream) ? free : held;
  ListCopier& chosen = copier(way, direction, source_order_any);
  last_ = &chosen;
  if (ways_[way].sms > 0) {
    descriptors.route = &route_;  // checked where the list is written
    if (!descriptors.sizes->known) return chosen.copy_unread(descriptors, stream);
  } else {
    if (!descriptors.sizes->known) {
      descriptors.sizes.emplace(descriptors.bytes);
      if (!descriptors.sizes->equal()) return false;
    }
    check_entries(route_, descriptors.sources, descriptors.destinations);
  }
  chosen.copy(descriptors, stream);
  return true;
}

std::size_t BlockCopier::way_of(std::size_t count, std::size_t total_bytes, Direction direction, bool idle) const {
  const auto [free, held] = ways_of(count, total_bytes, direction);
  return idle ? free : held;
}

BlockCopier::Candidates BlockCopier::ways_of(std::size_t count, std::size_t total_bytes, Direction direction) const {
  const auto blocks = static_cast<double>(count);
  const double block_bytes = static_cast<double>(total_bytes) / blocks;
  const std::size_t free = way_in(tables_[index_of(direction, false)], block_bytes, blocks);
  if (total_bytes < kAskFromBytes) return {free, free};
  const std::size_t held = way_in(tables_[index_of(direction, true)], block_bytes, blocks);
  const bool both_kernels = ways_[free].sms > 0 && ways_[held].sms > 0;
  return {free, both_kernels && total_bytes < kAskOfKernelsFromBytes ? free : held};
}

ListCopier& BlockCopier::copier(std::size_t way_at, Direction direction, bool any) {
  const CopyWay& way = ways_[way_at];
  any = any && way.sms == 0;  // makes no difference to a kernel
  std::unique_ptr<ListCopier>& made = copiers_[way_at * kCombinations + index_of(direction, any)];
  if (made) return *made;
  if (way.sms > 0) {
    made = make_sm_copier({way.aligned, way.any}, {way.sms, direction, way.inline_up_to}, slots_);
  } else if (way.one_by_one) {
    made = make_loop_copier(driver_, direction);
  } else {
    BatchOptions options = way.batch;
    options.attributes.order = any ? AccessOrder::any : AccessOrder::stream;
    if (direction == Direction::d2h) options.prime_up_to_bytes = 0;
    made = make_batch_copier(driver_, direction, options);
  }
  return *made;
}

Descriptors BlockCopier::without_empty(const Descriptors& descriptors) {
  if (std::ranges::find(descriptors.bytes, std::size_t{0}) == descriptors.bytes.end()) return descriptors;
  filled_.sources.clear();
  filled_.destinations.clear();
  filled_.bytes.clear();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    if (descriptors.bytes[i] == 0) continue;
    filled_.sources.push_back(descriptors.sources[i]);
    filled_.destinations.push_back(descriptors.destinations[i]);
    filled_.bytes.push_back(descriptors.bytes[i]);
  }
  Descriptors filled = filled_.view();
  filled.sizes.emplace(filled.bytes);
  return filled;
}

}  // namespace kvbench
