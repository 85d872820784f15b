// Passes over the vectors A [K, N] of a low-rank coupling and over fields [rows, N].
//
// A pass works on panels of columns.  Where numbers of a panel are used many times they are copied to rows that lie
// close together: the rows of A are often a power of two apart, and would compete for the same few places in the cache.
#pragma once

#include "small.h"

namespace energyml {

template <class T> constexpr int64_t PANEL = 2048 / static_cast<int64_t>(sizeof(T));  // columns
template <class T> constexpr int64_t PITCH =
    PANEL<T> + 64 / static_cast<int64_t>(sizeof(T));  // from row to row of a copy
template <class S> constexpr int64_t STEP =
    2 * S::lanes;  // columns of a copy are filled up with zeros to a multiple of this

template <class S, class T = Number<S>> inline void copy_panel(const T* from, int64_t stride, int64_t rows,
                                                               int64_t width, T* to) {
    const int64_t whole = round_up(width, STEP<S>);
    for (int64_t i = 0; i < rows; ++i) {
        const T* row = from + i * stride;
        T* out = to + i * PITCH<T>;
        int64_t n = 0;
        for (; n + STEP<S> <= width; n += STEP<S>) {
            __builtin_prefetch(row + 2 * stride + n);  // rows are far apart: no hardware knows which comes next
            write<S>(out + n, read<S>(row + n));
            write<S>(out + n + S::lanes, read<S>(row + n + S::lanes));
        }
        for (; n < whole; ++n) out[n] = n < width ? row[n] : T{};
    }
}

// Lines of rows that are read next: asked for a few at a time, while others are worked on.
class Ahead {
  public:
    // Some columns of `count` rows, asked for in as many calls.
    template <class T>
    inline Ahead(Rows<T> next, int64_t count, int64_t width, int64_t calls)
        : row_(reinterpret_cast<const char*>(next.data)),
          stride_(next.stride * static_cast<int64_t>(sizeof(T))),
          lines_(round_up(width * static_cast<int64_t>(sizeof(T)), LINE) / LINE),
          rows_(lines_ ? count : 0),
          each_(rows_ * lines_ / calls + 1) {}
    inline void ask() {
        for (int64_t k = 0; k < each_ && rows_; ++k) {
            __builtin_prefetch(row_ + LINE * line_);
            if (++line_ < lines_) continue;
            line_ = 0;
            row_ += stride_;
            --rows_;
        }
    }

  private:
    static constexpr int64_t LINE = 64;
    const char* row_;
    int64_t stride_, lines_, rows_, each_, line_ = 0;
};

// out[r] = sum over j of factors[j, r] rows[j] for R rows out of a panel; `add`: on top of what is there.  Where a copy
// is wanted, the rows go there on the way, which costs little beside the products.
template <class S, int R, bool COPY, class T = Number<S>>
inline void combine_rows(Rows<T> factors, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride, bool add,
                         Ahead& ahead, T* copy) {
    for (int64_t n = 0; n < width; n += STEP<S>) {
        ahead.ask();
        Vector<S> total[R][2];
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < 2; ++k) total[r][k] = add ? read<S>(out + r * stride + n + k * S::lanes) : Vector<S>{};
        for (int64_t j = 0; j < count; ++j) {
            const Vector<S> first = read<S>(rows[j] + n), second = read<S>(rows[j] + n + S::lanes);
            if constexpr (COPY) {
                write<S>(copy + j * PITCH<T> + n, first);
                write<S>(copy + j * PITCH<T> + n + S::lanes, second);
            }
            for (int r = 0; r < R; ++r) {
                const Vector<S> factor = every<S>(factors[j][r]);
                total[r][0] += factor * first;
                total[r][1] += factor * second;
            }
        }
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < 2; ++k) {
                T* const to = out + r * stride + n + k * S::lanes;
                write<S>(to, total[r][k]);
            }
    }
}

