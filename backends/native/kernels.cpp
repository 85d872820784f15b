// The extension module: functions over plain pointers, dispatched to the best instruction set of the machine at run time.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <numeric>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "chain.h"
#include "viterbi.h"

namespace energyml {

constexpr int ROWS = 4;

static std::vector<int64_t> by_length(const int64_t* lengths, int64_t batch) {
    std::vector<int64_t> order(batch);
    std::iota(order.begin(), order.end(), 0);
    if (lengths) std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    return order;
}

template <class T> INLINE void forward_block(const Chain<T>& chain, const int64_t* rows, int count, const T* table, T shift, T* alpha,
                                             T* emission, bool keep, T* scratch, double* log_z, uint8_t* flags) {
    int done = 0;
    for (; done + 4 <= count; done += 4)
        forward_rows<T, 4>(chain, rows + done, table, shift, alpha, emission, keep, scratch, log_z, flags);
    if (done + 2 <= count) {
        forward_rows<T, 2>(chain, rows + done, table, shift, alpha, emission, keep, scratch, log_z, flags);
        done += 2;
    }
    if (done < count) forward_rows<T, 1>(chain, rows + done, table, shift, alpha, emission, keep, scratch, log_z, flags);
}

template <class T> INLINE void backward_block(const Chain<T>& chain, const int64_t* rows, int count, const T* transposed, T* alpha,
                                              T* emission, const double* weight, T* gradient, T* scratch, uint8_t* flags) {
    int done = 0;
    for (; done + 4 <= count; done += 4)
        backward_rows<T, 4>(chain, rows + done, transposed, alpha, emission, weight, gradient, scratch, flags);
    if (done + 2 <= count) {
        backward_rows<T, 2>(chain, rows + done, transposed, alpha, emission, weight, gradient, scratch, flags);
        done += 2;
    }
    if (done < count) backward_rows<T, 1>(chain, rows + done, transposed, alpha, emission, weight, gradient, scratch, flags);
}

template <class T> INLINE void viterbi_block(const Chain<T>& chain, const int64_t* rows, int count, const T* table,
                                             const T* transposed, T* delta, int64_t* best, double* score) {
    int done = 0;
    for (; done + 4 <= count; done += 4) viterbi_rows<T, 4>(chain, rows + done, table, transposed, delta, best, score);
    if (done + 2 <= count) {
        viterbi_rows<T, 2>(chain, rows + done, table, transposed, delta, best, score);
        done += 2;
    }
    if (done < count) viterbi_rows<T, 1>(chain, rows + done, table, transposed, delta, best, score);
}

// One thread's share, compiled once for each instruction set.
DISPATCH void forward_f32(const Chain<float>& c, const int64_t* rows, int n, const float* table, float shift, float* alpha,
                          float* emission, bool keep, float* scratch, double* z, uint8_t* flags) {
    forward_block<float>(c, rows, n, table, shift, alpha, emission, keep, scratch, z, flags);
}
DISPATCH void forward_f64(const Chain<double>& c, const int64_t* rows, int n, const double* table, double shift, double* alpha,
                          double* emission, bool keep, double* scratch, double* z, uint8_t* flags) {
    forward_block<double>(c, rows, n, table, shift, alpha, emission, keep, scratch, z, flags);
}
DISPATCH void backward_f32(const Chain<float>& c, const int64_t* rows, int n, const float* table, float* alpha, float* emission,
                           const double* weight, float* gradient, float* scratch, uint8_t* flags) {
    backward_block<float>(c, rows, n, table, alpha, emission, weight, gradient, scratch, flags);
}
DISPATCH void backward_f64(const Chain<double>& c, const int64_t* rows, int n, const double* table, double* alpha, double* emission,
                           const double* weight, double* gradient, double* scratch, uint8_t* flags) {
    backward_block<double>(c, rows, n, table, alpha, emission, weight, gradient, scratch, flags);
}
DISPATCH void viterbi_f32(const Chain<float>& c, const int64_t* rows, int n, const float* table, const float* transposed, float* delta,
                          int64_t* best, double* score) {
    viterbi_block<float>(c, rows, n, table, transposed, delta, best, score);
}
DISPATCH void viterbi_f64(const Chain<double>& c, const int64_t* rows, int n, const double* table, const double* transposed,
                          double* delta, int64_t* best, double* score) {
    viterbi_block<double>(c, rows, n, table, transposed, delta, best, score);
}
DISPATCH void table_f32(const float* pair, int64_t labels, int padded, Exponentials<float>& out, bool transpose) {
    exponentiate<float>(pair, labels, padded, out, transpose);
}
DISPATCH void table_f64(const double* pair, int64_t labels, int padded, Exponentials<double>& out, bool transpose) {
    exponentiate<double>(pair, labels, padded, out, transpose);
}

template <class T> struct Dispatched;
template <> struct Dispatched<float> {
    static constexpr auto forward = forward_f32;
    static constexpr auto backward = backward_f32;
    static constexpr auto viterbi = viterbi_f32;
    static constexpr auto table = table_f32;
};
template <> struct Dispatched<double> {
    static constexpr auto forward = forward_f64;
    static constexpr auto backward = backward_f64;
    static constexpr auto viterbi = viterbi_f64;
    static constexpr auto table = table_f64;
};

// Groups of rows are handed to threads; sorting by length keeps the rows of a group alike and ragged batches free of padding.
template <class F> static void over_groups(int64_t batch, int threads, F work) {
    int64_t per_thread = (batch + threads - 1) / threads;
    int64_t group = std::max<int64_t>(1, std::min<int64_t>(ROWS, per_thread));
    int64_t groups = (batch + group - 1) / group;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = 0; g < groups; ++g) work(g * group, static_cast<int>(std::min(group, batch - g * group)));
}

