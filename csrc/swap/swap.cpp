#include "swap/swap.hpp"

#include <utility>

namespace kvbench {

void refuse_legacy_stream(Stream stream) {
  if (stream <= cuda::kStreamLegacy) {  // 0 means it, too
    throw DriverError("submit", "the legacy default stream is not supported; create a stream");
  }
}

namespace {

class LoopCopier final : public ListCopier {
 public:
  LoopCopier(std::shared_ptr<Driver> driver, Direction direction) : driver_(std::move(driver)), direction_(direction) {}

  bool copy(const Descriptors& descriptors, Stream stream) override {
    refuse_legacy_stream(stream);
    if (descriptors.route) descriptors.route->check(descriptors);
    count_ = descriptors.size();
    for (std::size_t i = 0; i < count_; ++i) {
      try {
        driver_->copy(descriptors.destinations[i], descriptors.sources[i], descriptors.bytes[i], direction_, stream);
      } catch (const DriverError& error) {
        throw error.at(i);
      }
    }
    return true;
  }
  std::size_t calls() const override { return count_; }
  std::size_t descriptors() const override { return count_; }

 private:
  std::shared_ptr<Driver> driver_;
  Direction direction_;
  std::size_t count_ = 0;
};

class KeptList final : public Swap {
 public:
  KeptList(std::shared_ptr<ListCopier> copier, Descriptors descriptors, bool fell_back)
      : copier_(std::move(copier)), descriptors_(descriptors), fell_back_(fell_back) {}

  void submit(Stream stream) override {
    submitted_ = true;
    if (!copier_->copy(descriptors_, stream)) throw DriverError("submit", "the list is not one for this copier");
  }
  std::size_t calls() const override { return copier_->calls(); }
  std::size_t descriptors() const override { return submitted_ ? copier_->descriptors() : descriptors_.size(); }
  bool fell_back() const override { return fell_back_; }

 private:
  std::shared_ptr<ListCopier> copier_;
  Descriptors descriptors_;
  bool fell_back_;
  bool submitted_ = false;
};

}  // namespace

std::unique_ptr<Swap> keep_list(std::shared_ptr<ListCopier> copier, Descriptors descriptors, bool fell_back) {
  return std::make_unique<KeptList>(std::move(copier), descriptors, fell_back);
}

std::unique_ptr<Swap> make_per_block(std::shared_ptr<Driver> driver, Descriptors descriptors, Direction direction) {
  return keep_list(make_loop_copier(std::move(driver), direction), descriptors);
}

std::unique_ptr<ListCopier> make_loop_copier(std::shared_ptr<Driver> driver, Direction direction) {
  return std::make_unique<LoopCopier>(std::move(driver), direction);
}

}  // namespace kvbench
