// The module of chains: tensors in, tensors out.
//
// Functions that answer a question at once give None for tensors that are not contiguous, on the CPU and of fitting
// sizes: the caller copies them, or goes another way.
#include "../python/module.h"
#include "../python/tensors.h"
#include "covariance.h"
#include "driver.h"

namespace energyml {

// The chains of a call: (unary, pair, lengths), the first three arguments of every function.
//   unary [B, T, C]; pair [C, C], [T-1 or 1, C, C] or [B or 1, T-1 or 1, C, C]; lengths [B] or None
struct Given {
    Tensor unary, pair, lengths;
    int64_t pair_example = 0, pair_step = 0;  // strides of the pair scores, 0 where they are shared

    int64_t batch() const { return unary.shape[0]; }
    int64_t size() const { return unary.shape[1]; }
    int64_t labels() const { return unary.shape[2]; }
    template <class In> Chain<In> chain() const {
        return {unary.as<const In>(),
                pair.as<const In>(),
                lengths.as<const int64_t>(),
                batch(),
                size(),
                labels(),
                pair_example,
                pair_step};
    }

    // Whether the arguments are such chains.
    bool read(PyObject* const* args) {
        if (!read_plain(args[0], unary) || !read_plain(args[1], pair) || unary.dims != 3 || unary.kind > DOUBLES)
            return false;
        if (pair.kind != unary.kind || pair.dims < 2 || pair.shape[pair.dims - 1] != labels() ||
            pair.shape[pair.dims - 2] != labels())
            return false;
        const int64_t examples = pair.dims == 4 ? pair.shape[0] : 1,
                      steps = pair.dims > 2 ? pair.shape[pair.dims - 3] : 1, cells = labels() * labels();
        if ((examples != 1 && examples != batch()) || (steps != 1 && steps != std::max<int64_t>(0, size() - 1)))
            return false;
        pair_example = examples != 1 ? steps * cells : 0;
        pair_step = steps != 1 ? cells : 0;
        return args[2] == Py_None || (read_plain(args[2], lengths) && lengths.kind == WHOLES && lengths.dims == 1 &&
                                      lengths.shape[0] == batch());
    }

    // The same for functions whose arguments have been copied already where that was needed.
    bool demand(PyObject* const* args) {
        if (read(args)) return true;
        PyErr_SetString(PyExc_TypeError, "expected contiguous chains on the CPU");
        return false;
    }

    // Whether every chain ends within the rows that there are; else a Python error is set.
    bool fit() const {
        const int64_t* ends = lengths.as<const int64_t>();
        for (int64_t b = 0; ends && b < batch(); ++b) {
            if (ends[b] >= 0 && ends[b] <= size()) continue;
            PyErr_Format(PyExc_ValueError, "lengths must lie between 0 and %lld, found %lld at place %lld",
                         static_cast<long long>(size()), static_cast<long long>(ends[b]), static_cast<long long>(b));
            return false;
        }
        return true;
    }

    // Work without the interpreter's lock, by a function of a number of the scores' type and a count of threads.  What
    // is done for each label of a cell counts as forty multiply-adds (measured by benchmarks/exact).
    template <class Work> bool run(PyObject* worth, const Work& work) const {
        if (!fit()) return false;
        const int64_t operations = batch() * size() * labels() * (labels() + 40);
        const int threads = threads_for(operations, PyLong_AsLongLong(worth), batch());
        const auto all = [&] { unary.kind == DOUBLES ? work(double(), threads) : work(float(), threads); };
        return threads && (operations < FEW ? locked(all) : unlocked(all));
    }

