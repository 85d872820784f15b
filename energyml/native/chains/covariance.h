// The derivative of marginals: covariances with a function of the answer that is a sum over cells and steps.
//
// With f(y) = sum of v[t, y_t] and of w[t, y_t, y_t+1], the derivative of the mean of f by a score is the covariance of
// f with the indicator of what is scored.  Given the label of a cell, what comes before it and what comes after it are
// independent, so that two recursions of conditional means (`before`, `after`) give all of them.  Nothing is
// exponentiated: marginals of any origin will do.
#pragma once

#include "batch.h"
#include "chain.h"
#include "table.h"

namespace energyml {

// What is below this times the largest has no conditional worth a look.
template <class In> INLINE constexpr In least_mass() {
    return std::numeric_limits<In>::min() / std::numeric_limits<In>::epsilon();
}

// One line of a step: its mass, and its mass times (x + w).
template <class In> INLINE void weigh(const In* line, const In* x, const In* w, int64_t labels, In& mass, In& mean) {
    constexpr int lanes = Lanes<In>::count;
    V<In> masses = V<In>{}, means = V<In>{};
    int64_t c = 0;
    for (; c + lanes <= labels; c += lanes) {
        const V<In> here = load(line + c);
        masses += here;
        means += here * (w ? load(x + c) + load(w + c) : load(x + c));
    }
    mass = horizontal_sum<In>(masses);
    mean = horizontal_sum<In>(means);
    for (; c < labels; ++c) mass += line[c], mean += line[c] * (w ? x[c] + w[c] : x[c]);
}

// One chain of n cells; `room` holds (n + 4) rows of labels.  `pair` gets its gradients added, every `pair_step`.
template <class In>
static void covariances_of(const Moments<In>& moments, int64_t n, int64_t labels, In* room, In* unary, In* pair,
                           int64_t pair_step) {
    const int64_t squared = labels * labels;
    const In* v = moments.v;
    In *after = room, *x = room + n * labels, *before = x + labels, *mass = before + labels, *next = mass + labels;
    double mean = 0;
    for (int64_t k = 0; k < n * labels && v; ++k) mean += static_cast<double>(moments.cells[k]) * v[k];
    for (int64_t k = 0; k < (n - 1) * squared && moments.w; ++k)
        mean += static_cast<double>(moments.steps[k]) * moments.w[k];
    const In level = static_cast<In>(mean);
    std::fill(after + (n - 1) * labels, after + n * labels, static_cast<In>(0));
    for (int64_t t = n - 2; t >= 0; --t) {
        const In* later = after + (t + 1) * labels;
        for (int64_t c = 0; c < labels; ++c) x[c] = later[c] + (v ? v[(t + 1) * labels + c] : 0);
        for (int64_t i = 0; i < labels; ++i) {
            const int64_t at = t * squared + i * labels;
            In total, weighted;
            weigh(moments.steps + at, x, moments.w ? moments.w + at : nullptr, labels, total, weighted);
            after[t * labels + i] = total > least_mass<In>() ? weighted / total : 0;
        }
    }
    for (int64_t c = 0; c < labels; ++c) before[c] = v ? v[c] : 0;
    for (int64_t t = 0; t < n; ++t) {
        const int64_t row = t * labels;
        for (int64_t c = 0; c < labels; ++c)
            unary[row + c] = moments.cells[row + c] * (before[c] + after[row + c] - level);
        if (t + 1 == n) break;
        const In* later = after + row + labels;
        for (int64_t c = 0; c < labels; ++c)
            x[c] = later[c] + (v ? v[row + labels + c] : 0) - level, mass[c] = next[c] = 0;
        for (int64_t i = 0; i < labels; ++i) {
            const int64_t at = t * squared + i * labels;
            const In* line = moments.steps + at;
            const In* w = moments.w ? moments.w + at : nullptr;
            const In own = before[i];
            if (w) {
                for (int64_t c = 0; c < labels; ++c) mass[c] += line[c], next[c] += line[c] * (own + w[c]);
            } else {
                for (int64_t c = 0; c < labels; ++c) mass[c] += line[c], next[c] += line[c] * own;
            }
            if (!pair) continue;
            In* out = pair + t * pair_step + i * labels;
            if (w) {
                for (int64_t c = 0; c < labels; ++c) out[c] += line[c] * (own + w[c] + x[c]);
            } else {
                for (int64_t c = 0; c < labels; ++c) out[c] += line[c] * (own + x[c]);
            }
        }
        for (int64_t c = 0; c < labels; ++c)
            before[c] = (mass[c] > least_mass<In>() ? next[c] / mass[c] : 0) + (v ? v[row + labels + c] : 0);
    }
}

// Gradients into answer.unary and, summed where its strides are 0, answer.pair; lengths and sizes are those of the
// chains.
template <class In> static void covariances(const Chain<In>& chain, const Moments<In>& moments,
                                            const Answer<In>& answer, int threads) {
    const int64_t labels = chain.labels, size = chain.size, row = size * labels;
    const int64_t steps = std::max<int64_t>(0, size - 1) * labels * labels;
    const int64_t sums = answer.pair && !answer.pair_example ? (answer.pair_step ? steps : labels * labels) : 0;
    const int64_t room = (size + 4) * labels, own = room + (threads > 1 ? sums : 0);
    Buffer<In> memory(static_cast<size_t>(threads) * own);
    if (answer.pair) {
        const int64_t all = answer.pair_example ? chain.batch * answer.pair_example : sums;
        std::fill(answer.pair, answer.pair + all, static_cast<In>(0));
        for (int k = 0; k < threads && threads > 1; ++k)
            std::fill(memory.data + k * own + room, memory.data + (k + 1) * own, static_cast<In>(0));
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t b = 0; b < chain.batch; ++b) {
        const int64_t n = chain.length(b);
        In* mine = memory.data + thread_number() * own;
        In* unary = answer.unary + b * row;
        std::fill(unary + n * labels, unary + row, static_cast<In>(0));
        if (n == 0) continue;
        In* pair = answer.pair ? (answer.pair_example ? answer.pair + b * answer.pair_example
                                                      : (threads > 1 ? mine + room : answer.pair))
                               : nullptr;
        const Moments<In> here{moments.cells + b * row, moments.steps + b * steps,
                               moments.v ? moments.v + b * row : nullptr, moments.w ? moments.w + b * steps : nullptr};
        covariances_of(here, n, labels, mine, unary, pair, answer.pair_step);
    }
    for (int k = 0; k < threads && threads > 1 && sums; ++k)
        for (int64_t i = 0; i < sums; ++i) answer.pair[i] += memory.data[k * own + room + i];
}

}  // namespace energyml
