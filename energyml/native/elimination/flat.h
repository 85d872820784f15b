// Small steps in exp space: a stream of pieces without loops over labels or branches over tables.
//
// The clique of a step is laid out in chunks of eight entries: a row of eight entries of the message, or two rows of at
// most four.  A piece says where the eight stand in a table or message: they are loaded together and put in order by
// one shuffle.
#pragma once

#include "eliminate.h"

namespace energyml {

// Vectors of 64 bytes: rows of lanes are long here, and loads are what counts.
typedef V<double, 64> Wide;
typedef I<double, 64> WideIndex;

inline Wide load_wide(const double* from) { return *reinterpret_cast<const Wide*>(from); }
inline void store_wide(double* to, Wide value) { *reinterpret_cast<Wide*>(to) = value; }
inline Wide halves_swapped(Wide value) { return shuffled(value, WideIndex{4, 5, 6, 7, 0, 1, 2, 3}); }

// The smaller of two numbers, of which the first may be 0 and does not count then.
template <class Vector> inline Vector smaller_of(Vector value, Vector least) {
    const Vector there = value > Vector{} ? value : least;
    return there < least ? there : least;
}

// Numbers divided by others, 0 where these are 0.
template <class Vector> inline Vector quotient(Vector value, Vector by) {
    return by > Vector{} ? value / (by > Vector{} ? by : 1.0 - Vector{}) : Vector{};
}

// A function of vectors of 64 bytes, by halves where there are none.
template <bool WIDE_REGISTERS, class F> inline Wide both(F function, Wide one, Wide other) {
    if (WIDE_REGISTERS) return function(one, other);
    alignas(64) double ones[8], others[8];
    store_wide(ones, one);
    store_wide(others, other);
    for (int half = 0; half < 8; half += 4) store(ones + half, function(load(ones + half), load(others + half)));
    return load_wide(ones);
}

inline double largest(Wide value) {
    double found = value[0];
    for (int i = 1; i < 8; ++i) found = std::max(found, value[i]);
    return found;
}

class FlatSteps {
  public:
    FlatSteps(const Graph& graph, double* room, const int64_t* shifts)
        : pieces_(graph.pieces.data()),
          backs_(graph.backs.data()),
          messages_(graph.sources.size()),
          room_(room),
          shifts_(shifts) {}

    // The message of a step; `least` with the smaller of its own lanes and the entries that are not 0.
    inline Wide up(const Flat& step, Wide least) const {
        if (step.plain) return plain_up(step, least);
        return step.far ? up_of<true>(step, least) : up_of<false>(step, least);
    }

    // The shares of the tables and messages of a step, from those of its message: receivers say where these go, null
    // for nowhere.
    inline void down(const Flat& step, const double* shares, double scale, double* const* receivers) const {
        if (step.far)
            down_of<true>(step, shares, scale, receivers);
        else
            down_of<false>(step, shares, scale, receivers);
    }

    // Divides a message by the power of two above its largest entry; the exponent of that.
    inline int64_t normalise(const Flat& step, Wide& least) const {
        double* out = room_ + step.message;
        Wide highs = Wide{};
        for (int64_t group = 0; group < step.groups; ++group) {
            const Wide own = load_wide(out + 8 * group);
            highs = own > highs ? own : highs;
        }
        const double high = largest(highs);
        if (!(high > 0)) return 0;
        const int64_t by = exponent_of<double>(high) + 1;
        const double scale = power_of_two<double>(-by);
        for (int64_t group = 0; group < step.groups; ++group) {
            const Wide own = load_wide(out + 8 * group) * scale;
            least = smaller_of(own, least);
            store_wide(out + 8 * group, own);
        }
        return by;
    }

  private:
    template <bool FAR> inline Wide lanes(const Piece& piece) const {
        const double* from = room_ + piece.from + shifts_[piece.known];
        if (FAR) {
            Wide found;
            for (int i = 0; i < 8; ++i) found[i] = from[piece.places[i]];
            return found;
        }
        int64_t places;  // as one number, whose low bits are the place of the first: a shuffle reads no others
        std::memcpy(&places, piece.places, sizeof places);
        return shuffled(load_wide(from), (places - WideIndex{}) >> WideIndex{0, 8, 16, 24, 32, 40, 48, 56});
    }

