// Products of a few rows with a table, over (+, *) or (max, +): rows x columns of accumulators stay in registers while
// the lines of the table stream by.  Tables are packed: one panel of columns after another, each with all its lines, so
// that they stream in order.
//
// Rows are padded to vectors, products take SPAN of them at once: as wide as registers are, but for the last one where
// their number is odd.
#pragma once

#include "vectors.h"

namespace energyml {

// How many vectors a register holds, and how many rows share a load of the table: what the registers can hold.
constexpr int SPAN = REGISTER / 32;
constexpr int ROWS = REGISTER == 64 ? 8 : FUSED ? 4 : 2;

template <class T> struct Broad {
    typedef T V __attribute__((vector_size(32 * SPAN), aligned(sizeof(T)), may_alias));
};

// A vector of which the compiler knows nothing but that it is in a register: read once, where it might rather read it
// again in both instructions that use it, and then loads are what runs out.
template <class X> INLINE X kept(X v) {
#if defined(__AVX512VL__)
    asm("" : "+v"(v));
#elif defined(__FMA__)
    asm("" : "+x"(v));
#endif
    return v;
}

// Vectors X of either width.
template <class T> struct SumProduct {
    template <class X> static INLINE X start() { return X{}; }
    template <class X> INLINE X join(X total, T factor, X entry) const { return total + (factor - X{}) * entry; }
    template <class X> static INLINE X merge(X a, X b) { return a + b; }
};

// Some processors add and compare in the same units and multiply in others: adding by a multiplication with one is then
// twice as fast.  The compiler must not know that it is one.
template <class T> struct MaxSum {
    typename Broad<T>::V one = 1 - typename Broad<T>::V{};
    INLINE MaxSum() { one = kept(one); }
    template <class X> static INLINE X larger_of(X a, X b) { return a > b ? a : b; }
    template <class X> static INLINE X start() { return -std::numeric_limits<T>::infinity() - X{}; }
    template <class X> INLINE X join(X total, T factor, X entry) const {
#ifdef __FMA__
        return larger_of<X>((factor - X{}) * vector_at<X>(&one) + entry, total);
#else
        return larger_of<X>((factor - X{}) + entry, total);
#endif
    }
    template <class X> static INLINE X merge(X a, X b) { return larger_of<X>(a, b); }
};

// How many vectors wide the next panel is: three broad ones, or so many that no single one remains, which would not
// fill the pipeline.
constexpr int WIDEST = 3 * SPAN;
INLINE int panel_width(int64_t vectors) {
    if (vectors <= WIDEST) return static_cast<int>(vectors);
    return vectors <= 4 * SPAN ? 2 * SPAN : WIDEST;
}

struct Strides {
    int64_t row, step;  // of the factors: from row to row, and from line to line
    int64_t line;       // of the table
    int64_t out;
};

// out[r] (+)= sum over i of in[r, i] * table[i], on W vectors of columns.  Few accumulators are split S ways, as each
// waits for its own last sum.
template <class Op, class T, int R, int W>
INLINE void panel(const T* in, const T* table, int64_t lines, T* out, Strides by, bool add) {
    typedef typename Broad<T>::V B;
    constexpr int lanes = Lanes<T>::count, broad = SPAN * lanes;
    constexpr int P = W / SPAN, behind = P * broad, columns = P + (W % SPAN);
    constexpr bool odd = W % SPAN;  // a vector that is not broad comes behind the others
    constexpr int S = R * columns >= 8 ? 1 : (R * columns >= 4 ? 2 : 4);
    const Op op;
    B total[S][R][P ? P : 1];
    V<T> last[S][R];
    for (int s = 0; s < S; ++s)
        for (int r = 0; r < R; ++r) {
            for (int p = 0; p < P; ++p) total[s][r][p] = Op::template start<B>();
            if (odd) last[s][r] = Op::template start<V<T>>();
        }
    if (add)
        for (int r = 0; r < R; ++r) {
            for (int p = 0; p < P; ++p) total[0][r][p] = vector_at<B>(out + r * by.out + p * broad);
            if (odd) last[0][r] = load(out + r * by.out + behind);
        }
    const auto join = [&](int64_t i, int s) __attribute__((always_inline)) {
        const T* line = table + i * by.line;
        B entry[P ? P : 1];
        V<T> end;
        for (int p = 0; p < P; ++p) {
            entry[p] = vector_at<B>(line + p * broad);
            if (R == 2) entry[p] = kept(entry[p]);
        }
        if (odd) end = R == 2 ? kept(load(line + behind)) : load(line + behind);
        for (int r = 0; r < R; ++r) {
            const T factor = in[r * by.row + i * by.step];
            for (int p = 0; p < P; ++p) total[s][r][p] = op.join(total[s][r][p], factor, entry[p]);
            if (odd) last[s][r] = op.join(last[s][r], factor, end);
        }
    };
    int64_t i = 0;
    for (; i + S <= lines; i += S)
        for (int s = 0; s < S; ++s) join(i + s, s);
    for (; i < lines; ++i) join(i, 0);
    for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) {
            B whole = total[0][r][p];
            for (int s = 1; s < S; ++s) whole = Op::merge(whole, total[s][r][p]);
            put<B>(out + r * by.out + p * broad, whole);
        }
        if (!odd) continue;
        V<T> whole = last[0][r];
        for (int s = 1; s < S; ++s) whole = Op::merge(whole, last[s][r]);
        store(out + r * by.out + behind, whole);
    }
}

