// The call of a wrapper that a plan answers: the usual case of `Dispatcher.__call__`, in the same order.
#pragma once

#include <c10/core/GradMode.h>

#include <optional>

#include "form.h"

namespace {

PyTypeObject* dispatcher_type = nullptr;  // the class whose calls are taken, and no subclass of it
PyObject* is_autocast_enabled = nullptr;

struct ServedNames {
  PyObject *refusal, *last, *changed, *latency, *device, *every, *optimized, *handle_failure;
};
ServedNames served_names;

struct Name {
  PyObject** to;
  const char* text;
};

template <size_t count>
bool intern_names(const Name (&all)[count]) {
  return std::all_of(std::begin(all), std::end(all), [](const Name& name) {
    return *name.to != nullptr || (*name.to = PyUnicode_InternFromString(name.text)) != nullptr;
  });
}

bool make_served_names() {
  return intern_names({{&served_names.refusal, "_refusal"},
                       {&served_names.last, "_last"},
                       {&served_names.changed, "_changed"},
                       {&served_names.latency, "_latency"},
                       {&served_names.device, "_device"},
                       {&served_names.every, "every"},
                       {&served_names.optimized, "optimized"},
                       {&served_names.handle_failure, "answer_after_failure"}});
}

// A number in an attribute, or -1, with or without an error.
long long read_number(PyObject* object, PyObject* name) {
  Ref found(PyObject_GetAttr(object, name));
  return found && PyLong_CheckExact(found.get()) ? PyLong_AsLongLong(found.get()) : -1;
}

// Add one to a count of calls, or set an error.
bool count_call(PyObject* statistics, PyObject* name) {
  Ref before(PyObject_GetAttr(statistics, name)), one(PyLong_FromLong(1));
  Ref more(before && one ? PyNumber_Add(before.get(), one.get()) : nullptr);
  return more && PyObject_SetAttr(statistics, name, more.get()) == 0;
}

// Have Python answer after an error of the plan.
PyObject* answer_after_failure(PyObject* served, PyObject* args, PyObject* named) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  Ref error(value);
  return PyObject_CallMethodObjArgs(served, served_names.handle_failure, error.get(), args, named, nullptr);
}

// Whether the plan of `served` may answer a call now, and without being timed. `call` is what answers then.
bool is_usual(PyObject* own, PyObject* statistics, PyObject* args, PyObject* named, Ref& call) {
  if (PyDict_GetItemWithError(own, served_names.refusal) != Py_None || c10::GradMode::is_enabled()) return false;
  Ref last = Ref::to(PyDict_GetItemWithError(own, served_names.last));
  Ref changed = Ref::to(PyDict_GetItemWithError(own, served_names.changed));
  Ref latency = Ref::to(PyDict_GetItemWithError(own, served_names.latency));
  Ref device = Ref::to(PyDict_GetItemWithError(own, served_names.device));
  if (!last || !changed || !latency || !device || !PyTuple_CheckExact(last.get()) || PyTuple_GET_SIZE(last.get()) != 2) {
    return false;
  }
  PyObject* given[] = {args, named};
  Ref is_known(PyObject_Vectorcall(PyTuple_GET_ITEM(last.get(), 0), given, 2, nullptr));
  if (is_known.get() != Py_True) return false;
  Ref casts(PyObject_CallOneArg(is_autocast_enabled, device.get()));
  if (casts.get() != Py_False) return false;
  Ref change(PyObject_CallNoArgs(changed.get()));
  if (change.get() != Py_None) return false;
  long long every = read_number(latency.get(), served_names.every);
  long long answered = read_number(statistics, served_names.optimized);
  if (every <= 0 || answered < 0 || answered % every == 0) return false;
  call = Ref::to(PyTuple_GET_ITEM(last.get(), 1));
  return true;
}

// Answer a call by the plan, or return nothing where Python has to: then nothing has been done. Null is an error.
std::optional<PyObject*> answer_by_plan(PyObject* served, PyObject* own, PyObject* statistics, PyObject* args,
                                        PyObject* keywords) {
  if (Py_TYPE(served) != dispatcher_type) return std::nullopt;
  Ref named = keywords != nullptr ? Ref::to(keywords) : Ref(PyDict_New());
  Ref call;
  if (!named || !is_usual(own, statistics, args, named.get(), call)) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;  // such as an interrupt
    PyErr_Clear();
    return std::nullopt;
  }
  Ref answer(PyObject_Call(call.get(), args, keywords));
  if (answer) return count_call(statistics, served_names.optimized) ? answer.release() : nullptr;
  call = Ref();  // it refers to memory that may have to be freed
  return answer_after_failure(served, args, named.get());
}

}  // namespace