    template <bool FAR> inline Wide product(const Piece* piece, int64_t inputs) const {
        Wide found = 1.0 - Wide{};
        for (const Piece* end = piece + inputs; piece != end; ++piece) found *= lanes<FAR>(*piece);
        return found;
    }

    // As most steps of small graphs are: two rows of at most four entries, from two tables.
    inline Wide plain_up(const Flat& step, Wide least) const {
        const Piece* piece = pieces_ + step.first;
        Wide sums = lanes<false>(piece[0]) * lanes<false>(piece[1]);
        sums += halves_swapped(sums);
        store_wide(room_ + step.message, sums);
        return smaller_of(sums, least);
    }

    template <bool FAR> inline Wide up_of(const Flat& step, Wide least) const {
        const Piece* piece = pieces_ + step.first;
        for (int64_t group = 0; group < step.groups; ++group) {
            Wide sums = product<FAR>(piece, step.inputs);
            piece += step.inputs;
            for (int64_t chunk = 1; chunk < step.chunks; ++chunk, piece += step.inputs)
                sums += product<FAR>(piece, step.inputs);
            if (step.paired) sums += halves_swapped(sums);
            least = both<!FAR>([](auto a, auto b) { return smaller_of(a, b); }, sums, least);
            store_wide(room_ + step.message + 8 * group, sums);
        }
        return least;
    }

    template <bool FAR> inline void down_of(const Flat& step, const double* shares, double scale,
                                            double* const* receivers) const {
        const Piece* piece = pieces_ + step.first;
        for (int64_t group = 0; group < step.groups; ++group) {
            const Wide sums = load_wide(room_ + step.message + 8 * group), weights = load_wide(shares + 8 * group);
            Wide ratio = both<!FAR>([](auto a, auto b) { return quotient(a, b); }, scale * weights, sums);
            if (step.paired) ratio = shuffled(ratio, WideIndex{0, 1, 2, 3, 0, 1, 2, 3});
            for (int64_t chunk = 0; chunk < step.chunks; ++chunk, piece += step.inputs) {
                const Wide share = product<FAR>(piece, step.inputs) * ratio;
                for (const Piece* one = piece; one != piece + step.inputs; ++one)
                    if (receivers[one->source])
                        give(*one, share, receivers[one->source] + one->from + shifts_[one->known]);
            }
        }
    }

    inline void give(const Piece& piece, Wide share, double* to) const {
        alignas(64) double apart[8];
        if (!piece.words) {
            store_wide(apart, share);
            for (int i = 0; i < 8; ++i) to[piece.places[i]] += apart[i];
            return;
        }
        Wide sums = Wide{};
        for (const uint64_t *word = backs_ + piece.back, *end = word + piece.words; word != end; ++word)
            sums += shuffled(share, Wide{},
                             (static_cast<int64_t>(*word) - WideIndex{}) >> WideIndex{0, 8, 16, 24, 32, 40, 48, 56});
        if (piece.source == messages_) {  // zeros are added to what stands behind its places
            store_wide(to, load_wide(to) + sums);
            return;
        }
        store_wide(apart, sums);
        for (int i = 0; i < piece.count; ++i) to[i] += apart[i];
    }

