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

#include "launch.h"

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

// What a region on a GPU has in place of code: a kernel, and its own forms.
struct OnGpu {
  Entry entry;
  Form forms[MOST];
  Launch launch;
  PyObject* draw;  // returns a new seed, or null
  PyObject* work;  // memory that programs share, of the stream of the last call
  void* stream;
};

static void free_kernel(OnGpu* gpu) {
  if (gpu) {
    Py_CLEAR(gpu->draw);
    Py_CLEAR(gpu->work);
  }
  for (int place = 0; gpu && place < gpu->entry.inputs; ++place) std::free((void*)gpu->forms[place].sizes);
  std::free(gpu);
}

struct Region {
  PyObject_HEAD vectorcallfunc vectorcall;
  const Entry* entry;  // null until a kernel is there
  const DLPackExchangeAPI* api;
  DLDevice device;
  OnGpu* gpu;  // null on a CPU
  PyObject *original, *empty_like, *prototypes, *tensor, *parameter, *kept;
};

static bool read_pointer(const Region* self, PyObject* given, const Form* form, void** pointer) {
  if ((PyObject*)Py_TYPE(given) != self->tensor && (PyObject*)Py_TYPE(given) != self->parameter) return false;
  DLTensor seen;
  if (self->api->dltensor_from_py_object_no_sync(given, &seen)) {
    PyErr_Clear();
    return false;
  }
  if (seen.device.device_type != self->device.device_type || seen.device.device_id != self->device.device_id ||
      seen.dtype.lanes != 1)
    return false;
  if (form) {
    if (seen.dtype.code != form->code || seen.dtype.bits != form->bits || seen.ndim != form->ndim) return false;
    for (int dim = 0; dim < form->ndim; ++dim)
      if (seen.shape[dim] != form->sizes[dim] || (form->sizes[dim] != 1 && seen.strides[dim] != form->strides[dim]))
        return false;
  }
  *pointer = (char*)seen.data + seen.byte_offset;
  return seen.data != nullptr;
}

// Return memory for the programs of a kernel to share, or null. Kernels of a stream run one after another, so that it
// serves all of them. A graph that is captured keeps its own, as it may be replayed on any stream.
static PyObject* get_work(const Region* self, void* stream, bool is_captured) {
  OnGpu* gpu = self->gpu;
  if (gpu->work && gpu->stream == stream && !is_captured) return Py_NewRef(gpu->work);
  PyObject* prototype = PyTuple_GET_ITEM(self->prototypes, gpu->entry.outputs);
  PyObject* made = PyObject_Vectorcall(self->empty_like, &prototype, 1, nullptr);
  if (made && !is_captured) {
    gpu->stream = stream;
    Py_XSETREF(gpu->work, Py_NewRef(made));
  }
  return made;
}

// Start the kernel of a region on a GPU, and return whether that failed.
static bool start_kernel(const Region* self, void** pointers) {
  const Launch& launch = self->gpu->launch;
  int count = self->entry->inputs + self->entry->outputs;
  for (int place = 0; place < self->entry->inputs; ++place)
    if ((uintptr_t)pointers[place] & launch.masks[place]) return true;
  void *stream = nullptr, *seed_at = nullptr, *work_at = nullptr;
  if (!launch.is_possible() ||
      self->api->current_work_stream(self->device.device_type, self->device.device_id, &stream)) {
    PyErr_Clear();
    return true;
  }
  PyObject *seed = nullptr, *work = nullptr;
  bool has_work = PyTuple_GET_SIZE(self->prototypes) > self->entry->outputs, has_all = true;
  if (has_work) {
    work = get_work(self, stream, launch.is_captured(stream));
    has_all = work && read_pointer(self, work, nullptr, &work_at);
  }
  if (has_all && self->gpu->draw) {
    seed = PyObject_CallNoArgs(self->gpu->draw);
    has_all = seed && read_pointer(self, seed, nullptr, &seed_at);
  }
  int failed = !has_all;
  if (has_all) {
    Py_BEGIN_ALLOW_THREADS failed = launch.run(pointers, count, seed_at, work_at, stream);
    Py_END_ALLOW_THREADS
  } else {
    PyErr_Clear();
  }
  Py_XDECREF(seed);
  Py_XDECREF(work);
  return failed != 0;
}