template <class T> struct Buffer {
    T* data;
    explicit Buffer(size_t n) : data(static_cast<T*>(std::malloc(std::max<size_t>(n, 1) * sizeof(T)))) {}
    ~Buffer() { std::free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
};

template <class T>
static void forward(const Chain<T>& chain, T* table_out, T* alpha, T* emission, double* log_z, uint8_t* flags, int threads) {
    const int padded = chain.padded();
    const size_t cells = static_cast<size_t>(chain.labels) * padded;
    Exponentials<T> table;
    Dispatched<T>::table(chain.pair, chain.labels, padded, table, true);
    if (table_out) {
        std::memcpy(table_out, table.forward.data(), cells * sizeof(T));
        std::memcpy(table_out + cells, table.backward.data(), cells * sizeof(T));
    }
    std::vector<int64_t> order = by_length(chain.lengths, chain.batch);
    over_groups(chain.batch, threads, [&](int64_t start, int count) {
        Buffer<T> scratch(static_cast<size_t>(2 * ROWS + 1) * padded);
        Dispatched<T>::forward(chain, order.data() + start, count, table.forward.data(), table.shift, alpha, emission,
                               alpha != nullptr, scratch.data, log_z, flags);
    });
    if (!table.safe) std::memset(flags, 1, chain.batch);
}

template <class T>
static void backward(const Chain<T>& chain, const T* table, T* alpha, T* emission, const double* weight, T* gradient, uint8_t* flags,
                     int threads) {
    const int padded = chain.padded();
    const size_t cells = static_cast<size_t>(chain.labels) * padded;
    std::vector<int64_t> order = by_length(chain.lengths, chain.batch);
    over_groups(chain.batch, threads, [&](int64_t start, int count) {
        Buffer<T> scratch(static_cast<size_t>(3 * ROWS) * padded);
        Dispatched<T>::backward(chain, order.data() + start, count, table + cells, alpha, emission, weight, gradient, scratch.data, flags);
    });
}

template <class T> static void viterbi(const Chain<T>& chain, int64_t* best, double* score, int threads) {
    const int padded = chain.padded();
    const size_t cells = static_cast<size_t>(chain.labels) * padded;
    Buffer<T> tables(2 * cells);
    pad_table<T>(chain.pair, chain.labels, padded, tables.data, tables.data + cells);
    std::vector<int64_t> order = by_length(chain.lengths, chain.batch);
    over_groups(chain.batch, threads, [&](int64_t start, int count) {
        Buffer<T> delta(static_cast<size_t>(ROWS) * padded * std::max<int64_t>(1, chain.size));
        Dispatched<T>::viterbi(chain, order.data() + start, count, tables.data, tables.data + cells, delta.data, best, score);
    });
}

}  // namespace energyml

