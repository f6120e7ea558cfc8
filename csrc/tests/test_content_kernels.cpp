// The kernels of kernels/audit.cu as the host compiles them: threads run one behind the other.
#include <algorithm>
#include <string>
#include <vector>

#include "check.hpp"
#include "driver/content_kernels.hpp"
#include "driver/resources.hpp"
#include "forwarding_driver.hpp"

namespace {

struct Index {
  unsigned x = 0;
};
Index gridDim, blockIdx, blockDim, threadIdx;

void atomicAdd(kvbench::u64* sum, kvbench::u64 value) { *sum += value; }
void atomicMin(kvbench::u64* least, kvbench::u64 value) { *least = std::min(*least, value); }

}  // namespace

#define __global__
#include "kernels/audit.cu"

namespace {

using Offsets = std::vector<std::uint64_t>;

/// A device whose content is written and compared by the kernels.
class KernelDriver final : public ForwardingDriver {
 public:
  Kernel load_kernel(std::span<const std::byte>, const char* name, std::size_t) override {
    return std::string(name) == "kvbench_write_content" ? 1 : 2;
  }
  void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) override {
    synchronize(stream);
    is_running = true;
    most_blocks = std::max(most_blocks, grid.blocks);
    const auto work = *static_cast<const PoolWork*>(arguments[0]);
    gridDim.x = grid.blocks;
    blockDim.x = grid.threads;
    for (blockIdx.x = 0; blockIdx.x < grid.blocks; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < grid.threads; ++threadIdx.x) {
        kernel == 1 ? kvbench_write_content(work) : kvbench_audit_content(work);
      }
    }
  }
  void synchronize(Stream stream) override {
    ForwardingDriver::synchronize(stream);
    is_running = false;
  }
  void write_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    kernels_.write(stretches, seed, stream);
  }
  AuditCount audit_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    return kernels_.audit(stretches, seed, stream);
  }

  bool is_running = false;  ///< whether a kernel was launched since the stream was last awaited
  unsigned most_blocks = 0;

 private:
  ContentKernels kernels_{*this, {}};
};

/// The same pool, written by the kernels and by the host.
struct Bench {
  std::shared_ptr<KernelDriver> driver = std::make_shared<KernelDriver>();
  OwnedStream stream{driver};
  std::size_t size = std::size_t{1} << 20;
  Buffer device{driver, MemoryKind::device, size};
  Buffer host{driver, MemoryKind::allocated, size};

  void write(const Ranges& ranges, std::uint64_t seed) {
    device.write(ranges, seed, stream.handle());
    host.write(ranges, seed, stream.handle());
  }
  unsigned char* byte(std::uint64_t offset) const {
    return reinterpret_cast<unsigned char*>(device.address()) + offset;
  }
  bool same() const { return std::equal(byte(0), byte(size), reinterpret_cast<unsigned char*>(host.address())); }
};

const Offsets kOffsets{3, 64, 1001, 300'007}, kBytes{1, 575, 4096, 600'000}, kSources{9, 0, 77, 12'345};

void kernels_write_what_the_host_writes() {
  Bench bench;
  const Offsets zero{0}, all{bench.size};
  bench.write({zero, all, zero}, 1);
  check::that(bench.same(), "the whole pool");
  bench.write({kOffsets, kBytes, kSources}, 2);
  check::that(bench.same(), "ranges of another pool");
}

void kernels_find_what_the_host_finds() {
  Bench bench;
  const Ranges ranges{kOffsets, kBytes, kSources};
  bench.write(ranges, 2);
  check::equal(bench.device.audit(ranges, 2, bench.stream.handle()).wrong_bytes, 0U, "wrong bytes");
  for (const std::uint64_t offset : {900'006, 300'007, 5096, 1001, 3}) *bench.byte(offset) ^= 0x80;
  const Audit audit = bench.device.audit(ranges, 2, bench.stream.handle());
  check::equal(audit.wrong_bytes, 5U, "wrong bytes");
  check::equal(audit.first_wrong_offset, 3U, "first");
  check::equal(audit.first_wrong_range.value_or(9), 0U, "range");
  check::equal(audit.checked_bytes, 604'672U, "checked bytes");
}

void what_is_written_is_there_when_the_call_returns() {
  Bench bench;
  bench.device.write({kOffsets, kBytes, kSources}, 2, bench.stream.handle());
  check::that(!bench.driver->is_running, "the kernel has ended");
}

void a_grid_is_no_larger_than_a_device_needs() {
  Bench bench;
  const std::size_t count = 5000;  // of ranges: more than a grid has blocks
  Offsets offsets(count);
  for (std::size_t i = 0; i < count; ++i) offsets[i] = 16 * i;
  const Offsets bytes(count, 9);
  const Ranges ranges{offsets, bytes, offsets};
  bench.write(ranges, 3);
  *bench.byte(16 * (count - 1)) ^= 1;
  const Audit audit = bench.device.audit(ranges, 3, bench.stream.handle());
  check::equal(audit.wrong_bytes, 1U, "every range is compared");
  check::that(bench.driver->most_blocks > 0 && bench.driver->most_blocks <= 4096, "blocks of a grid");
}

void no_ranges_are_no_launch() {
  Bench bench;
  const Audit audit = bench.device.audit({}, 2, bench.stream.handle());
  check::equal(audit.wrong_bytes + audit.checked_bytes, 0U, "nothing");
  bench.device.write({}, 2, bench.stream.handle());
}

}  // namespace

int main() {
  return check::run({
      {"kernels write what the host writes", kernels_write_what_the_host_writes},
      {"kernels find what the host finds", kernels_find_what_the_host_finds},
      {"what is written is there when the call returns", what_is_written_is_there_when_the_call_returns},
      {"a grid is no larger than a device needs", a_grid_is_no_larger_than_a_device_needs},
      {"no ranges are no launch", no_ranges_are_no_launch},
  });
}
