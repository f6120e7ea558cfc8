#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "bind/bind.hpp"
#include "swap/block_copier.hpp"

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
  static const Torch* loaded = nullptr;
  static PyObject* const name = PyUnicode_InternFromString("torch");
  if (loaded) return loaded;
  const nb::object module = nb::steal(PyImport_GetModule(name));
  PyErr_Clear();
  if (!module) return nullptr;
  const nb::object tensor = nb::getattr(module, "Tensor", nb::none());
  const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  const auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  return api && api->major == 1 && api->tensor_from_object ? loaded = new Torch{tensor.inc_ref(), api} : nullptr;
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

using Numbers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// A tensor of torch itself, of no type that derives from it, is read in place: the caller keeps it. What else is
/// exported for a call lies in `exported`.
Words64 words_of(nb::handle array, const char* name, Numbers& exported) {
  const Torch* const loaded = torch();
  if (loaded && array.type().is(loaded->tensor)) return exchanged(*loaded, array, name);
  if (lacks_strides(array) || !nb::try_cast(array, exported, false) || !is_whole(exported.dtype())) refuse(name);
  return words_at(exported.data(), exported.size(), name);
}

/// The arguments of a call of a copier, as an engine passes them, which live as long as this.
struct CopyArguments {
  /// Throws TypeError for an array that is not one of 64-bit integers on the CPU, or for a stream of another type, and
  /// ValueError for arrays of different lengths or a number that no stream has.
  CopyArguments(nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream_argument)
      : list{words_of(sources, "sources", exported[0]), words_of(destinations, "destinations", exported[1]),
             words_of(sizes, "sizes", exported[2])},
        stream(stream_of(stream_argument)) {
    check_lengths(list);
  }

  Numbers exported[3];
  Descriptors list;
  Stream stream;
};

// What a call can say that its swap runs beside; an index here is one of a table, 0 of where it does not say.
constexpr std::array<std::string_view, 4> kBeside{"", "nothing", "decode", "prefill"};

/// Throws ValueError for what is none of `kBeside`, and for what the copier has no table for.
std::size_t beside_of(const BlockCopier& copier, nb::handle named) {
  if (named.is_none()) return 0;
  std::string name;
  if (!nb::try_cast(named, name)) throw nb::type_error("beside: must be \"nothing\", \"decode\" or \"prefill\"");
  const auto position = std::find(kBeside.begin() + 1, kBeside.end(), name);
  if (position == kBeside.end()) throw nb::value_error("beside: must be \"nothing\", \"decode\" or \"prefill\"");
  const auto index = static_cast<std::size_t>(position - kBeside.begin());
  if (!copier.serves(index)) {
    throw nb::value_error("beside: the policy has no table for it; measure it with kvbench sweep beside");
  }
  return index;
}

}  // namespace

void copier(nb::module_& m) {
  nb::class_<CopyWay>(m, "CopyWay", "One way to copy: by a kernel on some SMs; with sms=0 by single or batched copies.")
      .def(nb::init<unsigned, bool, std::shared_ptr<SmKernel>, std::shared_ptr<SmKernel>, std::size_t, double,
                    BatchOptions, bool, std::size_t>(),
           nb::kw_only(), "sms"_a = 0, "one_by_one"_a = false, "aligned"_a = nb::none(), "any"_a = nb::none(),
           "inline_up_to"_a = 0, "pace_gbps"_a = 0.0, "batch"_a = BatchOptions{}, "staged"_a = false,
           "otherwise"_a = 0);
  nb::class_<CopyTable>(m, "CopyTable", "Which way serves which lists, by mean block size and number of blocks.")
      .def(nb::init<Direction, bool, std::vector<double>, std::vector<double>, std::vector<std::size_t>, std::size_t>(),
           nb::kw_only(), "direction"_a, "pending"_a, "size_limits"_a, "count_limits"_a, "ways"_a, "beside"_a = 0);
  nb::class_<BlockCopier>(m, "BlockCopier", "Copies lists of blocks, each in the way that a table names.")
      .def(nb::init<std::shared_ptr<Driver>, std::vector<CopyWay>, std::vector<CopyTable>, std::size_t,
                    const std::vector<BlockCopier::Pool>&>(),
           "driver"_a, "ways"_a, "tables"_a, "max_entries"_a = 0, "pools"_a = std::vector<BlockCopier::Pool>{})
      .def(
          "copy",
          [](BlockCopier& copier, nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream,
             bool source_order_any, nb::handle beside) {
            CopyArguments arguments(sources, destinations, sizes, stream);
            Descriptors& list = arguments.list;
            list.source_order_any = source_order_any;
            list.beside = beside_of(copier, beside);
            const nb::gil_scoped_release release;
            copier.copy(list, arguments.stream);
          },
          "sources"_a.none(), "destinations"_a.none(), "sizes"_a.none(), "stream"_a.none(), nb::kw_only(),
          "source_order_any"_a = false, "beside"_a = nb::none())
      .def("way_of", &BlockCopier::way_of, "blocks"_a, "total_bytes"_a, "direction"_a, nb::kw_only(), "idle"_a,
           "beside"_a = 0, "The index of the way of a list, by whether its stream is idle.")
      .def("not_staged", &BlockCopier::not_staged,
           "How many lists went another way than through pages, which a table names, as they are not in pages.")
      .def("forget", &BlockCopier::forget, "Forget where blocks lie, after memory was freed.")
      .def("__repr__", [](const BlockCopier&) { return "<BlockCopier>"; });
  m.def(
      "copier_swap",
      [](std::shared_ptr<BlockCopier> copier, const Words& sources, const Words& destinations, const Words& sizes,
         bool source_order_any, std::size_t beside) -> std::unique_ptr<Swap> {
        Descriptors list = list_of(sources, destinations, sizes);
        list.source_order_any = source_order_any;
        list.beside = beside;
        return keep_list(std::move(copier), list);
      },
      "copier"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "source_order_any"_a,
      "beside"_a = 0, nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
}

}  // namespace kvbench::bind
