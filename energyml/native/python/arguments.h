// What every module does at its border with Python: reading arguments, and working without the interpreter's lock.
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <cstdint>
#include <vector>

#include "../simd/memory.h"

namespace energyml {

// The arguments of a call, one after another; a Python error is set where one is of another kind.
struct Arguments {
    PyObject* const* next;
    int64_t number() { return PyLong_AsLongLong(*next++); }
    double real() { return PyFloat_AsDouble(*next++); }
    // An address, or where an object begins that lends its memory, such as an array: the caller keeps it for as long as
    // it is read.
    template <class T> T* pointer() {
        if (PyLong_Check(*next)) return reinterpret_cast<T*>(static_cast<intptr_t>(number()));
        Py_buffer lent;
        if (PyObject_GetBuffer(*next++, &lent, PyBUF_SIMPLE)) return nullptr;
        void* start = lent.buf;
        PyBuffer_Release(&lent);
        return static_cast<T*>(start);
    }
};

// The numbers of a tuple; a Python error is set where it is another object.
inline std::vector<int64_t> numbers_of(PyObject* tuple) {
    std::vector<int64_t> found;
    for (Py_ssize_t k = 0; k < PyTuple_Size(tuple); ++k) found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, k)));
    return found;
}

// Whether a call has as many arguments as it should; else a Python error is set.
inline bool counted(Py_ssize_t found, Py_ssize_t wanted) {
    if (found != wanted) PyErr_Format(PyExc_TypeError, "expected %zd arguments, found %zd", wanted, found);
    return found == wanted;
}

// Work that is over before another thread of Python's could begin.  Errors as for `unlocked`.
template <class Work> bool locked(const Work& work) {
    if (PyErr_Occurred()) return false;
    const bool fine = memory_suffices(work);
    if (!fine) PyErr_NoMemory();
    return fine;
}

// Work without the interpreter's lock.  False, with a Python error set, where arguments were wrong (nothing is done
// then) or memory ran out.
template <class Work> bool unlocked(const Work& work) {
    if (PyErr_Occurred()) return false;
    bool fine;
    Py_BEGIN_ALLOW_THREADS fine = memory_suffices(work);
    Py_END_ALLOW_THREADS if (!fine) PyErr_NoMemory();
    return fine;
}

}  // namespace energyml
