// Calls that say what an earlier one said, compared without a frame of Python's for each thing that may have changed.
#pragma once

#include "question.h"

namespace energyml {

// What a call gave: copies of its labels, the inputs that hold for every example with their versions, and what its first parameter was like.
struct Call {
    struct Given {
        Object name, tensor;
        DLTensor seen;
        int64_t version;
    };
    std::vector<Given> labels, fixed;
    DLTensor like;
};

inline constexpr const char* CALL = "energyml.call";

inline void forget_call(PyObject* capsule) { delete static_cast<Call*>(PyCapsule_GetPointer(capsule, CALL)); }

inline bool same_type(const DLTensor& one, const DLTensor& other) { return one.code == other.code && one.bits == other.bits; }

// Whether two contiguous tensors of one type hold the same.
inline bool same_numbers(const DLTensor& one, const DLTensor& other) {
    if (!std::equal(one.shape, one.shape + one.dims, other.shape, other.shape + other.dims)) return false;
    const int64_t count = std::accumulate(one.shape, one.shape + one.dims, int64_t{1}, std::multiplies<int64_t>());
    const auto *first = static_cast<const char*>(one.data) + one.offset, *second = static_cast<const char*>(other.data) + other.offset;
    return std::memcmp(first, second, static_cast<size_t>(count) * (one.bits / 8)) == 0;
}

// The version of a tensor, which counts what is written into it; -1 without a Python error where it has none.
inline int64_t version_of(PyObject* tensor) {
    static PyObject* const name = PyUnicode_InternFromString("_version");
    const Object found(PyObject_GetAttr(tensor, name));
    const int64_t version = found ? PyLong_AsLongLong(found.held) : -1;
    PyErr_Clear();
    return version;
}

// keep_call(labels, fixed, parameter) -> a call for `says_again`; None where its tensors cannot be looked into.  labels and fixed: by name,
// labels are never written into
inline PyObject* keep_call(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 3)) return nullptr;
    auto made = std::make_unique<Call>();
    if (!PyDict_Check(args[0]) || !PyDict_Check(args[1]) || !seen(args[2], made->like)) Py_RETURN_NONE;
    for (int which = 0; which < 2; ++which) {
        PyObject *name, *tensor;
        for (Py_ssize_t at = 0; PyDict_Next(args[which], &at, &name, &tensor);) {
            Call::Given given{held(name), held(tensor), {}, tensor == Py_None ? 0 : version_of(tensor)};
            if (which == 0 && !(seen(tensor, given.seen) && is_contiguous(given.seen))) Py_RETURN_NONE;
            (which ? made->fixed : made->labels).push_back(std::move(given));
        }
    }
    return PyCapsule_New(made.release(), CALL, forget_call);
}

// says_again(call, labels or None, fixed, parameters) -> whether a call says the same; None where another one has to look
inline PyObject* says_again(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 4)) return nullptr;
    const auto* call = static_cast<const Call*>(PyCapsule_GetPointer(args[0], CALL));
    if (!call) return nullptr;
    const bool free = args[1] == Py_None;
    if ((!free && !PyDict_CheckExact(args[1])) || !PyDict_CheckExact(args[2]) || !PyDict_CheckExact(args[3])) Py_RETURN_NONE;
    if ((free ? 0 : PyDict_GET_SIZE(args[1])) != static_cast<Py_ssize_t>(call->labels.size())) Py_RETURN_FALSE;
    if (PyDict_GET_SIZE(args[2]) != static_cast<Py_ssize_t>(call->fixed.size())) Py_RETURN_FALSE;
    PyObject *name, *parameter;
    Py_ssize_t at = 0;
    DLTensor found;
    if (!PyDict_Next(args[3], &at, &name, &parameter) || !seen(parameter, found)) Py_RETURN_NONE;
    if (!same_type(found, call->like)) Py_RETURN_FALSE;
    for (const Call::Given& one : call->fixed) {
        PyObject* own = PyDict_GetItemWithError(args[2], one.name.held);
        if (!own && PyErr_Occurred()) return nullptr;
        if (own != one.tensor.held || (own != Py_None && version_of(own) != one.version)) Py_RETURN_FALSE;
    }
    for (const Call::Given& one : call->labels) {
        PyObject* own = PyDict_GetItemWithError(args[1], one.name.held);
        if (!own && PyErr_Occurred()) return nullptr;
        if (!own) Py_RETURN_FALSE;
        if (!seen(own, found) || !is_contiguous(found)) Py_RETURN_NONE;
        if (!same_type(found, one.seen) || !same_numbers(found, one.seen)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

}  // namespace energyml