static PyObject* call_region(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
  const Region* self = (const Region*)object;
  const Entry* entry = self->entry;
  void* pointers[MOST];
  bool fits = entry && PyVectorcall_NARGS(flags) == entry->inputs && !names;
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
  if (fits && self->gpu) {
    failed = start_kernel(self, pointers);
  } else if (fits && entry->is_long) {
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
  Py_VISIT(self->kept);
  return 0;
}

static int clear_region(PyObject* object) {
  Region* self = (Region*)object;
  Py_CLEAR(self->original);
  Py_CLEAR(self->empty_like);
  Py_CLEAR(self->prototypes);
  Py_CLEAR(self->tensor);
  Py_CLEAR(self->parameter);
  Py_CLEAR(self->kept);
  return 0;
}

static void free_region(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_region(object);
  free_kernel(((Region*)object)->gpu);
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

// Return a region without its entry, or null.
static Region* begin_region(PyObject* capsule, PyObject* original, PyObject* empty_like, PyObject* prototypes,
                            PyObject* tensor, PyObject* parameter) {
  const DLPackExchangeAPI* api = (const DLPackExchangeAPI*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!api) return nullptr;
  if (api->header.version.major != DLPACK_MAJOR_VERSION || !api->dltensor_from_py_object_no_sync) {
    PyErr_SetString(PyExc_ValueError, "the region and this PyTorch do not fit");
    return nullptr;
  }
  Region* self = PyObject_GC_New(Region, &RegionType);
  if (!self) return nullptr;
  self->vectorcall = call_region;
  self->entry = nullptr;
  self->api = api;
  self->device = {kDLCPU, 0};
  self->gpu = nullptr;
  self->original = Py_NewRef(original);
  self->empty_like = Py_NewRef(empty_like);
  self->prototypes = Py_NewRef(prototypes);
  self->tensor = Py_NewRef(tensor);
  self->parameter = Py_NewRef(parameter);
  self->kept = nullptr;
  return self;
}

// make(number, exchange API, original, empty_like, prototypes, Tensor, Parameter)
static PyObject* make_region(PyObject*, PyObject* args) {
  int number;
  PyObject *capsule, *original, *empty_like, *prototypes, *tensor, *parameter;
  if (!PyArg_ParseTuple(args, "iOOOO!OO", &number, &capsule, &original, &empty_like, &PyTuple_Type, &prototypes,
                        &tensor, &parameter))
    return nullptr;
  if (number < 0 || number >= COUNT || PyTuple_GET_SIZE(prototypes) != ENTRIES[number].outputs) {
    PyErr_SetString(PyExc_ValueError, "there is no such region");
    return nullptr;
  }
  Region* self = begin_region(capsule, original, empty_like, prototypes, tensor, parameter);
  if (!self) return nullptr;
  self->entry = ENTRIES + number;
  PyObject_GC_Track(self);
  return (PyObject*)self;
}

// Read an input's type, sizes, strides, and the bits of its address that must be zero.
static bool read_form(PyObject* tuple, OnGpu* gpu) {
  int code, bits, place = gpu->entry.inputs;
  unsigned long long mask;
  PyObject *sizes, *strides;
  if (!PyArg_ParseTuple(tuple, "iiO!O!K", &code, &bits, &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &mask))
    return false;
  int ndim = (int)PyTuple_GET_SIZE(sizes);
  int64_t* numbers = (int64_t*)std::calloc(2 * ndim + 1, sizeof(int64_t));
  if (!numbers) return PyErr_NoMemory() != nullptr;
  gpu->forms[place] = {(uint8_t)code, (uint8_t)bits, ndim, numbers, numbers + ndim};
  gpu->launch.masks[place] = (uintptr_t)mask;
  gpu->entry.inputs += 1;  // from here on it is freed
  for (int dim = 0; dim < ndim && dim < PyTuple_GET_SIZE(strides); ++dim) {
    numbers[dim] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, dim));
    numbers[ndim + dim] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, dim));
  }
  return !PyErr_Occurred();
}

