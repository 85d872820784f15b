// Passes over the vectors A [K, N] of a low-rank coupling and over fields [rows, N], compiled once for each instruction set.
//
// A pass works on panels of columns.  Where numbers of a panel are used many times they are copied to rows that lie close together: the
// rows of A are often a power of two apart, and would compete for the same few places in the cache.
#pragma once

#include "fields_small.h"

namespace energyml {

template <class T> constexpr int64_t PANEL = 2048 / static_cast<int64_t>(sizeof(T));           // columns
template <class T> constexpr int64_t PITCH = PANEL<T> + 64 / static_cast<int64_t>(sizeof(T));  // from row to row of a copy
template <class T> constexpr int64_t STEP = 2 * Lanes<T>::count;  // columns of a copy are filled up with zeros to a multiple of this

template <class T> INLINE void copy_panel(const T* from, int64_t stride, int64_t rows, int64_t width, T* to) {
    const int64_t whole = round_up(width, STEP<T>);
    for (int64_t i = 0; i < rows; ++i) {
        const T* row = from + i * stride;
        T* out = to + i * PITCH<T>;
        int64_t n = 0;
        for (; n + STEP<T> <= width; n += STEP<T>) {
            __builtin_prefetch(row + 2 * stride + n);  // rows are far apart: no hardware knows which comes next
            store<T>(out + n, load<T>(row + n));
            store<T>(out + n + Lanes<T>::count, load<T>(row + n + Lanes<T>::count));
        }
        for (; n < whole; ++n) out[n] = n < width ? row[n] : T{};
    }
}

// out[r] = sum over j of factors[j, r] rows[j] for R rows out of a panel; `add`: on top of what is there.  Where a copy is
// wanted, the rows go there on the way, which costs little beside the products.
template <class T, int R, bool COPY>
INLINE void combine_rows(Rows<T> factors, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride, bool add, Ahead& ahead, T* copy) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t n = 0; n < width; n += STEP<T>) {
        ahead.ask();
        V<T> total[R][2];
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < 2; ++k) total[r][k] = add ? load<T>(out + r * stride + n + k * lanes) : V<T>{};
        for (int64_t j = 0; j < count; ++j) {
            const V<T> first = load<T>(rows[j] + n), second = load<T>(rows[j] + n + lanes);
            if constexpr (COPY) {
                store<T>(copy + j * PITCH<T> + n, first);
                store<T>(copy + j * PITCH<T> + n + lanes, second);
            }
            for (int r = 0; r < R; ++r) {
                const V<T> factor = all<T>(factors[j][r]);
                total[r][0] += factor * first;
                total[r][1] += factor * second;
            }
        }
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < 2; ++k) store<T>(out + r * stride + n + k * lanes, total[r][k]);
    }
}

// The same for any number of rows, a few at a time, about equally many: few would wait for their own sums.  `width` is a multiple of STEP.
// A copy is made by the first of them, and read by the others.
constexpr int64_t TOGETHER = 6;
template <class T, bool COPY> INLINE void
combine_some(int64_t outs, Rows<T> factors, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride, bool add, Ahead& ahead, T* copy) {
    switch (outs) {
        case 1: return combine_rows<T, 1, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
        case 2: return combine_rows<T, 2, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
        case 3: return combine_rows<T, 3, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
        case 4: return combine_rows<T, 4, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
        case 5: return combine_rows<T, 5, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
        default: return combine_rows<T, TOGETHER, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
    }
}
template <class T, bool COPY = false>
INLINE void combine(Rows<T> factors, int64_t outs, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride, bool add, Ahead& ahead,
                    T* copy = nullptr) {
    int64_t r = 0, sweeps = (outs + TOGETHER - 1) / TOGETHER;
    if constexpr (COPY) {
        r = (outs + sweeps - 1) / sweeps;
        --sweeps;
        combine_some<T, true>(r, factors, rows, count, width, out, stride, add, ahead, copy);
        rows = {copy, PITCH<T>};
    }
    for (int64_t now; r < outs; r += now, --sweeps) {
        now = (outs - r + sweeps - 1) / sweeps;
        combine_some<T, false>(now, {factors.data + r, factors.stride}, rows, count, width, out + r * stride, stride, add, ahead, copy);
    }
}

