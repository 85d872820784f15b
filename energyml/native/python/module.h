// The name and the table of functions of a module.  setup.py names it: the same source makes a module for each
// instruction set.
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <exception>
#include <new>

#ifndef MODULE
#define MODULE _module
#endif
#define MODULE_TEXT_OF(name) #name
#define MODULE_TEXT(name) MODULE_TEXT_OF(name)
#define MODULE_INIT_OF(name) PyInit_##name
#define MODULE_INIT(name) MODULE_INIT_OF(name)

// A function that Python calls, by which no exception of C++ gets out: it would end the process.
typedef PyObject* Function(PyObject*, PyObject* const*, Py_ssize_t);
template <Function* CALLED> PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    try {
        return CALLED(self, args, count);
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& problem) {
        PyErr_SetString(PyExc_RuntimeError, problem.what());
        return nullptr;
    }
}
#define FAST(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(entry<function>))

// A whole number that Python has to know too.
struct Constant {
    const char* name;
    long value;
};

inline PyObject* make_module(PyModuleDef& definition, const Constant* constants) {
    PyObject* made = PyModule_Create(&definition);
    for (; made && constants->name; ++constants)
        if (PyModule_AddIntConstant(made, constants->name, constants->value) < 0) Py_CLEAR(made);
    return made;
}

// Defines what Python calls when it imports the module.
#define DEFINE_MODULE(methods, constants, doc)                                                             \
    static PyModuleDef module_definition = {                                                               \
        PyModuleDef_HEAD_INIT, MODULE_TEXT(MODULE), doc, -1, methods, nullptr, nullptr, nullptr, nullptr}; \
    PyMODINIT_FUNC MODULE_INIT(MODULE)() { return make_module(module_definition, constants); }