// The same for any number of rows, a few at a time, about equally many: few would wait for their own sums.  `width` is
// a multiple of STEP. A copy is made by the first of them, and read by the others.
template <class S, bool COPY, int R = S::together, class T = Number<S>> inline void combine_some(
    int64_t outs, Rows<T> factors, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride, bool add,
    Ahead& ahead, T* copy) {
    if constexpr (R > 1)
        if (outs < R)
            return combine_some<S, COPY, R - 1>(outs, factors, rows, count, width, out, stride, add, ahead, copy);
    combine_rows<S, R, COPY>(factors, rows, count, width, out, stride, add, ahead, copy);
}
template <class S, bool COPY = false, class T = Number<S>>
inline void combine(Rows<T> factors, int64_t outs, Rows<T> rows, int64_t count, int64_t width, T* out, int64_t stride,
                    bool add, Ahead& ahead, T* copy = nullptr) {
    int64_t r = 0, sweeps = (outs + S::together - 1) / S::together;
    if constexpr (COPY) {
        r = (outs + sweeps - 1) / sweeps;
        --sweeps;
        combine_some<S, true>(r, factors, rows, count, width, out, stride, add, ahead, copy);
        rows = {copy, PITCH<T>};
    }
    for (int64_t now; r < outs; r += now, --sweeps) {
        now = (outs - r + sweeps - 1) / sweeps;
        combine_some<S, false>(now, {factors.data + r, factors.stride}, rows, count, width, out + r * stride, stride,
                               add, ahead, copy);
    }
}

// out[c] = from[c] - factors[c, 0] rows[0] - ... for C fields and Q rows; fields and rows are equally far apart.
template <class S, int C, int Q, class T = Number<S>> inline void subtract_rows(Rows<T> factors, Rows<T> rows,
                                                                                int64_t width, const T* from, T* out) {
    Vector<S> by[C][Q];
    for (int c = 0; c < C; ++c)
        for (int q = 0; q < Q; ++q) by[c][q] = every<S>(factors[c][q]);
    int64_t n = 0;
    for (; n + S::lanes <= width; n += S::lanes) {
        Vector<S> row[Q];
        for (int q = 0; q < Q; ++q) row[q] = read<S>(rows[q] + n);
        for (int c = 0; c < C; ++c) {
            Vector<S> left = read<S>(from + c * rows.stride + n);
            for (int q = 0; q < Q; ++q) left -= by[c][q] * row[q];
            write<S>(out + c * rows.stride + n, left);
        }
    }
    for (; n < width; ++n)
        for (int c = 0; c < C; ++c) {
            T left = from[c * rows.stride + n];
            for (int q = 0; q < Q; ++q) left -= factors[c][q] * rows[q][n];
            out[c * rows.stride + n] = left;
        }
}

template <class S, int Q, class T = Number<S>>
inline void subtract_from_all(Rows<T> factors, int64_t fields, Rows<T> rows, int64_t width, const T* from, T* out) {
    int64_t c = 0;
    for (; c + 2 <= fields; c += 2)
        subtract_rows<S, 2, Q>({factors[c], factors.stride}, rows, width, from + c * rows.stride,
                               out + c * rows.stride);
    if (c < fields)
        subtract_rows<S, 1, Q>({factors[c], factors.stride}, rows, width, from + c * rows.stride,
                               out + c * rows.stride);
}

// Fields [rows, N] of one or more examples, and the vectors that they share.
template <class T> struct Coupled {
    Rows<T> vectors;
    int64_t rank;
    Rows<T> fields;
    int64_t rows;
    inline Rows<T> vectors_from(int64_t n) const { return {vectors.data + n, vectors.stride}; }
};

// Fields that are copied in front of the vectors, so that products with them are a part of those of vectors with each
// other.
constexpr int64_t JOINED = 4;
template <class T> int64_t measure_room(int64_t rank) { return (rank + JOINED) * PITCH<T>; }

