// Sums over the rows of a block of products, and what is seen of them on the way.
#pragma once

#include "eliminate.h"

namespace energyml {

// The largest entry of a message, its smallest that is not 0 (1 where there is none below), and its smallest.
struct Extremes {
    double high = 0, low = 1, least = 1;
};

// The same in lanes: of 64 bytes where there are such vectors; elsewhere comparisons of them would be made one by one.  Entries that are not 0
// are looked for where there are others: comparing takes longer than adding up.
template <class L> struct Watched {
    typedef typename L::V Vector;
    Vector highs = Vector{}, least = 1.0 - Vector{};

    INLINE void see(Vector sums) {
        highs = sums > highs ? sums : highs;
        least = sums < least ? sums : least;
    }
    INLINE Extremes found(const double* message, int64_t entries) const {
        Extremes all;
        for (int i = 0; i < L::count; ++i) all = {std::max(all.high, highs[i]), 1, std::min(all.least, least[i])};
        all.low = all.least > 0 ? all.least : smallest(message, entries);
        return all;
    }

  private:
    // The smallest entry that is not 0, 1 where there is none below.
    static INLINE double smallest(const double* message, int64_t entries) {
        constexpr int64_t lanes = L::count, apart = 4;  // so many at a time, as each waits for its own last comparison
        const Vector one = 1.0 - Vector{};
        Vector lows[apart] = {one, one, one, one};
        int64_t k = 0;
        for (; k + apart * lanes <= entries; k += apart * lanes)
            for (int64_t p = 0; p < apart; ++p) lows[p] = smaller_of(*reinterpret_cast<const Vector*>(message + k + p * lanes), lows[p]);
        double low = 1;
        for (; k < entries; ++k) low = message[k] > 0 ? std::min(low, message[k]) : low;
        for (int64_t i = 0; i < apart * lanes; ++i) low = std::min(low, lows[i / lanes][i % lanes]);
        return low;
    }
};

// COUNT tables and ROWS rows where the compiler is to know them; -1 and 0 else.
template <int COUNT, int ROWS_, class L>
INLINE void add_rows_of(
    const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width, double* out, Watched<L>& watched) {
    typedef typename L::V Vector;
    constexpr int64_t lanes = L::count;
    const int64_t tables_count = COUNT < 0 ? count : COUNT, row_count = ROWS_ ? ROWS_ : rows;
    Watched<L> own = watched;  // in registers, as what is known of the tables: writing the message might change these in memory
    Lanewise near[COUNT < 0 ? 1 : COUNT];
    double factors[ROWS_ ? ROWS_ : 1];
    for (int k = 0; k < COUNT; ++k) near[k] = tables[k];
    for (int j = 0; j < ROWS_; ++j) factors[j] = constant[j];
    const Lanewise* const from = COUNT < 0 ? tables : near;
    const double* const factor = ROWS_ ? factors : constant;
    int64_t l = 0;
    for (; l + lanes <= width; l += lanes) {
        Vector sums = Vector{};
        for (int64_t j = 0; j < row_count; ++j) {
            Vector product = factor[j] - Vector{};
            for (int64_t k = 0; k < tables_count; ++k) product *= *reinterpret_cast<const Vector*>(from[k].from + j * from[k].row + l);
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
    else if (rows == 2 && count == 4)
        add_rows_of<4, 2>(tables, count, constant, rows, width, out, watched);
    else if (rows == 2 && count == 5)
        add_rows_of<5, 2>(tables, count, constant, rows, width, out, watched);
    else if (count == 1)
        add_rows_of<1, 0>(tables, count, constant, rows, width, out, watched);
    else if (count == 2)
        add_rows_of<2, 0>(tables, count, constant, rows, width, out, watched);
    else if (count == 3)
        add_rows_of<3, 0>(tables, count, constant, rows, width, out, watched);
    else
        add_rows_of<-1, 0>(tables, count, constant, rows, width, out, watched);
}

}  // namespace energyml
