#include "bind/copy_arguments.hpp"

#include <string>

namespace kvbench::bind {
namespace {

/// DLPackExchangeAPI of dlpack.h 1.x: tensors of a type, without their attributes. A tensor takes 0.1 us, and 3 us by
/// attributes or by __dlpack__.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void* managed_allocator;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* tensor);
  void* current_stream;
};

/// What a process needs of torch once it has imported it.
struct Torch {
  PyObject* tensor;
  PyObject* int64;
  PyObject* uint64;  ///< null before torch 2.3
  ExchangeApi* exchange = nullptr;
};

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

/// Null for a process without torch.
const Torch* torch() {
  static const Torch* found = nullptr;
  static PyObject* const name = interned("torch");
  if (found) return found;
  const nb::object module = nb::steal(PyImport_GetModule(name));
  PyErr_Clear();
  if (!module || !nb::hasattr(module, "Tensor") || !nb::hasattr(module, "int64")) return nullptr;
  const nb::object tensor = module.attr("Tensor");
  auto* made = new Torch{.tensor = tensor.inc_ref().ptr(),
                         .int64 = nb::object(module.attr("int64")).release().ptr(),
                         .uint64 = nb::getattr(module, "uint64", nb::none()).release().ptr()};
  const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_CheckExact(capsule.ptr())) {
    auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    PyErr_Clear();
    if (api && api->major == 1) made->exchange = api;
  }
  return found = made;
}

[[noreturn]] void refuse(const char* name) {
  PyErr_Clear();
  throw nb::type_error((std::string(name) + " must be a contiguous CPU array or tensor of 64-bit integers").c_str());
}

bool is_whole(const nb::dlpack::dtype& type) {
  return type.bits == 64 && type.lanes == 1 &&
         (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) ||
          type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt));
}

using Words64 = std::span<const std::uint64_t>;

Words64 words_at(const void* address, std::size_t count, const char* name) {
  if (address == nullptr && count > 0) refuse(name);
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

/// By its attributes, for torch before 2.10.
Words64 by_attributes(const Torch& torch, nb::handle tensor, const char* name) {
  static PyObject* const is_cpu = interned("is_cpu");
  static PyObject* const dtype = interned("dtype");
  static PyObject* const ndim = interned("ndim");
  static PyObject* const is_contiguous = interned("is_contiguous");
  static PyObject* const data_ptr = interned("data_ptr");
  static PyObject* const numel = interned("numel");
  const auto checked = [name](PyObject* value) {
    if (value == nullptr) refuse(name);
    return nb::steal(value);
  };
  const auto attribute = [&](PyObject* of) { return checked(PyObject_GetAttr(tensor.ptr(), of)); };
  const auto called = [&](PyObject* of) { return checked(PyObject_CallMethodObjArgs(tensor.ptr(), of, nullptr)); };
  const auto number = [](const nb::object& value) {
    return static_cast<std::size_t>(PyLong_AsUnsignedLongLong(value.ptr()));
  };
  const nb::object type = attribute(dtype);
  if (attribute(is_cpu).ptr() != Py_True || (type.ptr() != torch.int64 && type.ptr() != torch.uint64) ||
      number(attribute(ndim)) != 1 || called(is_contiguous).ptr() != Py_True) {
    refuse(name);
  }
  return words_at(reinterpret_cast<const void*>(number(called(data_ptr))), number(called(numel)), name);
}

Stream stream_of(nb::handle stream) {
  static PyObject* const cuda_stream = interned("cuda_stream");
  nb::object handle = nb::borrow(stream);
  if (!PyLong_Check(handle.ptr())) {
    handle = nb::steal(PyObject_GetAttr(stream.ptr(), cuda_stream));
    PyErr_Clear();
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
  if (here && reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == here->tensor) {
    return here->exchange ? exchanged(*here, array, name) : by_attributes(*here, array, name);
  }
  if (!nb::try_cast(array, kept, false) || !is_whole(kept.dtype())) refuse(name);
  return words_at(kept.data(), kept.size(), name);
}

}  // namespace kvbench::bind