// Products of the vectors with the fields on some columns, into rows of `sums`, and with each other (upper half), into
// the rows behind them. The first products of vectors with others copy them to the panel.
template <class S, class T = Number<S>> inline void measure(const Coupled<T>& given, int64_t from, int64_t to, T* room,
                                                            double* sums) {
    const int64_t rank = given.rank, stride = padded(rank), joined = std::min(given.rows, JOINED),
                  apart = given.rows - joined;
    T* const copies = room + joined * PITCH<T>;
    const Rows<T> panel{room, PITCH<T>}, vectors{copies, PITCH<T>};
    for (int64_t n = from; n < to; n += PANEL<T>) {
        const int64_t width = std::min(PANEL<T>, to - n), filled = round_up(width, STEP<S>);
        const Rows<T> source = given.vectors_from(n), fields{given.fields.data + n, given.fields.stride};
        const Triangle<S> all{vectors, panel, rank, joined, filled, sums + apart * stride, stride};
        Next<T> next(given.vectors_from(n + width), n + width < to ? rank : 0);
        copy_panel<S>(fields[apart], fields.stride, joined, width, room);
        for (int64_t i = 0; i < rank; i += LEFT) {
            const int64_t high = std::min<int64_t>(LEFT, rank - i), first = std::min<int64_t>(S::right, joined + i);
            const bool at_once = first > 0 && high == LEFT && filled == width;
            if (at_once)
                dots_of<S, LEFT, 0, true>(first, {source[i], source.stride}, panel, width, all.out + i, stride, {},
                                          {copies + i * PITCH<T>, PITCH<T>});
            else
                copy_panel<S>(source[i], source.stride, high, width, copies + i * PITCH<T>);
            all.add(i, at_once ? first : 0, next);
            add_products<S>({vectors[i], PITCH<T>}, high, fields, apart, width, sums + i, stride);
        }
    }
}

// The former alone, a few vectors at a time from end to end: memory is read in its order, and asked for a panel ahead.
template <class S, class T = Number<S>> inline void measure_fields(const Coupled<T>& given, int64_t from, int64_t to,
                                                                   double* products) {
    for (int64_t i = 0; i < given.rank; i += LEFT)
        for (int64_t n = from; n < to; n += PANEL<T>) {
            const Rows<T> next = n + PANEL<T> < to ? given.vectors_from(n + PANEL<T>)
                                                   : Rows<T>{given.vectors[LEFT] + from, given.vectors.stride};
            add_products<S, LEFT>({given.vectors[i] + n, given.vectors.stride}, std::min<int64_t>(LEFT, given.rank - i),
                                  {given.fields.data + n, given.fields.stride}, given.rows, std::min(PANEL<T>, to - n),
                                  products + i, padded(given.rank), {next[i], next.stride});
        }
}

// What (rhs - Aᵀ inner) is multiplied by: `scale`, and 1 where a position is not present.
template <class T> struct Inverse {
    T scale;
    const uint8_t* present;  // or null
    inline T operator[](int64_t n) const { return present[n] ? scale : static_cast<T>(1); }
};

// Numbers of a panel times that; 0 when all of them are finite, and not a number otherwise.
template <class T> inline T rescale(T* numbers, int64_t n, int64_t width, const Inverse<T>& by) {
    constexpr int lanes = Lanes<T>::count;
    V<T> zeros{};
    T rest{};
    int64_t k = 0;
    if (!by.present)
        for (; k + lanes <= width; k += lanes) {
            const V<T> found = load<T>(numbers + k) * by.scale;
            store<T>(numbers + k, found);
            zeros += found * static_cast<T>(0);
        }
    for (; k < width; ++k) {
        numbers[k] *= by.present ? by[n + k] : by.scale;
        rest += numbers[k] * static_cast<T>(0);
    }
    return rest + horizontal_sum<T>(zeros);
}

// out = (rhs - Aᵀ inner) * inverse on some columns, for the fields of one example; inner [rows, K].  Whether all of it
// is finite. A few vectors at a time, on columns as many as leave the fields in the nearest cache: memory is read in
// its order.
template <class S, class T = Number<S>>
inline bool finish(const Coupled<T>& given, Rows<T> inner, const Inverse<T>& by, int64_t from, int64_t to, T* out) {
    constexpr int64_t columns = 4 * PANEL<T>;
    const int64_t rows = given.rows, stride = given.vectors.stride;
    T zeros{};
    for (int64_t n = from; n < to; n += columns) {
        const int64_t width = std::min(columns, to - n);
        const T* before = given.fields.data + n;
        int64_t k = 0;
        for (; k + 4 <= given.rank; k += 4, before = out + n)
            subtract_from_all<S, 4>({inner.data + k, inner.stride}, rows, {given.vectors[k] + n, stride}, width, before,
                                    out + n);
        for (; k < given.rank; ++k, before = out + n)
            subtract_from_all<S, 1>({inner.data + k, inner.stride}, rows, {given.vectors[k] + n, stride}, width, before,
                                    out + n);
        for (int64_t c = 0; c < rows; ++c) zeros += rescale<T>(out + c * stride + n, n, width, by);
    }
    return zeros == 0;
}

