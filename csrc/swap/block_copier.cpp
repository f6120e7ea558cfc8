#include "swap/block_copier.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace kvbench {
namespace {

constexpr Address kBulkAlignment = 16;

std::size_t range_of(std::span<const double> limits, double value) {
  return static_cast<std::size_t>(std::ranges::lower_bound(limits, value) - limits.begin());
}

/// Whether every address and size is a multiple of 16 bytes.
bool is_aligned(const Descriptors& descriptors) {
  Address bits = 0;
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    bits |= descriptors.sources[i] | descriptors.destinations[i] | descriptors.bytes[i];
  }
  return bits % kBulkAlignment == 0;
}

void check(const CopyTable& table, std::size_t ways) {
  const std::size_t cells = (table.size_limits.size() + 1) * (table.count_limits.size() + 1);
  if (table.ways.size() != cells || std::ranges::any_of(table.ways, [=](std::size_t way) { return way >= ways; })) {
    throw std::invalid_argument("a table must name one of the ways for each of its ranges");
  }
}

}  // namespace

BlockCopier::BlockCopier(std::shared_ptr<Driver> driver, std::vector<CopyWay> ways, std::vector<CopyTable> tables)
    : driver_(std::move(driver)), ways_(std::move(ways)), tables_(std::move(tables)) {
  for (const CopyTable& table : tables_) check(table, ways_.size());
  for (const Direction direction : {Direction::h2d, Direction::d2h}) {
    if (std::ranges::none_of(tables_, [=](const CopyTable& table) { return table.direction == direction; })) {
      throw std::invalid_argument("each direction needs a table");
    }
  }
}

void BlockCopier::copy(Descriptors descriptors, bool source_order_any, Stream stream) {
  refuse_legacy_stream(stream);
  driver_->bind_thread();
  if (std::ranges::find(descriptors.bytes, std::size_t{0}) != descriptors.bytes.end()) {
    descriptors = without_empty(descriptors);
  }
  if (descriptors.size() == 0) return;
  const Direction direction = direction_of(descriptors);
  const std::size_t way = way_of(descriptors, direction, stream);
  const bool bulk = ways_[way].bulk && is_aligned(descriptors);
  ListCopier& chosen = copier({way, direction, source_order_any, bulk});
  last_ = &chosen;
  chosen.copy(descriptors, stream);
}

Direction BlockCopier::direction_of(const Descriptors& descriptors) const {
  const Place from = driver_->place_of(descriptors.sources.front());
  const Place to = driver_->place_of(descriptors.destinations.front());
  if (from == Place::pinned && to == Place::device) return Direction::h2d;
  if (from == Place::device && to == Place::pinned) return Direction::d2h;
  throw std::invalid_argument("blocks must go from pinned host memory to device memory, or from device to pinned");
}

std::size_t BlockCopier::way_of(const Descriptors& descriptors, Direction direction, Stream stream) const {
  const bool pending = !driver_->idle(stream);
  const CopyTable* chosen = nullptr;
  for (const CopyTable& table : tables_) {
    if (table.direction == direction && (chosen == nullptr || table.pending == pending)) chosen = &table;
  }
  const auto count = static_cast<double>(descriptors.size());
  const auto bytes = std::accumulate(descriptors.bytes.begin(), descriptors.bytes.end(), std::size_t{0});
  const std::size_t row = range_of(chosen->size_limits, static_cast<double>(bytes) / count);
  return chosen->ways[row * (chosen->count_limits.size() + 1) + range_of(chosen->count_limits, count)];
}

ListCopier& BlockCopier::copier(const Key& key) {
  std::unique_ptr<ListCopier>& found = copiers_[key];
  if (found) return *found;
  const CopyWay& way = ways_[key.way];
  if (way.sms > 0) {
    found = make_sm_copier(key.bulk ? way.bulk : way.lanes, {way.sms, key.direction, way.inline_up_to});
  } else {
    BatchOptions options = way.batch;
    options.attributes.order = key.any ? AccessOrder::any : AccessOrder::stream;
    if (key.direction == Direction::d2h) options.prime_up_to_bytes = 0;
    found = make_batch_copier(driver_, key.direction, options);
  }
  return *found;
}

Descriptors BlockCopier::without_empty(const Descriptors& descriptors) {
  filled_.sources.clear();
  filled_.destinations.clear();
  filled_.bytes.clear();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    if (descriptors.bytes[i] == 0) continue;
    filled_.sources.push_back(descriptors.sources[i]);
    filled_.destinations.push_back(descriptors.destinations[i]);
    filled_.bytes.push_back(descriptors.bytes[i]);
  }
  return filled_.view();
}

}  // namespace kvbench
