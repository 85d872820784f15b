// Products of rows with each other, which everything about low-rank couplings is made of.
#pragma once

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

// Shapes: vectors, and how many rows are worked on together, which is what the registers of an instruction set can
// hold.
template <class T> struct Narrow {
    typedef T Number;
    typedef energyml::V<T> V;
    typedef energyml::I<T> I;
    static constexpr int lanes = Lanes<T>::count, right = 3, together = 6;
};

template <class S> using Number = typename S::Number;
template <class S> using Vector = typename S::V;
template <class S> INLINE Vector<S> read(const Number<S>* p) { return *reinterpret_cast<const Vector<S>*>(p); }
template <class S> INLINE void write(Number<S>* p, Vector<S> v) { *reinterpret_cast<Vector<S>*>(p) = v; }
template <class S> INLINE Vector<S> every(Number<S> x) { return shuffled(Vector<S>{x}, typename S::I{}); }

// The first four of some numbers in double precision: compilers convert eight by one instruction or two, and four by
// several.
INLINE V<double> four_of(V<float> v) { return low_half<double>(__builtin_convertvector(v, V<double, 64>)); }

// The sums of four vectors: neighbours are added, then pairs, then halves.
template <class Vectors, class Mask> INLINE Vectors added_pairs(Vectors a, Vectors b, Mask even, Mask odd) {
    return shuffled(a, b, even) + shuffled(a, b, odd);
}
INLINE V<double> four_sums(const V<float>* v) {
    const I<float> even{0, 2, 8, 10, 4, 6, 12, 14}, odd{1, 3, 9, 11, 5, 7, 13, 15};
    const V<float> first = added_pairs(v[0], v[1], even, odd), second = added_pairs(v[2], v[3], even, odd);
    const V<float> both = added_pairs(first, second, even, odd);
    return four_of(both + rotated(both, 4));
}
INLINE V<double> four_sums(const V<double>* v) {
    const I<double> even{0, 4, 2, 6}, odd{1, 5, 3, 7}, low{0, 1, 4, 5}, high{2, 3, 6, 7};
    return added_pairs(added_pairs(v[0], v[1], even, odd), added_pairs(v[2], v[3], even, odd), low, high);
}

// Rows of equal length at equal distances.
template <class T> struct Rows {
    const T* data;
    int64_t stride;
    inline const T* operator[](int64_t number) const { return data + number * stride; }
};

// Rows that are read next: a few are asked for with each tile of products, a line for each of its steps, so that nobody
// waits for memory.
template <class T> class Next {
  public:
    static constexpr int count = 1;
    inline Next(Rows<T> rows, int64_t left) : rows_(rows), left_(left) {}
    inline Rows<T> some() {
        const Rows<T> now = rows_;
        if (left_ <= 0) return {now.data, 0};
        left_ -= count;
        if (left_ > 0) rows_.data += count * rows_.stride;
        return now;
    }

  private:
    Rows<T> rows_;
    int64_t left_;
};
template <class T> struct NoneNext {
    static constexpr int count = 0;
    inline Rows<T> some() const { return {nullptr, 0}; }
};

constexpr int LEFT = 4;

template <class T> struct Copied {
    T* data = nullptr;
    int64_t stride = 0;
};

// The products of I rows with J rows, by the latter.  Where a `copy` is given, the I rows are copied there on the way,
// which costs nothing beside the products; their length is whole vectors then.  ASK rows of `next` are asked for.
template <class S, int I, int J, int ASK = 0, bool COPY = false>
inline void dots(Rows<Number<S>> x, Rows<Number<S>> y, int64_t length, double* out, int64_t stride,
                 Rows<Number<S>> next = {}, Copied<Number<S>> copy = {}) {
    Vector<S> total[J][LEFT];
    for (int j = 0; j < J; ++j)
        for (int i = 0; i < LEFT; ++i) total[j][i] = Vector<S>{};
    int64_t n = 0;
    for (; n + S::lanes <= length; n += S::lanes) {
        for (int k = 0; k < ASK; ++k) __builtin_prefetch(next[k] + n, 0, ASK == 1 ? 3 : 2);
        Vector<S> left[I];
        for (int i = 0; i < I; ++i) left[i] = read<S>(x[i] + n);
        if constexpr (COPY)
            for (int i = 0; i < I; ++i) write<S>(copy.data + i * copy.stride + n, left[i]);
        for (int j = 0; j < J; ++j) {
            const Vector<S> right = read<S>(y[j] + n);
            for (int i = 0; i < I; ++i) total[j][i] += left[i] * right;
        }
    }
    for (int j = 0; j < J; ++j) store<double>(out + j * stride, load<double>(out + j * stride) + four_sums(total[j]));
    for (; n < length; ++n)
        for (int j = 0; j < J; ++j)
            for (int i = 0; i < I; ++i) out[j * stride + i] += static_cast<double>(x[i][n] * y[j][n]);
}