// One example's share in the gradients.
template <class T> struct Slope {
    Coupled<T> given;   // its fields: what came back from the loss
    const T* solution;  // [rows, N]
    Inverse<T> by;
    Rows<T> makers;   // [K, extra + rows]: what A is multiplied by, for rows of the gradient of the vectors and for the
                      // adjoint
    int64_t extra;    // K: the gradient is made of A itself, and `makers` are those of the adjoint alone
    Rows<T> factors;  // [extra + 2 rows, K]: of the rows made, the adjoint and the solution; or of the adjoint, the
                      // solution and A
    T* adjoint;       // [rows, N]: the gradient of the right-hand side
    T* vectors;       // [K, N], or null
    bool add;         // to the gradient of the vectors
};

template <class T> int64_t slope_room(int64_t rank, int64_t rows) { return (3 * rank + 2 * rows) * PITCH<T>; }

// The adjoint of one panel, in place of Aᵀ inner, and the sum of adjoint times solution over positions that are
// present.
template <class T> inline double finish_adjoint(const Slope<T>& to_do, int64_t n, int64_t width, T* adjoint,
                                                const T* solution) {
    constexpr int lanes = Lanes<T>::count;
    const Rows<T> back = to_do.given.fields;
    const Inverse<T> by = to_do.by;
    double total = 0;
    for (int64_t c = 0; c < to_do.given.rows; ++c) {
        T* __restrict own = adjoint + c * PITCH<T>, * __restrict out = to_do.adjoint + c * back.stride + n;
        const T* __restrict from = back[c] + n, * __restrict x = solution + c * PITCH<T>;
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
template <class S, class T = Number<S>> inline double slope_of_part(const Slope<T>& to_do, int64_t from, int64_t to,
                                                                    T* room) {
    const Coupled<T>& given = to_do.given;
    const int64_t rank = given.rank, rows = given.rows, count = to_do.extra + 2 * rows, stride = given.vectors.stride;
    const int64_t made = to_do.extra == rank ? 0 : to_do.extra;
    const int64_t sweeps = (made + rows + S::together - 1) / S::together,
                  calls = sweeps + (to_do.vectors ? (rank + S::together - 1) / S::together : 0);
    const bool read_again = sweeps > 1 || made < to_do.extra;  // the vectors, after the first rows are made of them
    // Rows that are combined lie side by side: those made, adjoint, solution; or adjoint, solution, vectors.
    T *adjoint = room + rank * PITCH<T>, *solution = adjoint + rows * PITCH<T>, *vectors = solution + rows * PITCH<T>;
    T *first = adjoint - made * PITCH<T>, *out = vectors + rank * PITCH<T>;
    double total = 0;
    for (int64_t n = from; n < to; n += PANEL<T>) {
        const int64_t width = std::min(PANEL<T>, to - n), filled = round_up(width, STEP<S>);
        const bool whole = filled == width;
        copy_panel<S>(to_do.solution + n, given.fields.stride, rows, width, solution);
        Ahead ahead(given.vectors_from(n + width), rank, std::min(PANEL<T>, to - n - width), calls * filled / STEP<S>);
        if (!whole) copy_panel<S>(given.vectors.data + n, stride, rank, width, vectors);
        const Rows<T> source = whole ? given.vectors_from(n) : Rows<T>{vectors, PITCH<T>};
        if (whole && read_again)
            combine<S, true>(to_do.makers, made + rows, source, rank, width, first, PITCH<T>, false, ahead, vectors);
        else
            combine<S>(to_do.makers, made + rows, source, rank, filled, first, PITCH<T>, false, ahead);
        total += finish_adjoint<T>(to_do, n, width, adjoint, solution);
        if (!to_do.vectors) continue;
        T* target = to_do.vectors + n;
        if (whole) {
            combine<S>(to_do.factors, rank, {first, PITCH<T>}, count, width, target, stride, to_do.add, ahead);
            continue;
        }
        combine<S>(to_do.factors, rank, {first, PITCH<T>}, count, filled, out, PITCH<T>, false, ahead);
        for (int64_t i = 0; i < rank; ++i)
            for (int64_t k = 0; k < width; ++k) {
                T& here = target[i * stride + k];
                here = (to_do.add ? here : T{}) + out[i * PITCH<T> + k];
            }
    }
    return total;
}

}  // namespace energyml