// out[c] -= factors[c, 0] rows[0] + ... for C fields and Q rows.
template <class T, int C, int Q> INLINE void subtract_rows(Rows<T> factors, Rows<T> rows, int64_t width, T* out) {
    constexpr int lanes = Lanes<T>::count;
    V<T> by[C][Q];
    for (int c = 0; c < C; ++c)
        for (int q = 0; q < Q; ++q) by[c][q] = all<T>(factors[c][q]);
    int64_t n = 0;
    for (; n + lanes <= width; n += lanes) {
        V<T> row[Q];
        for (int q = 0; q < Q; ++q) row[q] = load<T>(rows[q] + n);
        for (int c = 0; c < C; ++c) {
            V<T> left = load<T>(out + c * PITCH<T> + n);
            for (int q = 0; q < Q; ++q) left -= by[c][q] * row[q];
            store<T>(out + c * PITCH<T> + n, left);
        }
    }
    for (; n < width; ++n)
        for (int c = 0; c < C; ++c)
            for (int q = 0; q < Q; ++q) out[c * PITCH<T> + n] -= factors[c][q] * rows[q][n];
}

template <class T, int Q> INLINE void subtract_from_all(Rows<T> factors, int64_t fields, Rows<T> rows, int64_t width, T* out) {
    int64_t c = 0;
    for (; c + 2 <= fields; c += 2) subtract_rows<T, 2, Q>({factors[c], factors.stride}, rows, width, out + c * PITCH<T>);
    if (c < fields) subtract_rows<T, 1, Q>({factors[c], factors.stride}, rows, width, out + c * PITCH<T>);
}

// Fields [rows, N] of one or more examples, and the vectors that they share.
template <class T> struct Coupled {
    Rows<T> vectors;
    int64_t rank;
    Rows<T> fields;
    int64_t rows;
    INLINE Rows<T> vectors_from(int64_t n) const { return {vectors.data + n, vectors.stride}; }
};

// Fields that are copied in front of the vectors, so that products with them are a part of those of vectors with each other.
constexpr int64_t JOINED = 4;
template <class T> int64_t measure_room(int64_t rank) { return (rank + JOINED) * PITCH<T>; }

// Products of the vectors with the fields on some columns, into rows of `sums`, and with each other (upper half), into the rows behind them.
// The first products of vectors with others copy them to the panel.
template <class T> INLINE void measure(const Coupled<T>& given, int64_t from, int64_t to, T* room, double* sums) {
    const int64_t rank = given.rank, stride = padded(rank), joined = std::min(given.rows, JOINED), apart = given.rows - joined;
    T* const copies = room + joined * PITCH<T>;
    const Rows<T> panel{room, PITCH<T>}, vectors{copies, PITCH<T>};
    for (int64_t n = from; n < to; n += PANEL<T>) {
        const int64_t width = std::min(PANEL<T>, to - n), filled = round_up(width, STEP<T>);
        const Rows<T> source = given.vectors_from(n), fields{given.fields.data + n, given.fields.stride};
        const Triangle<T> all{vectors, panel, rank, joined, filled, sums + apart * stride, stride};
        Ahead ahead(given.vectors_from(n + width), rank, std::min(PANEL<T>, to - n - width), tiles_of_triangle(rank));
        copy_panel<T>(fields[apart], fields.stride, joined, width, room);
        for (int64_t i = 0; i < rank; i += LEFT) {
            const int64_t high = std::min<int64_t>(LEFT, rank - i);
            const bool at_once = joined + i >= RIGHT && high == LEFT && filled == width;
            if (at_once)
                dots<T, LEFT, RIGHT, true>({source[i], source.stride}, panel, width, all.out + i, stride, {copies + i * PITCH<T>, PITCH<T>});
            else
                copy_panel<T>(source[i], source.stride, high, width, copies + i * PITCH<T>);
            all.add(i, at_once ? RIGHT : 0, [&]() __attribute__((always_inline)) { ahead.ask(); });
            add_products<T>({vectors[i], PITCH<T>}, high, fields, apart, width, sums + i, stride);
        }
    }
}

// The former alone, a few vectors at a time from end to end: memory is read in its order.
template <class T> INLINE void measure_fields(const Coupled<T>& given, int64_t from, int64_t to, double* products) {
    for (int64_t i = 0; i < given.rank; i += LEFT)
        for (int64_t n = from; n < to; n += PANEL<T>)
            add_products<T>({given.vectors[i] + n, given.vectors.stride}, std::min<int64_t>(LEFT, given.rank - i),
                            {given.fields.data + n, given.fields.stride}, given.rows, std::min(PANEL<T>, to - n), products + i, padded(given.rank));
}

