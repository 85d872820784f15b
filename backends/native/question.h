// Questions that are asked again and again: programs whose tables are tensors as they are, so that nothing is made of them in between.
#pragma once

#include <memory>

#include "tensors.h"

namespace energyml {

// Where the numbers of a tensor begin that is contiguous, in double precision and of a given shape; null where it is another.
inline const double* numbers_in(PyObject* object, const std::vector<int64_t>& shape) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (!torch.exchange || (type != torch.tensor && type != torch.parameter)) return nullptr;
    constexpr int32_t processor = 1;
    constexpr uint8_t real = 2;
    DLTensor found;
    if (torch.exchange->look(object, &found) != 0) {
        PyErr_Clear();
        return nullptr;
    }
    if (found.device != processor || found.code != real || found.bits != 64 || found.lanes != 1) return nullptr;
    if (found.dims != static_cast<int32_t>(shape.size())) return nullptr;
    int64_t each = 1;
    for (size_t i = shape.size(); i-- > 0; each *= shape[i])
        if (found.shape[i] != shape[i] || (found.strides && shape[i] != 1 && found.strides[i] != each)) return nullptr;
    return reinterpret_cast<const double*>(static_cast<const char*>(found.data) + found.offset);
}

struct Question {
    Object program;  // holds the graph
    const Graph* graph;
    std::vector<int64_t> labels;               // of the known cells
    Object names;                              // of the parameters that are the first tables
    std::vector<std::vector<int64_t>> shapes;  // of these
    Object marginals;                          // shapes of the gradients of the other tables, which are zeros; empty for log Z
};

inline constexpr const char* QUESTION = "energyml.question";

inline void forget_question(PyObject* capsule) { delete static_cast<Question*>(PyCapsule_GetPointer(capsule, QUESTION)); }

inline Object held(PyObject* object) {
    Py_INCREF(object);
    return Object(object);
}

// A new tensor of some shape beside another one, not filled.
inline Object new_beside(PyObject* beside, PyObject* shape) {
    PyObject* args[] = {beside, shape};
    return Object(PyObject_VectorcallMethod(torch.new_empty, args, 2, nullptr));
}

// make_question(program, labels, names, shapes, marginals) -> a question for `ask`
inline PyObject* make_question(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 5)) return nullptr;
    auto made = std::make_unique<Question>();
    made->program = held(args[0]);
    auto* graph = static_cast<Graph*>(PyCapsule_GetPointer(args[0], PROGRAM));
    if (!graph) return nullptr;
    if (!memory_suffices([&] { graph->find_returns(); })) return PyErr_NoMemory();
    made->graph = graph;
    Arguments take{args + 1};
    const auto* labels = take.pointer<const int64_t>();
    if (PyErr_Occurred()) return nullptr;
    made->labels.assign(labels, labels + made->graph->known);
    made->names = held(args[2]);
    for (Py_ssize_t k = 0; k < PyTuple_Size(args[3]); ++k) {
        PyObject* shape = PyTuple_GET_ITEM(args[3], k);
        made->shapes.emplace_back();
        for (Py_ssize_t axis = 0; axis < PyTuple_Size(shape); ++axis) made->shapes.back().push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis)));
    }
    made->marginals = held(args[4]);
    if (PyErr_Occurred()) return nullptr;
    return PyCapsule_New(made.release(), QUESTION, forget_question);
}

// ask(question, parameters) -> log Z [1], or a tuple of marginals; None where the parameters are not what they were
inline PyObject* ask(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 2)) return nullptr;
    const auto* question = static_cast<const Question*>(PyCapsule_GetPointer(args[0], QUESTION));
    if (!question) return nullptr;
    const size_t given = question->shapes.size(), tables = question->graph->sources.size();
    const Py_ssize_t wanted = PyTuple_GET_SIZE(question->marginals.held);
    std::vector<const double*> values(tables, nullptr);
    PyObject* beside = nullptr;
    for (size_t k = 0; k < given; ++k) {
        beside = PyDict_GetItemWithError(args[1], PyTuple_GET_ITEM(question->names.held, static_cast<Py_ssize_t>(k)));
        values[k] = beside ? numbers_in(beside, question->shapes[k]) : nullptr;
        if (!values[k] && PyErr_Occurred()) return nullptr;
        if (!values[k]) Py_RETURN_NONE;
    }
    std::vector<double*> gradients(tables, nullptr);
    Object found(PyTuple_New(wanted));
    if (!found) return nullptr;
    for (Py_ssize_t k = 0; k < wanted; ++k) {
        Object made = new_beside(beside, PyTuple_GET_ITEM(question->marginals.held, k));
        DLTensor seen;
        if (!made || torch.exchange->look(made.held, &seen) != 0) return nullptr;
        gradients[given + static_cast<size_t>(k)] = static_cast<double*>(seen.data);
        std::memset(seen.data, 0, sizeof(double) * static_cast<size_t>(question->graph->sources[given + static_cast<size_t>(k)].entries));
        PyTuple_SET_ITEM(found.held, k, made.given_away());
    }
    const std::vector<int64_t> strides(tables, 0);
    const int64_t row = 0;
    const double weight = 1;
    double log_z = 0;
    Wanted asked{};
    asked.products = true;
    asked.rows = &row;
    asked.count = 1;
    asked.tables = values.data();
    asked.example_strides = asked.gradient_strides = asked.thread_strides = strides.data();
    asked.table_count = static_cast<int64_t>(tables);
    asked.labels = question->labels.data();
    asked.log_z = &log_z;
    asked.weights = wanted ? &weight : nullptr;
    asked.gradients = gradients.data();
    asked.sums = static_cast<int64_t>(question->graph->steps.size());
    if (!unlocked([&] { eliminate_all(*question->graph, asked, 1); })) return nullptr;
    if (wanted) return found.given_away();
    static PyObject* const one = PyLong_FromLong(1);
    Object made = new_beside(beside, one);
    DLTensor seen;
    if (!made || torch.exchange->look(made.held, &seen) != 0) return nullptr;
    *static_cast<double*>(seen.data) = log_z;
    return made.given_away();
}

}  // namespace energyml
