// Gibbs sweeps over cells of two labels that are joined in pairs, eight chains to a vector.
//
// The score is linear in each label s of 0 or 1: cell i prefers label 1 by linear_i + sum over neighbours j of
// weight_ij s_j.  The labels of up to 256 chains at a cell are 8 words of 32 bits, chain 8 b + k at bit b of word k: a
// neighbour's labels are loaded once for all chains, and become masks by shifts.
#pragma once

#include "threefry.h"

namespace energyml {

constexpr int64_t MOST_CHAINS = 256;  // of one task

// Where labels stand: [examples, chains, cells] of each variable.  A row has the cells of one example, or of all
// examples one after another.
struct Places {
    int64_t rows, chains, cells;
    int64_t joined;  // examples of a row
    int64_t variables;
    const int64_t* const* in;  // by variable
    int64_t* const* out;
    const int64_t* each;  // cells of one example, by variable

    int64_t examples() const { return rows * joined; }
};

// One call: what is drawn, and where the answers go.
struct Request {
    const uint64_t* keys;  // [sweeps]
    int64_t sweeps;
    int64_t from, to;    // places of the order
    const double* beta;  // [chains]
    double* score;       // [examples, chains]: what the cells of the last sweep add up to, without constants
    int64_t* novel;      // [examples, chains]: draws that changed a label
    double*
        chance;  // null, or [examples, chains]: labels are those in `out`, and this is the probability of drawing them

    // The sums of one task, [joined, beside] each.
    void take(const Places& places, int64_t row, int64_t first, int64_t count, int64_t beside, const double* sums,
              const double* p, const uint32_t* changes) const {
        for (int64_t e = 0; e < places.joined; ++e)
            for (int64_t c = 0; c < count; ++c) {
                const int64_t to = (row * places.joined + e) * places.chains + first + c, from = e * beside + c;
                score[to] = sums[from];
                novel[to] = changes[from];
                if (chance) chance[to] = p[from];
            }
    }
};

template <class T> struct Pairs {
    const int32_t* order;  // [cells]
    const int32_t* start;  // [cells + 1]: entries of each place of the order
    const int32_t*
        earlier;  // [cells]: how many of them are about cells that come before it in the order; they stand first
    const int32_t* neighbour;  // [entries]
    const int32_t* edge;       // [entries]
    const int32_t* example;    // [cells], or null where a row is one example
    const T* linear;           // [rows, cells]: -inf and inf where evidence leaves one label
    const T* scored;           // [rows, cells]: the same for the score: finite
    const T* weights;          // [rows or 1, edges]
    int64_t weights_row;
};

// The words of chains [first, first + count).  Labels of one chain stand side by side, words of one cell do: bits are
// moved in and out of an array of words for each of the eight places, where cells stand side by side as well.
struct Packed {
    const Places& places;
    int64_t row, first, count;
    uint32_t* planes;  // [WIDTH, cells]

