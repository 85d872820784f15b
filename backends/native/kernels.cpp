// The extension module: functions over plain pointers, dispatched to the best instruction set of the machine at run time.
#include "calls.h"

#include "targets.h"

namespace energyml {

template <class In> struct Kernels {
    void (*run)(const Chain<In>&, const Answer<In>&, int passes, int threads);
    void (*best)(const Chain<In>&, int64_t* labels, In* score, int threads);
    void (*covariances)(const Chain<In>&, const Moments<In>&, const Answer<In>&, int threads);
};

template <class In> static Kernels<In> chosen() {
#ifdef RUN_TIME_TARGETS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return {v4::run<In>, v4::best<In>, v4::covariances<In>};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return {v3::run<In>, v3::best<In>, v3::covariances<In>};
#endif
    return {plain::run<In>, plain::best<In>, plain::covariances<In>};
}

template <class In> static const Kernels<In> kernels = chosen<In>();

static long long whole(PyObject* const* args, int i) { return PyLong_AsLongLong(args[i]); }
template <class T> static T* pointer(PyObject* const* args, int i) { return reinterpret_cast<T*>(static_cast<intptr_t>(whole(args, i))); }

constexpr int CHAIN = 9;  // arguments that describe the chains, first of all in every function

// Whether every chain ends within the rows that there are; else a Python error is set.
template <class In> static bool fits(const Chain<In>& chain) {
    for (int64_t b = 0; b < chain.batch && chain.lengths; ++b) {
        if (chain.lengths[b] >= 0 && chain.lengths[b] <= chain.size) continue;
        PyErr_Format(PyExc_ValueError, "lengths must lie between 0 and %lld, found %lld at place %lld", static_cast<long long>(chain.size),
                     static_cast<long long>(chain.lengths[b]), static_cast<long long>(b));
        return false;
    }
    return true;
}

template <class In> static Chain<In> chain_of(PyObject* const* args) {
    return Chain<In>{pointer<const In>(args, 1), pointer<const In>(args, 2), pointer<const int64_t>(args, 3), whole(args, 4), whole(args, 5),
                     whole(args, 6), whole(args, 7), whole(args, 8)};
}

// log Z and a tier for each chain, in memory of the caller's or, where that is null, in its own.
struct State {
    Buffer<double> own;
    double* log_z;
    uint8_t* tier;
    State(int64_t batch, double* given) : own(given ? 0 : batch + (batch + 7) / 8), log_z(given ? given : own.data), tier(reinterpret_cast<uint8_t*>(log_z + batch)) {}
};

template <class In> static bool run(PyObject* const* args) {
    const Chain<In> chain = chain_of<In>(args);
    PyObject* const* more = args + CHAIN;
    Answer<In> answer{pointer<In>(more, 0), pointer<double>(more, 1), nullptr, pointer<const In>(more, 2), whole(more, 3),
                      pointer<In>(more, 4), pointer<In>(more, 5), whole(more, 6), whole(more, 7),
                      pointer<void>(more, 8), pointer<void>(more, 9)};
    const int passes = static_cast<int>(whole(more, 10)), threads = static_cast<int>(whole(more, 11));
    return fits(chain) && unlocked([&] {
        const State state(chain.batch, answer.log_z);
        answer.log_z = state.log_z;
        answer.tier = state.tier;
        kernels<In>.run(chain, answer, passes, threads);
    });
}

// chain_run(double?, unary, pair, lengths, B, T, C, pair_example, pair_step,
//           value, state, weight, weight_stride, unary_gradient, pair_gradient, gradient_example, gradient_step, alpha, emission,
//           passes, threads)
// `state` has 9 bytes for each chain, log Z and a tier, which the backward pass needs from the forward pass; null where nothing is kept.
static PyObject* chain_run(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, CHAIN + 12)) return nullptr;
    if (!(whole(args, 0) ? run<double>(args) : run<float>(args))) return nullptr;
    Py_RETURN_NONE;
}

