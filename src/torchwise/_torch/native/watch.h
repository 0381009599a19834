// Watch: whether a model and its code are certainly as they were.
#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "form.h"

// Its own header includes one that PyTorch does not ship.
namespace at::functorch {
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch

namespace {

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // of ma_version_tag, from Python 3.12 on

struct Count {
  PyObject* dict;  // kept alive by `kept`
  uint64_t version;
  Py_ssize_t size;  // some updates of an empty dict are not counted from Python 3.12 on
};

struct Class {
  PyObject* object;
  PyTypeObject* type;
};

struct Hooks {
  PyObject* dict;
  PyObject* numbers;  // in their order, of which a dict with an order of its own keeps no count
};

struct Watch {
  PyObject_HEAD
  PyObject* kept;  // all objects that the vectors name, or null before `reset`
  PyObject* closely;
  PyObject* weak_references;
  vectorcallfunc vectorcall;
  std::vector<Count> counts;
  std::vector<Class> classes;
  std::vector<Hooks> hooks;
  std::vector<PyObject*> tensors, empty, functions, defaulted, keyworded;
  std::vector<Form> forms;
  PyObject *codes, *defaults, *level, *level_name;  // borrowed from `kept`
  bool modes;       // whether transforms and modes of the dispatcher count
  bool is_boolean;  // whether True stands for "unchanged", and not None
};

uint64_t version_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }

bool is_at_rest(const Watch& self) {
  if (self.modes) {
    if (c10::impl::TorchDispatchModeTLS::stack_len() != 0 || !at::functorch::getDynamicLayerStack().empty()) {
      return false;
    }
    PyObject* level = PyDict_GetItemWithError(self.level, self.level_name);
    if (level == nullptr || !PyLong_CheckExact(level)) {
      PyErr_Clear();
      return false;
    }
    int overflow = 0;
    if (PyLong_AsLongAndOverflow(level, &overflow) >= 0 || overflow != 0) return false;
  }
  return std::all_of(self.empty.begin(), self.empty.end(), [](PyObject* dict) { return PyDict_GET_SIZE(dict) == 0; });
}

bool has_same_code(const Watch& self) {
  size_t count = self.functions.size(), defaulted = self.defaulted.size(), keyworded = self.keyworded.size();
  if (static_cast<size_t>(PyList_GET_SIZE(self.codes)) != count ||
      static_cast<size_t>(PyList_GET_SIZE(self.defaults)) != defaulted + keyworded) {
    return false;
  }
  for (size_t at = 0; at < count; ++at) {
    if (PyFunction_GET_CODE(self.functions[at]) != PyList_GET_ITEM(self.codes, at)) return false;
  }
  for (size_t at = 0; at < defaulted; ++at) {
    if (PyFunction_GET_DEFAULTS(self.defaulted[at]) != PyList_GET_ITEM(self.defaults, at)) return false;
  }
  for (size_t at = 0; at < keyworded; ++at) {
    PyObject* now = PyFunction_GET_KW_DEFAULTS(self.keyworded[at]);
    if (now != PyList_GET_ITEM(self.defaults, defaulted + at)) return false;
  }
  return true;
}

// Compare hooks by their numbers, in order. Making the tuple may collect garbage, and so run any code: the caller holds
// the dict and the numbers.
bool has_same_hooks(PyObject* dict, PyObject* numbers) {
  Py_ssize_t count = PyTuple_GET_SIZE(numbers);
  if (PyDict_GET_SIZE(dict) != count) return false;
  if (count == 0) return true;
  Ref now(PySequence_Tuple(dict));
  if (!now) PyErr_Clear();
  if (!now || PyTuple_GET_SIZE(now.get()) != count) return false;
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject *one = PyTuple_GET_ITEM(now.get(), at), *before = PyTuple_GET_ITEM(numbers, at);
    if (one == before) continue;
    if (!PyLong_CheckExact(one) || !PyLong_CheckExact(before)) return false;
    if (PyObject_RichCompareBool(one, before, Py_EQ) != 1) return false;
  }
  return true;
}