// What (rhs - Aᵀ inner) is multiplied by: `scale`, and 1 where a position is not present.
template <class T> struct Inverse {
    T scale;
    const uint8_t* present;  // or null
    INLINE T operator[](int64_t n) const { return present[n] ? scale : static_cast<T>(1); }
};

// Numbers of a panel times that; 0 when all of them are finite, and not a number otherwise.
template <class T> INLINE T rescale_panel(const T* __restrict from, int64_t n, int64_t width, const Inverse<T>& by, T* __restrict to) {
    constexpr int lanes = Lanes<T>::count;
    V<T> zeros{};
    T rest{};
    int64_t k = 0;
    if (!by.present)
        for (; k + lanes <= width; k += lanes) {
            const V<T> found = load<T>(from + k) * by.scale;
            store<T>(to + k, found);
            zeros += found * static_cast<T>(0);
        }
    for (; k < width; ++k) {
        to[k] = from[k] * (by.present ? by[n + k] : by.scale);
        rest += to[k] * static_cast<T>(0);
    }
    return rest + horizontal_sum<T>(zeros);
}

// out = (rhs - Aᵀ inner) * inverse on some columns, for the fields of one example; inner [rows, K].  Whether all of it is finite.
template <class T>
INLINE bool finish(const Coupled<T>& given, Rows<T> inner, const Inverse<T>& by, int64_t from, int64_t to, T* room, T* out) {
    T zeros{};
    for (int64_t n = from; n < to; n += PANEL<T>) {
        const int64_t width = std::min(PANEL<T>, to - n), rows = given.rows;
        copy_panel<T>(given.fields.data + n, given.fields.stride, rows, width, room);
        int64_t k = 0;
        for (; k + 4 <= given.rank; k += 4)
            subtract_from_all<T, 4>({inner.data + k, inner.stride}, rows, {given.vectors[k] + n, given.vectors.stride}, width, room);
        for (; k < given.rank; ++k)
            subtract_from_all<T, 1>({inner.data + k, inner.stride}, rows, {given.vectors[k] + n, given.vectors.stride}, width, room);
        for (int64_t c = 0; c < rows; ++c) zeros += rescale_panel<T>(room + c * PITCH<T>, n, width, by, out + c * given.fields.stride + n);
    }
    return zeros == 0;
}

// One example's share in the gradients.
template <class T> struct Slope {
    Coupled<T> given;   // its fields: what came back from the loss
    const T* solution;  // [rows, N]
    Inverse<T> by;
    Rows<T> makers;   // [K, extra + rows]: what A is multiplied by, for rows of the gradient of the vectors and for the adjoint
    int64_t extra;    // K: the gradient is made of A itself, and `makers` are those of the adjoint alone
    Rows<T> factors;  // [extra + 2 rows, K]: of the rows made, the adjoint and the solution; or of the adjoint, the solution and A
    T* adjoint;       // [rows, N]: the gradient of the right-hand side
    T* vectors;       // [K, N], or null
    bool add;         // to the gradient of the vectors
};

template <class T> int64_t slope_room(int64_t rank, int64_t rows) { return (3 * rank + 2 * rows) * PITCH<T>; }

// The adjoint of one panel, in place of Aᵀ inner, and the sum of adjoint times solution over positions that are present.
template <class T> INLINE double finish_adjoint(const Slope<T>& to_do, int64_t n, int64_t width, T* adjoint, const T* solution) {
    constexpr int lanes = Lanes<T>::count;
    const Rows<T> back = to_do.given.fields;
    const Inverse<T> by = to_do.by;
    double total = 0;
    for (int64_t c = 0; c < to_do.given.rows; ++c) {
        T *__restrict own = adjoint + c * PITCH<T>, *__restrict out = to_do.adjoint + c * back.stride + n;
        const T *__restrict from = back[c] + n, *__restrict x = solution + c * PITCH<T>;
        V<T> sum{};
        int64_t k = 0;
        if (!by.present)
            for (; k + lanes <= width; k += lanes) {
                const V<T> found = (load<T>(from + k) - load<T>(own + k)) * by.scale;
                store<T>(own + k, found);
                store<T>(out + k, found);
                sum += found * load<T>(x + k);
            }
        total += static_cast<double>(horizontal_sum<T>(sum));
        for (; k < width; ++k) {
            own[k] = out[k] = (from[k] - own[k]) * (by.present ? by[n + k] : by.scale);
            if (!by.present || by.present[n + k]) total += static_cast<double>(own[k]) * x[k];
        }
    }
    return total;
}

