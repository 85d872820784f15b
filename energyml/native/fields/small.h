// Small symmetric matrices in double precision.
// Matrices [K, K] have rows of `padded(K)` numbers, those behind the last one zero.
#pragma once

#include <vector>

#include "rows.h"

namespace energyml {

inline int64_t padded(int64_t count) { return round_up(count, 8); }

// The lower half of a symmetric matrix, from the upper one, by blocks.
inline void mirror(double* matrix, int64_t size) {
    constexpr int64_t block = Lanes<double>::count;
    const int64_t stride = padded(size), whole = size / block * block;
    for (int64_t i = 0; i < whole; i += block)
        for (int64_t j = 0; j < i; j += block) {
            V<double> v[block];
            for (int64_t k = 0; k < block; ++k) v[k] = load<double>(matrix + (j + k) * stride + i);
            transpose<double>(v);
            for (int64_t k = 0; k < block; ++k) store<double>(matrix + (i + k) * stride + j, v[k]);
        }
    for (int64_t i = 0; i < size; ++i)
        for (int64_t j = i < whole ? i / block * block : 0; j < i; ++j) matrix[i * stride + j] = matrix[j * stride + i];
}

// The same, of a copy.
inline void mirrored(const double* matrix, int64_t size, double* out) {
    std::copy(matrix, matrix + size * padded(size), out);
    mirror(out, size);
}

// out += by * (sum over k of factors[k] rows[k]), all of `padded(count)` numbers; four rows at a time, so that the
// answer is read and written a quarter as often.
inline void add_multiples(const double* factors, double by, Rows<double> rows, int64_t count, double* __restrict out) {
    constexpr int64_t lanes = Lanes<double>::count;
    const int64_t length = padded(count);
    int64_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const double *a = rows[k], *b = rows[k + 1], *c = rows[k + 2], *d = rows[k + 3];
        const V<double> of_a = all(by * factors[k]), of_b = all(by * factors[k + 1]), of_c = all(by * factors[k + 2]),
                        of_d = all(by * factors[k + 3]);
        for (int64_t j = 0; j < length; j += lanes)
            store<double>(out + j, load<double>(out + j) + (of_a * load<double>(a + j) + of_b * load<double>(b + j)) +
                                       (of_c * load<double>(c + j) + of_d * load<double>(d + j)));
    }
    for (; k < count; ++k) {
        const double factor = by * factors[k];
        for (int64_t j = 0; j < length; ++j) out[j] += factor * rows[k][j];
    }
}

// The product of two symmetric matrices that commute, which is symmetric too.
inline void symmetric_product(const double* x, const double* y, int64_t size, double* out) {
    const int64_t stride = padded(size);
    std::fill(out, out + size * stride, 0.0);
    const Triangle<Narrow<double>> all{{x, stride}, {y, stride}, size, 0, stride, out, stride};
    NoneNext<double> none;
    for (int64_t i = 0; i < size; i += LEFT) all.add(i, 0, none);
    for (int64_t i = 0; i < size; ++i) std::fill(out + i * stride + size, out + (i + 1) * stride, 0.0);
    mirror(out, size);
}

// U with UᵀU = I + weight G, by rows; false where a pivot is not positive.  Four pivots at a time, so that rows below
// are read and written a quarter as often.
inline bool factorise(const double* gram, double weight, int64_t size, double* __restrict out) {
    constexpr int64_t block = Lanes<double>::count;
    const int64_t stride = padded(size);
    for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = i / block * block; j < stride; ++j) out[i * stride + j] = weight * gram[i * stride + j];
        out[i * stride + i] += 1;
    }
    for (int64_t first = 0; first < size; first += block) {
        const int64_t end = std::min(size, first + block);
        for (int64_t k = first; k < end; ++k) {
            double* __restrict pivot = out + k * stride;
            if (!(pivot[k] > 0) || !std::isfinite(pivot[k])) return false;
            pivot[k] = std::sqrt(pivot[k]);
            const double inverse = 1 / pivot[k];
            for (int64_t j = k + 1; j < stride; ++j) pivot[j] *= inverse;
            for (int64_t i = k + 1; i < end; ++i) {
                double* __restrict row = out + i * stride;
                const double factor = pivot[i];
                for (int64_t j = first; j < stride; ++j) row[j] -= factor * pivot[j];
            }
        }
        const double* a = out + first * stride;
        const double *b = a + stride, *c = b + stride, *d = c + stride;
        for (int64_t i = end; i < size; ++i) {
            double* __restrict row = out + i * stride;
            const V<double> of_a = all(a[i]), of_b = all(b[i]), of_c = all(c[i]), of_d = all(d[i]);
            for (int64_t j = i / block * block; j < stride; j += block)
                store<double>(row + j, load<double>(row + j) -
                                           (of_a * load<double>(a + j) + of_b * load<double>(b + j)) -
                                           (of_c * load<double>(c + j) + of_d * load<double>(d + j)));
        }
    }
    return true;
}

