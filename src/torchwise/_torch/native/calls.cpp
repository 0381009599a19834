// The checks of each call, which Python also makes (`compile/signature.py`, `compile/guards`, `runtime/call_guard.py`),
// and the usual replay of a graph (`compile/cuda_graphs`).
//
// A check here answers the usual case alone: everything is as it was. In every other case it asks the check in Python,
// which it was given. So a difference that is missed here is an error, and one too many only costs time.
//
// All types take part in Python's garbage collection, as a check refers to the model that it checks.

#include "entry.h"
#include "recognizer.h"
#include "replay.h"
#include "watch.h"

namespace {

PyMemberDef recognizer_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Recognizer, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyType_Slot recognizer_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_recognizer)},
                                  {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(traverse_recognizer)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear_recognizer)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(free_recognizer)},
                                  {Py_tp_members, recognizer_members},
                                  {0, nullptr}};
PyMemberDef watch_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Watch, vectorcall), READONLY, nullptr},
                               {"__weaklistoffset__", T_PYSSIZET, offsetof(Watch, weak_references), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
PyMethodDef watch_methods[] = {{"reset", reset_watch, METH_VARARGS, "Take the present state as the reference."},
                               {nullptr, nullptr, 0, nullptr}};
PyType_Slot watch_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_watch)},
                             {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                             {Py_tp_traverse, reinterpret_cast<void*>(traverse_watch)},
                             {Py_tp_clear, reinterpret_cast<void*>(clear_watch)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(free_watch)},
                             {Py_tp_members, watch_members},
                             {Py_tp_methods, watch_methods},
                             {0, nullptr}};

PyMemberDef replay_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Replay, vectorcall), READONLY, nullptr},
                                {"__weaklistoffset__", T_PYSSIZET, offsetof(Replay, weak_references), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyMethodDef replay_methods[] = {{"take", take_recording, METH_VARARGS, "Answer by the graphs of a recording, or by none."},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot replay_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_replay)},
                              {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_traverse, reinterpret_cast<void*>(traverse_replay)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_replay)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(free_replay)},
                              {Py_tp_members, replay_members},
                              {Py_tp_methods, replay_methods},
                              {0, nullptr}};

constexpr unsigned FLAGS =
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE;
PyType_Spec recognizer_spec = {"torchwise_calls.Recognizer", sizeof(Recognizer), 0, FLAGS, recognizer_slots};
PyType_Spec watch_spec = {"torchwise_calls.Watch", sizeof(Watch), 0, FLAGS, watch_slots};
PyType_Spec replay_spec = {"torchwise_calls.Replay", sizeof(Replay), 0, FLAGS, replay_slots};

int fill_module(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "torchwise's compiled checks run in the main interpreter alone; Python makes them elsewhere");
    return -1;
  }
  for (PyType_Spec* spec : {&recognizer_spec, &watch_spec, &replay_spec}) {
    Ref type(PyType_FromModuleAndSpec(module, spec, nullptr));
    if (!type || PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) < 0) return -1;
  }
  return 0;
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, reinterpret_cast<void*>(fill_module)},
#if PY_VERSION_HEX >= 0x030C0000
                                   {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
                                   {0, nullptr}};
PyMethodDef module_methods[] = {{"configure", configure, METH_VARARGS, "Find the place of the tensor in its object."},
                                {"enter", enter, METH_VARARGS, "Take the calls of a class of wrappers."},
                                {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torchwise_calls", nullptr, 0, module_methods,
                          module_slots,          nullptr,           nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_torchwise_calls() { return PyModuleDef_Init(&definition); }
