// First-order chains in log space, in double precision: the tier for scores that spread too far for exp space (see
// scaled.h).
//
// An exponential for every entry of the table at every step, and the largest term of every sum apart.  Log-sums are not
// taken relative to the largest: the likely answers would lose their digits beside a large score that leads nowhere.
// Marginals come from those of the next cell, by the probabilities of a label given the next one (the backward
// simulation of Rabiner 1989, with sums in place of draws): each of these sums to 1 as computed, so that marginals do,
// however large the scores are.
#pragma once

#include "batch.h"
#include "chain.h"
#include "table.h"

namespace energyml {

struct LogScratch {
    double* table;                     // [labels, padded]: the scores of a step, where each step or example has its own
    double* share;                     // [labels, padded]: the terms of a step's sums; of pairs, later
    double *high, *sum, *next, *mass;  // [padded] each
    double* ways;   // [T, padded] where marginals are wanted, else [padded]: log-sums of the ways into each label
    double* outer;  // [labels, padded]: the pair gradient of all steps, or null
};

template <class In> struct LogUnit {
    const Chain<In>& chain;
    const Answer<In>& answer;
    int64_t padded;
    const double* shared;  // the scores of all steps of all chains, or null
    bool keep;
    LogScratch scratch;

    double* ways(int64_t t) const { return scratch.ways + (keep ? t * padded : 0); }
};

// Scores in double precision, with -inf beyond the last label.
template <class In> static const double* widen(const In* pair, int64_t labels, int64_t padded, double* out) {
    for (int64_t i = 0; i < labels; ++i)
        for (int64_t c = 0; c < padded; ++c)
            out[i * padded + c] = c < labels ? static_cast<double>(pair[i * labels + c]) : -INFINITY;
    return out;
}

// The table between cells t and t + 1, where the one that was asked for last, if any, is in `scratch.table`.
template <class In> static const double* table_of(const LogUnit<In>& unit, int64_t b, int64_t t, bool first) {
    if (unit.shared) return unit.shared;
    if (!first && !unit.chain.pair_step) return unit.scratch.table;
    return widen(unit.chain.table(b, t), unit.chain.labels, unit.padded, unit.scratch.table);
}

// For each later label the largest of ways + table (0 where there is none), and the sum of exp(ways + table - largest);
// each term into `share`, if that is not null.  W vectors of columns at a time.
template <int W> INLINE void log_columns(const double* ways, const double* table, int64_t labels, int64_t padded,
                                         double* high, double* sum, double* share) {
    constexpr int lanes = Lanes<double>::count;
    constexpr double negligible = -60;  // below this a term is lost beside the largest, which is 1
    const V<double> nothing = all<double>(-INFINITY), zero = V<double>{};
    V<double> top[W], total[W];
    for (int p = 0; p < W; ++p) top[p] = nothing, total[p] = zero;
    for (int64_t i = 0; i < labels; ++i)
        for (int p = 0; p < W; ++p)
            top[p] = larger<double>(all<double>(ways[i]) + load(table + i * padded + p * lanes), top[p]);
    for (int p = 0; p < W; ++p) top[p] = top[p] > nothing ? top[p] : zero;
    for (int64_t i = 0; i < labels; ++i) {
        for (int p = 0; p < W; ++p) {
            const V<double> below = all<double>(ways[i]) + load(table + i * padded + p * lanes) - top[p];
            const I<double> counts = below >= all<double>(negligible);
            V<double> term = zero;
            if (any<double>(counts)) term = counts ? exponential<double>(below) : zero;
            total[p] += term;
            if (share) store(share + i * padded + p * lanes, term);
        }
    }
    for (int p = 0; p < W; ++p) store(high + p * lanes, top[p]), store(sum + p * lanes, total[p]);
}

static void log_sums(const double* ways, const double* table, int64_t labels, int64_t padded, double* high, double* sum,
                     double* share) {
    constexpr int lanes = Lanes<double>::count;
    for (int64_t c = 0; c < padded;) {
        const bool four = c + 4 * lanes <= padded;
        double* const to = share ? share + c : nullptr;
        if (four)
            log_columns<4>(ways, table + c, labels, padded, high + c, sum + c, to);
        else
            log_columns<1>(ways, table + c, labels, padded, high + c, sum + c, to);
        c += four ? 4 * lanes : lanes;
    }
}

// The log-sum of some numbers, and the share of each in it, if there is any.
static double log_sum(const double* numbers, int64_t count, double* shares) {
    const double top = *std::max_element(numbers, numbers + count);
    if (!(top > -INFINITY)) return top;
    double sum = 0;
    for (int64_t c = 0; c < count; ++c) sum += shares[c] = std::exp(numbers[c] - top);
    for (int64_t c = 0; c < count; ++c) shares[c] /= sum;
    return top + std::log(sum);
}

// log Z of a chain, which has cells, and the marginals of its last one; the ways into each label are kept if asked.
template <class In> static double log_forward(const LogUnit<In>& unit, int64_t b) {
    const Chain<In>& chain = unit.chain;
    const LogScratch& scratch = unit.scratch;
    const int64_t labels = chain.labels, n = chain.length(b);
    for (int64_t t = 0; t < n; ++t) {
        const In* row = chain.row(b, t);
        if (t > 0)
            log_sums(unit.ways(t - 1), table_of(unit, b, t - 1, t == 1), labels, unit.padded, scratch.high, scratch.sum,
                     nullptr);
        double* here = unit.ways(t);
        for (int64_t c = 0; c < labels; ++c) {
            const double score = static_cast<double>(row[c]);
            here[c] = t == 0               ? score
                      : scratch.sum[c] > 0 ? scratch.high[c] + score + std::log(scratch.sum[c])
                                           : -INFINITY;
        }
    }
    return log_sum(unit.ways(n - 1), labels, scratch.mass);
}

// Marginals times weight, and the pair gradient, of a chain that has an answer.
template <class In> static void log_backward(const LogUnit<In>& unit, int64_t b) {
    constexpr int lanes = Lanes<double>::count;
    constexpr double least =
        1e-200;  // products with smaller numbers would be subnormal, which takes a hundred times as long
    const Chain<In>& chain = unit.chain;
    const Answer<In>& answer = unit.answer;
    const LogScratch& scratch = unit.scratch;
    const int64_t labels = chain.labels, size = chain.size, padded = unit.padded, n = chain.length(b);
    const double weight = static_cast<double>(answer.weight_of(b));
    const bool direct = answer.pair && !scratch.outer, set = answer.pair_example != 0;
    double *mass = scratch.mass, *next = scratch.next;
    for (int64_t t = n - 1;; --t) {
        for (int64_t c = 0; c < labels && answer.unary; ++c)
            answer.unary[(b * size + t) * labels + c] = static_cast<In>(mass[c] * weight);
        if (t == 0) return;
        log_sums(unit.ways(t - 1), table_of(unit, b, t - 1, t == n - 1), labels, padded, scratch.high, scratch.sum,
                 scratch.share);
        for (int64_t c = 0; c < labels; ++c)
            next[c] = scratch.sum[c] > 0 && mass[c] > least ? mass[c] / scratch.sum[c] : 0;
        In* pair = direct ? answer.pair + b * answer.pair_example + (t - 1) * answer.pair_step : nullptr;
        for (int64_t i = 0; i < labels; ++i) {
            double* terms = scratch.share + i * padded;
            V<double> whole = V<double>{};
            for (int64_t c = 0; c < padded; c += lanes) {
                const V<double> part = load(terms + c) * load(next + c), weighted = part * weight;
                whole += part;
                if (scratch.outer)
                    store(scratch.outer + i * padded + c, load(scratch.outer + i * padded + c) + weighted);
                if (direct) store(terms + c, weighted);
            }
            mass[i] = horizontal_sum<double>(whole);
            for (int64_t c = 0; c < labels && direct; ++c)
                pair[i * labels + c] = static_cast<In>(terms[c]) + (set ? 0 : pair[i * labels + c]);
        }
    }
}

template <class In> static void add_sums(const double* sums, int64_t labels, int64_t padded, In* out) {
    for (int64_t i = 0; i < labels; ++i)
        for (int64_t c = 0; c < labels; ++c) out[i * labels + c] += static_cast<In>(sums[i * padded + c]);
}

// The chains of a batch that no other tier can answer; both passes where there are gradients.
template <class In> static void log_tier(const Chain<In>& chain, const Answer<In>& answer,
                                         const std::vector<int64_t>& rows, bool both, int threads) {
    if (rows.empty()) return;
    const int64_t labels = chain.labels, padded = padded_to<double>(labels), cells = labels * padded;
    const bool stationary = chain.stationary(), outer = both && answer.pair && answer.pair_step == 0;
    if (both && answer.pair && answer.pair_step && !answer.pair_example)
        threads = 1;  // all chains add to the same tables
    const int64_t room =
        4 * padded + (both ? chain.size + labels : 1) * padded + (stationary ? 0 : cells) + (outer ? cells : 0);
    Buffer<double> memory(static_cast<size_t>(threads) * room + (stationary ? cells : 0));
    const double* shared = stationary ? widen(chain.pair, labels, padded, memory.data + threads * room) : nullptr;
    for (int64_t k = 0; k < threads * room; ++k) memory.data[k] = 0;  // padding and sums
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (size_t k = 0; k < rows.size(); ++k) {
        const int64_t b = rows[k];
        double* own = memory.data + thread_number() * room;
        LogScratch scratch{nullptr,          nullptr,          own,    own + padded, own + 2 * padded,
                           own + 3 * padded, own + 4 * padded, nullptr};
        own += (4 + (both ? chain.size : 1)) * padded;
        if (both) scratch.share = own, own += cells;
        if (!stationary) scratch.table = own, own += cells;
        if (outer) scratch.outer = own;
        const LogUnit<In> unit{chain, answer, padded, shared, both, scratch};
        answer.log_z[b] = chain.length(b) > 0 ? log_forward(unit, b) : 0;
        if (!both || chain.length(b) == 0) continue;
        if (answer.log_z[b] == -INFINITY) {
            clear_chain(chain, answer, b);
            continue;
        }
        log_backward(unit, b);
        if (!outer || !answer.pair_example) continue;
        add_sums(scratch.outer, labels, padded, answer.pair + b * answer.pair_example);
        std::fill(scratch.outer, scratch.outer + cells, 0.0);
    }
    for (int k = 0; k < threads && outer && !answer.pair_example; ++k)
        add_sums(memory.data + (k + 1) * room - cells, labels, padded, answer.pair);
}

}  // namespace energyml