  private:
    // Multiply-adds that take microseconds: letting other threads of Python's in meanwhile is worth no more of them.
    static constexpr int64_t FEW = 1 << 18;
};

// Whether an argument is labels [B, T].
static bool labelled(PyObject* object, const Given& given, Tensor& out) {
    return read_plain(object, out) && out.kind == WHOLES && out.dims == 2 && out.shape[0] == given.batch() &&
           out.shape[1] == given.size();
}

// What a forward pass leaves for the backward pass: two rows of padded labels for each cell, of the scores' own type,
// and 9 bytes for each chain; else a Python error is set.
static bool kept_for(PyObject* kept_object, PyObject* state_object, const Given& given, Tensor& kept, Tensor& state) {
    const int64_t lanes = Lanes<float>::count * 4 / (given.unary.kind == DOUBLES ? 8 : 4);
    const int64_t cells = given.batch() * given.size() * round_up(given.labels(), lanes);
    if (!read_plain(kept_object, kept) || !read_plain(state_object, state)) {
        PyErr_SetString(PyExc_TypeError, "expected contiguous tensors on the CPU");
        return false;
    }
    const bool sized = kept.kind == given.unary.kind && kept.count() == 2 * cells;
    if (sized && state.kind == DOUBLES && state.count() == given.batch() + (given.batch() + 7) / 8) return true;
    PyErr_SetString(PyExc_ValueError, "expected what a forward pass over chains of these sizes keeps");
    return false;
}

// Arguments that the caller has made, and weights [B] of any stride; else a Python error is set.
static bool demanded(PyObject* object, Tensor& out) {
    if (read_plain(object, out)) return true;
    PyErr_SetString(PyExc_TypeError, "expected contiguous tensors on the CPU");
    return false;
}
static bool weighted(PyObject* object, const Given& given, Tensor& out) {
    if (read(object, out) && out.kind == given.unary.kind && out.dims == 1 && out.shape[0] == given.batch())
        return true;
    PyErr_SetString(PyExc_TypeError, "expected a weight for each chain, of the scores' own type");
    return false;
}

// log Z and a tier for each chain, in memory of the caller's or, where that is null, in its own.
struct State {
    Buffer<double> own;
    double* log_z;
    uint8_t* tier;
    State(int64_t batch, double* given)
        : own(given ? 0 : batch + (batch + 7) / 8),
          log_z(given ? given : own.data),
          tier(reinterpret_cast<uint8_t*>(log_z + batch)) {}
};

template <class In> static void run(const Chain<In>& chain, Answer<In> answer, ChainPasses passes, int threads) {
    const State state(chain.batch, answer.log_z);
    answer.log_z = state.log_z;
    answer.tier = state.tier;
    run_all(chain, answer, passes, threads);
}

// Gradients by unary and, if asked, by pair scores, of their sizes.
struct Slopes {
    Tensor unary, pair;
    Object by_unary, by_pair;