// The products of four rows with those among them that do not come later: out[j, i] for j <= i.  Of whole vectors.
template <class S> inline void dots_within(Rows<Number<S>> x, Rows<Number<S>> y, int64_t length, double* out,
                                           int64_t stride) {
    Vector<S> total[LEFT][LEFT];
    for (int j = 0; j < LEFT; ++j)
        for (int i = 0; i < LEFT; ++i) total[j][i] = Vector<S>{};
    for (int64_t n = 0; n < length; n += S::lanes) {
        Vector<S> left[LEFT];
        for (int i = 0; i < LEFT; ++i) left[i] = read<S>(x[i] + n);
        for (int j = 0; j < LEFT; ++j) {
            const Vector<S> right = read<S>(y[j] + n);
            for (int i = j; i < LEFT; ++i) total[j][i] += left[i] * right;
        }
    }
    for (int j = 0; j < LEFT; ++j)
        store<double>(out + j * stride, load<double>(out + j * stride) + four_sums(total[j]));
}

template <class S, int I, int ASK, bool COPY = false>
inline void dots_of(int64_t count, Rows<Number<S>> x, Rows<Number<S>> y, int64_t length, double* out, int64_t stride,
                    Rows<Number<S>> next, Copied<Number<S>> copy = {}) {
    switch (count) {
        case 1: return dots<S, I, 1, ASK, COPY>(x, y, length, out, stride, next, copy);
        case 2: return dots<S, I, 2, ASK, COPY>(x, y, length, out, stride, next, copy);
        case 3: return dots<S, I, 3, ASK, COPY>(x, y, length, out, stride, next, copy);
    }
    if constexpr (S::right > 3) switch (count) {
            case 4: return dots<S, I, 4, ASK, COPY>(x, y, length, out, stride, next, copy);
            case 5: return dots<S, I, 5, ASK, COPY>(x, y, length, out, stride, next, copy);
            default: return dots<S, I, 6, ASK, COPY>(x, y, length, out, stride, next, copy);
        }
}

// out[j, i] += x[i] . y[j] for some rows of both; zero is added behind the last i, up to a whole vector.
template <class S, int ASK>
inline void tile(int64_t rows, int64_t columns, Rows<Number<S>> x, Rows<Number<S>> y, int64_t length, double* out,
                 int64_t stride, Rows<Number<S>> next) {
    switch (rows) {
        case 1: return dots_of<S, 1, ASK>(columns, x, y, length, out, stride, next);
        case 2: return dots_of<S, 2, ASK>(columns, x, y, length, out, stride, next);
        case 3: return dots_of<S, 3, ASK>(columns, x, y, length, out, stride, next);
        default: return dots_of<S, 4, ASK>(columns, x, y, length, out, stride, next);
    }
}

// out[j, i] += x[i] . y[j] for LEFT rows i, or fewer at the end, and all j <= before + i but those that are done; some
// of the others are written too.
template <class S> struct Triangle {
    Rows<Number<S>> x, y;
    int64_t rows, before, length;
    double* out;
    int64_t stride;

    template <class Ahead> inline void add(int64_t i, int64_t done, Ahead& ahead) const {
        const int64_t high = std::min<int64_t>(LEFT, rows - i);
        const bool within = high == LEFT && length % S::lanes == 0;
        const int64_t until = before + i + (within ? 0 : high);
        for (int64_t j = done, wide; j < until; j += wide) {
            wide = until - j == S::right + 1
                       ? 2
                       : std::min<int64_t>(S::right, until - j);  // one row alone would wait for its own sums
            tile<S, Ahead::count>(high, wide, {x[i], x.stride}, {y[j], y.stride}, length, out + j * stride + i, stride,
                                  ahead.some());
        }
        if (within) dots_within<S>({x[i], x.stride}, {y[until], y.stride}, length, out + until * stride + i, stride);
    }
};

// out[j, i] += x[i] . y[j] for up to LEFT rows x and all rows y: products of fields y with vectors x, by field.
template <class S, int ASK = 0>
inline void add_products(Rows<Number<S>> x, int64_t rows, Rows<Number<S>> y, int64_t fields, int64_t length,
                         double* out, int64_t stride, Rows<Number<S>> next = {}) {
    for (int64_t j = 0, wide; j < fields; j += wide) {
        wide = std::min<int64_t>(S::right, fields - j);
        tile<S, ASK>(rows, wide, x, {y[j], y.stride}, length, out + j * stride, stride, next);
    }
}

}  // namespace energyml
