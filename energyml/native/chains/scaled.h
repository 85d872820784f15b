// First-order chains in exp space: forward and backward passes over rows of scaled numbers.
//
// Safety.  In exp space a number may underflow to 0 and lose a path that later turns out to be the only one.  Every
// number that is not zero is therefore kept above `floor`, which is so large that its product with any entry of the
// table is a normal number: only true zeros are zeros.  A row that breaks the rule is flagged and left to the next
// tier.
//
// Rows are scaled by powers of two, which is exact, and only every few steps where the table allows: a row grows by at
// most the number of labels a step.  Their largest entry is put well above 1, which leaves more room below.
//
// Masks.  Large negative numbers stand for what must not be.  Scores more than FAR below the largest of their cell, or
// of the table, count as -inf at first, and the one closest to the largest is noted.  An answer that has any of them is
// at most so far below the sum of all largest scores; all such answers together are negligible where log Z is found to
// be well above (`outweighs`), else another tier answers.
#pragma once

#include "batch.h"
#include "chain.h"
#include "table.h"

namespace energyml {

template <class T> struct Limits;
template <> struct Limits<float> {
    // Tables with any entry below `least` are left to the next tier; so are rows whose two halves hardly overlap, or of
    // which a factor of pairs is so large that its product with the other might be infinite, where the table has a 0.
    static constexpr int lift = 30, table_lift = 0;
    static constexpr float least = 1e-30f, overlap = 1e-20f, largest = 1e25f, factor = 1e18f, varying_floor = 1e-19f;
};
template <> struct Limits<double> {
    static constexpr int lift = 450, table_lift = 450;
    static constexpr double least = 1e-300, overlap = 1e-200, largest = 1e250, factor = 1e150, varying_floor = 1e-154;
};

// log(number * 2^exponent); exponents are added up first, as they may cancel.
INLINE double log_of(double number, int64_t exponent) {
    int own = 0;
    const double mantissa = std::frexp(number, &own);
    return std::log(mantissa) + static_cast<double>(exponent + own) * 0.693147180559945309417;
}

// Whether answers of so much mass, relative to an answer of the largest scores only, outweigh all others of n cells of
// which each has a score that was left out.  Noting these takes 1% of the time of a cell whose scores are far apart,
// and none of others.
INLINE bool outweighs(double mass, double left_out, int64_t n, int64_t labels) {
    constexpr double certain = 40;  // in nats
    return left_out == -INFINITY ||
           mass > left_out + static_cast<double>(n) * std::log(static_cast<double>(labels)) + certain;
}

// How often rows are scaled: numbers lose up to the spread of the table with each step that they are not.
template <class T> INLINE int64_t rescale_every(const Packed<T>& table, int64_t labels) {
    return table.close && labels < 2048 ? 4 : 1;
}

// The state of each row of a unit on the way.
template <class T> struct Progress {
    double total = 0, above = 0;  // what was subtracted; how far the largest scores of tables are above it
    int64_t exponent = 0;
    I<T> bad = I<T>{};
    V<T> left_out = -std::numeric_limits<T>::infinity() -
                    V<T>{};  // of scores that count as -inf, the largest less the largest of all
};

// Of scores less the largest of their cell those that count as -inf, or lower ones that are not finite.
template <class T, class X> INLINE X counted_out(X score, X below) {
    const X nothing = spread<X>(-std::numeric_limits<T>::infinity()),
            least = spread<X>(std::numeric_limits<T>::lowest());
    const X noted = below > least ? below : least;
    return (below < spread<X>(static_cast<T>(FAR))) & (score > nothing) ? noted : nothing;
}

// What one thread works with.
template <class T> struct Scratch {
    T* rows;     // [ROWS + count, padded]
    T* forward;  // a table of its own, where each step or example has one
    T* backward;
    T* outer;               // [labels, padded]: the sum of outer products, or null
    Progress<T>* progress;  // [count] each
    int64_t* lengths;
};

// Some chains, longest first; `slot` says where in alpha and emission each of them is kept.
template <class In, class T> struct Unit {
    const Chain<In>& chain;
    const Answer<In>& answer;
    const int64_t* rows;
    const int64_t* slots;
    int count;
    int64_t padded;
    Packed<T> table;  // used where all steps of all chains share it
    T floor;
    int64_t every;        // steps between scalings
    T *alpha, *emission;  // [*, T, padded], or null
    Scratch<T> scratch;
    double left_out;  // by all tables so far

    int64_t length(int r) const { return chain.length(rows[r]); }
    T* kept(T* from, int r, int64_t t) const { return from + (slots[r] * chain.size + t) * padded; }
};

// The largest score of a cell, and whether all of them are so close to it that none vanishes.
template <class T> struct Highest {
    T top;
    bool close;
};
template <class T, class In> INLINE Highest<T> highest(const In* row, const In* end, int64_t labels, int64_t padded) {
    constexpr int lanes = Lanes<T>::count;
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    const int64_t whole = labels / lanes * lanes;
    V<T> high = all<T>(nothing), low = all<T>(-nothing);
    for (int64_t c = 0; c < whole; c += lanes) {
        const V<T> x = load_as<T>(row + c);
        high = larger<T>(x, high);
        low = smaller<T>(x, low);
    }
    if (whole < padded)
        high = larger<T>(load_labels<T>(row, whole, labels, reads_inside(row, padded, end), nothing), high);
    const T top = horizontal_max<T>(high), bottom = -horizontal_max<T>(-low);
    return {top > nothing ? top : 0, bottom - top >= Lanes<T>::low};
}

// One step into a cell: out = ahead * exp(scores - top), where `ahead` is null before the first cell.  The exponentials
// are left in `emission`, if that is not null.  Notes numbers that become too small.
template <class T, class In>
INLINE void enter_cell(const In* row, const In* end, int64_t labels, int64_t padded, Highest<T> of, const T* ahead,
                       V<T> floor, T* emission, T* out, Progress<T>& progress) {
    constexpr int lanes = Lanes<T>::count;
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    const int64_t whole = labels / lanes * lanes;
    const V<T> top = all<T>(of.top);
    I<T> bad = progress.bad;  // in registers: memory that is written in between might be these
    V<T> left_out = progress.left_out;
    const auto enter = [&](int64_t c, V<T> x, bool close) __attribute__((always_inline)) {
        const V<T> below = x - top, factor = close ? small_exponential<T>(below) : exponential<T>(below);
        const V<T> before = ahead ? load(ahead + c) : all<T>(1), value = before * factor;
        const I<T> low = (value < floor) & (before > V<T>{});
        bad |= close ? low : low & (below >= all<T>(static_cast<T>(FAR)));
        if (!close) left_out = larger<T>(counted_out<T>(x, below), left_out);
        if (emission) store(emission + c, factor);
        store(out + c, value);
    };
    if (of.close)
        for (int64_t c = 0; c < whole; c += lanes) enter(c, load_as<T>(row + c), true);
    else
        for (int64_t c = 0; c < whole; c += lanes) enter(c, load_as<T>(row + c), false);
    if (whole < padded)
        enter(whole, load_labels<T>(row, whole, labels, reads_inside(row, padded, end), nothing), false);
    progress.bad = bad;
    progress.left_out = left_out;
}

// Scale a row by a power of two so that its largest entry lies in [1, 2) * 2^lift; returns the exponent, notes entries
// that become too small.
template <class T> INLINE int64_t rescale(T* row, int64_t padded, V<T> floor, I<T>& bad) {
    constexpr int lanes = Lanes<T>::count;
    V<T> high = load(row);
    for (int64_t c = lanes; c < padded; c += lanes) high = larger<T>(load(row + c), high);
    const T top = horizontal_max<T>(high);
    if (!(top >= std::numeric_limits<T>::min() && top <= std::numeric_limits<T>::max() / 4)) return 0;
    const int64_t exponent = exponent_of<T>(top) - Limits<T>::lift;
    if (exponent < 2 - Lanes<T>::bias) return 0;
    const T factor = power_of_two<T>(-exponent);
    I<T> lost = bad;  // in a register, as above
    for (int64_t c = 0; c < padded; c += lanes) {
        V<T> before = load(row + c), after = before * factor;
        lost |= (after < floor) & (before > V<T>{});
        store(row + c, after);
    }
    bad = lost;
    return exponent;
}

// The table between cells t and t + 1 of a unit; false when its scores spread too far.
template <class In, class T> INLINE bool table_at(Unit<In, T>& unit, int64_t t, bool first) {
    const Chain<In>& chain = unit.chain;
    if (chain.stationary()) return true;
    if (!first && chain.pair_step == 0) return true;
    unit.table.forward = unit.scratch.forward;
    unit.table.backward = unit.scratch.backward;
    const In* pair = chain.table(unit.rows[0], t);
    measure<T>(pair, chain.labels, Limits<T>::table_lift, unit.table);
    unit.left_out = std::max(unit.left_out, unit.table.left_out);
    if (!(unit.table.least * unit.floor >= std::numeric_limits<T>::min())) return false;
    exponentiate<T>(pair, chain.labels, unit.table);
    return true;
}

// log Z of each chain, and alpha and emission where they are kept.  Returns as soon as all chains are flagged.
template <class In, class T> static void forward_unit(Unit<In, T>& unit) {
    const Chain<In>& chain = unit.chain;
    const int64_t labels = chain.labels, padded = unit.padded;
    T* next = unit.scratch.rows;        // [ROWS, padded]
    T* current = next + ROWS * padded;  // [count, padded]
    Progress<T>* const progress = unit.scratch.progress;
    int64_t* const lengths = unit.scratch.lengths;
    for (int r = 0; r < unit.count; ++r) progress[r] = Progress<T>(), lengths[r] = unit.length(r);
    const V<T> floor = all<T>(unit.floor);
    int active = active_at(lengths, unit.count, 0);
    bool safe = true;
    for (int64_t t = 0; active > 0 && safe; active = active_at(lengths, active, ++t)) {
        if (t > 0) safe = table_at(unit, t - 1, t == 1);
        for (int start = 0; start < active; start += ROWS) {
            const int rows = std::min(ROWS, active - start);
            T* here = current + start * padded;
            Highest<T> of[ROWS];  // found in a row, where none has to wait for another
            for (int r = 0; r < rows; ++r)
                of[r] = highest<T>(chain.row(unit.rows[start + r], t), chain.end(), labels, padded);
            if (t > 0) multiply<SumProduct, T>(rows, here, unit.table.forward, labels, padded, next);
            for (int r = 0; r < rows; ++r) {
                Progress<T>& one = progress[start + r];
                T* row = here + r * padded;
                T* emission = unit.emission ? unit.kept(unit.emission, start + r, t) : nullptr;
                const In* scores = chain.row(unit.rows[start + r], t);
                one.total += of[r].top;
                if (t > 0) one.total += unit.table.shift, one.above += unit.table.above;
                enter_cell<T>(scores, chain.end(), labels, padded, of[r], t > 0 ? next + r * padded : nullptr, floor,
                              emission, row, one);
                if (t % unit.every == unit.every - 1) one.exponent += rescale<T>(row, padded, floor, one.bad);
                if (unit.alpha) copy_row<T>(row, padded, unit.kept(unit.alpha, start + r, t));
            }
        }
        if (t % 4 == 0 || t == 1) {
            bool hope = false;
            for (int r = 0; r < unit.count && !hope; ++r) hope = !any<T>(progress[r].bad);
            safe = safe && hope;
        }
    }
    for (int r = 0; r < unit.count; ++r) {
        const int64_t b = unit.rows[r];
        double sum = 0;
        for (int64_t c = 0; c < labels; ++c) sum += lengths[r] ? current[r * padded + c] : 0;
        const Progress<T>& one = progress[r];
        const double mass = log_of(sum, one.exponent),
                     left_out = std::max<double>(unit.left_out, horizontal_max<T>(one.left_out));
        if (lengths[r] == 0)
            unit.answer.log_z[b] = 0;
        else if (!safe || any<T>(one.bad) || !outweighs(mass - one.above, left_out, lengths[r], labels))
            ++unit.answer.tier[b];
        else
            unit.answer.log_z[b] = one.total + mass;
    }
}

// outer(left, right) times the table into [labels, labels], set or added.
template <class T, class In>
static void write_pair(const T* left, const T* right, const T* packed, int64_t labels, int64_t padded, In* out,
                       bool add) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t i = 0; i < labels; ++i) {
        In* line = out + i * labels;
        const bool inside = (labels - 1 - i) * labels >= padded - labels;
        const V<T> factor = all<T>(left[i]);
        for (int64_t column = 0; column < padded;) {
            const int wide = panel_width((padded - column) / lanes);
            for (int p = 0; p < wide; ++p) {
                const int64_t c = column + p * lanes;
                V<T> value = factor * load(packed + column * labels + (i * wide + p) * lanes) * load(right + c);
                if (add) value += load_labels<T>(line, c, labels, inside, static_cast<T>(0));
                store_labels<T>(line, c, labels, inside, value);
            }
            column += wide * lanes;
        }
    }
}

