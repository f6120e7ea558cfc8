#include <dlfcn.h>

#include "driver/api.hpp"
#include "driver/error.hpp"

namespace kvbench::cuda {
namespace {

using GetProcAddress = Result (*)(const char*, void**, int version, std::uint64_t flags, int* status);

/// Oldest CUDA version with all entry points that the engine needs, except the batched copy.
constexpr int kBaseVersion = 12000;

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw DriverError("dlopen(" + path + ")", dlerror());
    resolve_ = reinterpret_cast<GetProcAddress>(dlsym(handle_, "cuGetProcAddress_v2"));
    if (resolve_ == nullptr) {
      dlclose(handle_);
      throw DriverError("dlsym(cuGetProcAddress_v2)", "the driver is older than CUDA 12.0");
    }
  }
  // libcuda has its own threads and is therefore never unloaded.
  ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Entry>
  bool find(const char* name, int version, Entry& entry) const {
    void* address = nullptr;
    int status = 0;
    if (resolve_(name, &address, version, 0, &status) != kSuccess || address == nullptr) return false;
    entry = reinterpret_cast<Entry>(address);
    return true;
  }

  template <typename Entry>
  void require(const char* name, Entry& entry) const {
    if (!find(name, kBaseVersion, entry)) throw DriverError("cuGetProcAddress", std::string(name) + " not found");
  }

 private:
  void* handle_;
  GetProcAddress resolve_ = nullptr;
};

}  // namespace

Api load_api(const std::string& path) {
  const Library library(path);
  Api api;
#define KVBENCH_CUDA_REQUIRE(member, name, parameters) library.require(name, api.member);
  KVBENCH_CUDA_ENTRIES(KVBENCH_CUDA_REQUIRE)
#undef KVBENCH_CUDA_REQUIRE
  // The 13.0 headers renamed the symbol to a signature without failIdx. For a version newer than itself a driver can
  // return an older signature, so each signature is requested only from drivers that have it.
  int version = 0;
  api.driver_get_version(&version);
  if (version >= 13000) {
    library.find("cuMemcpyBatchAsync", 13000, api.batch_async_13_0);
  } else if (version >= 12080) {
    library.find("cuMemcpyBatchAsync", 12080, api.batch_async_12_8);
  }
  return api;
}

}  // namespace kvbench::cuda
