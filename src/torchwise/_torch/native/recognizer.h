// Recognizer: whether a call has the signature of an earlier one.
#pragma once

#include "form.h"

namespace {

enum class Kind { tensor, sequence, dict, plain, fields, opaque };

struct Step {
  Kind kind;
  PyTypeObject* type;  // of a sequence or of an object with fields, which `program` keeps alive
  PyObject* value;     // names, or a plain value
  Py_ssize_t count;
};

struct Recognizer {
  PyObject_HEAD
  PyObject* program;
  PyObject* closely;
  vectorcallfunc vectorcall;
  std::vector<Step> steps;
  std::vector<Form> forms;
  std::vector<int64_t> reaches;
  std::vector<uintptr_t> addresses;
  bool overlaps;
};

bool equals_number(double one, double other) {
  return memcmp(&one, &other, sizeof one) == 0 || (one != one && other != other);
}

// Compare plain values of one type, which runs no code of the program. 0.0 is not -0.0, and NaN is NaN.
bool equals_plain(PyObject* one, PyObject* other) {
  if (Py_TYPE(one) != Py_TYPE(other)) return false;
  if (PyFloat_CheckExact(one)) return equals_number(PyFloat_AS_DOUBLE(one), PyFloat_AS_DOUBLE(other));
  if (PyComplex_CheckExact(one)) {
    Py_complex a = PyComplex_AsCComplex(one), b = PyComplex_AsCComplex(other);
    return equals_number(a.real, b.real) && equals_number(a.imag, b.imag);
  }
  if (one == other) return true;
  if (!PyLong_CheckExact(one) && !PyUnicode_CheckExact(one)) return false;
  int same = PyObject_RichCompareBool(one, other, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

struct Walk {
  const Recognizer& known;
  c10::SmallVector<uintptr_t, 32> addresses;
  c10::SmallVector<PyObject*, 4> empty;  // tensors without elements, which have no address
  size_t next = 0;

  Answer walk(PyObject* object) {
    if (next >= known.steps.size()) return Answer::no;
    const Step& step = known.steps[next++];
    switch (step.kind) {
      case Kind::tensor:
        return walk_tensor(object);
      case Kind::plain:
        return equals_plain(object, step.value) ? Answer::yes : Answer::no;
      case Kind::sequence:
        return Py_TYPE(object) == step.type ? walk_sequence(object, step.count) : Answer::no;
      case Kind::dict:
        return PyDict_CheckExact(object) ? walk_dict(object, step.value) : Answer::no;
      case Kind::fields:
        return Py_TYPE(object) == step.type ? walk_fields(object, step.value) : Answer::no;
      case Kind::opaque:  // which counts by its class alone
        return Py_TYPE(object) == step.type ? Answer::yes : Answer::no;
    }
    return Answer::ask;
  }

  Answer walk_tensor(PyObject* object) {
    uintptr_t address = 0;
    const Form& form = known.forms[addresses.size()];
    if (Py_TYPE(object) != tensor_type || !form.fits(object, address)) {
      return Answer::no;
    }
    if (known.reaches[addresses.size()] == 0) {
      if (std::find(empty.begin(), empty.end(), object) != empty.end()) return Answer::no;  // one tensor twice
      empty.push_back(object);
    }
    addresses.push_back(address);
    return Answer::yes;
  }

  // Reading a field may run code, which may change a container meanwhile. So its items are held, and counted each time.
  Answer walk_sequence(PyObject* object, Py_ssize_t count) {
    bool is_list = PyList_Check(object);
    for (Py_ssize_t at = 0; at < count; ++at) {
      if (Py_SIZE(object) != count) return Answer::no;
      Ref item = Ref::to(is_list ? PyList_GET_ITEM(object, at) : PyTuple_GET_ITEM(object, at));
      Answer answer = walk(item.get());
      if (answer != Answer::yes) return answer;
    }
    return Py_SIZE(object) == count ? Answer::yes : Answer::no;
  }

  Answer walk_dict(PyObject* object, PyObject* names) {
    Py_ssize_t position = 0, count = PyTuple_GET_SIZE(names);
    if (PyDict_GET_SIZE(object) != count) return Answer::no;
    for (Py_ssize_t at = 0; at < count; ++at) {
      PyObject *key = nullptr, *value = nullptr;
      if (!PyDict_Next(object, &position, &key, &value)) return Answer::no;
      if (!PyUnicode_CheckExact(key)) return Answer::no;
      PyObject* name = PyTuple_GET_ITEM(names, at);
      if (key != name && PyUnicode_Compare(key, name) != 0) return Answer::no;
      Ref item = Ref::to(value);
      Answer answer = walk(item.get());
      if (answer != Answer::yes) return answer;
    }
    return PyDict_GET_SIZE(object) == count ? Answer::yes : Answer::no;
  }

  Answer walk_fields(PyObject* object, PyObject* names) {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(names); ++at) {
      Ref value(PyObject_GetAttr(object, PyTuple_GET_ITEM(names, at)));
      if (!value) {  // Python says what an error means, but an interrupt is passed on
        if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
        return Answer::ask;
      }
      Answer answer = walk(value.get());
      if (answer != Answer::yes) return answer;
    }
    return Answer::yes;
  }

  bool is_disjoint() const {
    struct Range {
      uintptr_t begin, end;
    };
    c10::SmallVector<Range, 32> ranges;
    for (size_t at = 0; at < addresses.size(); ++at) {
      ranges.push_back({addresses[at], addresses[at] + static_cast<uintptr_t>(known.reaches[at])});
    }
    std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
    for (size_t at = 1; at < ranges.size(); ++at) {
      if (ranges[at - 1].end > ranges[at].begin) return false;
    }
    return true;
  }
};

bool takes_addresses(Recognizer* self, const Walk& walk) {
  if (walk.addresses.size() != self->addresses.size()) return false;
  std::copy(walk.addresses.begin(), walk.addresses.end(), self->addresses.begin());
  return true;
}

PyObject* call_recognizer(PyObject* object, PyObject* const* given, size_t flags, PyObject* keywords) {
  auto* self = reinterpret_cast<Recognizer*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count < 1 || count > 2 || (keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a recognizer takes the tuple of arguments and the dict of named ones");
    return nullptr;
  }
  Ref named = count == 2 ? Ref::to(given[1]) : Ref(PyDict_New());
  if (!named) return nullptr;
  Walk walk{*self};
  Answer answer = Answer::ask;
  try {
    answer = walk.walk(given[0]);
    if (answer == Answer::yes) answer = walk.walk(named.get());
    if (answer == Answer::yes && walk.next != self->steps.size()) answer = Answer::no;
    bool is_usual = self->addresses.size() < 2 || std::equal(self->addresses.begin(), self->addresses.end(),
                                                             walk.addresses.begin(), walk.addresses.end());
    if (answer == Answer::yes && !is_usual) {
      if (!self->overlaps && walk.is_disjoint()) {
        takes_addresses(self, walk);
      } else {
        answer = Answer::ask;
      }
    }
  } catch (...) {  // a tensor without memory, and others that tell no sizes
    answer = Answer::ask;
  }
  if (answer != Answer::ask) return PyBool_FromLong(answer == Answer::yes);
  if (PyErr_Occurred()) return nullptr;
  PyObject* arguments[] = {given[0], named.get()};
  Ref found(PyObject_Vectorcall(self->closely, arguments, 2, nullptr));
  if (found.get() == Py_True) takes_addresses(self, walk);
  return found.release();
}

bool read_steps(Recognizer* self) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(self->program); ++at) {
    PyObject* entry = PyTuple_GET_ITEM(self->program, at);
    Step step{Kind::plain, nullptr, nullptr, 0};
    int kind = 0;
    PyObject* type = nullptr;
    if (!PyTuple_Check(entry)) {
      PyErr_SetString(PyExc_TypeError, "a step of a call is a tuple");
      return false;
    }
    if (!PyArg_ParseTuple(entry, "iOOn", &kind, &type, &step.value, &step.count)) return false;
    step.kind = static_cast<Kind>(kind);
    bool has_type = step.kind == Kind::sequence || step.kind == Kind::fields || step.kind == Kind::opaque;
    if (kind < 0 || kind > 5 || (has_type && !PyType_Check(type))) {
      PyErr_SetString(PyExc_ValueError, "a step of a call has a kind from 0 to 5, and sequences and objects a class");
      return false;
    }
    bool has_names = step.kind == Kind::dict || step.kind == Kind::fields;
    if (has_names && !PyTuple_CheckExact(step.value)) {
      PyErr_SetString(PyExc_TypeError, "the names in a dict or object are a tuple");
      return false;
    }
    for (Py_ssize_t name = 0; has_names && name < PyTuple_GET_SIZE(step.value); ++name) {
      if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(step.value, name))) {
        PyErr_SetString(PyExc_TypeError, "the names in a dict or object are texts");
        return false;
      }
    }
    if (has_type) step.type = reinterpret_cast<PyTypeObject*>(type);
    if (step.kind == Kind::sequence && !PyType_FastSubclass(step.type, Py_TPFLAGS_LIST_SUBCLASS) &&
        !PyType_FastSubclass(step.type, Py_TPFLAGS_TUPLE_SUBCLASS)) {
      PyErr_SetString(PyExc_TypeError, "a sequence is a tuple or a list");
      return false;
    }
    self->steps.push_back(step);
  }
  return true;
}