// v becomes (UᵀU)⁻¹ v; it has `padded(size)` numbers, those behind the last one zero.  Four unknowns at a time, the
// others by whole vectors.
inline void substitute(const double* factor, int64_t size, double* __restrict v) {
    constexpr int64_t block = Lanes<double>::count;
    const int64_t stride = padded(size);
    for (int64_t first = 0; first < size; first += block) {
        const int64_t end = std::min(size, first + block);
        const double* __restrict rows = factor + first * stride;
        V<double> found[block] = {};
        for (int64_t k = first; k < end; ++k) {
            const double* __restrict row = factor + k * stride;
            v[k] /= row[k];
            for (int64_t j = k + 1; j < end; ++j) v[j] -= v[k] * row[j];
            found[k - first] = all<double>(v[k]);
        }
        if (end < first + block) break;
        for (int64_t j = end; j < stride; j += block)
            store<double>(v + j, load<double>(v + j) -
                                     ((found[0] * load<double>(rows + j) + found[1] * load<double>(rows + stride + j)) +
                                      (found[2] * load<double>(rows + 2 * stride + j) +
                                       found[3] * load<double>(rows + 3 * stride + j))));
    }
    for (int64_t first = (size - 1) / block * block; first >= 0; first -= block) {
        const int64_t end = std::min(size, first + block);
        const double* __restrict rows = factor + first * stride;
        V<double> sums[block] = {};
        for (int64_t j = first + block; j < stride; j += block)
            for (int64_t k = 0; k < block; ++k) sums[k] += load<double>(rows + k * stride + j) * load<double>(v + j);
        const V<double> known = four_sums(sums);
        for (int64_t k = end; k-- > first;) {
            const double* __restrict row = factor + k * stride;
            double left = v[k] - known[k - first];
            for (int64_t j = k + 1; j < end; ++j) left -= row[j] * v[j];
            v[k] = left / row[k];
        }
    }
}

// The largest pivot of a factor over the smallest, where one more is 1.
inline double spread_of_pivots(const double* factor, int64_t size) {
    double least = 1, most = 1;
    for (int64_t k = 0; k < size; ++k) {
        least = std::min(least, factor[k * padded(size) + k]);
        most = std::max(most, factor[k * padded(size) + k]);
    }
    return most / least;
}

// The sum of the squares of some whole vectors of numbers.
inline double sum_of_squares(const double* numbers, int64_t count) {
    V<double> total[4] = {};
    int64_t n = 0;
    for (; n + 16 <= count; n += 16)
        for (int k = 0; k < 4; ++k) {
            const V<double> here = load<double>(numbers + n + 4 * k);
            total[k] += here * here;
        }
    for (; n < count; n += 4) {
        const V<double> here = load<double>(numbers + n);
        total[0] += here * here;
    }
    return horizontal_sum<double>((total[0] + total[1]) + (total[2] + total[3]));
}

// The eighth root of the sum of the eighth powers of the eigenvalues of a matrix; 0 or not finite where its square sum
// is.  Leaves the second and the fourth power of the matrix over its square sum's root.
inline double eighth_norm(const double* matrix, int64_t size, double* __restrict second, double* __restrict fourth) {
    const int64_t count = size * padded(size);
    const double squares = sum_of_squares(matrix, count);
    if (!(squares > 0) || !std::isfinite(squares)) return squares;
    const double norm = std::sqrt(squares);
    for (int64_t i = 0; i < count; ++i) fourth[i] = matrix[i] / norm;
    symmetric_product(fourth, fourth, size, second);
    symmetric_product(second, second, size, fourth);
    return norm * std::pow(sum_of_squares(fourth, count), 0.125);
}

// The third power of matrix / norm times what the fourth power lacks to be that of matrix / norm, from the powers that
// `eighth_norm` left: the product of the two is (matrix / norm)⁷, the gradient of that norm.  `room` for one more
// matrix.
inline void third_power(const double* matrix, double norm, const double* second, int64_t size, double* __restrict out,
                        double* __restrict room) {
    const int64_t count = size * padded(size);
    const double root = std::sqrt(sum_of_squares(matrix, count)), scale = std::pow(root / norm, 7) / root;
    for (int64_t i = 0; i < count; ++i) room[i] = matrix[i] * scale;
    symmetric_product(second, room, size, out);
}

// L [rank, K], LᵀL near a positive semidefinite matrix, by Cholesky with pivots: what is left has a trace below `part`
// of it.  The matrix is the product of two symmetric ones that commute, of which only the diagonal and the rows of
// pivots are made. The rank, or -1 where it would be more than `most`.  Spoils `diagonal`, room for K numbers.
inline int64_t low_rank_factor(const double* x, const double* y, int64_t size, double part, int64_t most, double* out,
                               double* diagonal) {
    constexpr int64_t lanes = Lanes<double>::count;
    const int64_t stride = padded(size);
    double trace = 0;
    for (int64_t i = 0; i < size; ++i) {
        V<double> sum{};
        for (int64_t k = 0; k < stride; k += lanes)
            sum += load<double>(x + i * stride + k) * load<double>(y + i * stride + k);
        trace += diagonal[i] = horizontal_sum<double>(sum);
    }
    const double enough = part * trace;
    for (int64_t rank = 0; rank <= most; ++rank) {
        double left = 0;
        int64_t pivot = 0;
        for (int64_t i = 0; i < size; ++i) {
            left += std::max(0.0, diagonal[i]);
            if (diagonal[i] > diagonal[pivot]) pivot = i;
        }
        if (left <= enough || !(diagonal[pivot] > 0)) return rank;
        if (rank == most) break;
        double* __restrict row = out + rank * stride;
        std::fill(row, row + stride, 0.0);
        add_multiples(x + pivot * stride, 1, {y, stride}, size, row);
        for (int64_t before = 0; before < rank; ++before) {
            const double* __restrict other = out + before * stride;
            const double factor = other[pivot];
            for (int64_t k = 0; k < stride; ++k) row[k] -= factor * other[k];
        }
        const double inverse = 1 / std::sqrt(diagonal[pivot]);
        for (int64_t k = 0; k < stride; ++k) row[k] *= inverse;
        for (int64_t i = 0; i < size; ++i) diagonal[i] -= row[i] * row[i];
        diagonal[pivot] = 0;
    }
    return -1;
}

}  // namespace energyml
