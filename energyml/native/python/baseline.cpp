// What the machine can do: the one module without variants, which decides which of the others are loaded.
#include "module.h"

// instruction_sets() -> names of those that the processor has, best first
static PyObject* instruction_sets(PyObject*, PyObject*) {
    bool v3 = false, v4 = false;
#if defined(__GNUC__) && defined(__x86_64__)
    __builtin_cpu_init();
    v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
#endif
    if (v4) return Py_BuildValue("(sss)", "v4", "v3", "plain");
    if (v3) return Py_BuildValue("(ss)", "v3", "plain");
    return Py_BuildValue("(s)", "plain");
}

// has_openmp() -> whether modules were built to use several threads
static PyObject* has_openmp(PyObject*, PyObject*) {
#ifdef _OPENMP
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

static PyMethodDef methods[] = {
    {"instruction_sets", instruction_sets, METH_NOARGS, "The instruction sets that the processor has, best first."},
    {"has_openmp", has_openmp, METH_NOARGS, "Whether modules were built with OpenMP."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{nullptr, 0}};

DEFINE_MODULE(methods, constants, "What the machine can do.")
