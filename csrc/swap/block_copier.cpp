#include "swap/block_copier.hpp"

#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "swap/spare.hpp"

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

/// Decides the way alone: a sum of 2^64 or more is of blocks that leave their memory, which the route refuses.
std::size_t sum_of(const Descriptors& descriptors) {
  if (descriptors.sizes.equal()) return descriptors.size() * descriptors.sizes.first;
  return std::reduce(descriptors.bytes.begin(), descriptors.bytes.end());
}

/// Reads every size. Throws InvalidEntry for the first that is negative.
BlockSizes read_sizes(std::span<const std::size_t> bytes) {
  const BlockSizes sizes(bytes);
  if ((sizes.first | sizes.differing) >> 63) {
    const auto negative = std::ranges::find_if(bytes, [](std::size_t size) { return size >> 63 != 0; });
    throw InvalidEntry(static_cast<std::size_t>(negative - bytes.begin()), "sizes must not be negative");
  }
  return sizes;
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

/// How often this process was forked, seen from the child.
unsigned forks() {
  static std::atomic<unsigned> count{0};
  [[maybe_unused]] static const int counting = pthread_atfork(nullptr, nullptr, [] { ++count; });
  return count.load(std::memory_order_relaxed);
}

/// Keeps other threads out of a copier.
class Turn {
 public:
  explicit Turn(std::atomic_flag& in_use) : in_use_(in_use) {
    if (in_use_.test_and_set(std::memory_order_acquire)) {
      throw std::runtime_error("another thread is in a call of this copier; make one for each thread");
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { in_use_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& in_use_;
};

}  // namespace

BlockCopier::BlockCopier(std::shared_ptr<Driver> driver, std::vector<CopyWay> ways, std::vector<CopyTable> tables,
                         std::size_t max_entries, std::span<const Pool> pools)
    : driver_(std::move(driver)),
      ways_(std::move(ways)),
      copiers_((ways_.size() + 1) * kCombinations),
      route_(driver_),
      slots_(Spare<ListSlots>::take(driver_, SmOptions{}.lists)),
      rings_(Spare<StagingRings>::take(driver_)),
      forks_(forks()) {
  for (const CopyWay& way : ways_) {
    if (!way.staged) continue;
    if (way.otherwise >= ways_.size() || ways_[way.otherwise].staged) {
      throw std::invalid_argument("a way that is staged needs another one for lists that are not in pages");
    }
    rings_->reserve();
  }
  for (const CopyTable& table : tables) {
    check(table, ways_.size());
    if (table.beside >= kMostBeside) throw std::invalid_argument("a table must be beside one of a few things");
    if (table.beside >= tables_.size()) tables_.resize(table.beside + 1);
    tables_[table.beside][index_of(table.direction, table.pending)] = table;
  }
  for (Tables& of_beside : tables_) complete(of_beside, max_entries);
  if (!serves(0)) throw std::invalid_argument("each direction needs a table");
  ways_.emplace_back();  // plain batched copies, where kernels cannot be used
  filled_.reserve(max_entries);
  indices_.reserve(max_entries);
  const CurrentDevice current(*driver_);
  for (std::size_t i = 0; i < pools.size(); ++i) {
    try {
      route_.vouch(pools[i].first, pools[i].second);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("pools: entry " + std::to_string(i) + " " + error.what());
    }
  }
}

/// Lets a table serve for its direction with and without pending work where there is one alone, and makes room.
void BlockCopier::complete(Tables& tables, std::size_t max_entries) {
  const bool any_table = std::ranges::any_of(tables, [](const CopyTable& table) { return !table.ways.empty(); });
  if (!any_table) return;
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    CopyTable &when_idle = tables[index_of(direction, false)], &when_busy = tables[index_of(direction, true)];
    if (when_idle.ways.empty()) when_idle = when_busy;
    if (when_busy.ways.empty()) when_busy = when_idle;
    if (when_idle.ways.empty()) throw std::invalid_argument("each direction needs a table");
    if (max_entries == 0) continue;
    for (const CopyTable* table : {&when_idle, &when_busy}) {
      for (const std::size_t way : table->ways) {
        for (const bool any : {false, true}) copier(way, direction, any).reserve(max_entries);
        if (ways_[way].staged) copier(ways_[way].otherwise, direction, false).reserve(max_entries);
      }
    }
  }
}

bool BlockCopier::copy(const Descriptors& descriptors, Stream stream) {
  if (forks() != forks_) throw DriverError("copy", "the process was forked from the one that made this copier");
  const Turn turn(in_use_);
  refuse_legacy_stream(stream);
  const CurrentDevice current(*driver_);
  if (driver_->capturing(stream)) throw DriverError("copy", "not supported while a graph is captured on the stream");
  if (!serves(descriptors.beside)) throw std::invalid_argument("there is no table for swaps beside that");
  Descriptors list = descriptors;
  list.sizes = read_sizes(list.bytes);
  if (list.sizes.equal() && list.sizes.first == 0) return true;
  const bool filled = list.sizes.equal() || std::ranges::find(list.bytes, std::size_t{0}) == list.bytes.end();
  filled ? submit(list, stream) : submit_filled(list, stream);
  return true;
}

void BlockCopier::submit(const Descriptors& list, Stream stream) {
  const Direction direction = route_.begin(list);
  const auto [when_idle, when_busy] = ways_of(list.size(), sum_of(list), direction, list.beside);
  std::size_t way = when_idle == when_busy || driver_->idle(stream) ? when_idle : when_busy;
  if (ways_[way].staged) {
    if (copy_by(way, list, stream, direction)) return;
    way = ways_[way].otherwise;
    ++not_staged_;
  }
  const bool by_kernel = ways_[way].sms > 0;
  // A region that only this list shows can be one whose addresses are not those of a kernel.
  if (by_kernel && !route_.other_address() && copy_by(way, list, stream, direction)) return;
  copy_by(by_kernel ? ways_.size() - 1 : way, list, stream, direction);
}

bool BlockCopier::copy_by(std::size_t way, Descriptors list, Stream stream, Direction direction) {
  list.route = &route_;
  ListCopier& copier = this->copier(way, direction, list.source_order_any);
  last_ = &copier;
  return copier.copy(list, stream);
}

void BlockCopier::submit_filled(const Descriptors& descriptors, Stream stream) {
  indices_.clear();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    if (descriptors.bytes[i] != 0) indices_.push_back(i);
  }
  Descriptors filled = filled_.take(descriptors, indices_);
  filled.sizes = BlockSizes(filled.bytes);
  try {
    submit(filled, stream);
  } catch (const InvalidEntry& error) {
    throw error.at(indices_[error.entry()]);
  } catch (const DriverError& error) {
    throw error.descriptor() ? error.at(indices_[*error.descriptor()]) : error;
  }
}

void BlockCopier::forget() {
  const Turn turn(in_use_);
  route_ = Route(driver_);
}

std::size_t BlockCopier::way_of(std::size_t count, std::size_t total_bytes, Direction direction, bool idle,
                                std::size_t beside) const {
  if (!serves(beside)) throw std::invalid_argument("there is no table for swaps beside that");
  const auto [when_idle, when_busy] = ways_of(count, total_bytes, direction, beside);
  return idle ? when_idle : when_busy;
}

BlockCopier::Candidates BlockCopier::ways_of(std::size_t count, std::size_t total_bytes, Direction direction,
                                             std::size_t beside) const {
  const Tables& tables = tables_[beside];
  const auto blocks = static_cast<double>(count);
  const double block_bytes = static_cast<double>(total_bytes) / blocks;
  const std::size_t when_idle = way_in(tables[index_of(direction, false)], block_bytes, blocks);
  if (total_bytes < kAskFromBytes) return {when_idle, when_idle};
  const std::size_t when_busy = way_in(tables[index_of(direction, true)], block_bytes, blocks);
  const bool both_kernels = ways_[when_idle].sms > 0 && ways_[when_busy].sms > 0;
  return {when_idle, both_kernels && total_bytes < kAskOfKernelsFromBytes ? when_idle : when_busy};
}

ListCopier& BlockCopier::copier(std::size_t way_at, Direction direction, bool any) {
  const CopyWay& way = ways_[way_at];
  any = any && way.sms == 0;  // makes no difference to a kernel
  std::unique_ptr<ListCopier>& made = copiers_[way_at * kCombinations + index_of(direction, any)];
  if (made) return *made;
  if (way.staged) {
    made = make_staged_copier({way.aligned, way.any}, {way.sms, direction}, slots_, rings_);
  } else if (way.sms > 0) {
    const SmOptions options{
        .sms = way.sms, .direction = direction, .inline_up_to = way.inline_up_to, .pace_gbps = way.pace_gbps};
    made = make_sm_copier({way.aligned, way.any}, options, slots_);
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

}  // namespace kvbench