    bool make(PyObject* const* args, bool pairs) {
        by_unary = empty_like(args[0], unary);
        if (by_unary && pairs) by_pair = empty_like(args[1], pair);
        return by_unary && (by_pair || !pairs);
    }
    template <class In> Answer<In> answer(const Given& given) const {
        Answer<In> found{};
        found.unary = unary.as<In>();
        found.pair = pair.as<In>();
        found.pair_example = given.pair_example;
        found.pair_step = given.pair_step;
        return found;
    }
    PyObject* both() const { return PyTuple_Pack(2, by_unary.held, by_pair ? by_pair.held : Py_None); }
};

// chain_log_partition(unary, pair, lengths, worth) -> [B]
static PyObject* chain_log_partition(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    if (!counted(n, 4)) return nullptr;
    if (!given.read(args)) Py_RETURN_NONE;
    Tensor value;
    Object found = empty(args[0], {given.batch()}, false, value);
    const bool fine = found && given.run(args[3], [&](auto number, int threads) {
        typedef decltype(number) In;
        Answer<In> answer{};
        answer.value = value.as<In>();
        run<In>(given.chain<In>(), answer, FORWARD, threads);
    });
    return fine ? found.given_away() : nullptr;
}

// chain_forward(unary, pair, lengths, kept, state, worth) -> [B]; what a backward pass needs is left in `kept` [2, B,
// T, padded], and in `state`, 9 bytes for each chain: log Z and a tier.
static PyObject* chain_forward(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    Tensor kept, state, value;
    if (!counted(n, 6) || !given.demand(args) || !kept_for(args[3], args[4], given, kept, state)) return nullptr;
    Object found = empty(args[0], {given.batch()}, false, value);
    const bool fine = found && given.run(args[5], [&](auto number, int threads) {
        typedef decltype(number) In;
        Answer<In> answer{};
        answer.value = value.as<In>();
        answer.log_z = state.as<double>();
        answer.alpha = kept.as<In>();
        answer.emission = kept.as<In>() + kept.count() / 2;
        run<In>(given.chain<In>(), answer, FORWARD, threads);
    });
    return fine ? found.given_away() : nullptr;
}

// chain_backward(unary, pair, lengths, kept, state, weight, pairs, worth) -> gradients of the weighted sum of
// log-partitions
static PyObject* chain_backward(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    Tensor kept, state, weight;
    Slopes slopes;
    if (!counted(n, 8) || !given.demand(args) || !kept_for(args[3], args[4], given, kept, state) ||
        !weighted(args[5], given, weight))
        return nullptr;
    const bool fine = slopes.make(args, args[6] == Py_True) && given.run(args[7], [&](auto number, int threads) {
        typedef decltype(number) In;
        Answer<In> answer = slopes.answer<In>(given);
        answer.log_z = state.as<double>();
        answer.weight = weight.as<const In>();
        answer.weight_stride = weight.strides[0];
        answer.alpha = kept.as<In>();
        answer.emission = kept.as<In>() + kept.count() / 2;
        run<In>(given.chain<In>(), answer, BACKWARD, threads);
    });
    return fine ? slopes.both() : nullptr;
}

// chain_marginals(unary, pair, lengths, pairs, worth) -> [B, T, C], and [B, T-1, C, C] or None
static PyObject* chain_marginals(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    if (!counted(n, 5)) return nullptr;
    if (!given.read(args)) Py_RETURN_NONE;
    const bool pairs = args[3] == Py_True;
    const int64_t steps = std::max<int64_t>(0, given.size() - 1), cells = given.labels() * given.labels();
    Slopes found;
    if (!found.make(args, false)) return nullptr;
    if (pairs)
        found.by_pair = empty(args[0], {given.batch(), steps, given.labels(), given.labels()}, false, found.pair);
    const bool fine = (found.by_pair || !pairs) && given.run(args[4], [&](auto number, int threads) {
        typedef decltype(number) In;
        Answer<In> answer = found.answer<In>(given);
        answer.pair_example = steps * cells;
        answer.pair_step = cells;
        run<In>(given.chain<In>(), answer, BOTH, threads);
    });
    return fine ? found.both() : nullptr;
}

// chain_best(unary, pair, lengths, worth) -> labels [B, T] and scores [B]
static PyObject* chain_best(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    if (!counted(n, 4)) return nullptr;
    if (!given.read(args)) Py_RETURN_NONE;
    Tensor best, score;
    const Object labels = empty(args[0], {given.batch(), given.size()}, true, best),
                 scores = labels ? empty(args[0], {given.batch()}, false, score) : Object();
    const bool fine = scores && given.run(args[3], [&](auto number, int threads) {
        typedef decltype(number) In;
        energyml::best(given.chain<In>(), best.as<int64_t>(), score.as<In>(), threads);
    });
    return fine ? PyTuple_Pack(2, labels.held, scores.held) : nullptr;
}

// chain_covariances(unary, pair, lengths, cells, steps, v or None, w or None, pairs, worth) -> gradients of a function
// of the marginals
static PyObject* chain_covariances(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    Tensor moments[4];
    Slopes slopes;
    if (!counted(n, 9) || !given.demand(args)) return nullptr;
    for (int k = 0; k < 4; ++k)
        if (args[3 + k] != Py_None && !demanded(args[3 + k], moments[k])) return nullptr;
    const int64_t cells = given.batch() * given.size() * given.labels();
    const int64_t steps = given.batch() * std::max<int64_t>(0, given.size() - 1) * given.labels() * given.labels();
    for (int k = 0; k < 4; ++k)
        if (k < 2 || args[3 + k] != Py_None)
            if (moments[k].kind != given.unary.kind || moments[k].count() != (k % 2 ? steps : cells))
                return PyErr_Format(PyExc_ValueError, "expected marginals of cells and steps of these chains");
    const bool fine = slopes.make(args, args[7] == Py_True) && given.run(args[8], [&](auto number, int threads) {
        typedef decltype(number) In;
        const Moments<In> of{moments[0].as<const In>(), moments[1].as<const In>(), moments[2].as<const In>(),
                             moments[3].as<const In>()};
        covariances(given.chain<In>(), of, slopes.answer<In>(given), threads);
    });
    return fine ? slopes.both() : nullptr;
}

// The scores of given labels; how many of them are -inf, -1 where a cell has no label, or -2 where there is no such
// label.
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
template <class In> static void add_counts(const Chain<In>& chain, const int64_t* labels, const In* weight,
                                           int64_t stride, In* unary, In* pair) {
    const int64_t count = chain.labels, step = chain.pair_step;
    for (int64_t b = 0; b < chain.batch; ++b) {
        const int64_t *mine = labels + b * chain.size, n = chain.length(b);
        const In by = weight[b * stride];
        In* row = unary + b * chain.size * count;
        for (int64_t t = 0; t < n; ++t, row += count) row[mine[t]] += by;
        if (!pair) continue;
        In* table = pair + b * chain.pair_example;
        for (int64_t t = 1; t < n; ++t, table += step) table[mine[t - 1] * count + mine[t]] += by;
    }
}

// chain_slopes(unary, pair, lengths, labels, weight, pairs, worth) -> gradients of the weighted sum of log-likelihoods
// of labels
static PyObject* chain_slopes(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    Tensor labels, weight;
    Slopes slopes;
    if (!counted(n, 7) || !given.demand(args) || !weighted(args[4], given, weight)) return nullptr;
    if (!labelled(args[3], given, labels)) return PyErr_Format(PyExc_TypeError, "expected a label for each cell");
    const bool fine = slopes.make(args, args[5] == Py_True) && given.run(args[6], [&](auto number, int threads) {
        typedef decltype(number) In;
        const Chain<In> chain = given.chain<In>();
        const In* weights = weight.as<const In>();
        const Buffer<In> opposite(chain.batch);
        for (int64_t b = 0; b < chain.batch; ++b) opposite.data[b] = -weights[b * weight.strides[0]];
        Answer<In> answer = slopes.answer<In>(given);
        answer.weight = opposite.data;
        answer.weight_stride = 1;
        run<In>(chain, answer, BOTH, threads);
        add_counts(chain, labels.as<const int64_t>(), weights, weight.strides[0], answer.unary, answer.pair);
    });
    return fine ? slopes.both() : nullptr;
}

// chain_likelihood(unary, pair, lengths, labels, negative, slopes, pairs, worth)
//   -> (negative) log-likelihoods of labels [B], how many are infinite, and where none is, if asked, the gradients of
//   minus their sum;
//      a number where there are no likelihoods: -1 where a cell has no label, -2 where there is no such label
static PyObject* chain_likelihood(PyObject*, PyObject* const* args, Py_ssize_t n) {
    Given given;
    Tensor labels, value;
    Slopes slopes;
    if (!counted(n, 8)) return nullptr;
    if (!given.read(args) || !labelled(args[3], given, labels)) Py_RETURN_NONE;
    const Object found = empty(args[0], {given.batch()}, false, value);
    if (!found || (args[5] == Py_True && !slopes.make(args, args[6] == Py_True))) return nullptr;
    const double sign = args[4] == Py_True ? -1 : 1;
    long impossible = 0;
    const bool fine = given.run(args[7], [&](auto number, int threads) {
        typedef decltype(number) In;
        const Chain<In> chain = given.chain<In>();
        const Buffer<double> gold(chain.batch);
        impossible = score(chain, labels.as<const int64_t>(), gold.data);
        if (impossible < 0) return;
        const bool differentiated = slopes.by_unary && impossible == 0;
        const State state(chain.batch, nullptr);
        Answer<In> answer = differentiated ? slopes.answer<In>(given) : Answer<In>{};
        answer.log_z = state.log_z;
        answer.tier = state.tier;
        run_all(chain, answer, differentiated ? BOTH : FORWARD, threads);
        const In minus = -1;
        if (differentiated) add_counts(chain, labels.as<const int64_t>(), &minus, 0, answer.unary, answer.pair);
        In* out = value.as<In>();
        for (int64_t b = 0; b < chain.batch; ++b)
            out[b] = static_cast<In>(sign * (gold.data[b] == -INFINITY ? gold.data[b] : gold.data[b] - state.log_z[b]));
    });
    if (!fine) return nullptr;
    if (impossible < 0) return PyLong_FromLong(impossible);
    const Object both(slopes.by_unary && !impossible ? slopes.both() : nullptr);
    if (PyErr_Occurred()) return nullptr;
    return Py_BuildValue("OlO", found.held, impossible, both ? both.held : Py_None);
}

template <class In> static PyObject* common(const Tensor& weight) {
    const In* numbers = weight.as<const In>();
    for (int64_t b = 1; b < weight.shape[0]; ++b)
        if (numbers[b * weight.strides[0]] != numbers[0]) Py_RETURN_NONE;
    return PyFloat_FromDouble(weight.shape[0] ? static_cast<double>(numbers[0]) : 0);
}

// common_weight(weight) -> the weight that all chains have, or None
static PyObject* common_weight(PyObject*, PyObject* given) {
    Tensor weight;
    if (!read(given, weight) || weight.dims != 1 || weight.kind > DOUBLES) Py_RETURN_NONE;
    return weight.kind == DOUBLES ? common<double>(weight) : common<float>(weight);
}

}  // namespace energyml

