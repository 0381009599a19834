// Replay: the call of a captured graph whose inputs and outputs lie where it was recorded.
//
// It is the usual case of `cuda_graphs/call_graph.py` and `in_place_replay.py`, in the same order. It leaves every other
// call to the function in Python, before it has done anything.
#pragma once

#include <memory>
#include <optional>

#include "form.h"

namespace {

// A function without side effects, and the answer that it has to give, in a list which Python may change.
struct Fact {
  Ref function, argument, answers;
};

// What is known of the calls of one signature, until Python records them anew.
struct Recording {
  Ref graphs;  // a dict from addresses to a replay and its borrowed outputs
  std::vector<Py_ssize_t> places, written;
  std::vector<Ref> makers;  // of outputs
  Ref pack, settled;
  Py_ssize_t reach = 0;  // the least number of arguments
  bool lends = false, checks_first = false;
};

struct Replay {
  PyObject_HEAD
  PyObject *otherwise, *again, *guard, *acquire, *release, *holder;
  PyObject* weak_references;
  vectorcallfunc vectorcall;
  std::vector<Fact> facts;
  std::shared_ptr<Recording> recording;  // a call keeps its own, as another thread may bring a new one meanwhile
};

PyObject* unchanged_name = nullptr;

bool is_answer(PyObject* found, PyObject* expected) {
  if (found == expected) return true;
  return PyLong_CheckExact(found) && PyLong_CheckExact(expected) &&
         PyObject_RichCompareBool(found, expected, Py_EQ) == 1;
}

bool holds(const Fact& fact) {
  PyObject* argument = fact.argument.get();
  Ref found(PyObject_Vectorcall(fact.function.get(), &argument, argument == nullptr ? 0 : 1, nullptr));
  return found && PyList_GET_SIZE(fact.answers.get()) == 1 &&
         is_answer(found.get(), PyList_GET_ITEM(fact.answers.get(), 0));
}

// Whether the module is as it was at the recording. Null is an error.
Ref ask_guard(const Replay& self) {
  Ref quickly(PyObject_GetAttr(self.guard, unchanged_name));
  Ref found(quickly ? PyObject_CallNoArgs(quickly.get()) : nullptr);
  if (found.get() == Py_True || !found) return found;
  static PyObject* name = PyUnicode_InternFromString("has_changed");
  Ref changed(PyObject_CallMethodNoArgs(self.guard, name));
  return changed ? Ref::to(changed.get() == Py_False ? Py_True : Py_False) : Ref();
}

// The lock of a captured call, held by this thread. Python asks who holds it, as a model may call itself.
class Turn {
 public:
  explicit Turn(Replay& self) : holder_(Ref::to(self.holder)), release_(Ref::to(self.release)) {
    PyObject* waits = Py_False;
    Ref taken(PyObject_Vectorcall(self.acquire, &waits, 1, nullptr));
    is_held_ = taken.get() == Py_True;
    if (is_held_) set_holder(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
  }
  ~Turn() {
    if (!is_held_) return;
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    set_holder(Py_NewRef(Py_None));
    Ref released(PyObject_CallNoArgs(release_.get()));
    PyErr_Restore(type, value, trace);
  }
  Turn(const Turn&) = delete;
  bool is_held() const { return is_held_; }

 private:
  void set_holder(PyObject* owned) {
    if (owned == nullptr || PyList_SetItem(holder_.get(), 0, owned) < 0) PyErr_Clear();
  }

  Ref holder_, release_;
  bool is_held_ = false;
};

using Outputs = c10::SmallVector<Ref, 8>;

bool locate(PyObject* tensor, PyObject* addresses, Py_ssize_t at) {
  if (Py_TYPE(tensor) != tensor_type || find_tensor(tensor) == nullptr) return false;
  PyObject* address = PyLong_FromSize_t(Form::address_of(*find_tensor(tensor)));
  if (address == nullptr) return false;
  PyTuple_SET_ITEM(addresses, at, address);
  return true;
}

// Return the graph for inputs and new outputs at exactly these addresses, or null.
Ref find_graph(const Recording& known, PyObject* const* given, Outputs& outputs) {
  size_t inputs = known.places.size();
  Ref addresses(PyTuple_New(static_cast<Py_ssize_t>(inputs + known.makers.size())));
  if (!addresses) return Ref();
  Py_ssize_t next = 0;
  for (Py_ssize_t place : known.places) {
    if (!locate(given[place], addresses.get(), next++)) return Ref();
  }
  for (const Ref& make : known.makers) {
    outputs.emplace_back(PyObject_CallNoArgs(make.get()));
    if (!outputs.back() || !locate(outputs.back().get(), addresses.get(), next++)) return Ref();
  }
  Ref found = Ref::to(PyDict_GetItemWithError(known.graphs.get(), addresses.get()));
  bool is_pair = found && PyTuple_CheckExact(found.get()) && PyTuple_GET_SIZE(found.get()) == 2;
  return is_pair ? std::move(found) : Ref();
}

// As `torch.autograd.graph.increment_version`. Tensors of inference mode have no counter.
void count_writes(const Recording& known, PyObject* const* given) {
  for (Py_ssize_t place : known.written) {
    c10::TensorImpl* tensor = find_tensor(given[place]);
    if (tensor != nullptr && !tensor->is_inference()) tensor->bump_version();
  }
}

PyObject* pack_outputs(const Recording& known, Outputs& outputs) {
  PyObject* pack = known.pack.get();
  if (pack == Py_None) return outputs[0].release();
  auto count = static_cast<Py_ssize_t>(outputs.size());
  bool is_tuple = pack == reinterpret_cast<PyObject*>(&PyTuple_Type);
  Ref packed(is_tuple ? PyTuple_New(count) : PyList_New(count));
  if (!packed) return nullptr;
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* one = outputs[static_cast<size_t>(at)].release();
    is_tuple ? PyTuple_SET_ITEM(packed.get(), at, one) : PyList_SET_ITEM(packed.get(), at, one);
  }
  if (is_tuple || pack == reinterpret_cast<PyObject*>(&PyList_Type)) return packed.release();
  return PyObject_CallOneArg(pack, packed.get());
}

// Answer a call, or return nothing where Python has to: then nothing has been launched. Null is an error.
std::optional<PyObject*> replay_in_place(Replay& self, std::shared_ptr<Recording>& known_here, PyObject* const* given,
                                         size_t count) {
  const Recording& known = *known_here;
  if (!std::all_of(self.facts.begin(), self.facts.end(), holds)) return std::nullopt;
  Ref settled(PyObject_CallNoArgs(known.settled.get()));
  if (settled.get() != Py_True) return std::nullopt;
  if (known.checks_first && ask_guard(self).get() != Py_True) return std::nullopt;
  Outputs outputs;
  Ref graph = find_graph(known, given, outputs);
  if (!graph) return std::nullopt;
  Ref launched(PyObject_CallNoArgs(PyTuple_GET_ITEM(graph.get(), 0)));
  if (!launched) return nullptr;
  count_writes(known, given);
  if (!known.checks_first) {  // while the GPU works
    Ref unchanged = ask_guard(self);
    if (!unchanged) return nullptr;
    if (unchanged.get() != Py_True) {
      launched = Ref();  // nothing may hold the graphs that Python drops now: their memory is for the new ones
      graph = Ref();
      outputs.clear();
      known_here.reset();
      return PyObject_Vectorcall(self.again, given, count, nullptr);
    }
  }
  if (known.lends) return Py_NewRef(PyTuple_GET_ITEM(graph.get(), 1));
  return pack_outputs(known, outputs);
}

PyObject* call_replay(PyObject* object, PyObject* const* given, size_t flags, PyObject* keywords) {
  auto* self = reinterpret_cast<Replay*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  std::shared_ptr<Recording> known = self->recording;
  bool is_plain = keywords == nullptr || PyTuple_GET_SIZE(keywords) == 0;
  if (is_plain && known && count >= known->reach && PyDict_GET_SIZE(known->graphs.get()) != 0) {
    std::optional<PyObject*> answer;
    try {
      Turn turn(*self);
      if (turn.is_held()) answer = replay_in_place(*self, known, given, static_cast<size_t>(count));
    } catch (const std::exception&) {  // a tensor without memory
    }
    if (answer) return *answer;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;  // such as an interrupt
    PyErr_Clear();  // Python meets the same error, if it is one
  }
  known.reset();  // or it would hold what Python may drop
  return PyObject_Vectorcall(self->otherwise, given, flags, keywords);
}

bool read_places(PyObject* given, std::vector<Py_ssize_t>& places, Py_ssize_t& reach) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(given); ++at) {
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, at));
    if (place == -1 && PyErr_Occurred()) return false;
    if (place < 0) {
      PyErr_SetString(PyExc_ValueError, "a tensor has a place among the arguments");
      return false;
    }
    places.push_back(place);
    reach = std::max(reach, place + 1);
  }
  return true;
}