template <class In> static bool best(PyObject* const* args) {
    const Chain<In> chain = chain_of<In>(args);
    int64_t* labels = pointer<int64_t>(args, CHAIN);
    In* score = pointer<In>(args, CHAIN + 1);
    const int threads = static_cast<int>(whole(args, CHAIN + 2));
    return fits(chain) && unlocked([&] { kernels<In>.best(chain, labels, score, threads); });
}

// chain_best(double?, unary, pair, lengths, B, T, C, pair_example, pair_step, labels, score, threads)
static PyObject* chain_best(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, CHAIN + 3)) return nullptr;
    if (!(whole(args, 0) ? best<double>(args) : best<float>(args))) return nullptr;
    Py_RETURN_NONE;
}

template <class In> static bool covariances(PyObject* const* args) {
    const Chain<In> chain = chain_of<In>(args);
    PyObject* const* more = args + CHAIN;
    const Moments<In> moments{pointer<const In>(more, 0), pointer<const In>(more, 1), pointer<const In>(more, 2), pointer<const In>(more, 3)};
    const Answer<In> answer{nullptr, nullptr, nullptr, nullptr, 0, pointer<In>(more, 4), pointer<In>(more, 5), chain.pair_example, chain.pair_step, nullptr, nullptr};
    const int threads = static_cast<int>(whole(more, 6));
    return fits(chain) && unlocked([&] { kernels<In>.covariances(chain, moments, answer, threads); });
}

// chain_covariances(double?, unary, pair, lengths, B, T, C, pair_example, pair_step, cells, steps, v, w, by_unary, by_pair, threads)
static PyObject* chain_covariances(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, CHAIN + 7)) return nullptr;
    if (!(whole(args, 0) ? covariances<double>(args) : covariances<float>(args))) return nullptr;
    Py_RETURN_NONE;
}

// The scores of given labels; how many of them are -inf, -1 where a cell has no label, or -2 where there is no such label.
template <class In> static long score(const Chain<In>& chain, const int64_t* labels, double* out) {
    long impossible = 0;
    for (int64_t b = 0; b < chain.batch; ++b) {
        const int64_t* mine = labels + b * chain.size;
        double cells = 0, steps = 0;  // apart, so that neither waits for the other
        for (int64_t t = 0, n = chain.length(b); t < n; ++t) {
            if (mine[t] < 0 || mine[t] >= chain.labels) return mine[t] == -1 ? -1 : -2;
            cells += chain.row(b, t)[mine[t]];
            if (t > 0) steps += chain.table(b, t - 1)[mine[t - 1] * chain.labels + mine[t]];
        }
        out[b] = cells + steps;
        impossible += out[b] == -INFINITY;
    }
    return impossible;
}

// Add the weight of each chain where its labels are: the gradient of their score.
template <class In> static void add_counts(const Chain<In>& chain, const int64_t* labels, const In* weight, int64_t stride, In* unary, In* pair) {
    for (int64_t b = 0; b < chain.batch; ++b) {
        const int64_t* mine = labels + b * chain.size;
        for (int64_t t = 0; t < chain.length(b); ++t) {
            unary[(b * chain.size + t) * chain.labels + mine[t]] += weight[b * stride];
            if (t > 0 && pair)
                pair[b * chain.pair_example + (t - 1) * chain.pair_step + mine[t - 1] * chain.labels + mine[t]] += weight[b * stride];
        }
    }
}

// chain_counts(double?, unary, pair, lengths, B, T, C, pair_example, pair_step, labels, weight, weight_stride, by_unary, by_pair)
static PyObject* chain_counts(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, CHAIN + 5)) return nullptr;
    PyObject* const* more = args + CHAIN;
    const int64_t* labels = pointer<const int64_t>(more, 0);
    const int64_t stride = whole(more, 2);
    if (whole(args, 0))
        add_counts(chain_of<double>(args), labels, pointer<const double>(more, 1), stride, pointer<double>(more, 3), pointer<double>(more, 4));
    else
        add_counts(chain_of<float>(args), labels, pointer<const float>(more, 1), stride, pointer<float>(more, 3), pointer<float>(more, 4));
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
}