// out [labels, labels] += outer [labels, padded] times the table.
template <class T, class In>
static void add_times_table(const T* outer, const T* packed, int64_t labels, int64_t padded, In* out) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t i = 0; i < labels; ++i) {
        In* line = out + i * labels;
        const bool inside = (labels - 1 - i) * labels >= padded - labels;
        for (int64_t column = 0; column < padded;) {
            const int wide = panel_width((padded - column) / lanes);
            for (int p = 0; p < wide; ++p) {
                const int64_t c = column + p * lanes;
                V<T> value = load(outer + i * padded + c) * load(packed + column * labels + (i * wide + p) * lanes);
                store_labels<T>(line, c, labels, inside,
                                value + load_labels<T>(line, c, labels, inside, static_cast<T>(0)));
            }
            column += wide * lanes;
        }
    }
}

// The marginals of one cell, and alpha as the left factor of the pair gradient between this cell and the next.
template <class In, class T>
INLINE void marginals_at(const Unit<In, T>& unit, int r, int64_t t, int64_t length, const T* beta, Progress<T>& one) {
    constexpr int lanes = Lanes<T>::count;
    const Answer<In>& answer = unit.answer;
    const int64_t labels = unit.chain.labels, size = unit.chain.size, padded = unit.padded, b = unit.rows[r];
    T* left = unit.kept(unit.alpha, r, t);
    V<T> sums = V<T>{};
    for (int64_t c = 0; c < padded; c += lanes) sums += load(left + c) * load(beta + c);
    const T sum = horizontal_sum<T>(sums);
    const bool fine = sum >= Limits<T>::overlap;
    if (!fine) one.bad = ~I<T>{};
    const T by = fine ? static_cast<T>(answer.weight_of(b)) / sum : 0;
    if (answer.unary) {
        In* out = answer.unary + (b * size + t) * labels;
        const bool inside = (size - 1 - t) * labels >= padded - labels;
        for (int64_t c = 0; c < padded; c += lanes)
            store_labels<T>(out, c, labels, inside, load(left + c) * load(beta + c) * by);
    }
    if (!answer.pair || t + 1 >= length) return;
    // beta was scaled after it was multiplied with the table; the pair gradient was not.
    const T scale = power_of_two<T>(-one.exponent);
    if (!(std::fabs(by * scale) <= Limits<T>::largest)) one.bad = ~I<T>{};
    const V<T> most = all<T>(Limits<T>::factor);
    for (int64_t c = 0; c < padded; c += lanes) {
        const V<T> value = load(left + c) * by * scale;  // in this order: by * scale may be 0
        one.bad |= (value > most) | (value < -most);
        store(left + c, value);
    }
    if (!answer.pair_step || !answer.pair_example) return;  // sums wait until it is known which chains are safe
    In* out = answer.pair + b * answer.pair_example + t * answer.pair_step;
    write_pair<T>(left, unit.kept(unit.emission, r, t + 1), unit.table.forward, labels, padded, out, false);
}

