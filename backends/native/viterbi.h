// Viterbi: the best scores delta are kept for the walk back; no back-pointers are stored, the best earlier label is found again on
// the way at O(C) a step, by the same additions.
#pragma once

#include "chain.h"

namespace energyml {

template <class T, int R, int P> INLINE void max_panel(const T* in, const T* table, int64_t labels, int padded, T* out, int column) {
    constexpr int lanes = Lanes<T>::count;
    V<T> best[R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) best[r][p] = all<T>(-std::numeric_limits<T>::infinity());
    for (int64_t i = 0; i < labels; ++i) {
        const T* line = table + i * padded + column;
        V<T> entry[P];
        for (int p = 0; p < P; ++p) entry[p] = load(line + p * lanes);
        for (int r = 0; r < R; ++r) {
            V<T> from = all<T>(in[r * padded + i]);
            for (int p = 0; p < P; ++p) {
                V<T> candidate = from + entry[p];
                best[r][p] = candidate > best[r][p] ? candidate : best[r][p];
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) store(out + r * padded + column + p * lanes, best[r][p]);
}

template <class T, int R> INLINE void max_multiply(const T* in, const T* table, int64_t labels, int padded, T* out) {
    constexpr int lanes = Lanes<T>::count;
    int column = 0;
    for (; column + 3 * lanes <= padded; column += 3 * lanes) max_panel<T, R, 3>(in, table, labels, padded, out, column);
    if (column + 2 * lanes <= padded) {
        max_panel<T, R, 2>(in, table, labels, padded, out, column);
        column += 2 * lanes;
    }
    if (column < padded) max_panel<T, R, 1>(in, table, labels, padded, out, column);
}

template <class T> INLINE void pad_table(const T* pair, int64_t labels, int padded, T* out, T* transposed) {
    const T nothing = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < labels; ++i) {
        for (int64_t j = 0; j < padded; ++j) out[i * padded + j] = j < labels ? pair[i * labels + j] : nothing;
        for (int64_t j = 0; j < padded; ++j) transposed[i * padded + j] = j < labels ? pair[j * labels + i] : nothing;
    }
}

template <class T> INLINE double walk_back(const Chain<T>& chain, int64_t b, const T* delta, int64_t stride, const T* transposed,
                                           int64_t* best) {
    const int64_t labels = chain.labels, size = chain.size, n = chain.length(b);
    const int padded = chain.padded();
    for (int64_t t = 0; t < size; ++t) best[t] = -1;
    if (n == 0) return 0;
    const T* last = delta + (n - 1) * stride;
    int64_t label = 0;
    for (int64_t c = 1; c < labels; ++c) label = last[c] > last[label] ? c : label;
    if (!(last[label] > -std::numeric_limits<T>::infinity())) return -INFINITY;
    best[n - 1] = label;
    double total = chain.unary[(b * size + n - 1) * labels + label];
    for (int64_t t = n - 2; t >= 0; --t) {
        const T* row = delta + t * stride;
        const T* into = transposed + label * padded;
        int64_t pick = 0;
        T high = row[0] + into[0];
        for (int64_t c = 1; c < labels; ++c) {
            T candidate = row[c] + into[c];
            pick = candidate > high ? c : pick;
            high = candidate > high ? candidate : high;
        }
        total += static_cast<double>(into[pick]) + static_cast<double>(chain.unary[(b * size + t) * labels + pick]);
        label = best[t] = pick;
    }
    return total;
}

template <class T, int R>
INLINE void viterbi_rows(const Chain<T>& chain, const int64_t* rows, const T* table, const T* transposed, T* delta, int64_t* best,
                         double* score) {
    const int64_t labels = chain.labels, size = chain.size;
    const int padded = chain.padded();
    int64_t longest = 0;
    for (int r = 0; r < R; ++r) longest = chain.length(rows[r]) > longest ? chain.length(rows[r]) : longest;
    for (int64_t t = 0; t < longest; ++t) {
        T* here = delta + t * R * padded;
        if (t > 0) max_multiply<T, R>(here - R * padded, table, labels, padded, here);
        for (int r = 0; r < R; ++r) {
            T* row = here + r * padded;
            if (t >= chain.length(rows[r])) continue;
            const T* unary = chain.unary + (rows[r] * size + t) * labels;
            if (t == 0)
                for (int c = 0; c < padded; ++c) row[c] = c < labels ? unary[c] : -std::numeric_limits<T>::infinity();
            else
                for (int64_t c = 0; c < labels; ++c) row[c] += unary[c];
        }
    }
    for (int r = 0; r < R; ++r)
        score[rows[r]] = walk_back<T>(chain, rows[r], delta + r * padded, R * padded, transposed, best + rows[r] * size);
}

}  // namespace energyml