// The adjoint on some columns, the gradient of the vectors there, and the sum of adjoint times solution.
template <class T> INLINE double slope(const Slope<T>& to_do, int64_t from, int64_t to, T* room) {
    const Coupled<T>& given = to_do.given;
    const int64_t rank = given.rank, rows = given.rows, count = to_do.extra + 2 * rows, stride = given.vectors.stride;
    const int64_t made = to_do.extra == rank ? 0 : to_do.extra;
    const int64_t sweeps = (made + rows + TOGETHER - 1) / TOGETHER + (to_do.vectors ? (rank + TOGETHER - 1) / TOGETHER : 0);
    // Rows that are combined lie side by side: those made, adjoint, solution; or adjoint, solution, vectors.
    T *adjoint = room + rank * PITCH<T>, *solution = adjoint + rows * PITCH<T>, *vectors = solution + rows * PITCH<T>;
    T *first = adjoint - made * PITCH<T>, *out = vectors + rank * PITCH<T>;
    double total = 0;
    for (int64_t n = from; n < to; n += PANEL<T>) {
        const int64_t width = std::min(PANEL<T>, to - n), filled = round_up(width, STEP<T>);
        const bool whole = filled == width;
        copy_panel<T>(to_do.solution + n, given.fields.stride, rows, width, solution);
        Ahead ahead(given.vectors_from(n + width), rank, std::min(PANEL<T>, to - n - width), sweeps * filled / STEP<T>);
        if (whole) {
            combine<T, true>(to_do.makers, made + rows, given.vectors_from(n), rank, width, first, PITCH<T>, false, ahead, vectors);
        } else {
            copy_panel<T>(given.vectors.data + n, stride, rank, width, vectors);
            combine<T>(to_do.makers, made + rows, {vectors, PITCH<T>}, rank, filled, first, PITCH<T>, false, ahead);
        }
        total += finish_adjoint<T>(to_do, n, width, adjoint, solution);
        if (!to_do.vectors) continue;
        T* target = to_do.vectors + n;
        if (whole) {
            combine<T>(to_do.factors, rank, {first, PITCH<T>}, count, width, target, stride, to_do.add, ahead);
            continue;
        }
        combine<T>(to_do.factors, rank, {first, PITCH<T>}, count, filled, out, PITCH<T>, false, ahead);
        for (int64_t i = 0; i < rank; ++i)
            for (int64_t k = 0; k < width; ++k) {
                T& here = target[i * stride + k];
                here = (to_do.add ? here : T{}) + out[i * PITCH<T> + k];
            }
    }
    return total;
}

template <class T> struct Passes;

// The entry points, cloned for each instruction set by the compiler.
#define PASSES_OF(T, NAME)                                                                                                                   \
    DISPATCH void measure_##NAME(const Coupled<T>& given, int64_t from, int64_t to, T* room, double* sums) {                               \
        measure<T>(given, from, to, room, sums);                                                                                  \
    }                                                                                                                                        \
    DISPATCH void measure_fields_##NAME(const Coupled<T>& given, int64_t from, int64_t to, double* products) {                              \
        measure_fields<T>(given, from, to, products);                                                                                       \
    }                                                                                                                                        \
    DISPATCH bool finish_##NAME(const Coupled<T>& given, Rows<T> inner, const Inverse<T>& by, int64_t from, int64_t to, T* room, T* out) { \
        return finish<T>(given, inner, by, from, to, room, out);                                                                                   \
    }                                                                                                                                        \
    DISPATCH double slope_##NAME(const Slope<T>& to_do, int64_t from, int64_t to, T* room) { return slope<T>(to_do, from, to, room); }      \
    template <> struct Passes<T> {                                                                                                           \
        static constexpr auto measure = measure_##NAME;                                                                                      \
        static constexpr auto measure_fields = measure_fields_##NAME;                                                                        \
        static constexpr auto finish = finish_##NAME;                                                                                        \
        static constexpr auto slope = slope_##NAME;                                                                                          \
    };

PASSES_OF(float, f32)
PASSES_OF(double, f64)

}  // namespace energyml
