// Pair tables as the products want them: padded, packed in panels, exponentiated less their maximum, and the same
// transposed.
#pragma once

#include "../simd/math.h"
#include "../simd/memory.h"
#include "../simd/product.h"

namespace energyml {

template <class T> struct Packed {
    T* forward;                   // [panels][labels][width]
    T* backward;                  // of the transposed table, or null
    T shift;                      // what was subtracted
    T least;                      // the smallest entry that is not zero
    bool close;                   // whether all entries that are not are within some powers of ten
    double above;                 // how far the largest score is above the shift
    double left_out = -INFINITY;  // of the finite scores that count as -inf (see scaled.h), how far the largest is
                                  // below the largest of all; else -inf
};

// Finite scores so far below the largest of their cell or table count as -inf, if the answer shows that this is right
// (see scaled.h).
constexpr double FAR = -1000;

template <class In> INLINE bool reads_inside(const In* row, int64_t padded, const In* end) {
    return row + padded <= end;
}

// The vector of labels at `column` of a row, `filler` beyond the last one.
template <class T, class In> INLINE V<T> load_labels(const In* row, int64_t column, int64_t labels, bool inside,
                                                     T filler) {
    constexpr int lanes = Lanes<T>::count;
    if (column + lanes <= labels) return load_as<T>(row + column);
    if (inside) return first_lanes<T>(labels - column) ? load_as<T>(row + column) : all<T>(filler);
    V<T> v = all<T>(filler);
    for (int k = 0; column + k < labels; ++k) v[k] = static_cast<T>(row[column + k]);
    return v;
}

// A vector into a row of labels that ends within it.  With `inside`, what follows the row is in the same example and is
// put back.
template <class T, class In> INLINE void store_labels(In* row, int64_t column, int64_t labels, bool inside, V<T> v) {
    constexpr int lanes = Lanes<T>::count;
    if (column + lanes <= labels) return store_as<T>(row + column, v);
    if (inside) return store_as<T>(row + column, first_lanes<T>(labels - column) ? v : load_as<T>(row + column));
    for (int k = 0; column + k < labels; ++k) row[column + k] = static_cast<In>(v[k]);
}

#ifdef __AVX512VL__
// Where lanes can be masked, nothing beyond the row is touched.
template <> INLINE V<float> load_labels<float, float>(const float* row, int64_t column, int64_t labels, bool,
                                                      float filler) {
    if (column + 8 <= labels) return load<float>(row + column);
    return _mm256_mask_loadu_ps(all<float>(filler), static_cast<__mmask8>((1u << (labels - column)) - 1), row + column);
}
template <> INLINE void store_labels<float, float>(float* row, int64_t column, int64_t labels, bool, V<float> v) {
    if (column + 8 <= labels) return store<float>(row + column, v);
    _mm256_mask_storeu_ps(row + column, static_cast<__mmask8>((1u << (labels - column)) - 1), v);
}
#endif

// Rows are short: a call to copy memory would take longer.
template <class T> INLINE void copy_row(const T* from, int64_t padded, T* to) {
    for (int64_t c = 0; c < padded; c += Lanes<T>::count) store(to + c, load(from + c));
}

template <class T> INLINE int64_t padded_to(int64_t labels) { return round_up(labels, Lanes<T>::count); }

// What a packed table takes, so that another one behind it begins as it does: on a line of the cache, which no broad
// vector crosses needlessly.
template <class T> INLINE int64_t packed_size(int64_t labels) {
    return round_up(labels * padded_to<T>(labels), 64 / sizeof(T));
}

// packed[panel][line][width] of the transposed table from that of the table; blocks of one vector squared keep the
// lines in cache.
template <class T> static void transpose_packed(const T* from, int64_t labels, int64_t padded, T* to) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t column = 0; column < padded;) {  // columns of the result are lines of the source
        const int64_t width = panel_width((padded - column) / lanes) * lanes;
        for (int64_t source = 0; source < padded;) {
            const int64_t wide = panel_width((padded - source) / lanes) * lanes;
            const int64_t lines = std::min(width, labels - column), columns = std::min(wide, labels - source);
            for (int64_t j = 0; j < columns; ++j) {
                T* out = to + column * labels + (source + j) * width;
                const T* in = from + source * labels + column * wide + j;
                for (int64_t i = 0; i < lines; ++i) out[i] = in[i * wide];
                for (int64_t i = lines; i < width; ++i) out[i] = 0;
            }
            source += wide;
        }
        column += width;
    }
}

