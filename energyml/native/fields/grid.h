// The matrix of a field on a grid, never stored: a diagonal plus a Laplacian with signed weights,
//     (Q x)_i = diag_i x_i + sum over edges (i, j) of w_ij (x_i - x_j).
// Differences are weighted, not cells: what is smooth keeps its small curvature, where (diag_i + sum w) x_i - sum w x_j
// rounds it away.
#pragma once

#include <vector>

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

// As `load_as`; spelt out, as compilers turn four numbers into one instruction, but not always half a vector.
template <class A, class T> INLINE V<A> widened(const T* p) {
    if constexpr (std::is_same_v<A, T>)
        return load<T>(p);
    else
        return V<A>{p[0], p[1], p[2], p[3]};
}

constexpr int64_t MOST_DIRECTIONS = 64;
constexpr int64_t PIECE =
    1024;  // cells of whole rows that are worked on together: what they need fits the nearest cache
constexpr int64_t LONG_ROW = 4096;   // longer rows are cut into parts
constexpr int64_t RUN = 8;           // vectors between two calls of a sink's `settle`
constexpr int64_t FLAT_WIDTH = 512;  // grids of rows no longer than this are solved with flat weights

// Edges from each cell to the one at an offset; their weights are in one of the weight arrays.
struct Direction {
    int64_t weights, planes, rows, cells;
    int64_t distance;  // in memory
};

// A grid and its directions.  A piece of it is some whole rows, or a part of a long one: sums are kept for each piece
// and added up in the order of pieces, which makes them the same for any number of threads.
struct Grid {
    int64_t planes, rows, width, cells;
    std::vector<Direction> directions;
    int64_t margin = 0;  // cells at either end of a row from where some direction leaves the row
    int64_t reach = 0;   // how far ahead and behind a product looks
    int64_t height = 1;  // rows of a piece
    int64_t parts = 1;   // pieces of a row, where a row has more than one
    int64_t pieces = 0;

    Grid(int64_t planes_, int64_t rows_, int64_t width_, const int64_t* offsets, int64_t count)
        : planes(planes_), rows(rows_), width(width_), cells(planes_ * rows_ * width_) {
        for (int64_t d = 0; d < count; ++d, offsets += 4) {
            const int64_t distance = (offsets[1] * rows + offsets[2]) * width + offsets[3];
            directions.push_back({offsets[0], offsets[1], offsets[2], offsets[3], distance});
            margin = std::max(margin, std::abs(offsets[3]));
            reach = std::max(reach, std::abs(distance));
        }
        margin = std::min(margin, width);
        reach = std::min(reach, cells);
        if (width > LONG_ROW) parts = (width + LONG_ROW - 1) / LONG_ROW;
        if (width > 0 && width <= PIECE / 2) height = PIECE / width;
        pieces = parts > 1 ? planes * rows * parts : (planes * rows + height - 1) / height;
    }

    // The first cell of a piece, and where the last one ends for `piece` equal to their number.
    int64_t start(int64_t piece) const {
        if (parts == 1) return std::min(piece * height * width, cells);
        return piece / parts * width + piece % parts * LONG_ROW;
    }
};

// The matrix of one system; weights are at `direction * stride + cell`, or at `direction * stride` where they are
// constant.
template <class T> struct Matrix {
    const Grid* grid;
    const T* diagonal;
    bool varying_diagonal;
    const T* weights;
    int64_t stride;
    bool constant;
    const T* zeros;  // as long as a row: the weights towards rows outside the grid
    // Or null.  Weights in the order of the grid's directions, zero where an edge leaves the grid: then the ends of
    // rows need no care, and a product runs over all cells as over one row, if the field goes on for `reach` numbers on
    // either side, finite ones.
    const T* flat = nullptr;

    int64_t flat_stride() const { return grid->cells + 2 * grid->reach; }
    const T* of(const Direction& direction) const { return weights + direction.weights * stride; }
};

// A row with its neighbours on either end of each direction.  Where there is none, the row is its own neighbour with
// weights 0.
template <class T, class A, int D, bool CONSTANT> class Row {
  public:
    inline Row(const Matrix<T>& matrix, const T* field, int64_t row)
        : grid_(*matrix.grid), varying_(matrix.varying_diagonal), width_(grid_.width), margin_(grid_.margin) {
        const int64_t plane = row / grid_.rows, line = row % grid_.rows, base = row * grid_.width;
        own_ = field + base;
        diagonal_ = matrix.varying_diagonal ? matrix.diagonal + base : matrix.diagonal;
        for (int64_t d = 0; d < count(); ++d) {
            const Direction& to = grid_.directions[d];
            const T* weights = matrix.of(to);
            const bool ahead = inside(plane + to.planes, line + to.rows),
                       behind = inside(plane - to.planes, line - to.rows);
            ahead_[d] = ahead ? own_ + to.distance : own_;
            behind_[d] = behind ? own_ - to.distance : own_;
            if constexpr (CONSTANT) {
                ahead_constant_[d] = ahead ? static_cast<A>(*weights) : A{};
                behind_constant_[d] = behind ? static_cast<A>(*weights) : A{};
            } else {
                ahead_weights_[d] = ahead ? weights + base : matrix.zeros;
                behind_weights_[d] = behind ? weights + base - to.distance : matrix.zeros;
            }
        }
    }

    // All rows as one, by flat weights.
    inline Row(const Matrix<T>& matrix, const T* field)
        : grid_(*matrix.grid),
          varying_(matrix.varying_diagonal),
          width_(grid_.cells),
          margin_(0),
          own_(field),
          diagonal_(matrix.diagonal) {
        static_assert(!CONSTANT);
        for (int64_t d = 0; d < count(); ++d) {
            const int64_t distance = grid_.directions[d].distance;
            ahead_[d] = own_ + distance;
            behind_[d] = own_ - distance;
            ahead_weights_[d] = matrix.flat + d * matrix.flat_stride() + grid_.reach;
            behind_weights_[d] = ahead_weights_[d] - distance;
        }
    }

    // The product on cells [first, last) of the row, vector by vector, handed to the sink with the cells themselves.
    // The row and the sink are copied: what is written to fields meanwhile cannot change a copy, which hence stays in
    // registers.
    template <class Sink> void multiply(int64_t first, int64_t last, Sink& sink) const {
        Sink own = sink;
        Row(*this).run(first, last, own);
        sink = own;
    }

  private:
    template <class Sink> INLINE void run(int64_t first, int64_t last, Sink& sink) const {
        constexpr int lanes = Lanes<A>::count;
        int64_t from = std::max(first, margin_), to = std::min(last, width_ - margin_);
        if (to - from < lanes) from = to = last;
        const V<A> every = all<A>(1);
        int64_t x = from;
        while (x + lanes <= to) {
            for (const int64_t stop = std::min(to, x + RUN * lanes); x + lanes <= stop; x += lanes)
                vector(x, every, sink);
            sink.settle();
        }
        if (x < to) {  // once more for some cells, which do not count again in sums
            const I<A> counted = first_lanes<A>(x - (to - lanes));
            vector(to - lanes, counted ? V<A>{} : every, sink);
            sink.settle();
        }
        for (x = first == from ? to : first; x < last; x = x + 1 == from ? to : x + 1) cell(x, sink);
    }
    INLINE int64_t count() const { return D ? D : static_cast<int64_t>(grid_.directions.size()); }
    inline bool inside(int64_t plane, int64_t line) const {
        return plane >= 0 && plane < grid_.planes && line >= 0 && line < grid_.rows;
    }

    template <class Sink> INLINE void vector(int64_t x, V<A> counted, Sink& sink) const {
        const V<A> own = widened<A>(own_ + x);
        V<A> value = own * (varying_ ? widened<A>(diagonal_ + x) : all<A>(*diagonal_));
        for (int64_t d = 0; d < count(); ++d) {
            const V<A> forth = own - widened<A>(ahead_[d] + x), back = own - widened<A>(behind_[d] + x);
            if constexpr (CONSTANT)
                value += forth * all<A>(ahead_constant_[d]) + back * all<A>(behind_constant_[d]);
            else
                value += forth * widened<A>(ahead_weights_[d] + x) + back * widened<A>(behind_weights_[d] + x);
        }
        sink.vector(own_ + x, own, value, counted);
    }

    // A cell from which some neighbours may be outside the row.
    template <class Sink> INLINE void cell(int64_t x, Sink& sink) const {
        const A own = own_[x];
        A value = own * static_cast<A>(varying_ ? diagonal_[x] : *diagonal_);
        for (int64_t d = 0; d < count(); ++d) {
            const int64_t shift = grid_.directions[d].cells;
            if (x + shift >= 0 && x + shift < width_) value += (own - ahead_[d][x]) * ahead_weight(d, x);
            if (x - shift >= 0 && x - shift < width_) value += (own - behind_[d][x]) * behind_weight(d, x);
        }
        sink.cell(own_ + x, own, value);
    }
    INLINE A ahead_weight(int64_t d, int64_t x) const {
        if constexpr (CONSTANT)
            return ahead_constant_[d];
        else
            return ahead_weights_[d][x];
    }
    INLINE A behind_weight(int64_t d, int64_t x) const {
        if constexpr (CONSTANT)
            return behind_constant_[d];
        else
            return behind_weights_[d][x];
    }

    static constexpr int64_t ROOM = D ? D : MOST_DIRECTIONS;
    const Grid& grid_;
    const bool varying_;
    const int64_t width_, margin_;
    const T* own_;
    const T* diagonal_;
    const T* ahead_[ROOM];
    const T* behind_[ROOM];
    const T* ahead_weights_[CONSTANT ? 1 : ROOM];
    const T* behind_weights_[CONSTANT ? 1 : ROOM];
    A ahead_constant_[CONSTANT ? ROOM : 1];
    A behind_constant_[CONSTANT ? ROOM : 1];
};

// The product on one piece of the grid, computed in type A.
template <class A, int D, bool CONSTANT, class T, class Sink>
inline void multiply_piece(const Matrix<T>& matrix, const T* field, int64_t piece, Sink& sink) {
    const Grid& grid = *matrix.grid;
    if constexpr (!CONSTANT)
        if (matrix.flat)
            return Row<T, A, D, false>(matrix, field).multiply(grid.start(piece), grid.start(piece + 1), sink);
    if (grid.parts > 1) {
        const int64_t first = piece % grid.parts * LONG_ROW;
        Row<T, A, D, CONSTANT>(matrix, field, piece / grid.parts)
            .multiply(first, std::min(first + LONG_ROW, grid.width), sink);
        return;
    }
    const int64_t last = std::min((piece + 1) * grid.height, grid.planes * grid.rows);
    for (int64_t row = piece * grid.height; row < last; ++row)
        Row<T, A, D, CONSTANT>(matrix, field, row).multiply(0, grid.width, sink);
}

// The same for any number of directions.
template <class A, class T, class Sink> inline void multiply_any_piece(const Matrix<T>& matrix, const T* field,
                                                                       int64_t piece, Sink& sink) {
    if (matrix.constant) return multiply_piece<A, 0, true>(matrix, field, piece, sink);
    return multiply_piece<A, 0, false>(matrix, field, piece, sink);
}

// The same, unrolled for the number of directions of common neighbourhoods.
template <class A, class T, class Sink> inline void multiply_piece(const Matrix<T>& matrix, const T* field,
                                                                   int64_t piece, Sink& sink) {
    switch (matrix.grid->directions.size() * 2 + matrix.constant) {
        case 4: return multiply_piece<A, 2, false>(matrix, field, piece, sink);
        case 5: return multiply_piece<A, 2, true>(matrix, field, piece, sink);
        case 6: return multiply_piece<A, 3, false>(matrix, field, piece, sink);
        case 7: return multiply_piece<A, 3, true>(matrix, field, piece, sink);
        case 8: return multiply_piece<A, 4, false>(matrix, field, piece, sink);
        case 9: return multiply_piece<A, 4, true>(matrix, field, piece, sink);
        default: return multiply_any_piece<A>(matrix, field, piece, sink);
    }
}