// Log-likelihoods of labels and, where all are possible, the gradients of minus their sum; what `score` returns.
template <class In> static bool likelihood(PyObject* const* args, long& found) {
    const Chain<In> chain = chain_of<In>(args);
    Arguments more{args + CHAIN};
    const int64_t* labels = more.pointer<const int64_t>();
    In* value = more.pointer<In>();
    In *unary = more.pointer<In>(), *pair = more.pointer<In>();
    const int threads = static_cast<int>(more.number());
    return fits(chain) && unlocked([&] {
        const Buffer<double> gold(chain.batch);
        found = score(chain, labels, gold.data);
        if (found < 0) return;
        const bool slopes = unary && found == 0;
        const State state(chain.batch, nullptr);
        const Answer<In> answer{nullptr, state.log_z, state.tier, nullptr, 0, slopes ? unary : nullptr, slopes ? pair : nullptr,
                                chain.pair_example, chain.pair_step, nullptr, nullptr};
        kernels<In>.run(chain, answer, slopes ? BOTH : FORWARD, threads);
        const In minus = -1;
        if (slopes) add_counts(chain, labels, &minus, 0, unary, pair);
        for (int64_t b = 0; b < chain.batch; ++b) value[b] = static_cast<In>(gold.data[b] == -INFINITY ? gold.data[b] : gold.data[b] - state.log_z[b]);
    });
}

// chain_likelihood(double?, unary, pair, lengths, B, T, C, pair_example, pair_step, labels, value, by_unary, by_pair, threads)
//   -> how many are -inf; -1: labels lack; -2: there is no such label
static PyObject* chain_likelihood(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, CHAIN + 5)) return nullptr;
    long found = 0;
    if (!(whole(args, 0) ? likelihood<double>(args, found) : likelihood<float>(args, found))) return nullptr;
    return PyLong_FromLong(found);
}

template <class In> static PyObject* common(const In* weight, int64_t stride, int64_t batch) {
    for (int64_t b = 1; stride != 0 && b < batch; ++b)
        if (weight[b * stride] != weight[0]) Py_RETURN_NONE;
    return PyFloat_FromDouble(batch > 0 ? static_cast<double>(weight[0]) : 0);
}

// common_weight(double?, weight, weight_stride, B) -> the weight that all chains have, or None
static PyObject* common_weight(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 4)) return nullptr;
    const int64_t stride = whole(args, 2), batch = whole(args, 3);
    if (PyErr_Occurred()) return nullptr;
    return whole(args, 0) ? common(pointer<const double>(args, 1), stride, batch) : common(pointer<const float>(args, 1), stride, batch);
}

static PyObject* has_openmp(PyObject*, PyObject*) {
#ifdef _OPENMP
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

}  // namespace energyml

#define FAST(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(energyml::function))

static PyMethodDef methods[] = {
    {"chain_run", FAST(chain_run), METH_FASTCALL, "Log-partitions of a batch of chains, and their gradients."},
    {"chain_best", FAST(chain_best), METH_FASTCALL, "Best labels and scores of a batch of chains."},
    {"chain_likelihood", FAST(chain_likelihood), METH_FASTCALL, "Log-likelihoods of given labels, and the gradients of minus their sum."},
    {"chain_counts", FAST(chain_counts), METH_FASTCALL, "Gradients of the scores of given labels, added."},
    {"chain_covariances", FAST(chain_covariances), METH_FASTCALL, "Gradients of a function of the marginals."},
    {"common_weight", FAST(common_weight), METH_FASTCALL, "The weight that all chains of a batch have, if they have one."},
    {"has_openmp", energyml::has_openmp, METH_NOARGS, "Whether the module was built with OpenMP."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Native kernels over plain pointers.", -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__kernels() { return PyModule_Create(&module); }