// Copy a table into panels, entry by entry through `change`.
template <class T, class In, class F> INLINE void pack(const In* pair, const In* end, int64_t labels, T* out, T filler,
                                                       F change) {
    typedef typename Broad<T>::V B;
    constexpr int lanes = Lanes<T>::count;
    const int64_t padded = padded_to<T>(labels);
    for (int64_t i = 0; i < labels; ++i) {
        const In* line = pair + i * labels;
        const bool inside = reads_inside(line, padded, end);
        for (int64_t column = 0; column < padded;) {
            const int wide = panel_width((padded - column) / lanes);
            T* to = out + column * labels + i * wide * lanes;
            int p = 0;
            if constexpr (std::is_same_v<T, In>)  // as many at once as a register holds
                for (; (p + SPAN) <= wide && column + (p + SPAN) * lanes <= labels; p += SPAN)
                    put<B>(to + p * lanes, change(vector_at<B>(line + column + p * lanes)));
            for (; p < wide; ++p)
                store(to + p * lanes, change(load_labels<T>(line, column + p * lanes, labels, inside, filler)));
            column += wide * lanes;
        }
    }
}

template <class T> struct ExpOf {
    T shift;
    template <class X> INLINE X operator()(X x) const { return exponential<T>(x - spread<X>(shift)); }
};

// What a table is like: its shift, which with scores so far apart that it helps leaves room for 2^lift, and its
// smallest entry. Only where scores are that far apart it is looked at twice.
template <class T, class In> static void measure(const In* pair, int64_t labels, int lift, Packed<T>& table) {
    constexpr int lanes = Lanes<T>::count;
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    constexpr int64_t apart = 4;  // so many at a time, as each waits for its own last comparison
    const int64_t cells = labels * labels;
    V<T> high[apart], low[apart];
    for (int64_t p = 0; p < apart; ++p) high[p] = all<T>(nothing), low[p] = all<T>(-nothing);
    const auto look = [&](V<T> x, int64_t p) __attribute__((always_inline)) {
        high[p] = larger<T>(x, high[p]);
        low[p] = smaller<T>(x > all<T>(nothing) ? x : all<T>(-nothing), low[p]);
    };
    int64_t k = 0;
    for (; k + apart * lanes <= cells; k += apart * lanes)
        for (int64_t p = 0; p < apart; ++p) look(load_as<T>(pair + k + p * lanes), p);
    for (; k < cells; k += lanes) look(load_labels<T>(pair, k, cells, false, nothing), 0);
    for (int64_t p = 1; p < apart; ++p) high[0] = larger<T>(high[p], high[0]), low[0] = smaller<T>(low[p], low[0]);
    const T top = horizontal_max<T>(high[0]);
    T bottom = -horizontal_max<T>(-low[0]);
    table.left_out = -INFINITY;
    if (top > nothing && static_cast<double>(bottom) - top < FAR) {
        double least = 0;
        for (k = 0; k < cells; ++k) {
            const double below = static_cast<double>(pair[k]) - top;
            if (below < FAR)
                table.left_out = pair[k] > nothing
                                     ? std::max({table.left_out, below, std::numeric_limits<double>::lowest()})
                                     : table.left_out;
            else
                least = std::min(least, below);
        }
        bottom = static_cast<T>(top + least);
    }
    table.close = !(top - bottom > 11);
    const T above = table.close ? 0 : lift * static_cast<T>(0.693147180559945309417);
    table.shift = top > nothing ? top - above : 0;
    table.least = top > nothing ? std::exp(bottom - table.shift) : 1;
    table.above = above;
}

// exp(pair - shift) and its transpose, of a table that was measured.
template <class T, class In> static void exponentiate(const In* pair, int64_t labels, Packed<T>& table) {
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    pack<T>(pair, pair + labels * labels, labels, table.forward, nothing, ExpOf<T>{table.shift});
    if (table.backward) transpose_packed<T>(table.forward, labels, padded_to<T>(labels), table.backward);
}

}  // namespace energyml
