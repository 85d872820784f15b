// Viterbi in double precision, for chains whose best ways are too far from 0 in the scores' own type: there rounding
// would decide between them.
#pragma once

#include "log_space.h"

namespace energyml {

// For each later label the largest of ways + table.
static void largest_ways(const double* ways, const double* table, int64_t labels, int64_t padded, double* out) {
    constexpr int lanes = Lanes<double>::count;
    for (int64_t c = 0; c < padded; c += lanes) {
        V<double> top = all<double>(-INFINITY);
        for (int64_t i = 0; i < labels; ++i)
            top = larger<double>(all<double>(ways[i]) + load(table + i * padded + c), top);
        store(out + c, top);
    }
}

// Best labels [T], -1 where there is no cell or no answer, and their score, of a chain that has cells; `ways` [T,
// padded].
template <class In> static In best_of(const Chain<In>& chain, int64_t b, const double* shared, double* own,
                                      double* ways, int64_t* best) {
    const int64_t labels = chain.labels, padded = padded_to<double>(labels), n = chain.length(b);
    for (int64_t t = 0; t < n; ++t) {
        double* here = ways + t * padded;
        if (t > 0) {
            if (!shared && (t == 1 || chain.pair_step)) widen(chain.table(b, t - 1), labels, padded, own);
            largest_ways(here - padded, shared ? shared : own, labels, padded, here);
        }
        for (int64_t c = 0; c < labels; ++c) here[c] = (t > 0 ? here[c] : 0) + static_cast<double>(chain.row(b, t)[c]);
    }
    std::fill(best, best + chain.size, static_cast<int64_t>(-1));
    const double* last = ways + (n - 1) * padded;
    int64_t label = std::max_element(last, last + labels) - last;
    if (!(last[label] > -INFINITY)) return -std::numeric_limits<In>::infinity();
    double total = static_cast<double>(chain.row(b, n - 1)[label]);
    best[n - 1] = label;
    for (int64_t t = n - 2; t >= 0; --t) {
        const In* table = chain.table(b, t);
        const auto through = [&](int64_t i) {
            return ways[t * padded + i] + static_cast<double>(table[i * labels + label]);
        };
        int64_t from = 0;
        for (int64_t i = 1; i < labels; ++i) from = through(i) > through(from) ? i : from;
        total += static_cast<double>(table[from * labels + label]) + static_cast<double>(chain.row(b, t)[from]);
        label = best[t] = from;
    }
    return static_cast<In>(total);
}

// The chains of a batch that are marked, each of which has cells.
template <class In> static void best_wide(const Chain<In>& chain, const std::vector<uint8_t>& marks, int64_t* best,
                                          In* score, int threads) {
    if (std::find(marks.begin(), marks.end(), 1) == marks.end()) return;
    const int64_t labels = chain.labels, padded = padded_to<double>(labels), cells = labels * padded,
                  room = cells + chain.size * padded;
    Buffer<double> memory(static_cast<size_t>(threads) * room + cells);
    const double* shared =
        chain.stationary() ? widen(chain.pair, labels, padded, memory.data + threads * room) : nullptr;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t b = 0; b < chain.batch; ++b) {
        double* own = memory.data + thread_number() * room;
        if (marks[b]) score[b] = best_of(chain, b, shared, own, own + cells, best + b * chain.size);
    }
}

}  // namespace energyml