    const Piece* pieces_;
    const uint64_t* backs_;
    size_t messages_;  // what pieces of messages have as source
    double* room_;
    const int64_t* shifts_;
};

// Steps from `first` on for as long as they are pieces, in functions of their own, so that all that they need stays in
// registers.

// The messages; the first step that is none.  `lows`, eight of them, are kept below all entries that are not 0.  A
// message that has to be normalised, or any where CAREFUL, is divided by a power of two; it is multiplied into its
// scale and its exponent is added.
inline size_t send_flat(const Graph& graph, size_t first, double* room, const int64_t* shifts, bool careful,
                        double* lows, double* scales, int64_t& exponent) {
    const FlatSteps steps(graph, room, shifts);
    const Flat *const flats = graph.flats.data(), *const end = flats + graph.flats.size(), *step = flats + first;
    Wide least = load_wide(lows);
    for (; step != end && step->groups; ++step) {
        least = steps.up(*step, least);
        if (!careful && !step->normalised) continue;
        const int64_t by = steps.normalise(*step, least);
        scales[step - flats] = power_of_two<double>(-by);
        exponent += by;
    }
    store_wide(lows, least);
    return static_cast<size_t>(step - flats);
}

// The shares, from step `last - 1` down; the last step that is none, plus 1.
inline size_t hand_out_flat(const Graph& graph, size_t last, double* room, const int64_t* shifts, const double* shares,
                            const double* scales, double* const* receivers) {
    const FlatSteps steps(graph, room, shifts);
    for (; last > 0 && graph.flats[last - 1].groups; --last)
        steps.down(graph.flats[last - 1], shares + graph.flats[last - 1].message - graph.room, scales[last - 1],
                   receivers);
    return last;
}

// exp(entries - the largest of them), some lanes at a time; see `exponentiate`.
template <class L> double exponentiate_by(const double* from, int64_t count, double* to, double& low) {
    typedef typename L::V Vector;
    constexpr int64_t lanes = L::count, apart = 4;  // so many at a time, as each waits for its own last comparison
    const Vector nothing = NOTHING - Vector{};
    Vector highs[apart] = {nothing, nothing, nothing, nothing};
    int64_t k = 0;
    for (; k + apart * lanes <= count; k += apart * lanes)
        for (int64_t p = 0; p < apart; ++p) {
            const Vector here = *reinterpret_cast<const Vector*>(from + k + p * lanes);
            highs[p] = here > highs[p] ? here : highs[p];
        }
    for (; k + lanes <= count; k += lanes) {
        const Vector here = *reinterpret_cast<const Vector*>(from + k);
        highs[0] = here > highs[0] ? here : highs[0];
    }
    double high = NOTHING;
    for (; k < count; ++k) high = std::max(high, from[k]);
    for (int64_t p = 1; p < apart; ++p) highs[0] = highs[p] > highs[0] ? highs[p] : highs[0];
    for (int64_t i = 0; i < lanes; ++i) high = std::max(high, highs[0][i]);
    low = 0;
    if (!(high > NOTHING)) {
        std::fill(to, to + count, 0.0);
        return 0;
    }
    if (!(high < -NOTHING)) {
        low = NOTHING;  // all others are too far below
        return high;
    }
    Vector lows[2] = {Vector{}, Vector{}};
    const auto take = [&](Vector here, int which) {
        const Vector below = here - high;
        const Vector there = below > nothing ? below : lows[which];
        lows[which] = there < lows[which] ? there : lows[which];
        return exponential<double>(below);
    };
    for (k = 0; k + 2 * lanes <= count; k += 2 * lanes)
        for (int which = 0; which < 2; ++which)
            *reinterpret_cast<Vector*>(to + k + which * lanes) =
                take(*reinterpret_cast<const Vector*>(from + k + which * lanes), which);
    for (; k < count; k += lanes) {
        const int64_t live = std::min<int64_t>(lanes, count - k);
        Vector rest = nothing;
        for (int64_t i = 0; i < live; ++i) rest[i] = from[k + i];
        rest = take(rest, 0);
        for (int64_t i = 0; i < live; ++i) to[k + i] = rest[i];
    }
    for (int64_t i = 0; i < lanes; ++i) low = std::min({low, lows[0][i], lows[1][i]});
    return high;
}

// exp(entries - the largest of them); the largest (0 where all are -inf), and how far below it the smallest is that is
// not -inf.
inline double exponentiate(const double* from, int64_t count, double* to, double& low) {
    return exponentiate_by<Lanes<double, WIDE_REGISTERS ? 64 : 32>>(from, count, to, low);
}

}  // namespace energyml
