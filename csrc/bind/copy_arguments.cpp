#include "bind/copy_arguments.hpp"

#include <string>

namespace kvbench::bind {
namespace {

/// DLPackExchangeAPI of dlpack.h 1.x: tensors of a type, without their attributes. A tensor takes 0.1 us, by
/// __dlpack__ 3 us.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void* managed_allocator;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* tensor);
  void* current_stream;
};

/// torch's type of tensors, and its exchange.
struct Torch {
  nb::handle tensor;
  const ExchangeApi* exchange;
};

/// Forgets that a question has no answer; what is none, such as KeyboardInterrupt, goes on to the caller.
void clear_error() {
  if (!PyErr_Occurred()) return;
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
  PyErr_Clear();
}

/// Null for a process without torch, or with one before 2.10, which has no exchange.
const Torch* torch() {
  static const Torch* found = nullptr;
  static PyObject* const name = PyUnicode_InternFromString("torch");
  if (found) return found;
  const nb::object module = nb::steal(PyImport_GetModule(name));
  PyErr_Clear();
  if (!module) return nullptr;
  const nb::object tensor = nb::getattr(module, "Tensor", nb::none());
  const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  const auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  return api && api->major == 1 && api->tensor_from_object ? found = new Torch{tensor.inc_ref(), api} : nullptr;
}

[[noreturn]] void refuse(const char* name) {
  clear_error();
  throw nb::type_error(
      (std::string(name) + " must be a contiguous CPU array or tensor of 64-bit integers, aligned to 8 bytes").c_str());
}

bool is_whole(const nb::dlpack::dtype& type) {
  return type.bits == 64 && type.lanes == 1 &&
         (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) ||
          type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt));
}

/// nanobind 2.15 reads the strides of a buffer, which those of ctypes do not have.
bool lacks_strides(nb::handle array) {
  if (!PyObject_CheckBuffer(array.ptr()) || nb::hasattr(array, "__dlpack__")) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_RECORDS_RO) != 0) return true;
  const bool lacks = view.strides == nullptr;
  PyBuffer_Release(&view);
  return lacks;
}

using Words64 = std::span<const std::uint64_t>;

Words64 words_at(const void* address, std::size_t count, const char* name) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(address) % sizeof(std::uint64_t) == 0;
  if (count > 0 && (address == nullptr || !is_aligned)) refuse(name);
  return {static_cast<const std::uint64_t*>(address), count};
}

Words64 exchanged(const Torch& torch, nb::handle array, const char* name) {
  constexpr std::int32_t kCpu = 1, kPinned = 3;
  nb::dlpack::dltensor tensor{};
  if (torch.exchange->tensor_from_object(array.ptr(), &tensor) != 0) refuse(name);
  const bool is_cpu = tensor.device.device_type == kCpu || tensor.device.device_type == kPinned;
  if (!is_cpu || tensor.ndim != 1 || !is_whole(tensor.dtype)) refuse(name);
  const auto count = static_cast<std::size_t>(tensor.shape[0]);
  if (count > 1 && tensor.strides != nullptr && tensor.strides[0] != 1) refuse(name);
  return words_at(static_cast<const char*>(tensor.data) + tensor.byte_offset, count, name);
}

Stream stream_of(nb::handle stream) {
  static PyObject* const cuda_stream = PyUnicode_InternFromString("cuda_stream");
  nb::object handle = nb::borrow(stream);
  if (!PyLong_Check(handle.ptr())) {
    handle = nb::steal(PyObject_GetAttr(stream.ptr(), cuda_stream));
    clear_error();
  }
  if (!handle || !PyLong_Check(handle.ptr()) || PyBool_Check(handle.ptr())) {
    throw nb::type_error("stream must be a torch stream or the handle of a CUDA stream");
  }
  const auto value = static_cast<Stream>(PyLong_AsUnsignedLongLong(handle.ptr()));
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw nb::value_error("stream must be the handle of a CUDA stream, which is not negative and has 64 bits");
  }
  return value;
}

}  // namespace

CopyArguments::CopyArguments(nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream)
    : list_{words_of(sources, "sources", kept_[0]), words_of(destinations, "destinations", kept_[1]),
            words_of(sizes, "sizes", kept_[2])},
      stream_(stream_of(stream)) {
  if (list_.sources.size() != list_.size() || list_.destinations.size() != list_.size()) {
    throw nb::value_error("sources, destinations and sizes must have the same length");
  }
}

/// A tensor of torch itself, of no type that derives from it, is read in place: the caller keeps it.
Words64 CopyArguments::words_of(nb::handle array, const char* name, Numbers& kept) {
  const Torch* const here = torch();
  if (here && array.type().is(here->tensor)) return exchanged(*here, array, name);
  if (lacks_strides(array) || !nb::try_cast(array, kept, false) || !is_whole(kept.dtype())) refuse(name);
  return words_at(kept.data(), kept.size(), name);
}

}  // namespace kvbench::bind
