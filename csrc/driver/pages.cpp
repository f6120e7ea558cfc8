#include "driver/pages.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace kvbench {
namespace {

constexpr unsigned kShiftOf2Mib = 21, kShiftOf1Gib = 30;

unsigned shift_of(MemoryKind kind) {
  if (kind == MemoryKind::huge_2mib) return kShiftOf2Mib;
  return kind == MemoryKind::huge_1gib ? kShiftOf1Gib : 0;
}

std::size_t rounded(MemoryKind kind, std::size_t bytes) {
  const std::size_t page = std::size_t{1} << shift_of(kind);
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void fail(const std::string& call) { throw DriverError(call, strerrorname_np(errno)); }

[[noreturn]] void fail_huge(unsigned shift, std::size_t bytes) {
  const std::string folder =
      "/sys/kernel/mm/hugepages/hugepages-" + std::to_string((std::size_t{1} << shift) / 1024) + "kB/";
  std::size_t free = 0;
  std::ifstream(folder + "free_hugepages") >> free;
  throw DriverError("mmap", std::to_string(bytes >> shift) + " huge pages of " +
                                (shift == kShiftOf2Mib ? "2 MiB" : "1 GiB") + " are needed, " + std::to_string(free) +
                                " are free (" + folder + "nr_hugepages)");
}

/// A file without a name, which lives as long as its mappings.
int open_shared(MemoryKind kind, std::size_t bytes) {
  std::string path = "/dev/shm/kvbench-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) fail("open(/dev/shm)");
  unlink(path.c_str());
  const auto length = static_cast<off_t>(bytes);
  const int failed = kind == MemoryKind::mapped ? ftruncate(file, length) : posix_fallocate(file, 0, length);
  if (failed != 0) {
    close(file);
    if (failed > 0) errno = failed;
    fail("fallocate(/dev/shm)");
  }
  return file;
}

}  // namespace

void* map_pages(MemoryKind kind, std::size_t bytes) {
  const unsigned shift = shift_of(kind);
  const bool in_parts = kind == MemoryKind::mapped;
  const int file = kind == MemoryKind::shared || in_parts ? open_shared(kind, bytes) : -1;
  const int huge = shift > 0 ? MAP_HUGETLB | static_cast<int>(shift << MAP_HUGE_SHIFT) : 0;
  const int flags = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | huge : MAP_SHARED) | (in_parts ? 0 : MAP_POPULATE);
  void* pages = mmap(nullptr, rounded(kind, bytes), PROT_READ | PROT_WRITE, flags, file, 0);
  if (file >= 0) close(file);
  if (pages == MAP_FAILED && shift > 0) fail_huge(shift, rounded(kind, bytes));
  if (pages == MAP_FAILED) fail("mmap");
  return pages;
}

void unmap_pages(MemoryKind kind, void* pages, std::size_t bytes) noexcept { munmap(pages, rounded(kind, bytes)); }

}  // namespace kvbench
