// Sums over the rows of a block of products, and what is seen of them on the way.
#pragma once

#include "eliminate.h"

namespace energyml {

// The largest entry of a message, its smallest that is not 0 (1 where there is none below), and its smallest.
struct Extremes {
    double high = 0, low = 1, least = 1;
};

// The same in lanes: of 64 bytes where there are such vectors; elsewhere comparisons of them would be made one by one.
// Comparing takes as long as adding up, so that entries that are not 0 are told from others only where there are some,
// and LOWS is set.
template <class L, bool LOWS = false> struct Watched {
    typedef typename L::V Vector;
    Vector highs = Vector{}, lows = 1.0 - Vector{}, least = 1.0 - Vector{};

    inline void see(Vector sums) {
        highs = sums > highs ? sums : highs;
        if (LOWS) lows = smaller_of(sums, lows);
        least = sums < least ? sums : least;
    }
    inline bool zeros() const {
        bool any = false;
        for (int i = 0; i < L::count; ++i) any |= least[i] == 0;
        return any;
    }
    // The same of what was seen so far, entries of a message, with those that are not 0.
    inline Watched<L, true> with_lows(const double* message, int64_t entries) const {
        Watched<L, true> found{highs, 1.0 - Vector{}, least};
        double rest = 1;
        int64_t k = 0;
        for (; k + L::count <= entries; k += L::count)
            found.lows = smaller_of(*reinterpret_cast<const Vector*>(message + k), found.lows);
        for (; k < entries; ++k) rest = message[k] > 0 ? std::min(rest, message[k]) : rest;
        found.lows[0] = std::min(found.lows[0], rest);
        return found;
    }
    inline Extremes found() const {
        Extremes all;
        for (int i = 0; i < L::count; ++i)
            all = {std::max(all.high, highs[i]), std::min(all.low, LOWS ? lows[i] : least[i]),
                   std::min(all.least, least[i])};
        return all;
    }
};

// COUNT tables and ROWS rows where the compiler is to know them; -1 and 0 else.
template <int COUNT, int ROWS_, class L, bool LOWS>
inline void add_rows_of(const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width,
                        double* out, Watched<L, LOWS>& watched) {
    typedef typename L::V Vector;
    constexpr int64_t lanes = L::count;
    const int64_t tables_count = COUNT < 0 ? count : COUNT, row_count = ROWS_ ? ROWS_ : rows;
    Watched<L, LOWS> own =
        watched;  // in registers, as what is known of the tables: writing the message might change these in memory
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
            for (int64_t k = 0; k < tables_count; ++k)
                product *= *reinterpret_cast<const Vector*>(from[k].from + j * from[k].row + l);
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
template <class L, bool LOWS>
inline void add_rows(const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width,
                     double* out, Watched<L, LOWS>& watched) {
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