static PyMethodDef methods[] = {
    {"introduce", FAST(energyml::introduce), METH_FASTCALL, "Tell the module about torch."},
    {"chain_log_partition", FAST(energyml::chain_log_partition), METH_FASTCALL, "Log-partitions of a batch of chains."},
    {"chain_forward", FAST(energyml::chain_forward), METH_FASTCALL, "Log-partitions, and what their gradients need."},
    {"chain_backward", FAST(energyml::chain_backward), METH_FASTCALL, "Gradients of log-partitions."},
    {"chain_marginals", FAST(energyml::chain_marginals), METH_FASTCALL, "Marginals of cells, and of steps."},
    {"chain_best", FAST(energyml::chain_best), METH_FASTCALL, "Best labels and scores of a batch of chains."},
    {"chain_likelihood", FAST(energyml::chain_likelihood), METH_FASTCALL,
     "Log-likelihoods of given labels, and the gradients of minus their sum."},
    {"chain_slopes", FAST(energyml::chain_slopes), METH_FASTCALL, "Gradients of a weighted sum of log-likelihoods."},
    {"chain_covariances", FAST(energyml::chain_covariances), METH_FASTCALL,
     "Gradients of a function of the marginals."},
    {"common_weight", energyml::common_weight, METH_O, "The weight that all chains of a batch have, if they have one."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{"LANES", energyml::Lanes<float>::count}, {nullptr, 0}};

DEFINE_MODULE(methods, constants, "Chains.")
