// Viterbi: the best scores of the ways into each label are kept for the walk back; no back-pointers are stored, the
// best earlier label is found again on the way at O(C) a step, by the same additions.
#pragma once

#include "batch.h"
#include "chain.h"
#include "table.h"

namespace energyml {

constexpr int64_t RECENTRE_EVERY = 16;  // keeps the digits of long chains

// How large an answer's scores may be, and those of the ways that it follows less the best of all ways from time to
// time.  Beyond it rounding would change sums by more than 0.004 (float) or 0.0002 (double), and double precision
// decides (see best_wide.h).  Looking at them takes a tenth of the time at 10 and 23 labels, and 1% at 100.
template <class In> constexpr In farthest_way() {
    return std::is_same_v<In, float> ? static_cast<In>(1 << 15) : static_cast<In>(1LL << 40);
}

struct Same {
    template <class X> INLINE X operator()(X x) const { return x; }
};

// Packed scores and, when asked for, their transpose; -inf in columns that do not exist.
template <class X> static void pack_scores(const X* pair, int64_t labels, X* forward, X* backward) {
    constexpr int lanes = Lanes<X>::count;
    constexpr X nothing = -std::numeric_limits<X>::infinity();
    pack<X>(pair, pair + labels * labels, labels, forward, nothing, Same{});
    if (!backward) return;
    const int64_t padded = padded_to<X>(labels);
    transpose_packed<X>(forward, labels, padded, backward);
    for (int64_t column = 0; column < padded;) {
        const int64_t wide = panel_width((padded - column) / lanes) * lanes;
        for (int64_t c = std::max(column, labels); c < column + wide; ++c)
            for (int64_t i = 0; i < labels; ++i) backward[column * labels + i * wide + c - column] = nothing;
        column += wide;
    }
}

template <class In> struct BestUnit {
    const Chain<In>& chain;
    const int64_t* rows;  // at most ROWS, longest first
    int count;
    int64_t padded;
    const In *forward, *backward;  // packed scores where all steps share one table
    In* own;                       // room for a packed table elsewhere
    In* delta;                     // [T, count, padded]
    int64_t* best;                 // [B, T]
    In* score;                     // [B]
    uint8_t* marks;                // [B]: set where rounding might decide (see best_wide.h)
};

// The first position of the largest entry of a row plus a line of the packed transposed table (or nothing).
template <class In> INLINE int64_t arg_max(const In* row, const In* packed, int64_t line, int64_t labels,
                                           int64_t padded) {
    constexpr int lanes = Lanes<In>::count;
    typedef typename Lanes<In>::Whole Whole;
    V<In> best = all<In>(-std::numeric_limits<In>::infinity());
    I<In> place = I<In>{}, index;
    for (int k = 0; k < lanes; ++k) index[k] = k;
    for (int64_t column = 0; column < padded;) {
        const int wide = panel_width((padded - column) / lanes);
        for (int p = 0; p < wide; ++p) {
            V<In> x = load(row + column + p * lanes);
            if (packed) x += load(packed + column * labels + (line * wide + p) * lanes);
            I<In> more = x > best;
            best = larger<In>(x, best);
            place = more ? index : place;
            index += static_cast<Whole>(lanes);
        }
        column += wide * lanes;
    }
    const In high = horizontal_max<In>(best);
    I<In> first = best == all<In>(high) ? place : std::numeric_limits<Whole>::max() - I<In>{};
    Whole found = first[0];
    for (int k = 1; k < lanes; ++k) found = first[k] < found ? first[k] : found;
    return found < labels ? found : 0;
}

// The same where the table is not packed: the column that leads into `label`.
template <class In> INLINE int64_t arg_max_into(const In* row, const In* pair, int64_t label, int64_t labels) {
    int64_t pick = 0;
    In high = row[0] + pair[label];
    for (int64_t i = 1; i < labels; ++i) {
        const In x = row[i] + pair[i * labels + label];
        pick = x > high ? i : pick;
        high = x > high ? x : high;
    }
    return pick;
}

template <class In> static void walk_back(const BestUnit<In>& unit, const int64_t* lengths) {
    const Chain<In>& chain = unit.chain;
    const int64_t labels = chain.labels, size = chain.size, padded = unit.padded;
    int64_t label[ROWS];
    double total[ROWS];
    bool found[ROWS];
    In reach[ROWS];  // the largest magnitude of a score of the answer and of the ways that it follows
    int active = 0;
    // All rows go back together: each of them waits for its own last label only.
    for (int64_t t = unit.count ? lengths[0] - 1 : -1; t >= 0; --t) {
        for (int r = 0; r < active; ++r) {
            if (!found[r]) continue;
            const In *row = unit.delta + (t * unit.count + r) * padded, *pair = chain.table(unit.rows[r], t);
            const int64_t from = chain.stationary() ? arg_max<In>(row, unit.backward, label[r], labels, padded)
                                                    : arg_max_into<In>(row, pair, label[r], labels);
            const In step = pair[from * labels + label[r]], cell = chain.row(unit.rows[r], t)[from];
            total[r] += static_cast<double>(step) + static_cast<double>(cell);
            reach[r] = std::max({reach[r], std::fabs(row[from]), std::fabs(step), std::fabs(cell)});
            label[r] = unit.best[unit.rows[r] * size + t] = from;
        }
        for (; active < unit.count && lengths[active] > t; ++active) {
            const In* row = unit.delta + (t * unit.count + active) * padded;
            label[active] = arg_max<In>(row, nullptr, 0, labels, padded);
            found[active] = row[label[active]] > -std::numeric_limits<In>::infinity();
            total[active] =
                found[active] ? static_cast<double>(chain.row(unit.rows[active], t)[label[active]]) : -INFINITY;
            reach[active] =
                std::max(std::fabs(row[label[active]]), std::fabs(chain.row(unit.rows[active], t)[label[active]]));
            if (found[active]) unit.best[unit.rows[active] * size + t] = label[active];
        }
    }
    for (int r = 0; r < unit.count; ++r) {
        int64_t* best = unit.best + unit.rows[r] * size;
        const bool answered = lengths[r] > 0 && found[r];
        std::fill(best + (answered ? lengths[r] : 0), best + size, static_cast<int64_t>(-1));
        unit.score[unit.rows[r]] = static_cast<In>(lengths[r] > 0 ? total[r] : 0);
        unit.marks[unit.rows[r]] = lengths[r] > 0 && !(reach[r] <= farthest_way<In>());
    }
}

template <class In> static void best_unit(BestUnit<In>& unit) {
    constexpr int lanes = Lanes<In>::count;
    constexpr In nothing = -std::numeric_limits<In>::infinity();
    const Chain<In>& chain = unit.chain;
    const int64_t labels = chain.labels, padded = unit.padded;
    int64_t lengths[ROWS];
    for (int r = 0; r < unit.count; ++r) lengths[r] = chain.length(unit.rows[r]);
    int active = active_at(lengths, unit.count, 0);
    for (int64_t t = 0; active > 0; active = active_at(lengths, active, ++t)) {
        In* here = unit.delta + t * unit.count * padded;
        if (t > 0) {
            if (!chain.stationary() && (t == 1 || chain.pair_step)) {
                pack_scores<In>(chain.table(unit.rows[0], t - 1), labels, unit.own, nullptr);
                unit.forward = unit.own;
            }
            multiply<MaxSum, In>(active, here - unit.count * padded, unit.forward, labels, padded, here);
        }
        for (int r = 0; r < active; ++r) {
            const In* unary = chain.row(unit.rows[r], t);
            const bool inside = reads_inside(unary, padded, chain.end());
            In* row = here + r * padded;
            V<In> high = all<In>(nothing);
            for (int64_t c = 0; c < padded; c += lanes) {
                V<In> x = load_labels<In>(unary, c, labels, inside, nothing);
                if (t > 0) x += load(row + c);
                high = larger<In>(x, high);
                store(row + c, x);
            }
            if (t % RECENTRE_EVERY) continue;
            const In top = horizontal_max<In>(high);
            if (!(top > nothing)) continue;
            for (int64_t c = 0; c < padded; c += lanes) store(row + c, load(row + c) - top);
        }
    }
    walk_back(unit, lengths);
}

}  // namespace energyml