using namespace energyml;

static long long whole(PyObject* const* args, int i) { return PyLong_AsLongLong(args[i]); }
template <class T> static T* pointer(PyObject* const* args, int i) { return reinterpret_cast<T*>(static_cast<intptr_t>(whole(args, i))); }

template <class T> static Chain<T> chain_of(PyObject* const* args) {
    return Chain<T>{pointer<const T>(args, 1), pointer<const T>(args, 2), pointer<const int64_t>(args, 3),
                    whole(args, 4),            whole(args, 5),            whole(args, 6),
                    0,                         0};
}

static bool counted(Py_ssize_t found, Py_ssize_t expected) {
    if (found == expected) return true;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, found %zd", expected, found);
    return false;
}

// chain_forward(double?, unary, pair, lengths, B, T, C, table, alpha, emission, log_z, flags, threads) -> flagged examples
static PyObject* chain_forward(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 13)) return nullptr;
    bool wide = whole(args, 0);
    int threads = static_cast<int>(whole(args, 12));
    auto* log_z = pointer<double>(args, 10);
    auto* flags = pointer<uint8_t>(args, 11);
    long long batch = whole(args, 4), flagged = 0;
    if (PyErr_Occurred()) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    if (wide)
        forward<double>(chain_of<double>(args), pointer<double>(args, 7), pointer<double>(args, 8), pointer<double>(args, 9), log_z, flags, threads);
    else
        forward<float>(chain_of<float>(args), pointer<float>(args, 7), pointer<float>(args, 8), pointer<float>(args, 9), log_z, flags, threads);
    for (long long b = 0; b < batch; ++b) flagged += flags[b];
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(flagged);
}

// chain_backward(double?, unary, pair, lengths, B, T, C, table, alpha, emission, weight, gradient, flags, threads) -> flagged
static PyObject* chain_backward(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 14)) return nullptr;
    bool wide = whole(args, 0);
    int threads = static_cast<int>(whole(args, 13));
    auto* weight = pointer<const double>(args, 10);
    auto* flags = pointer<uint8_t>(args, 12);
    long long batch = whole(args, 4), flagged = 0;
    if (PyErr_Occurred()) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    if (wide)
        backward<double>(chain_of<double>(args), pointer<const double>(args, 7), pointer<double>(args, 8), pointer<double>(args, 9), weight, pointer<double>(args, 11), flags, threads);
    else
        backward<float>(chain_of<float>(args), pointer<const float>(args, 7), pointer<float>(args, 8), pointer<float>(args, 9), weight, pointer<float>(args, 11), flags, threads);
    for (long long b = 0; b < batch; ++b) flagged += flags[b];
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(flagged);
}

// chain_viterbi(double?, unary, pair, lengths, B, T, C, best, score, threads)
static PyObject* chain_viterbi(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 10)) return nullptr;
    bool wide = whole(args, 0);
    auto* best = pointer<int64_t>(args, 7);
    auto* score = pointer<double>(args, 8);
    int threads = static_cast<int>(whole(args, 9));
    if (PyErr_Occurred()) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    if (wide)
        viterbi<double>(chain_of<double>(args), best, score, threads);
    else
        viterbi<float>(chain_of<float>(args), best, score, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject* has_openmp(PyObject*, PyObject*) {
#ifdef _OPENMP
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

static PyMethodDef methods[] = {
    {"chain_forward", reinterpret_cast<PyCFunction>(chain_forward), METH_FASTCALL, "Scaled forward pass of a batch of chains."},
    {"chain_backward", reinterpret_cast<PyCFunction>(chain_backward), METH_FASTCALL, "Marginals and the factors of the pair gradient."},
    {"chain_viterbi", reinterpret_cast<PyCFunction>(chain_viterbi), METH_FASTCALL, "Best labels and scores of a batch of chains."},
    {"has_openmp", has_openmp, METH_NOARGS, "Whether the module was built with OpenMP."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Native kernels over plain pointers.", -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__kernels() { return PyModule_Create(&module); }