bool is_unchanged(const Watch& self) {
  if (self.kept == nullptr || !is_at_rest(self)) return false;
  for (const Class& one : self.classes) {
    if (Py_TYPE(one.object) != one.type) return false;
  }
  if (self.codes != nullptr && !has_same_code(self)) return false;
  for (size_t at = 0; at < self.tensors.size(); ++at) {
    uintptr_t address = 0;
    if (!self.forms[at].fits(self.tensors[at], address) || address != self.forms[at].address) return false;
  }
  Ref kept = Ref::to(self.kept);  // or a reset meanwhile would free the hooks
  for (size_t at = 0; at < self.hooks.size(); ++at) {
    if (!has_same_hooks(self.hooks[at].dict, self.hooks[at].numbers) || self.kept != kept.get()) return false;
  }
  return true;
}

bool has_no_writes(const Watch& self) {
  return std::all_of(self.counts.begin(), self.counts.end(), [](const Count& count) {
    return version_of(count.dict) == count.version && PyDict_GET_SIZE(count.dict) == count.size;
  });
}

// Ask Python, which may run any code. The counts of before hold if nothing changed: a later write counts as one.
PyObject* look_closely(Watch* self) {
  Ref kept = Ref::to(self->kept);
  std::vector<Count> now;
  for (const Count& count : self->counts) {
    now.push_back({count.dict, version_of(count.dict), PyDict_GET_SIZE(count.dict)});
  }
  Ref closely = Ref::to(self->closely);
  Ref found(PyObject_CallNoArgs(closely.get()));
  PyObject* same = self->is_boolean ? Py_True : Py_None;
  if (found.get() == same && self->kept == kept.get()) self->counts.swap(now);
  return found.release();
}

PyObject* call_watch(PyObject* object, PyObject* const*, size_t flags, PyObject*) {
  auto* self = reinterpret_cast<Watch*>(object);
  if (PyVectorcall_NARGS(flags) != 0) {
    PyErr_SetString(PyExc_TypeError, "a watch takes no arguments");
    return nullptr;
  }
  bool is_same = false;
  try {
    is_same = has_no_writes(*self) && is_unchanged(*self);
  } catch (...) {  // a tensor without memory
  }
  if (is_same) return Py_NewRef(self->is_boolean ? Py_True : Py_None);
  return look_closely(self);
}

PyObject* new_watch(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* closely = nullptr;
  int is_boolean = 0;
  if (!PyArg_ParseTuple(args, "Op", &closely, &is_boolean)) return nullptr;
  auto* self = reinterpret_cast<Watch*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  new (&self->counts) std::vector<Count>();
  new (&self->classes) std::vector<Class>();
  new (&self->hooks) std::vector<Hooks>();
  for (auto* objects : {&self->tensors, &self->empty, &self->functions, &self->defaulted, &self->keyworded}) {
    new (objects) std::vector<PyObject*>();
  }
  new (&self->forms) std::vector<Form>();
  self->vectorcall = call_watch;
  self->closely = Py_NewRef(closely);
  self->is_boolean = is_boolean != 0;
  return reinterpret_cast<PyObject*>(self);
}

bool refuse(const char* message) {
  PyErr_SetString(PyExc_TypeError, message);
  return false;
}

bool read_objects(PyObject* given, std::vector<PyObject*>& into, bool (*fits)(PyObject*), const char* message) {
  into.clear();
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(given); ++at) {
    PyObject* one = PyTuple_GET_ITEM(given, at);
    if (!fits(one)) return refuse(message);
    into.push_back(one);
  }
  return true;
}

bool is_dict(PyObject* object) { return PyDict_Check(object); }
bool is_function(PyObject* object) { return PyFunction_Check(object); }

bool is_tuple(PyObject* object) { return PyTuple_Check(object); }

bool read_pairs(Watch* self, PyObject* objects, PyObject* hooks) {
  std::vector<PyObject*> pairs;
  for (PyObject* given : {objects, hooks}) {
    if (!read_objects(given, pairs, is_tuple, "objects have a class, and hooks their numbers, in a pair")) return false;
  }
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(objects); ++at) {
    PyObject *object = nullptr, *type = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(objects, at), "OO!", &object, &PyType_Type, &type)) return false;
    self->classes.push_back({object, reinterpret_cast<PyTypeObject*>(type)});
  }
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(hooks); ++at) {
    PyObject *dict = nullptr, *numbers = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(hooks, at), "O!O!", &PyDict_Type, &dict, &PyTuple_Type, &numbers)) {
      return false;
    }
    if (!PyDict_CheckExact(dict) && !PyODict_CheckExact(dict)) return refuse("hooks are in a usual dict");
    self->hooks.push_back({dict, numbers});
  }
  return true;
}