PyObject* new_recognizer(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *program = nullptr, *tensors = nullptr, *reaches = nullptr, *closely = nullptr;
  int overlaps = 0;
  if (!PyArg_ParseTuple(args, "O!O!O!pO", &PyTuple_Type, &program, &PyTuple_Type, &tensors, &PyTuple_Type,
                        &reaches, &overlaps, &closely)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Recognizer*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  Ref made(reinterpret_cast<PyObject*>(self));
  new (&self->steps) std::vector<Step>();
  new (&self->forms) std::vector<Form>();
  new (&self->reaches) std::vector<int64_t>();
  new (&self->addresses) std::vector<uintptr_t>();
  self->vectorcall = call_recognizer;
  self->program = Py_NewRef(program);
  self->closely = Py_NewRef(closely);
  self->overlaps = overlaps != 0;
  try {
    if (!read_steps(self) || !make_forms(tensors, self->forms)) return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  size_t expected = std::count_if(self->steps.begin(), self->steps.end(),
                                  [](const Step& step) { return step.kind == Kind::tensor; });
  if (self->forms.size() != expected || PyTuple_GET_SIZE(reaches) != static_cast<Py_ssize_t>(expected)) {
    PyErr_SetString(PyExc_ValueError, "there are not as many tensors and reaches as steps for tensors");
    return nullptr;
  }
  for (const Form& form : self->forms) self->addresses.push_back(form.address);
  for (size_t at = 0; at < expected; ++at) {
    self->reaches.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(reaches, at)));
  }
  return PyErr_Occurred() ? nullptr : made.release();
}

int traverse_recognizer(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Recognizer*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->program);
  Py_VISIT(self->closely);
  return 0;
}

// The steps borrow from the program, so nothing but `closely` is given up before the end: every circle passes there.
int clear_recognizer(PyObject* object) {
  auto* self = reinterpret_cast<Recognizer*>(object);
  self->steps.clear();
  Py_CLEAR(self->closely);
  self->closely = Py_NewRef(Py_None);
  return 0;
}

void free_recognizer(PyObject* object) {
  auto* self = reinterpret_cast<Recognizer*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  using Steps = std::vector<Step>;
  using Forms = std::vector<Form>;
  using Reaches = std::vector<int64_t>;
  using Addresses = std::vector<uintptr_t>;
  self->steps.~Steps();
  self->forms.~Forms();
  self->reaches.~Reaches();
  self->addresses.~Addresses();
  Py_XDECREF(self->program);
  Py_XDECREF(self->closely);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace
