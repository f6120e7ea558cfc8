#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind/bind.hpp"
#include "driver/error.hpp"

namespace kvbench::bind {
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
    nb::object said = engine_error()(error.what());
    said.attr("call") = error.call();
    said.attr("name") = error.name();
    said.attr("descriptor") = error.descriptor();
    PyErr_SetObject(engine_error().ptr(), said.ptr());
  }
}

}  // namespace

void errors(nb::module_& m) {
  m.attr("EngineError") = engine_error();
  nb::register_exception_translator(translate);
}

}  // namespace kvbench::bind
