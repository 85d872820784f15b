// What chains side by side (see interleaved.h) share, however many of them a vector holds: when they are worth it, and
// their table.
#pragma once

#include "scaled.h"

namespace energyml {

// Up to how many labels groups may be broad.  More would gain too; trees, whose labels stand in rows, are to stay
// within reach of chains.
constexpr int64_t BROAD_LABELS = 16;

// Whether chains are worth being taken side by side: they share one table, fill most lanes, and have so few labels that
// rows of them are slower (measured by benchmarks/exact).  Exponents are added up in as many bits as a label has.
template <class T, class In> static bool goes_interleaved(const Chain<In>& chain, size_t count, int64_t vectors) {
    constexpr int64_t lanes = Lanes<T>::count;
    const int64_t chains = static_cast<int64_t>(count);
    return chain.stationary() && chain.labels <= vectors * lanes && 4 * chains >= 3 * round_up(chains, lanes) &&
           chain.size < (1 << 22);
}

// The same for sums: nothing is kept between calls, and pair gradients are summed over steps and chains.
template <class T, class In> static bool sums_interleaved(const Chain<In>& chain, const Answer<In>& answer,
                                                          size_t count) {
    const bool summed = !answer.pair || (answer.pair_step == 0 && answer.pair_example == 0);
    return summed && !answer.alpha && goes_interleaved<T>(chain, count, 4);
}

// Whether groups of twice as many chains are faster: each takes a quarter to a third longer (measured by
// benchmarks/exact).
template <class T, class In> static bool groups_are_broad(const Chain<In>& chain, size_t count, int threads) {
    const int64_t chains = static_cast<int64_t>(count), turns = threads * Lanes<T>::count;
    return chain.labels <= BROAD_LABELS &&
           5 * (round_up(chains, 2 * turns) / (2 * turns)) < 4 * (round_up(chains, turns) / turns);
}

// Chains without cells, the last of those sorted by length, have one answer, the empty one.
template <class In> static void answer_empty(const Chain<In>& chain, const Answer<In>& answer,
                                             std::vector<int64_t>& rows) {
    for (; !rows.empty() && chain.length(rows.back()) == 0; rows.pop_back()) answer.log_z[rows.back()] = 0;
}

// The table that all steps share, exponentiated, as it is and transposed: [labels, labels] each.
template <class T> struct PlainTable {
    T *forward, *backward;  // the second is null where it is not needed
    T shift, floor;
    int64_t every;           // steps between scalings
    double above, left_out;  // as in Packed
};

// False where the table spreads too far for exp space.
template <class T, class In> static bool exponentiate_plain(const Chain<In>& chain, PlainTable<T>& table) {
    const int64_t labels = chain.labels, cells = labels * labels;
    Packed<T> measured{};
    measure<T>(chain.pair, labels, Limits<T>::table_lift, measured);
    if (!(measured.least >= Limits<T>::least)) return false;
    for (int64_t k = 0; k < cells; k += Lanes<T>::count)
        store(table.forward + k,
              exponential<T>(load_labels<T>(chain.pair, k, cells, false, -std::numeric_limits<T>::infinity()) -
                             measured.shift));
    for (int64_t i = 0; i < labels && table.backward; ++i)
        for (int64_t j = 0; j < labels; ++j) table.backward[j * labels + i] = table.forward[i * labels + j];
    table.shift = measured.shift;
    table.floor = std::numeric_limits<T>::min() * std::max<T>(1, 1 / measured.least);
    table.every = rescale_every(measured, labels);
    table.above = measured.above;
    table.left_out = measured.left_out;
    return true;
}

}  // namespace energyml