// take(graphs, places, written, makers, pack, settled, lends, checks first), or take() for none
PyObject* take_recording(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Replay*>(object);
  std::shared_ptr<Recording> made, before;
  if (PyTuple_GET_SIZE(args) != 0) {
    PyObject *graphs = nullptr, *places = nullptr, *written = nullptr, *makers = nullptr, *pack = nullptr,
             *settled = nullptr;
    int lends = 0, checks_first = 0;
    made = std::make_shared<Recording>();
    if (!PyArg_ParseTuple(args, "O!O!O!O!OOpp", &PyDict_Type, &graphs, &PyTuple_Type, &places, &PyTuple_Type,
                          &written, &PyTuple_Type, &makers, &pack, &settled, &lends, &checks_first) ||
        !read_places(places, made->places, made->reach) || !read_places(written, made->written, made->reach)) {
      return nullptr;
    }
    if (!lends && PyTuple_GET_SIZE(makers) == 0 && pack == Py_None) {
      PyErr_SetString(PyExc_ValueError, "one output has one maker");
      return nullptr;
    }
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(makers); ++at) {
      made->makers.push_back(Ref::to(PyTuple_GET_ITEM(makers, at)));
    }
    made->graphs = Ref::to(graphs);
    made->pack = Ref::to(pack);
    made->settled = Ref::to(settled);
    made->lends = lends != 0;
    made->checks_first = checks_first != 0;
  }
  before = std::exchange(self->recording, made);  // whose last reference may run any code: so it goes last
  Py_RETURN_NONE;
}

