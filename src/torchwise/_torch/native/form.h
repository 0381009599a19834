// The form of a tensor, and how a reference to an object is held.
#pragma once

#include <Python.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#if PY_VERSION_HEX >= 0x030D0000
#error "Python 3.13 does not count all writes to a dict: it keeps attributes outside of it"
#endif
#ifdef Py_GIL_DISABLED
#error "these checks rely on the lock of the interpreter"
#endif

namespace {

// A reference to an object, which it owns.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* before = object_;
    object_ = other.release();
    Py_XDECREF(before);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// The class of tensors, and the place of the pointer to the C++ tensor in its objects. `configure` finds it: the header
// that declares it would take ten of the seconds in which this is compiled.
PyTypeObject* tensor_type = nullptr;
size_t tensor_offset = 0;

bool is_tensor(PyObject* object) { return tensor_type != nullptr && PyType_IsSubtype(Py_TYPE(object), tensor_type); }

c10::TensorImpl* find_tensor(PyObject* object) {
  c10::TensorImpl* found = nullptr;
  memcpy(&found, reinterpret_cast<const char*>(object) + tensor_offset, sizeof found);
  return found;
}

bool place_is_right(PyObject* samples, size_t offset) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(samples); ++at) {
    PyObject *tensor = nullptr, *address = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(samples, at), "OO!", &tensor, &PyLong_Type, &address)) return false;
    void* found = nullptr;
    memcpy(&found, reinterpret_cast<const char*>(tensor) + offset, sizeof found);
    if (!PyType_IsSubtype(Py_TYPE(tensor), tensor_type) || found != PyLong_AsVoidPtr(address)) return false;
  }
  return PyTuple_GET_SIZE(samples) > 1;
}

// configure(class, pairs of a tensor and the address of its C++ tensor)
PyObject* configure(PyObject*, PyObject* args) {
  PyObject *type = nullptr, *samples = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &type, &PyTuple_Type, &samples)) return nullptr;
  PyTypeObject* before = std::exchange(tensor_type, reinterpret_cast<PyTypeObject*>(Py_NewRef(type)));
  Py_XDECREF(reinterpret_cast<PyObject*>(before));
  size_t size = static_cast<size_t>(tensor_type->tp_basicsize);
  for (size_t offset = sizeof(PyObject); offset + sizeof(void*) <= size; offset += sizeof(void*)) {
    if (place_is_right(samples, offset)) {
      tensor_offset = offset;
      Py_RETURN_NONE;
    }
    PyErr_Clear();
  }
  Py_CLEAR(tensor_type);
  PyErr_SetString(PyExc_ImportError, "this PyTorch keeps its tensors at no place that is known");
  return nullptr;
}

enum class Answer { no, yes, ask };

// The form of a tensor: all that PyTorch's own guards compare, without the modes of the thread.
struct Form {
  PyTypeObject* kind;
  uint64_t keys;  // layout, lazy negation and conjugation, transforms, inference mode
  caffe2::TypeMeta dtype;
  c10::Device device;
  c10::SmallVector<int64_t, 6> sizes, strides;
  bool requires_grad;
  uintptr_t address;

  explicit Form(PyObject* object) : Form(object, *find_tensor(object)) {}
  Form(PyObject* object, const c10::TensorImpl& tensor)
      : kind(Py_TYPE(object)),
        keys(tensor.key_set().raw_repr()),
        dtype(tensor.dtype()),
        device(tensor.device()),
        sizes(tensor.sizes().begin(), tensor.sizes().end()),
        strides(tensor.strides().begin(), tensor.strides().end()),
        requires_grad(tensor.requires_grad()),
        address(address_of(tensor)) {}

  // As `Tensor.data_ptr` does: a lazy copy gets memory of its own, as compiled code would give it.
  static uintptr_t address_of(const c10::TensorImpl& tensor) {
    return reinterpret_cast<uintptr_t>(const_cast<c10::TensorImpl&>(tensor).mutable_data());
  }

  // The keys come first: a nested or sparse tensor has others, and no strides.
  bool fits(PyObject* object, uintptr_t& found) const {
    if (Py_TYPE(object) != kind) return false;
    if (find_tensor(object) == nullptr) return false;  // it is being freed
    const c10::TensorImpl& tensor = *find_tensor(object);
    if (tensor.key_set().raw_repr() != keys || tensor.dtype() != dtype || tensor.device() != device) return false;
    if (tensor.sizes() != c10::IntArrayRef(sizes) || tensor.strides() != c10::IntArrayRef(strides)) return false;
    if (tensor.requires_grad() != requires_grad) return false;
    found = address_of(tensor);
    return true;
  }
};

bool make_forms(PyObject* tensors, std::vector<Form>& forms) {
  forms.reserve(PyTuple_GET_SIZE(tensors));
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(tensors); ++at) {
    PyObject* tensor = PyTuple_GET_ITEM(tensors, at);
    if (!is_tensor(tensor) || find_tensor(tensor) == nullptr) {
      PyErr_SetString(PyExc_TypeError, "only tensors are compared by their form");
      return false;
    }
    forms.emplace_back(tensor);
  }
  return true;
}

}  // namespace
