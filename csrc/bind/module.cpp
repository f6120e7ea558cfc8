#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind/bind.hpp"
#include "driver/error.hpp"

using namespace kvbench;
namespace nb = nanobind;

namespace {

// Its attributes are declared in stub_patterns.txt, because the type itself does not show them.
nb::object& engine_error() {
  static nb::object* type = nullptr;
  if (type == nullptr) {
    type = new nb::object(nb::steal(PyErr_NewExceptionWithDoc(
        "kvbench._engine.EngineError",
        "A failed driver call: `call`, the driver's error `name`, and `descriptor` (index or None).",
        PyExc_RuntimeError, nullptr)));
  }
  return *type;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError& error) {
    nb::object raised = engine_error()(error.what());
    raised.attr("call") = error.call();
    raised.attr("name") = error.name();
    raised.attr("descriptor") = error.descriptor();
    PyErr_SetObject(engine_error().ptr(), raised.ptr());
  }
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The swap engine: descriptors submitted on streams, timed without Python in between.";
  m.attr("SOURCE_HASH") = KVBENCH_SOURCE_HASH;
  // No leak warnings: at interpreter exit a test session or a plug-in can still hold a device.
  nb::set_leak_warnings(false);
  m.attr("EngineError") = engine_error();
  nb::register_exception_translator(translate);
  bind::driver(m);
  bind::resources(m);
  bind::swaps(m);
  bind::copier(m);
  bind::timing(m);
}
