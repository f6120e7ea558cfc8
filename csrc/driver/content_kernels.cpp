#include "driver/content_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvbench {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 4096;

}  // namespace

const Memory& Scratch::of(std::size_t bytes) {
  if (bytes > bytes_) {
    release();
    memory_ = driver_.allocate(kind_, bytes);
    bytes_ = bytes;
  }
  return memory_;
}

void Scratch::release() noexcept {
  if (bytes_ > 0) driver_.release(kind_, memory_, bytes_);
  bytes_ = 0;
}

ContentKernels::ContentKernels(Driver& driver, std::span<const std::byte> cubin)
    : driver_(driver),
      write_(driver.load_kernel(cubin, "kvbench_write_content", 0)),
      audit_(driver.load_kernel(cubin, "kvbench_audit_content", 0)) {}

void ContentKernels::write(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) {
  if (stretches.empty()) return;
  launch(write_, stretches, 0, seed, stream);
  driver_.synchronize(stream);
}

AuditCount ContentKernels::audit(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) {
  AuditCount mismatches{0, kNowhere};
  if (stretches.empty()) return mismatches;
  const Memory& counted = counted_.of(sizeof(mismatches));
  const Memory& staged = staged_.of(sizeof(mismatches));
  auto* host = reinterpret_cast<void*>(staged.address);
  std::memcpy(host, &mismatches, sizeof(mismatches));
  driver_.transfer(counted.address, staged.address, sizeof(mismatches), Direction::h2d, stream);
  launch(audit_, stretches, counted.address, seed, stream);
  driver_.transfer(staged.address, counted.address, sizeof(mismatches), Direction::d2h, stream);
  driver_.synchronize(stream);
  std::memcpy(&mismatches, host, sizeof(mismatches));
  return mismatches;
}

void ContentKernels::launch(Kernel kernel, std::span<const Stretch> stretches, Address mismatches, std::uint64_t seed,
                            Stream stream) {
  const Memory& table = table_.of(stretches.size_bytes());
  std::memcpy(reinterpret_cast<void*>(table.address), stretches.data(), stretches.size_bytes());
  PoolWork work{table.device_address, stretches.size(), mismatches, seed};
  std::array<void*, 1> arguments{&work};
  const Grid grid{static_cast<unsigned>(std::min(stretches.size(), kMostBlocks)), kThreads, 0};
  driver_.launch(kernel, grid, arguments.data(), stream);
}

}  // namespace kvbench