    template <class Visit> INLINE void runs(Visit visit) const {
        int64_t cell = 0;
        for (int64_t v = 0; v < places.variables; ++v)
            for (int64_t e = 0; e < places.joined; ++e) {
                const int64_t each = places.each[v], at = ((row * places.joined + e) * places.chains + first) * each;
                visit(v, at, each, cell);
                cell += each;
            }
    }
    INLINE void load(const int64_t* const* from, Words* words) const {
        std::memset(planes, 0, WIDTH * places.cells * sizeof(uint32_t));
        runs([&](int64_t v, int64_t at, int64_t each, int64_t cell) {
            for (int64_t c = 0; c < count; ++c) {
                const int64_t* source = from[v] + at + c * each;
                uint32_t* target = planes + c % WIDTH * places.cells + cell;
                const int shift = static_cast<int>(c / WIDTH);
                for (int64_t i = 0; i < each; ++i) target[i] |= (static_cast<uint32_t>(source[i]) & 1u) << shift;
            }
        });
        for (int64_t i = 0; i < places.cells; ++i)
            for (int k = 0; k < WIDTH; ++k)
                reinterpret_cast<uint32_t*>(words)[i * WIDTH + k] = planes[k * places.cells + i];
    }
    INLINE void store(const Words* words) const {
        for (int64_t i = 0; i < places.cells; ++i)
            for (int k = 0; k < WIDTH; ++k)
                planes[k * places.cells + i] = reinterpret_cast<const uint32_t*>(words)[i * WIDTH + k];
        runs([&](int64_t v, int64_t at, int64_t each, int64_t cell) {
            for (int64_t c = 0; c < count; ++c) {
                const uint32_t* source = planes + c % WIDTH * places.cells + cell;
                int64_t* target = places.out[v] + at + c * each;
                const int shift = static_cast<int>(c / WIDTH);
                for (int64_t i = 0; i < each; ++i) target[i] = source[i] >> shift & 1u;
            }
        });
    }
};

// Eight chains as vectors of T: one of floats, two of doubles.
template <class T> struct Eight;
template <> struct Eight<float> {
    typedef Lanes<float>::I Mask;
    static constexpr int parts = 1;
    static INLINE Mask words(Words x, int) { return reinterpret_cast<const Mask&>(x); }
    static INLINE Words bits(const Mask (&one)[1]) { return reinterpret_cast<const Words&>(one[0]) & 1u; }
    static INLINE void add(double* sums, V<float> value, int) {
        const auto low = __builtin_convertvector(__builtin_shufflevector(value, value, 0, 1, 2, 3), V<double>);
        const auto high = __builtin_convertvector(__builtin_shufflevector(value, value, 4, 5, 6, 7), V<double>);
        store<double>(sums, load<double>(sums) + low);
        store<double>(sums + 4, load<double>(sums + 4) + high);
    }
};
template <> struct Eight<double> {
    typedef Lanes<double>::I Mask;
    static constexpr int parts = 2;
    // Signed, so that masks stay masks.
    static INLINE Mask words(Words x, int part) {
        typedef int32_t Narrow __attribute__((vector_size(32), may_alias));
        const Narrow y = bits_as<Narrow>(x);
        return part ? __builtin_convertvector(__builtin_shufflevector(y, y, 4, 5, 6, 7), Mask)
                    : __builtin_convertvector(__builtin_shufflevector(y, y, 0, 1, 2, 3), Mask);
    }
    static INLINE Words bits(const Mask (&one)[2]) {
        typedef uint32_t Narrow __attribute__((vector_size(16)));
        const auto low = __builtin_convertvector(one[0] & 1, Narrow),
                   high = __builtin_convertvector(one[1] & 1, Narrow);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    static INLINE void add(double* sums, V<double> value, int part) {
        store<double>(sums + 4 * part, load<double>(sums + 4 * part) + value);
    }
};

// The sweeps of one task: chains [first, first + count) of a row.
template <class T> struct PairSweep {
    static constexpr int PARTS = Eight<T>::parts, LANES = Lanes<T>::count, RUN = 32;
    typedef typename Eight<T>::Mask Mask;
    struct Values {
        V<T> part[PARTS];
    };

    const Places& places;
    const Pairs<T>& graph;
    const Request& request;
    int64_t row, first, count;
    Words* words;            // [cells]
    uint32_t* planes;        // [WIDTH, cells]
    const Words* wanted;     // [cells], where labels are given
    T* beta;                 // [MOST_CHAINS]
    T* partial;              // [MOST_CHAINS]: scores of a run of cells
    double *score, *chance;  // [joined, MOST_CHAINS]
    uint32_t* novel;         // the same

    // All ones in the lanes whose chain, number `sub` of four in `bits`, has label 1.
    static INLINE Mask ones(Words bits, int sub, int part) {
        typedef int32_t Signed __attribute__((vector_size(32), may_alias));
        const Signed spread =
            bits_as<Signed>(bits) << (31 - sub) >> 31;  // by value: words in memory may begin anywhere
        return Eight<T>::words(bits_as<Words>(spread), part);
    }
    static INLINE V<T> chosen(Mask mask, V<T> value) {
        Mask bits = mask & reinterpret_cast<Mask&>(value);
        return reinterpret_cast<V<T>&>(bits);
    }
    // Adds what entries say to the preferences of four times eight chains.
    INLINE void listen(int64_t from, int64_t to, const T* weights, int b, Values (&total)[4]) const {
        for (int64_t entry = from; entry < to; ++entry) {
            const Words bits = words[graph.neighbour[entry]] >> static_cast<uint32_t>(b);
            const V<T> weight = all<T>(weights[graph.edge[entry]]);
            for (int sub = 0; sub < 4; ++sub)
                for (int part = 0; part < PARTS; ++part) total[sub].part[part] += chosen(ones(bits, sub, part), weight);
        }
    }
    static INLINE V<T> uniform(Words number, int part) {  // in (0, 1), in steps of 2^-31
        const V<T> whole = __builtin_convertvector(Eight<T>::words(number >> 1, part), V<T>);
        return (whole + static_cast<T>(0.5)) * static_cast<T>(4.656612873077393e-10);
    }

    // Where evidence leaves one label.
    template <bool GIVEN> INLINE void settle(int64_t place, bool last) {
        const int64_t cell = graph.order[place], begin = graph.start[place], own = offset(cell);
        const T* weights = graph.weights + row * graph.weights_row;
        const bool label = graph.linear[row * places.cells + cell] > 0;
        for (int b = 0; b * WIDTH < count; b += 4) {
            Values total[4] = {};
            listen(begin, begin + graph.earlier[place], weights, b, total);
            for (int sub = 0; sub < 4; ++sub)
                for (int part = 0; part < PARTS; ++part) {
                    const int64_t at = own + (b + sub) * WIDTH;
                    if (last && label) add(at, total[sub].part[part] + graph.scored[row * places.cells + cell], part);
                    if constexpr (GIVEN)
                        for (int k = 0; k < LANES; ++k)
                            if ((wanted[cell][part * LANES + k] >> (b + sub) & 1) != label)
                                chance[at + part * LANES + k] = 0;
                }
        }
        replace(cell, label ? ~Words{} : Words{}, own);
    }
    // One cell in all chains.  `GIVEN`: its labels are given, and their probability is wanted.
    template <bool GIVEN> INLINE void draw(int64_t place, const Key& key, bool last) {
        const int64_t cell = graph.order[place], begin = graph.start[place], middle = begin + graph.earlier[place];
        const int64_t end = graph.start[place + 1], own = offset(cell);
        const T linear = graph.linear[row * places.cells + cell], scored = graph.scored[row * places.cells + cell];
        const T* weights = graph.weights + row * graph.weights_row;
        Words made = {};
        for (int b = 0; b * WIDTH < count; b += 4) {
            Values total[4] = {}, known[4];
            listen(begin, middle, weights, b, total);
            for (int sub = 0; sub < 4; ++sub)
                for (int part = 0; part < PARTS; ++part) known[sub].part[part] = total[sub].part[part] + scored;
            listen(middle, end, weights, b, total);
            Words number[4] = {};
            if constexpr (!GIVEN) {
                count_up(cell, (first + b * WIDTH) / 4, row, number);
                threefry(key, number);
            }
            for (int sub = 0; sub < 4; ++sub) {
                const int64_t at = (b + sub) * WIDTH;
                Mask one[PARTS];
                for (int part = 0; part < PARTS; ++part) {
                    // The rarer label has the probability 1 / (1 + exp |x|), and small numbers are the finest ones.
                    const V<T> x = (total[sub].part[part] + linear) * load<T>(beta + at + part * LANES);
                    const Mask positive = x >= V<T>{};
                    const V<T> odds = exponential<T>(smaller<T>(positive ? x : -x, all<T>(80))) + static_cast<T>(1);
                    if constexpr (GIVEN) {
                        one[part] = ones(wanted[cell] >> static_cast<uint32_t>(b), sub, part);
                        const V<T> rare = static_cast<T>(1) / odds;
                        const V<T> p = (one[part] ^ positive) ? rare : static_cast<T>(1) - rare;
                        for (int k = 0; k < LANES; ++k) chance[own + at + part * LANES + k] *= p[k];
                    } else {
                        one[part] = (uniform(number[sub], part) * odds < all<T>(1)) ^ positive;
                    }
                    if (last) add(own + at, chosen(one[part], known[sub].part[part]), part);
                }
                made |= Eight<T>::bits(one) << static_cast<uint32_t>(b + sub);
            }
        }
        replace(cell, made, own);
    }
    // To the scores of chains: those of a few cells are added up in T, where a row is one example.
    INLINE void add(int64_t at, V<T> value, int part) {
        if (places.joined == 1)
            store<T>(partial + at + part * LANES, load<T>(partial + at + part * LANES) + value);
        else
            Eight<T>::add(score + at, value, part);
    }
    INLINE void flush() {
        for (int64_t k = 0; k < MOST_CHAINS; ++k) score[k] += partial[k], partial[k] = 0;
    }
    INLINE int64_t offset(int64_t cell) const { return (graph.example ? graph.example[cell] : 0) * MOST_CHAINS; }
    INLINE void replace(int64_t cell, Words made, int64_t own) {
        const Words changed = words[cell] ^ made;
        for (int b = 0; b * WIDTH < count; ++b)
            *reinterpret_cast<Words*>(novel + own + b * WIDTH) += changed >> static_cast<uint32_t>(b) & 1u;
        words[cell] = made;
    }

    template <bool GIVEN> INLINE void sweeps() {
        for (int64_t sweep = 0; sweep < request.sweeps; ++sweep) {
            const Key key(request.keys[sweep]);
            const bool last = sweep + 1 == request.sweeps;
            for (int64_t place = request.from; place < request.to; ++place) {
                if (std::isinf(graph.linear[row * places.cells + graph.order[place]]))
                    settle<GIVEN>(place, last);
                else
                    draw<GIVEN>(place, key, last);
                if (last && place % RUN == RUN - 1) flush();
            }
        }
        flush();
    }
    // Always true: any label is read as 0 or 1.
    INLINE bool run() {
        const Packed packed{places, row, first, count, planes};
        packed.load(places.in, words);
        if (request.chance) packed.load(places.out, const_cast<Words*>(wanted));
        for (int64_t c = 0; c < MOST_CHAINS; ++c)
            beta[c] = c < count ? static_cast<T>(request.beta[first + c]) : T(0), partial[c] = 0;
        for (int64_t k = 0; k < places.joined * MOST_CHAINS; ++k) score[k] = 0, chance[k] = 1, novel[k] = 0;
        if (request.chance)
            sweeps<true>();
        else
            sweeps<false>();
        packed.store(words);
        request.take(places, row, first, count, MOST_CHAINS, score, chance, novel);
        return true;
    }
};

}  // namespace energyml