void forget(Watch* self) {
  self->counts.clear();
  self->classes.clear();
  self->hooks.clear();
  for (auto* objects : {&self->tensors, &self->empty, &self->functions, &self->defaulted, &self->keyworded}) {
    objects->clear();
  }
  self->forms.clear();
  self->codes = self->defaults = self->level = self->level_name = nullptr;
  self->modes = false;
  Py_CLEAR(self->kept);
}

// reset(dicts, objects with classes, hooks with numbers, tensors, code or None, modes or None)
PyObject* reset_watch(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Watch*>(object);
  PyObject *dicts = nullptr, *objects = nullptr, *hooks = nullptr, *tensors = nullptr, *code = nullptr,
           *modes = nullptr;
  PyTypeObject* tuple = &PyTuple_Type;
  if (!PyArg_ParseTuple(args, "O!O!O!O!OO", tuple, &dicts, tuple, &objects, tuple, &hooks, tuple, &tensors, &code,
                        &modes)) {
    return nullptr;
  }
  forget(self);
  bool is_read = false;
  try {
    std::vector<PyObject*> counted;
    is_read = read_objects(dicts, counted, is_dict, "only writes to dicts are counted") &&
              read_objects(tensors, self->tensors, is_tensor, "only tensors have a form") &&
              make_forms(tensors, self->forms) && read_pairs(self, objects, hooks);
    for (PyObject* dict : counted) self->counts.push_back({dict, version_of(dict), PyDict_GET_SIZE(dict)});
    if (is_read && ((code != Py_None && !PyTuple_Check(code)) || (modes != Py_None && !PyTuple_Check(modes)))) {
      is_read = refuse("code and modes are tuples or None");
    }
    if (is_read && code != Py_None) {
      PyObject *functions = nullptr, *defaulted = nullptr, *keyworded = nullptr;
      const char* message = "code and defaults are those of functions";
      is_read = PyArg_ParseTuple(code, "O!O!O!O!O!", tuple, &functions, tuple, &defaulted, tuple, &keyworded,
                                 &PyList_Type, &self->codes, &PyList_Type, &self->defaults) &&
                read_objects(functions, self->functions, is_function, message) &&
                read_objects(defaulted, self->defaulted, is_function, message) &&
                read_objects(keyworded, self->keyworded, is_function, message);
    }
    if (is_read && modes != Py_None) {
      PyObject* empty = nullptr;
      is_read = PyArg_ParseTuple(modes, "O!O!U", tuple, &empty, &PyDict_Type, &self->level, &self->level_name) &&
                read_objects(empty, self->empty, is_dict, "hooks of all modules are kept in dicts");
      self->modes = true;
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    is_read = false;
  }
  if (!is_read) {
    forget(self);
    return nullptr;
  }
  self->kept = Py_NewRef(args);
  Py_RETURN_NONE;
}

int traverse_watch(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Watch*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->kept);
  Py_VISIT(self->closely);
  return 0;
}

int clear_watch(PyObject* object) {
  auto* self = reinterpret_cast<Watch*>(object);
  forget(self);
  PyObject* closely = self->closely;
  self->closely = Py_NewRef(Py_None);
  Py_XDECREF(closely);
  return 0;
}

void free_watch(PyObject* object) {
  auto* self = reinterpret_cast<Watch*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  PyObject_ClearWeakRefs(object);
  forget(self);
  using Objects = std::vector<PyObject*>;
  using Counts = std::vector<Count>;
  using Classes = std::vector<Class>;
  using AllHooks = std::vector<Hooks>;
  using Forms = std::vector<Form>;
  for (auto* objects : {&self->tensors, &self->empty, &self->functions, &self->defaulted, &self->keyworded}) {
    objects->~Objects();
  }
  self->counts.~Counts();
  self->classes.~Classes();
  self->hooks.~AllHooks();
  self->forms.~Forms();
  Py_XDECREF(self->closely);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace
