// Sums over the rows of a block of products, and what is seen of them on the way.
#pragma once

#include "eliminate.h"

namespace energyml {

// The largest entry of a message, its smallest that is not 0 (1 where there is none below), and its smallest.
struct Extremes {
    double high = 0, low = 1, least = 1;
};

// The same in lanes: of 64 bytes where there are such vectors; elsewhere comparisons of them would be made one by one.
template <class L> struct Watched {
    typedef typename L::V Vector;
    Vector highs = Vector{}, lows = 1.0 - Vector{}, least = 1.0 - Vector{};

    INLINE void see(Vector sums) {
        highs = sums > highs ? sums : highs;
        lows = smaller_of(sums, lows);
        least = sums < least ? sums : least;
    }
    INLINE Extremes found() const {
        Extremes all;
        for (int i = 0; i < L::count; ++i)
            all = {std::max(all.high, highs[i]), std::min(all.low, lows[i]), std::min(all.least, least[i])};
        return all;
    }
};

// COUNT tables and ROWS rows where the compiler is to know them; -1 and 0 else.
template <int COUNT, int ROWS_, class L>
INLINE void add_rows_of(
    const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width, double* out, Watched<L>& watched) {
    typedef typename L::V Vector;
    constexpr int64_t lanes = L::count;
    const int64_t tables_count = COUNT < 0 ? count : COUNT, row_count = ROWS_ ? ROWS_ : rows;
    Watched<L> own = watched;  // in registers
    int64_t l = 0;
    for (; l + lanes <= width; l += lanes) {
        Vector sums = Vector{};
        for (int64_t j = 0; j < row_count; ++j) {
            Vector product = constant[j] - Vector{};
            for (int64_t k = 0; k < tables_count; ++k) product *= *reinterpret_cast<const Vector*>(tables[k].from + j * tables[k].row + l);
            sums += product;
        }
        own.see(sums);
        *reinterpret_cast<Vector*>(out + l) = sums;
    }
    watched = own;
    if (l == width) return;
    Vector rest = Vector{};
    for (int64_t i = 0; i < width - l; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < row_count; ++j) {
            double product = constant[j];
            for (int64_t k = 0; k < tables_count; ++k) product *= tables[k].from[j * tables[k].row + l + i];
            sum += product;
        }
        out[l + i] = sum;
        for (int64_t lane = i; lane < lanes; ++lane) rest[lane] = sum;  // lanes behind the last one repeat it
    }
    watched.see(rest);
}

// The rows of a block, added up.
template <class L>
INLINE void add_rows(
    const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width, double* out, Watched<L>& watched) {
    if (rows == 2 && count == 1)
        add_rows_of<1, 2>(tables, count, constant, rows, width, out, watched);
    else if (rows == 2 && count == 2)
        add_rows_of<2, 2>(tables, count, constant, rows, width, out, watched);
    else if (rows == 2 && count == 3)
        add_rows_of<3, 2>(tables, count, constant, rows, width, out, watched);
    else if (count == 1)
        add_rows_of<1, 0>(tables, count, constant, rows, width, out, watched);
    else if (count == 2)
        add_rows_of<2, 0>(tables, count, constant, rows, width, out, watched);
    else
        add_rows_of<-1, 0>(tables, count, constant, rows, width, out, watched);
}

}  // namespace energyml
