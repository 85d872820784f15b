// Native pieces of beam search, as a module over plain pointers: the caller owns every buffer.
#include "../python/arguments.h"
#include "../python/module.h"

#include <atomic>

#include "choice.h"
#include "attention.h"

using namespace energyml;

template <class T> static Rows<T> read_rows(Arguments& take) {
    Rows<T> rows;
    rows.first = take.pointer<int64_t>();
    rows.total = take.pointer<T>();
    for (int64_t** one : {&rows.label, &rows.parent, &rows.example, &rows.distinct, &rows.slot})
        *one = take.pointer<int64_t>();
    return rows;
}

template <class T> static PyObject* chosen(Arguments take) {
    Beam beam;
    beam.examples = take.number();
    beam.width = take.number();
    beam.labels = take.number();
    beam.size = take.number();
    beam.end = take.number();
    beam.wanted = take.number();
    beam.local = take.number();
    beam.within = take.number();
    beam.penalty = take.real();
    beam.lengths = take.pointer<const int64_t>();
    Pool<T> pool;
    pool.rank = take.pointer<T>();
    pool.score = take.pointer<T>();
    for (int32_t** one : {&pool.label, &pool.parent, &pool.last, &pool.count}) *one = take.pointer<int32_t>();
    int32_t* labels = take.pointer<int32_t>();   // [size, examples * width]: back-pointers
    int32_t* parents = take.pointer<int32_t>();  // the same
    const int64_t t = take.number();
    T* scores = take.pointer<T>();
    const T* bias = take.pointer<const T>();
    const Rows<T> now = read_rows<T>(take), next = read_rows<T>(take);
    [[maybe_unused]] const int threads = static_cast<int>(take.number());
    int64_t sizes[2] = {0, 0};
    std::atomic<bool> fine{true};
    const auto work = [&] {
        std::vector<Candidate<T>> going(beam.room()), best(beam.examples * beam.considered());
        std::vector<int64_t> count(beam.examples);
        const Choice<T> choice{beam, t, scores, bias, now, pool, going.data(), count.data()};
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
        for (int64_t example = 0; example < beam.examples; ++example)
            if (!choice.run(example, best.data() + example * beam.considered())) fine = false;
        line_up(beam, going.data(), count.data(), next, labels + t * beam.room(), parents + t * beam.room(), sizes);
    };
    if (!unlocked(work)) return nullptr;
    if (!fine) Py_RETURN_NONE;
    return Py_BuildValue("LL", static_cast<long long>(sizes[0]), static_cast<long long>(sizes[1]));
}

// choose(double?, examples, width, labels, size, end, wanted, local?, within?, penalty, lengths, pool.rank, score,
// label, parent, last,
//        count, back labels, back parents, t, scores, bias, now.first, total, label, parent, example, distinct, slot,
//        next. ..., threads)
// -> how many rows the next step has, and how many different parents; None where a score is not a number.
static PyObject* choose(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + 10 + 6 + 2 + 3 + 7 + 7 + 1)) return nullptr;
    Arguments take{args};
    return take.number() ? chosen<double>(take) : chosen<float>(take);
}

// follow(examples, width, size, fill, pool.label, parent, last, count, back labels, back parents, out)
// The answers of the pool, [examples, width, size]; `fill` behind the end.
static PyObject* follow(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 11)) return nullptr;
    Arguments take{args};
    const int64_t examples = take.number(), width = take.number(), size = take.number(), fill = take.number();
    const int32_t *label = take.pointer<int32_t>(), *parent = take.pointer<int32_t>(), *last = take.pointer<int32_t>(),
                  *count = take.pointer<int32_t>(), *labels = take.pointer<int32_t>(),
                  *parents = take.pointer<int32_t>();
    int64_t* out = take.pointer<int64_t>();
    if (PyErr_Occurred()) return nullptr;
    for (int64_t at = 0; at < examples * width; ++at) {
        int64_t* answer = out + at * size;
        std::fill(answer, answer + size, fill);
        if (at % width >= count[at / width] || last[at] < 0) continue;
        answer[last[at]] = label[at];
        int64_t row = parent[at];
        for (int64_t t = last[at] - 1; t >= 0; --t) {
            answer[t] = labels[t * examples * width + row];
            row = parents[t * examples * width + row];
        }
    }
    Py_RETURN_NONE;
}

template <class T> static PyObject* attended(Arguments take) {
    Attention<T> one;
    for (int64_t* size : {&one.rows, &one.heads, &one.size, &one.value_size}) *size = take.number();
    one.query = take.pointer<const T>();
    one.query_row = take.number();
    one.bias = take.pointer<const T>();
    one.key = take.pointer<const T>();
    one.key_row = take.number();
    one.value = take.pointer<const T>();
    one.value_row = take.number();
    one.lists = take.pointer<const int32_t>();
    one.list_row = take.number();
    one.which = take.pointer<const int64_t>();
    one.counts = take.pointer<const int32_t>();
    one.count = take.number();
    one.out = take.pointer<T>();
    const int threads = static_cast<int>(take.number());
    const auto work = [&] {
        const int64_t each = round_up((one.count + one.size) * one.heads, 16);
        Buffer<T> rooms(each * std::max(threads, 1));
        const int64_t share = (one.rows + threads - 1) / std::max(threads, 1);
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
        for (int part = 0; part < threads; ++part)
            for (int64_t row = part * share; row < std::min(one.rows, (part + 1) * share); ++row)
                one.run(row, rooms.data + part * each);
    };
    if (!unlocked(work)) return nullptr;
    Py_RETURN_NONE;
}

// attend(double?, rows, heads, size, value size, query, its stride, its bias, key, its stride, value, its stride,
// lists, their stride, which, counts,
//        longest list, out, threads)
static PyObject* attend(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + 4 + 7 + 5 + 1 + 1)) return nullptr;
    Arguments take{args};
    return take.number() ? attended<double>(take) : attended<float>(take);
}

static PyMethodDef methods[] = {{"choose", FAST(choose), METH_FASTCALL, "The best continuations of all examples."},
                                {"follow", FAST(follow), METH_FASTCALL, "Answers along back-pointers."},
                                {"attend", FAST(attend), METH_FASTCALL, "Attention over lists of positions."},
                                {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{nullptr, 0}};

DEFINE_MODULE(methods, constants, "Pieces of beam search.")