// Marginals times weight into answer.unary; alpha becomes the left and emission the right factor of the pair gradient,
// which is the sum over t of outer(alpha[t], emission[t+1]) times the exponentiated table.  Uses alpha and emission up.
template <class In, class T> static void backward_unit(Unit<In, T>& unit) {
    constexpr int lanes = Lanes<T>::count;
    const Chain<In>& chain = unit.chain;
    const int64_t labels = chain.labels, padded = unit.padded;
    T* right = unit.scratch.rows;        // [ROWS, padded]
    T* current = right + ROWS * padded;  // [count, padded]: beta
    Progress<T>* const progress = unit.scratch.progress;
    int64_t* const lengths = unit.scratch.lengths;
    for (int r = 0; r < unit.count; ++r) progress[r] = Progress<T>(), lengths[r] = unit.length(r);
    const V<T> floor = all<T>(unit.floor), zero = V<T>{};
    bool safe = true;
    int active = 0;
    for (int64_t t = unit.count ? lengths[0] - 1 : -1; t >= 0; --t) {
        for (; active < unit.count && lengths[active] > t; ++active)
            for (int64_t c = 0; c < padded; ++c) current[active * padded + c] = c < labels ? static_cast<T>(1) : 0;
        for (int r = 0; r < active; ++r) marginals_at(unit, r, t, lengths[r], current + r * padded, progress[r]);
        if (t == 0) break;
        safe = table_at(unit, t - 1, t == lengths[0] - 1) && safe;
        for (int start = 0; start < active; start += ROWS) {
            const int rows = std::min(ROWS, active - start);
            T* betas = current + start * padded;
            for (int r = 0; r < rows; ++r) {
                Progress<T>& one = progress[start + r];
                T* emission = unit.kept(unit.emission, start + r, t);
                for (int64_t c = 0; c < padded; c += lanes) {
                    V<T> factor = load(emission + c), beta = load(betas + r * padded + c), value = factor * beta;
                    one.bad |= (value < floor) & (factor > zero) & (beta > zero);
                    store(emission + c, value);
                    store(right + r * padded + c, value);
                }
            }
            multiply<SumProduct, T>(rows, right, unit.table.backward, labels, padded, betas);
            for (int r = 0; r < rows; ++r) {
                Progress<T>& one = progress[start + r];
                one.exponent = t % unit.every == 0 ? rescale<T>(betas + r * padded, padded, floor, one.bad) : 0;
            }
        }
    }
    for (int r = 0; r < unit.count; ++r)
        unit.answer.tier[unit.rows[r]] += lengths[r] > 0 && (!safe || any<T>(progress[r].bad));
}

