// The passes of conjugate gradients over pieces of a grid, compiled once for each instruction set.
#pragma once

#include "grid.h"

namespace energyml {

// One system Q x = b.
template <class T> struct System {
    Matrix<T> matrix;
    const T* rhs;
    const T* start;  // null: 0
    double tolerance;
    int64_t iterations;
    bool jacobi;
    double scale = 1;  // a power of two: x and r are so many times larger than they are to be
};

// Sums over a piece, in double precision; as large as a cache line, so that threads do not write to the same one.
struct alignas(64) Sums {
    double rr;  // |r|^2
    double rz;  // r'z, where z is the preconditioned residual
    double ps;  // p's, the curvature along p, where s = Q p
    double zs;  // z's
    double ss;  // s' M^-1 s
};

// Memory of one solve, each array over the cells of one system.
template <class T> struct Vectors {
    T* x;
    T* r;            // the residual of the recursion
    T* p;            // the direction of search
    T* s;            // Q p
    float* inverse;  // of the matrix's diagonal
    T* flat;         // weights, or null
};

// A sum of products in double precision.  Those of floats are added up in float for a run of vectors: eight to a lane,
// which rounds no more than the fields themselves; the right-hand side is scaled so that they neither vanish nor
// overflow.
template <class T> struct Dot;
template <> struct Dot<double> {
    V<double> sum{};
    INLINE void add(V<double> a, V<double> b) { sum += a * b; }
    INLINE void settle() {}
};
template <> struct Dot<float> {
    V<double> sum{};
    V<float> run{};
    INLINE void add(V<float> a, V<float> b) { run += a * b; }
    INLINE void settle() {
        typedef double Wide __attribute__((vector_size(64), aligned(8), may_alias));
        const Wide wide = __builtin_convertvector(run, Wide);
        const V<double>* halves = reinterpret_cast<const V<double>*>(&wide);
        sum += halves[0] + halves[1];
        run = V<float>{};
    }
};

// Where a product goes: it is kept as it is.
template <class T> struct Kept {
    const T* field;
    T* out;
    INLINE void vector(const T* at, V<T>, V<T> value, V<T>) { store<T>(out + (at - field), value); }
    INLINE void cell(const T* at, T, T value) { out[at - field] = value; }
    INLINE void settle() {}
};

// The residual b - Q x, from a product in double precision: what is left of a small difference counts.
template <class T> struct Residual {
    const T* field;
    const T* rhs;
    T* out;
    double scale;
    Dot<double> sum{};
    double cells = 0;

    INLINE void vector(const T* at, V<double>, V<double> value, V<double> counted) {
        const V<double> left = widened<double>(rhs + (at - field)) * scale - value;
        store_as<double>(out + (at - field), left);
        sum.add(left, left * counted);
    }
    INLINE void cell(const T* at, double, double value) {
        const double left = rhs[at - field] * scale - value;
        out[at - field] = static_cast<T>(left);
        cells += left * left;
    }
    INLINE void settle() {}
};

// s = Q p, and every sum that the next step needs.
template <class T, bool JACOBI> struct Curvature {
    Vectors<T> vectors;
    int64_t ahead;  // cells from here to those that the pass moves on next; 0 where they are in the cache
    int64_t at = 0;
    Dot<T> rr{}, rz{}, ps{}, zs{}, ss{};
    Sums rest{};

    INLINE void vector(const T* cells, V<T> p, V<T> s, V<T> counted) {
        const int64_t i = at = cells - vectors.p;
        store<T>(vectors.s + i, s);
        const V<T> r = load<T>(vectors.r + i) * counted;
        rr.add(r, r);
        ps.add(p * counted, s);
        if constexpr (JACOBI) {
            const V<T> inverse = widened<T>(vectors.inverse + i), scaled = inverse * s * counted;
            rz.add(r, inverse * r);
            zs.add(r, scaled);
            ss.add(s, scaled);
        } else {
            zs.add(r, s);
            ss.add(s, s * counted);
        }
    }
    INLINE void cell(const T* one, T p, T s) {
        const int64_t i = one - vectors.p;
        vectors.s[i] = s;
        const double r = vectors.r[i], wide = s, inverse = JACOBI ? vectors.inverse[i] : 1.0f;
        rest.rr += r * r;
        rest.ps += p * wide;
        rest.rz += r * r * inverse;
        rest.zs += r * wide * inverse;
        rest.ss += wide * wide * inverse;
    }
    INLINE void settle() {
        if (ahead) fetch();
        rr.settle();
        rz.settle();
        ps.settle();
        zs.settle();
        ss.settle();
    }
    INLINE Sums total() const {
        Sums sums = rest;
        sums.rr += horizontal_sum<double>(rr.sum);
        sums.rz = JACOBI ? sums.rz + horizontal_sum<double>(rz.sum) : sums.rr;
        sums.ps += horizontal_sum<double>(ps.sum);
        sums.zs += horizontal_sum<double>(zs.sum);
        sums.ss += horizontal_sum<double>(ss.sum);
        return sums;
    }

  private:
    // Products are work enough to fetch memory meanwhile: as much as a run of vectors is long.
    INLINE void fetch() const {
        constexpr int64_t line = 64 / sizeof(T);
        for (int64_t i = at + ahead, end = i + RUN * Lanes<T>::count; i < end; i += line) {
            __builtin_prefetch(vectors.x + i, 1, 2);
            __builtin_prefetch(vectors.r + i, 1, 2);
            __builtin_prefetch(vectors.p + i, 1, 2);
            __builtin_prefetch(vectors.s + i, 1, 2);
            if constexpr (JACOBI) __builtin_prefetch(vectors.inverse + i, 0, 2);
        }
    }
};

// Bytes of all vectors above which the pass fetches them ahead: more than its share of the cache (measured; below it
// costs a tenth).
constexpr int64_t FAR = int64_t{1} << 24;

template <class T, bool JACOBI> inline Sums curvature(const Matrix<T>& matrix, const Vectors<T>& vectors,
                                                      int64_t piece) {
    const Grid& grid = *matrix.grid;
    const bool far = 5 * grid.cells * static_cast<int64_t>(sizeof(T)) > FAR;
    Curvature<T, JACOBI> sink{vectors, far ? grid.start(piece + 1) - grid.start(piece) + grid.reach : 0};
    multiply_piece<T>(matrix, static_cast<const T*>(vectors.p), piece, sink);
    return sink.total();
}

// A first step along the preconditioned residual: p = z.
template <class T> inline void begin(const System<T>& system, const Vectors<T>& vectors, int64_t from, int64_t to) {
    const T* __restrict r = vectors.r;
    const float* __restrict inverse = vectors.inverse;
    T* __restrict p = vectors.p;
    if (system.jacobi)
        for (int64_t i = from; i < to; ++i) p[i] = inverse[i] * r[i];
    else
        for (int64_t i = from; i < to; ++i) p[i] = r[i];
}

// The end of one step and the beginning of the next: x += alpha p, r -= alpha s, p = z + beta p.
template <class T>
inline void advance(const System<T>& system, const Vectors<T>& vectors, T alpha, T beta, int64_t from, int64_t to) {
    const T* __restrict s = vectors.s;
    const float* __restrict inverse = vectors.inverse;
    T* __restrict r = vectors.r, * __restrict p = vectors.p, * __restrict x = vectors.x;
    if (system.jacobi)
        for (int64_t i = from; i < to; ++i) {
            x[i] += alpha * p[i];
            r[i] -= alpha * s[i];
            p[i] = inverse[i] * r[i] + beta * p[i];
        }
    else
        for (int64_t i = from; i < to; ++i) {
            x[i] += alpha * p[i];
            r[i] -= alpha * s[i];
            p[i] = r[i] + beta * p[i];
        }
}

// Copies of the beginning; the square of the right-hand side in `rr`.
template <class T> inline Sums prepare(const System<T>& system, const Vectors<T>& vectors, int64_t from, int64_t to) {
    constexpr int lanes = Lanes<double>::count;
    V<double> sum{};
    Sums sums{};
    int64_t i = from;
    for (; i + lanes <= to; i += lanes) {
        const V<double> b = widened<double>(system.rhs + i);
        sum += b * b;
    }
    for (; i < to; ++i) sums.rr += static_cast<double>(system.rhs[i]) * system.rhs[i];
    sums.rr += horizontal_sum<double>(sum);
    std::copy(system.rhs + from, system.rhs + to, vectors.r + from);
    if (!system.start)
        std::fill(vectors.x + from, vectors.x + to, T{});
    else
        std::copy(system.start + from, system.start + to, vectors.x + from);
    return sums;
}

template <class T> inline Sums residual(const System<T>& system, const Vectors<T>& vectors, int64_t piece) {
    Residual<T> sink{vectors.x, system.rhs, vectors.r, system.scale};
    Matrix<T> matrix = system.matrix;
    matrix.flat = nullptr;  // x does not go on beyond its ends
    multiply_any_piece<double>(matrix, static_cast<const T*>(vectors.x), piece, sink);
    Sums sums{};
    sums.rr = sink.cells + horizontal_sum<double>(sink.sum.sum);
    return sums;
}

// A product of the matrix with a field, on one piece.
template <class T> void multiply_into(const Matrix<T>& matrix, const T* field, T* out, int64_t piece) {
    Kept<T> sink{field, out};
    multiply_piece<T>(matrix, field, piece, sink);
}

}  // namespace energyml
