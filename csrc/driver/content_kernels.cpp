#include "driver/content_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "driver/resources.hpp"

namespace kvbench {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 4096;

/// The stretches in pinned memory, where a kernel reads each once.
struct Table {
  Table(const std::shared_ptr<Driver>& driver, std::span<const Stretch> stretches)
      : pinned(driver, MemoryKind::allocated, stretches.size_bytes()) {
    std::memcpy(reinterpret_cast<void*>(pinned.address()), stretches.data(), stretches.size_bytes());
  }

  Buffer pinned;
};

Grid grid_for(std::size_t stretches) { return {static_cast<unsigned>(std::min(stretches, kMostBlocks)), kThreads, 0}; }

}  // namespace

ContentKernels::ContentKernels(Driver& driver, std::span<const std::byte> cubin)
    : write_(driver.load_kernel(cubin, "kvbench_write_content", 0)),
      audit_(driver.load_kernel(cubin, "kvbench_audit_content", 0)) {}

void ContentKernels::write(const std::shared_ptr<Driver>& driver, std::span<const Stretch> stretches,
                           const Content& content, Stream stream) const {
  if (stretches.empty()) return;
  const Table table(driver, stretches);
  PoolWork work{table.pinned.device_address(), stretches.size(), 0, content};
  std::array<void*, 1> arguments{&work};
  driver->launch(write_, grid_for(stretches.size()), arguments.data(), stream);
  driver->synchronize(stream);
}

AuditCount ContentKernels::audit(const std::shared_ptr<Driver>& driver, std::span<const Stretch> stretches,
                                 const Content& content, Stream stream) const {
  AuditCount found{0, kNowhere};
  if (stretches.empty()) return found;
  const Table table(driver, stretches);
  const Buffer counted(driver, MemoryKind::device, sizeof(AuditCount));
  const Buffer staged(driver, MemoryKind::allocated, sizeof(AuditCount));
  auto* host = reinterpret_cast<void*>(staged.address());
  std::memcpy(host, &found, sizeof(found));
  driver->transfer(counted.address(), staged.address(), sizeof(found), Direction::h2d, stream);
  PoolWork work{table.pinned.device_address(), stretches.size(), counted.address(), content};
  std::array<void*, 1> arguments{&work};
  driver->launch(audit_, grid_for(stretches.size()), arguments.data(), stream);
  driver->transfer(staged.address(), counted.address(), sizeof(found), Direction::d2h, stream);
  driver->synchronize(stream);
  std::memcpy(&found, host, sizeof(found));
  return found;
}

}  // namespace kvbench