// The same on `wide` vectors of columns.
template <class Op, class T, int R, int W = WIDEST>
INLINE void panel_of(int wide, const T* in, const T* table, int64_t lines, T* out, Strides by, bool add) {
    if constexpr (W > 1)
        if (wide < W) return panel_of<Op, T, R, W - 1>(wide, in, table, lines, out, by, add);
    panel<Op, T, R, W>(in, table, lines, out, by, add);
}

template <class Op, class T, int R = ROWS> INLINE void all_panels(int rows, const T* in, const T* packed,
                                                                  int64_t labels, int64_t padded, T* out) {
    if constexpr (R > 1)
        if (rows < R) return all_panels<Op, T, R - 1>(rows, in, packed, labels, padded, out);
    constexpr int lanes = Lanes<T>::count;
    for (int64_t column = 0; column < padded;) {
        const int wide = panel_width((padded - column) / lanes);
        panel_of<Op, T, R>(wide, in, packed + column * labels, labels, out + column, {padded, 1, wide * lanes, padded},
                           false);
        column += wide * lanes;
    }
}

// out [rows, padded] = in [rows, padded] @ table, for at most ROWS rows.
template <template <class> class Op, class T> static void multiply(int rows, const T* in, const T* packed,
                                                                   int64_t labels, int64_t padded, T* out) {
    all_panels<Op<T>, T>(rows, in, packed, labels, padded, out);
}

template <class T, int R = ROWS> INLINE void add_outer_lines(int64_t rows, const T* left, const T* right, int64_t steps,
                                                             int64_t padded, T* out) {
    if constexpr (R > 1)
        if (rows < R) return add_outer_lines<T, R - 1>(rows, left, right, steps, padded, out);
    constexpr int lanes = Lanes<T>::count;
    for (int64_t column = 0; column < padded;) {
        const int wide = panel_width((padded - column) / lanes);
        panel_of<SumProduct<T>, T, R>(wide, left, right + column, steps, out + column, {1, padded, padded, padded},
                                      true);
        column += wide * lanes;
    }
}

// total [labels, padded] += sum over k of outer(left[k], right[k]), rows of both `padded` long; blocks of k stay in the
// first cache.
template <class T> static void add_outer(const T* left, const T* right, int64_t count, int64_t labels, int64_t padded,
                                         T* total) {
    constexpr int64_t block = 64;
    for (int64_t k = 0; k < count; k += block)
        for (int64_t i = 0; i < labels; i += ROWS)
            add_outer_lines<T>(labels - i, left + k * padded + i, right + k * padded, std::min(block, count - k),
                               padded, total + i * padded);
}

}  // namespace energyml