// Flat weights of one piece.
template <class T> inline void flatten(const Matrix<T>& matrix, int64_t piece, T* flat) {
    const Grid& grid = *matrix.grid;
    const int64_t begin = grid.start(piece), end = grid.start(piece + 1);
    for (const Direction& to : grid.directions) {
        T* out = flat + (&to - grid.directions.data()) * matrix.flat_stride() + grid.reach;
        const T* weights = matrix.of(to);
        for (int64_t base = begin; base < end; base += grid.width) {
            const int64_t row = base / grid.width, plane = row / grid.rows + to.planes,
                          line = row % grid.rows + to.rows;
            const bool inside = plane >= 0 && plane < grid.planes && line >= 0 && line < grid.rows;
            const int64_t first = inside ? std::min(grid.width, std::max<int64_t>(0, -to.cells)) : grid.width;
            const int64_t last = std::max(first, std::min(grid.width, grid.width - to.cells));
            std::fill(out + base, out + base + first, T{});
            std::copy(weights + base + first, weights + base + last, out + base + first);
            std::fill(out + base + last, out + base + grid.width, T{});
        }
    }
}

// The matrix's diagonal on one piece, row by row of each direction.
template <class T> inline void diagonal_of(const Matrix<T>& matrix, int64_t begin, int64_t end, T* __restrict out) {
    const Grid& grid = *matrix.grid;
    for (int64_t i = begin; i < end; ++i) out[i - begin] = matrix.diagonal[matrix.varying_diagonal ? i : 0];
    for (const Direction& to : grid.directions)
        for (int sign = 1; sign >= -1; sign -= 2)
            for (int64_t at = begin; at < end;) {
                const int64_t row = at / grid.width, base = row * grid.width, stop = std::min(end, base + grid.width);
                const int64_t plane = row / grid.rows + sign * to.planes, line = row % grid.rows + sign * to.rows,
                              shift = sign * to.cells;
                if (plane >= 0 && plane < grid.planes && line >= 0 && line < grid.rows) {
                    const int64_t first = std::max(at, base - shift), last = std::min(stop, base + grid.width - shift);
                    const T* __restrict weights = matrix.of(to) - (sign < 0 && !matrix.constant ? to.distance : 0);
                    if (matrix.constant)
                        for (int64_t i = first; i < last; ++i) out[i - begin] += *weights;
                    else
                        for (int64_t i = first; i < last; ++i) out[i - begin] += weights[i];
                }
                at = stop;
            }
}

// Its inverse, in float and within the range of float: any positive numbers near it serve a preconditioner, and half
// the memory is read in half the time.  False when some entry is not positive, and the matrix hence not positive
// definite.
template <class T> inline bool invert_diagonal(const Matrix<T>& matrix, int64_t piece, float* __restrict inverse) {
    const int64_t begin = matrix.grid->start(piece), end = matrix.grid->start(piece + 1);
    constexpr int lanes = Lanes<T>::count;
    T diagonal[LONG_ROW + lanes];
    diagonal_of<T>(matrix, begin, end, diagonal);
    for (int k = 0; k < lanes; ++k) diagonal[end - begin + k] = 1;
    const V<T> least = all<T>(std::numeric_limits<float>::min()), most = all<T>(std::numeric_limits<float>::max());
    I<T> bad{};
    for (int64_t k = 0; k < end - begin; k += lanes) {
        const V<T> value = load<T>(diagonal + k);
        bad |= value <= V<T>{};
        V<T> one = static_cast<T>(1) / value;
        one = one < least ? least : one;
        store<T>(diagonal + k, one > most ? most : one);  // what is not a number stays, and shows in the residual
    }
    for (int64_t i = begin; i < end; ++i) inverse[i] = static_cast<float>(diagonal[i - begin]);
    return !any<T>(bad);
}

}  // namespace energyml
