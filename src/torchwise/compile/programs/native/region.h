// A region as an object that Python calls with tensors. Each call checks all of them before it computes anything.
//
// A call with other tensors than the region is for, or whose indices are out of bounds, is answered by the operators
// themselves (`original`).
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <ATen/dlpack.h>
#include <cstdint>
#include <cstdlib>

struct Form {
  uint8_t code, bits;
  int ndim;
  const int64_t *sizes, *strides;
};

struct Entry {
  int inputs, outputs;
  const Form* forms;  // of the inputs
  int (*run)(void** pointers);
  bool is_long;
};

struct Region {
  PyObject_HEAD vectorcallfunc vectorcall;
  const Entry* entry;
  const DLPackExchangeAPI* api;
  PyObject *original, *empty_like, *prototypes, *tensor, *parameter;
};

static const int MOST = 256;  // tensors of a region, which the generator keeps

static bool read_pointer(const Region* self, PyObject* given, const Form* form, void** pointer) {
  if ((PyObject*)Py_TYPE(given) != self->tensor && (PyObject*)Py_TYPE(given) != self->parameter) return false;
  DLTensor seen;
  if (self->api->dltensor_from_py_object_no_sync(given, &seen)) {
    PyErr_Clear();
    return false;
  }
  if (seen.device.device_type != kDLCPU || seen.dtype.lanes != 1) return false;
  if (form) {
    if (seen.dtype.code != form->code || seen.dtype.bits != form->bits || seen.ndim != form->ndim) return false;
    for (int dim = 0; dim < form->ndim; ++dim)
      if (seen.shape[dim] != form->sizes[dim] || (form->sizes[dim] != 1 && seen.strides[dim] != form->strides[dim]))
        return false;
  }
  *pointer = (char*)seen.data + seen.byte_offset;
  return seen.data != nullptr;
}

static PyObject* call_region(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  const Region* self = (const Region*)object;
  const Entry* entry = self->entry;
  void* pointers[MOST];
  bool fits = PyVectorcall_NARGS(flags) == entry->inputs && !names;
  for (int place = 0; fits && place < entry->inputs; ++place)
    fits = read_pointer(self, args[place], entry->forms + place, pointers + place);
  if (!fits) return PyObject_Vectorcall(self->original, args, flags, names);
  PyObject* found = PyTuple_New(entry->outputs);
  if (!found) return nullptr;
  for (int place = 0; place < entry->outputs; ++place) {
    PyObject* prototype = PyTuple_GET_ITEM(self->prototypes, place);
    PyObject* made = PyObject_Vectorcall(self->empty_like, &prototype, 1, nullptr);
    if (!made) {
      Py_DECREF(found);
      return nullptr;
    }
    PyTuple_SET_ITEM(found, place, made);
    fits = fits && read_pointer(self, made, nullptr, pointers + entry->inputs + place);
  }
  int failed = !fits;
  if (fits && entry->is_long) {
    Py_BEGIN_ALLOW_THREADS failed = entry->run(pointers);
    Py_END_ALLOW_THREADS
  } else if (fits) {
    failed = entry->run(pointers);
  }
  if (!failed) return found;
  Py_DECREF(found);
  return PyObject_Vectorcall(self->original, args, flags, names);
}

static int visit_region(PyObject* object, visitproc visit, void* arg) {
  Region* self = (Region*)object;
  Py_VISIT(self->original);
  Py_VISIT(self->empty_like);
  Py_VISIT(self->prototypes);
  Py_VISIT(self->tensor);
  Py_VISIT(self->parameter);
  return 0;
}

static int clear_region(PyObject* object) {
  Region* self = (Region*)object;
  Py_CLEAR(self->original);
  Py_CLEAR(self->empty_like);
  Py_CLEAR(self->prototypes);
  Py_CLEAR(self->tensor);
  Py_CLEAR(self->parameter);
  return 0;
}

static void free_region(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_region(object);
  PyObject_GC_Del(object);
}

static PyObject* name_region(PyObject*, void*) { return PyUnicode_FromString("region"); }  // by which FX calls it
static PyObject* name_module(PyObject*, void*) { return PyUnicode_FromString("torchwise_rows"); }
static PyObject* is_native(PyObject*, void*) { Py_RETURN_TRUE; }  // Dynamo has nothing to trace in it
static PyGetSetDef ATTRIBUTES[] = {{"is_native", is_native, nullptr, nullptr, nullptr},
                                   {"__name__", name_region, nullptr, nullptr, nullptr},
                                   {"__module__", name_module, nullptr, nullptr, nullptr},
                                   {nullptr, nullptr, nullptr, nullptr, nullptr}};

static PyTypeObject RegionType = {PyVarObject_HEAD_INIT(nullptr, 0)};

extern const Entry ENTRIES[];
extern const int COUNT;

// make(number, exchange API, original, empty_like, prototypes, Tensor, Parameter)
static PyObject* make_region(PyObject*, PyObject* args) {
  int number;
  PyObject *capsule, *original, *empty_like, *prototypes, *tensor, *parameter;
  if (!PyArg_ParseTuple(args, "iOOOO!OO", &number, &capsule, &original, &empty_like, &PyTuple_Type, &prototypes,
                        &tensor, &parameter))
    return nullptr;
  const DLPackExchangeAPI* api = (const DLPackExchangeAPI*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!api) return nullptr;
  if (api->header.version.major != DLPACK_MAJOR_VERSION || !api->dltensor_from_py_object_no_sync || number < 0 ||
      number >= COUNT || PyTuple_GET_SIZE(prototypes) != ENTRIES[number].outputs) {
    PyErr_SetString(PyExc_ValueError, "the region and this PyTorch do not fit");
    return nullptr;
  }
  Region* self = PyObject_GC_New(Region, &RegionType);
  if (!self) return nullptr;
  self->vectorcall = call_region;
  self->entry = ENTRIES + number;
  self->api = api;
  self->original = Py_NewRef(original);
  self->empty_like = Py_NewRef(empty_like);
  self->prototypes = Py_NewRef(prototypes);
  self->tensor = Py_NewRef(tensor);
  self->parameter = Py_NewRef(parameter);
  PyObject_GC_Track(self);
  return (PyObject*)self;
}

static PyMethodDef METHODS[] = {{"make", make_region, METH_VARARGS, "Make a region."}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "torchwise_rows", nullptr, -1, METHODS, 0, 0, 0, 0};

PyMODINIT_FUNC PyInit_torchwise_rows() {
  RegionType.tp_name = "torchwise_rows.Region";
  RegionType.tp_basicsize = sizeof(Region);
  RegionType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  RegionType.tp_vectorcall_offset = offsetof(Region, vectorcall);
  RegionType.tp_call = PyVectorcall_Call;
  RegionType.tp_traverse = visit_region;
  RegionType.tp_clear = clear_region;
  RegionType.tp_dealloc = free_region;
  RegionType.tp_getset = ATTRIBUTES;
  if (PyType_Ready(&RegionType) < 0) return nullptr;
  return PyModule_Create(&MODULE);
}

// Memory between the kernels of a region, one piece for each thread.
struct Workspace {
  char* memory = nullptr;
  char* get(size_t bytes) {
    if (!memory) memory = (char*)std::aligned_alloc(64, bytes);
    return memory;
  }
  ~Workspace() { std::free(memory); }
};