static bool read_addresses(PyObject* addresses, Launch* launch) {
  void* found[MOST + 5];
  int count = (int)PyTuple_GET_SIZE(addresses);
  for (int place = 0; place < count; ++place) found[place] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, place));
  launch->start = (decltype(launch->start))found[0];
  launch->get_context = (decltype(launch->get_context))found[1];
  launch->get_capture = (decltype(launch->get_capture))found[2];
  launch->context = found[3];
  launch->function = found[4];
  launch->number_of_constants = count - 5;
  for (int place = 5; place < count; ++place) launch->constants[place - 5] = found[place];
  return !PyErr_Occurred();
}

// make_kernel(exchange API, original, empty_like, Tensor, Parameter)
//
// Make a region whose calls the original answers until it has a kernel.
static PyObject* make_kernel(PyObject*, PyObject* args) {
  PyObject *capsule, *original, *empty_like, *tensor, *parameter;
  if (!PyArg_ParseTuple(args, "OOOOO", &capsule, &original, &empty_like, &tensor, &parameter)) return nullptr;
  Region* self = begin_region(capsule, original, empty_like, Py_None, tensor, parameter);
  if (self) PyObject_GC_Track(self);
  return (PyObject*)self;
}

// set_kernel(region, prototypes, outputs, device, forms, addresses, (programs, threads, shared, cluster), draw, kept)
//
// The prototypes may have one more tensor than there are outputs, for memory that programs share. The addresses are
// those of the driver's three functions, the context, the kernel, and then constants. `draw` returns the seed of a call, or
// is None. `kept` is kept alive.
static PyObject* set_kernel(PyObject*, PyObject* args) {
  PyObject *object, *prototypes, *forms, *addresses, *draw, *kept;
  int outputs, type, id;
  unsigned programs, threads, shared, cluster;
  if (!PyArg_ParseTuple(args, "O!O!i(ii)O!O!(IIII)OO", &RegionType, &object, &PyTuple_Type, &prototypes, &outputs, &type,
                        &id, &PyTuple_Type, &forms, &PyTuple_Type, &addresses, &programs, &threads, &shared, &cluster,
                        &draw, &kept))
    return nullptr;
  Region* self = (Region*)object;
  Py_ssize_t made = PyTuple_GET_SIZE(prototypes), given = PyTuple_GET_SIZE(addresses);
  if (self->entry || given < 5 || (made != outputs && made != outputs + 1) ||
      PyTuple_GET_SIZE(forms) + outputs + given > MOST) {
    PyErr_SetString(PyExc_ValueError, "the region has a kernel, or this one has too many tensors or too few addresses");
    return nullptr;
  }
  OnGpu* gpu = (OnGpu*)std::calloc(1, sizeof(OnGpu));
  if (!gpu) return PyErr_NoMemory();
  gpu->launch.programs = programs;
  gpu->launch.threads = threads;
  gpu->launch.shared = shared;
  gpu->launch.cluster = cluster;
  gpu->entry = {0, outputs, gpu->forms, nullptr, false};
  bool is_read = read_addresses(addresses, &gpu->launch);
  for (Py_ssize_t place = 0; is_read && place < PyTuple_GET_SIZE(forms); ++place)
    is_read = read_form(PyTuple_GET_ITEM(forms, place), gpu);
  if (!is_read) {
    free_kernel(gpu);
    return nullptr;
  }
  gpu->draw = draw == Py_None ? nullptr : Py_NewRef(draw);
  Py_SETREF(self->prototypes, Py_NewRef(prototypes));
  self->kept = Py_NewRef(kept);
  self->device = {(DLDeviceType)type, id};
  self->gpu = gpu;
  self->entry = &gpu->entry;
  Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {{"make", make_region, METH_VARARGS, "Make a region."},
                                {"make_kernel", make_kernel, METH_VARARGS, "Make a region without a kernel yet."},
                                {"set_kernel", set_kernel, METH_VARARGS, "Give it a kernel."},
                                {nullptr, nullptr, 0, nullptr}};
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