// The pair gradients of the chains of a unit that turned out to be safe, summed over steps, over chains, or over both.
template <class In, class T> static void sum_pairs(Unit<In, T>& unit, uint8_t safe_tier) {
    const Chain<In>& chain = unit.chain;
    const Answer<In>& answer = unit.answer;
    const int64_t labels = chain.labels, padded = unit.padded;
    if (answer.pair_step) {
        const int64_t steps = unit.count ? unit.length(0) - 1 : 0;
        for (int64_t t = 0; t < steps; ++t) {
            table_at(unit, t, true);
            for (int r = 0; r < unit.count && unit.length(r) > t + 1; ++r)
                if (answer.tier[unit.rows[r]] == safe_tier)
                    write_pair<T>(unit.kept(unit.alpha, r, t), unit.kept(unit.emission, r, t + 1), unit.table.forward,
                                  labels, padded, answer.pair + t * answer.pair_step, true);
        }
        return;
    }
    for (int r = 0; r < unit.count; ++r) {
        const int64_t b = unit.rows[r], steps = unit.length(r) - 1;
        if (answer.tier[b] != safe_tier || steps < 1) continue;
        if (answer.pair_example) std::fill(unit.scratch.outer, unit.scratch.outer + labels * padded, static_cast<T>(0));
        add_outer<T>(unit.kept(unit.alpha, r, 0), unit.kept(unit.emission, r, 1), steps, labels, padded,
                     unit.scratch.outer);
        if (answer.pair_example)
            add_times_table<T>(unit.scratch.outer, unit.table.forward, labels, padded,
                               answer.pair + b * answer.pair_example);
    }
}

}  // namespace energyml