bool read_facts(PyObject* given, std::vector<Fact>& facts) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(given); ++at) {
    PyObject *function = nullptr, *arguments = nullptr, *answers = nullptr, *argument = nullptr;
    PyObject* fact = PyTuple_GET_ITEM(given, at);
    if (!PyTuple_Check(fact)) {
      PyErr_SetString(PyExc_TypeError, "a fact is a tuple");
      return false;
    }
    if (!PyArg_ParseTuple(fact, "OO!O!", &function, &PyTuple_Type, &arguments, &PyList_Type, &answers)) return false;
    if (!PyArg_UnpackTuple(arguments, "a fact", 0, 1, &argument)) return false;
    facts.push_back({Ref::to(function), Ref::to(argument), Ref::to(answers)});
  }
  return true;
}

// Replay(otherwise, again, guard, acquire, release, holder, facts)
PyObject* new_replay(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *otherwise = nullptr, *again = nullptr, *guard = nullptr, *acquire = nullptr, *release = nullptr,
           *holder = nullptr, *facts = nullptr;
  if (!PyArg_ParseTuple(args, "OOOOOO!O!", &otherwise, &again, &guard, &acquire, &release, &PyList_Type, &holder,
                        &PyTuple_Type, &facts)) {
    return nullptr;
  }
  if (unchanged_name == nullptr && (unchanged_name = PyUnicode_InternFromString("is_unchanged")) == nullptr) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Replay*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  Ref made(reinterpret_cast<PyObject*>(self));
  new (&self->facts) std::vector<Fact>();
  new (&self->recording) std::shared_ptr<Recording>();
  self->vectorcall = call_replay;
  self->otherwise = Py_NewRef(otherwise);
  self->again = Py_NewRef(again);
  self->guard = Py_NewRef(guard);
  self->acquire = Py_NewRef(acquire);
  self->release = Py_NewRef(release);
  self->holder = Py_NewRef(holder);
  return read_facts(facts, self->facts) ? made.release() : nullptr;
}

int traverse_replay(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Replay*>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject* one : {self->otherwise, self->again, self->guard, self->acquire, self->release, self->holder}) {
    Py_VISIT(one);
  }
  for (const Fact& fact : self->facts) {
    Py_VISIT(fact.function.get());
    Py_VISIT(fact.argument.get());
    Py_VISIT(fact.answers.get());
  }
  if (self->recording) {
    const Recording& known = *self->recording;
    for (const Ref* one : {&known.graphs, &known.pack, &known.settled}) Py_VISIT(one->get());
    for (const Ref& make : known.makers) Py_VISIT(make.get());
  }
  return 0;
}

// Callers borrow from the object, so it keeps what it calls until the end: every circle passes the recording, or one of
// the two functions in Python.
int clear_replay(PyObject* object) {
  auto* self = reinterpret_cast<Replay*>(object);
  std::shared_ptr<Recording> recording = std::exchange(self->recording, nullptr);
  Ref otherwise(std::exchange(self->otherwise, Py_NewRef(Py_None))), again(std::exchange(self->again, Py_NewRef(Py_None)));
  return 0;
}

void free_replay(PyObject* object) {
  auto* self = reinterpret_cast<Replay*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  PyObject_ClearWeakRefs(object);
  using Facts = std::vector<Fact>;
  using Kept = std::shared_ptr<Recording>;
  self->facts.~Facts();
  self->recording.~Kept();
  for (PyObject* one : {self->otherwise, self->again, self->guard, self->acquire, self->release, self->holder}) {
    Py_XDECREF(one);
  }
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace
