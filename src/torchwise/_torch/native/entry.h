// The call of a wrapper whose decision is to stay with eager, or which a plan answers. It counts the call, and hands it
// on.
//
// It takes the slot of `__call__` in a class of wrappers, whose attribute of that name stays as it is in Python. So a
// compiler that reads the class finds code that it can trace. All other calls are left to the slot that was there.
#pragma once

#include "served.h"

namespace {

constexpr Py_ssize_t MOST_ARGUMENTS = 32;
ternaryfunc call_in_python = nullptr;  // the slot of every class that has a `__call__` in Python
PyObject* call_by_torch = nullptr;     // the `__call__` of a module for which its `_call_impl` will do, or None

struct Names {
  PyObject *torchwise, *is_eager_only, *statistics, *stayed, *original, *call, *call_impl, *compiled;
  PyObject* hooks[4];
};
Names names;

bool make_names() {
  return intern_names({{&names.torchwise, "_torchwise"},
                       {&names.is_eager_only, "is_eager_only"},
                       {&names.statistics, "statistics"},
                       {&names.stayed, "stayed"},
                       {&names.original, "original"},
                       {&names.call, "__call__"},
                       {&names.call_impl, "_call_impl"},
                       {&names.compiled, "_compiled_call_impl"},
                       {&names.hooks[0], "_forward_hooks"},
                       {&names.hooks[1], "_forward_pre_hooks"},
                       {&names.hooks[2], "_backward_hooks"},
                       {&names.hooks[3], "_backward_pre_hooks"}});
}

// The attributes of an object of one of our own classes, or null.
Ref find_attributes(PyObject* object) {
  Ref found(PyObject_GenericGetDict(object, nullptr));
  if (!found) PyErr_Clear();
  return found && PyDict_CheckExact(found.get()) ? std::move(found) : Ref();
}

// What answers the calls of a wrapper, its attributes and its counts, or nothing if hooks of the wrapper have to run.
struct Behind {
  Ref served, own, statistics;
};

Behind find_behind(PyObject* wrapper, bool has_hooks) {
  Ref attributes = find_attributes(wrapper);
  if (!attributes) return {};
  for (PyObject* name : names.hooks) {
    PyObject* hooks = has_hooks ? PyDict_GetItemWithError(attributes.get(), name) : nullptr;
    if (has_hooks && (hooks == nullptr || !PyDict_Check(hooks) || PyDict_GET_SIZE(hooks) != 0)) return {};
  }
  Ref served = Ref::to(PyDict_GetItemWithError(attributes.get(), names.torchwise));
  Ref own = served ? find_attributes(served.get()) : Ref();
  Ref statistics = own ? Ref::to(PyDict_GetItemWithError(own.get(), names.statistics)) : Ref();
  return {std::move(served), std::move(own), std::move(statistics)};
}

// Count a call that stays with eager, and return the original, or null if another has to take the call.
Ref count_eager(const Behind& behind) {
  if (PyDict_GetItemWithError(behind.own.get(), names.is_eager_only) != Py_True) return Ref();
  Ref original = Ref::to(PyDict_GetItemWithError(behind.own.get(), names.original));
  bool is_counted = original && count_call(behind.statistics.get(), names.stayed);
  return is_counted ? std::move(original) : Ref();
}

// Whether the call of a module is PyTorch's own, which does no more than its `_call_impl`.
bool calls_plainly(PyObject* original) {
  if (_PyType_Lookup(Py_TYPE(original), names.call) != call_by_torch) return false;
  Ref compiled(PyObject_GetAttr(original, names.compiled));
  if (!compiled) PyErr_Clear();
  return compiled.get() == Py_None;
}

PyObject* call_wrapper(PyObject* wrapper, PyObject* args, PyObject* keywords, bool has_hooks) {
  Behind behind = find_behind(wrapper, has_hooks);
  Ref original = behind.statistics ? count_eager(behind) : Ref();
  if (!original) {
    PyErr_Clear();
    std::optional<PyObject*> answer;
    if (behind.statistics) {
      answer = answer_by_plan(behind.served.get(), behind.own.get(), behind.statistics.get(), args, keywords);
    }
    return answer ? *answer : call_in_python(wrapper, args, keywords);
  }
  Py_ssize_t given = PyTuple_GET_SIZE(args);
  if (!has_hooks || given >= MOST_ARGUMENTS || !calls_plainly(original.get())) {
    return PyObject_Call(original.get(), args, keywords);
  }
  Ref call(PyObject_GetAttr(original.get(), names.call_impl));
  if (!call) return nullptr;
  if (!PyMethod_Check(call.get())) return PyObject_Call(call.get(), args, keywords);
  PyObject* handed[MOST_ARGUMENTS] = {PyMethod_GET_SELF(call.get())};  // a bound method would do so by itself, slower
  for (Py_ssize_t at = 0; at < given; ++at) handed[at + 1] = PyTuple_GET_ITEM(args, at);
  return PyObject_VectorcallDict(PyMethod_GET_FUNCTION(call.get()), handed, static_cast<size_t>(given + 1), keywords);
}

PyObject* call_module(PyObject* wrapper, PyObject* args, PyObject* keywords) {
  return call_wrapper(wrapper, args, keywords, true);
}

PyObject* call_function(PyObject* wrapper, PyObject* args, PyObject* keywords) {
  return call_wrapper(wrapper, args, keywords, false);
}

// enter(class of wrappers, whether they have hooks as modules do, PyTorch's own `__call__` or None, the class of what
// answers by a plan, PyTorch's `is_autocast_enabled`)
PyObject* enter(PyObject*, PyObject* args) {
  PyObject *type = nullptr, *by_torch = nullptr, *served = nullptr, *autocast = nullptr;
  int has_hooks = 0;
  if (!PyArg_ParseTuple(args, "O!pOO!O", &PyType_Type, &type, &has_hooks, &by_torch, &PyType_Type, &served, &autocast) ||
      !make_names() || !make_served_names()) {
    return nullptr;
  }
  auto* kind = reinterpret_cast<PyTypeObject*>(type);
  if (kind->tp_call == call_module || kind->tp_call == call_function) Py_RETURN_NONE;
  if (!PyType_HasFeature(kind, Py_TPFLAGS_HEAPTYPE) || kind->tp_call == nullptr ||
      (call_in_python != nullptr && kind->tp_call != call_in_python)) {
    PyErr_SetString(PyExc_TypeError, "the class has no __call__ in Python");
    return nullptr;
  }
  call_in_python = kind->tp_call;
  Ref torch_before(std::exchange(call_by_torch, Py_NewRef(by_torch)));  // which may run code when they are freed
  Ref autocast_before(std::exchange(is_autocast_enabled, Py_NewRef(autocast)));
  auto* type_of_served = reinterpret_cast<PyTypeObject*>(Py_NewRef(served));
  Ref served_before(reinterpret_cast<PyObject*>(std::exchange(dispatcher_type, type_of_served)));
  kind->tp_call = has_hooks ? call_module : call_function;
  PyType_Modified(kind);
  Py_RETURN_NONE;
}

}  // namespace
