// First-order chains: scaled forward-backward in exp space, and Viterbi.
//
// Scores are [B, T, C] unaries and [C, C] pairs (earlier, later), shared or with strides over examples and positions.  Rows of
// examples are processed together so that one load of a pair row serves several of them; labels are padded to whole vectors.
//
// Safety.  In exp space a number may underflow to 0 and lose a path that later turns out to be the only one.  All non-zero
// factors are therefore kept above `floor`: then every product of two of them is a normal number, and only true zeros are zeros.
// A row that breaks the rule is flagged and left to the caller, which repeats it in double or in log space.
#pragma once

#include <cstdlib>
#include <cstring>
#include <vector>

#include "simd.h"

namespace energyml {

template <class T> struct Limits;
template <> struct Limits<float> {
    static constexpr float floor = 1e-18f, spread = 41.0f;
};
template <> struct Limits<double> {
    static constexpr double floor = 1e-140, spread = 320.0;
};

// Row-major [labels, padded] exp(pair - shift) and its transpose.
template <class T> struct Exponentials {
    std::vector<T> forward, backward;
    T shift = 0;
    bool safe = true;
};

template <class T> struct Chain {
    const T* unary;
    const T* pair;
    const int64_t* lengths;  // null: all T
    int64_t batch, size, labels;
    int64_t pair_example, pair_step;  // strides of the pair table over examples and positions, in elements

    int padded() const { return round_up(labels, Lanes<T>::count); }
    int64_t length(int64_t b) const { return lengths ? lengths[b] : size; }
    bool stationary() const { return pair_example == 0 && pair_step == 0; }
    const T* pairs(int64_t b, int64_t t) const { return pair + b * pair_example + t * pair_step; }
};

template <class T> INLINE void exponentiate(const T* pair, int64_t labels, int padded, Exponentials<T>& out, bool transpose) {
    const T nothing = -std::numeric_limits<T>::infinity();
    T high = nothing, low = std::numeric_limits<T>::infinity();
    for (int64_t k = 0; k < labels * labels; ++k) {
        T x = pair[k];
        high = x > high ? x : high;
        low = (x < low && x > nothing) ? x : low;
    }
    out.shift = high > nothing ? high : 0;
    out.safe = !(high > nothing) || high - low <= Limits<T>::spread;
    out.forward.assign(static_cast<size_t>(labels) * padded, 0);
    if (transpose) out.backward.assign(static_cast<size_t>(labels) * padded, 0);
    constexpr int lanes = Lanes<T>::count;
    alignas(64) T row[lanes];
    for (int64_t i = 0; i < labels; ++i) {
        for (int64_t j = 0; j < labels; j += lanes) {
            int64_t live = labels - j < lanes ? labels - j : lanes;
            for (int64_t k = 0; k < lanes; ++k) row[k] = k < live ? pair[i * labels + j + k] - out.shift : nothing;
            store(row, exponential<T>(load(row)));
            for (int64_t k = 0; k < live; ++k) {
                out.forward[i * padded + j + k] = row[k];
                if (transpose) out.backward[(j + k) * padded + i] = row[k];
            }
        }
    }
}

// out[r] = in[r] @ table for R rows: R x P accumulators stay in registers while the table's rows stream by.
template <class T, int R, int P> INLINE void panel(const T* in, const T* table, int64_t labels, int padded, T* out, int column) {
    constexpr int lanes = Lanes<T>::count;
    V<T> sum[R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) sum[r][p] = V<T>{};
    for (int64_t i = 0; i < labels; ++i) {
        const T* line = table + i * padded + column;
        V<T> entry[P];
        for (int p = 0; p < P; ++p) entry[p] = load(line + p * lanes);
        for (int r = 0; r < R; ++r) {
            V<T> factor = all<T>(in[r * padded + i]);
            for (int p = 0; p < P; ++p) sum[r][p] += factor * entry[p];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) store(out + r * padded + column + p * lanes, sum[r][p]);
}

template <class T, int R> INLINE void multiply(const T* in, const T* table, int64_t labels, int padded, T* out) {
    constexpr int lanes = Lanes<T>::count;
    int column = 0;
    for (; column + 3 * lanes <= padded; column += 3 * lanes) panel<T, R, 3>(in, table, labels, padded, out, column);
    if (column + 2 * lanes <= padded) {
        panel<T, R, 2>(in, table, labels, padded, out, column);
        column += 2 * lanes;
    }
    if (column < padded) panel<T, R, 1>(in, table, labels, padded, out, column);
}

// exp(unary - max) of one position into `out`; returns the maximum, and clears `safe` when finite scores spread too far.
template <class T> INLINE T exp_unary(const T* unary, int64_t labels, int padded, T* out, bool& safe) {
    constexpr int lanes = Lanes<T>::count;
    const T nothing = -std::numeric_limits<T>::infinity();
    for (int64_t c = 0; c < labels; ++c) out[c] = unary[c];
    for (int c = static_cast<int>(labels); c < padded; ++c) out[c] = nothing;
    V<T> high_lanes = load(out);
    V<T> low_lanes = all<T>(std::numeric_limits<T>::infinity());
    for (int c = 0; c < padded; c += lanes) {
        V<T> x = load(out + c);
        high_lanes = x > high_lanes ? x : high_lanes;
        low_lanes = (x < low_lanes) & (x > all<T>(nothing)) ? x : low_lanes;
    }
    T high = horizontal_max<T>(high_lanes);
    if (!(high > nothing)) {
        for (int c = 0; c < padded; ++c) out[c] = 0;
        return nothing;
    }
    T low = -horizontal_max<T>(-low_lanes);
    safe = safe && high - low <= Limits<T>::spread;
    for (int c = 0; c < padded; c += lanes) store(out + c, exponential<T>(load(out + c) - high));
    return high;
}

// Scale a row by a power of two so that its largest entry lies in [1, 2); returns the exponent; checks the floor.
template <class T> INLINE int rescale(T* row, int padded, bool& safe, bool& dead) {
    constexpr int lanes = Lanes<T>::count;
    V<T> high_lanes = load(row);
    V<T> low_lanes = all<T>(std::numeric_limits<T>::max());
    const V<T> zero = V<T>{};
    for (int c = 0; c < padded; c += lanes) {
        V<T> x = load(row + c);
        high_lanes = x > high_lanes ? x : high_lanes;
        low_lanes = (x > zero) & (x < low_lanes) ? x : low_lanes;
    }
    T high = horizontal_max<T>(high_lanes);
    if (!(high > 0)) {
        dead = true;
        return 0;
    }
    T low = -horizontal_max<T>(-low_lanes);
    safe = safe && low >= high * Limits<T>::floor;
    int exponent = std::ilogb(high);
    T factor = std::ldexp(static_cast<T>(1), -exponent);
    for (int c = 0; c < padded; c += lanes) store(row + c, load(row + c) * factor);
    return exponent;
}

// Forward pass of R examples of the same table; `alpha` and `emission` are [*, T, padded] for these examples or scratch of two
// rows when `keep` is false.  Writes log Z (double) and a flag for each row.
template <class T, int R>
INLINE void forward_rows(const Chain<T>& chain, const int64_t* rows, const T* table, T shift, T* alpha, T* emission, bool keep,
                         T* scratch, double* log_z, uint8_t* flags) {
    const int64_t labels = chain.labels, size = chain.size;
    const int padded = chain.padded();
    T* current = scratch;                    // [R, padded]
    T* next = scratch + R * padded;          // [R, padded]
    T* unary = scratch + 2 * R * padded;     // [padded]
    double total[R];
    bool safe[R], dead[R];
    int64_t longest = 0;
    for (int r = 0; r < R; ++r) {
        total[r] = 0;
        safe[r] = true;
        dead[r] = false;
        longest = chain.length(rows[r]) > longest ? chain.length(rows[r]) : longest;
    }
    for (int64_t t = 0; t < longest; ++t) {
        if (t > 0) multiply<T, R>(current, table, labels, padded, next);
        for (int r = 0; r < R; ++r) {
            int64_t b = rows[r];
            if (t >= chain.length(b) || dead[r]) {
                if (t > 0) std::memcpy(next + r * padded, current + r * padded, sizeof(T) * padded);
                continue;
            }
            T* here = keep ? emission + (b * size + t) * padded : unary;
            T high = exp_unary<T>(chain.unary + (b * size + t) * labels, labels, padded, here, safe[r]);
            T* row = (t > 0 ? next : current) + r * padded;
            if (!(high > -std::numeric_limits<T>::infinity())) {
                dead[r] = true;
                continue;
            }
            int exponent = 0;
            if (t > 0) {
                exponent += rescale<T>(row, padded, safe[r], dead[r]);
                for (int c = 0; c < padded; c += Lanes<T>::count) store(row + c, load(row + c) * load(here + c));
            } else {
                std::memcpy(row, here, sizeof(T) * padded);
            }
            exponent += dead[r] ? 0 : rescale<T>(row, padded, safe[r], dead[r]);
            total[r] += static_cast<double>(high) + (t > 0 ? static_cast<double>(shift) : 0.0) + exponent * 0.693147180559945309417;
            if (keep) std::memcpy(alpha + (b * size + t) * padded, row, sizeof(T) * padded);
        }
        if (t > 0) std::swap(current, next);
    }
    for (int r = 0; r < R; ++r) {
        int64_t n = chain.length(rows[r]);
        double sum = 0;
        for (int64_t c = 0; c < labels; ++c) sum += current[r * padded + c];
        double value = n == 0 ? 0.0 : (dead[r] || !(sum > 0) ? -INFINITY : total[r] + std::log(sum));
        log_z[rows[r]] = value;
        flags[rows[r]] = !safe[r];
    }
}

// Backward pass: marginals times weight into `gradient` [B, T, C]; alpha becomes the left and emission the right factor of the pair
// gradient: sum over t of outer(alpha[t], emission[t+1]), to be multiplied by the exponentiated table.
template <class T, int R>
INLINE void backward_rows(const Chain<T>& chain, const int64_t* rows, const T* transposed, T* alpha, T* emission,
                          const double* weight, T* gradient, T* scratch, uint8_t* flags) {
    const int64_t labels = chain.labels, size = chain.size;
    const int padded = chain.padded();
    T* beta = scratch;
    T* right = scratch + R * padded;
    int64_t longest = 0;
    bool safe[R], dead[R];
    int exponent[R];  // of the scaling of beta at the current position
    for (int r = 0; r < R; ++r) {
        safe[r] = true;
        dead[r] = false;
        exponent[r] = 0;
        longest = chain.length(rows[r]) > longest ? chain.length(rows[r]) : longest;
        for (int c = 0; c < padded; ++c) beta[r * padded + c] = c < labels ? static_cast<T>(1) : 0;
    }
    for (int64_t t = longest - 1; t >= 0; --t) {
        for (int r = 0; r < R; ++r) {
            int64_t b = rows[r], n = chain.length(b);
            if (t >= n) continue;
            T* left = alpha + (b * size + t) * padded;
            T* out = gradient + (b * size + t) * labels;
            const T* row = beta + r * padded;
            V<T> lanes_sum = V<T>{};
            for (int c = 0; c < padded; c += Lanes<T>::count) lanes_sum += load(left + c) * load(row + c);
            T sum = horizontal_sum<T>(lanes_sum);
            T w = sum > 0 ? static_cast<T>(weight[b]) / sum : 0;
            if (!(sum >= std::numeric_limits<T>::min())) safe[r] = safe[r] && weight[b] == 0;
            for (int64_t c = 0; c < labels; ++c) out[c] = left[c] * row[c] * w;
            T scale = t == n - 1 ? 0 : std::ldexp(w, -exponent[r]);
            for (int c = 0; c < padded; c += Lanes<T>::count) store(left + c, load(left + c) * scale);
        }
        if (t == 0) break;
        for (int r = 0; r < R; ++r) {
            int64_t b = rows[r];
            T* here = right + r * padded;
            if (t >= chain.length(b)) {
                std::memcpy(here, beta + r * padded, sizeof(T) * padded);
                continue;
            }
            T* emit = emission + (b * size + t) * padded;
            for (int c = 0; c < padded; c += Lanes<T>::count) store(here + c, load(emit + c) * load(beta + r * padded + c));
            std::memcpy(emit, here, sizeof(T) * padded);
        }
        T* next = right + R * padded;
        multiply<T, R>(right, transposed, labels, padded, next);
        for (int r = 0; r < R; ++r) {
            int64_t b = rows[r];
            if (t >= chain.length(b)) continue;
            std::memcpy(beta + r * padded, next + r * padded, sizeof(T) * padded);
            exponent[r] = rescale<T>(beta + r * padded, padded, safe[r], dead[r]);
        }
    }
    for (int r = 0; r < R; ++r) flags[rows[r]] = flags[rows[r]] || !safe[r];
}

}  // namespace energyml
