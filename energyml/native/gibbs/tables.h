// Gibbs sweeps over cells of any number of labels and factors of any number of cells.  Many labels: one chain at a
// time, its labels in vectors.  A few labels, of one vector or two: as many chains as a vector has lanes; rows of
// scores are turned into columns.
#pragma once

#include "pairs.h"

namespace energyml {

constexpr int64_t TEAM = 16;    // chains that share a call for numbers, 64 bits each
constexpr int64_t BESIDE = 64;  // chains of one task

// Rows of scores for the labels of one cell, one for each combination of labels of the others; padded with -inf to
// whole vectors.
template <class T> struct Lookup {
    const T* rows;
    int64_t row, element;  // strides, 0 where shared
    const uint8_t* valid;  // [rows or 1, elements] or null: all
    int64_t valid_row;
};

template <class T> struct Tables {
    const int32_t* order;  // [cells]
    const int32_t* start;  // [cells + 1]: entries of each place of the order
    const int32_t*
        settled;  // [cells]: how many of them have all their other cells before it in the order; they stand first
    const int32_t* lookup;    // [entries]
    const int32_t* element;   // [entries]
    const int32_t* others;    // [entries + 1]: where the other cells of an entry begin
    const int32_t* cell;      // [others]
    const int32_t* stride;    // [others]: by how many rows a step of its label moves
    const int32_t* variable;  // [cells]
    const int32_t* rank;      // [cells]: the cell's number within its variable
    const int32_t* example;   // [cells], or null where a row is one example
    const T* const* unary;    // by variable: [rows, cells, padded]
    const int64_t* unary_row;
    const int64_t* labels;  // by variable
    const int64_t* padded;  // by variable: labels, rounded up to whole vectors
    const Lookup<T>* lookups;
    int64_t widest, busiest;  // the most padded labels, and entries, of any cell
};

template <class T> struct TableSweep {
    static constexpr int LANES = Lanes<T>::count, PART = 4 * LANES;  // labels whose weights are added up in T

    const Places& places;
    const Tables<T>& graph;
    const Request& request;
    int64_t row, first, count;
    int32_t* labels;         // [cells, BESIDE]
    const int32_t* wanted;   // the same, where labels are given
    double *score, *chance;  // [joined, BESIDE]
    uint32_t* novel;         // the same
    T* weights;              // [widest]
    double* sums;            // [widest / PART], rounded up
    const T** said;          // [busiest + 1]

    // Whether all labels are such that tables have rows for them.
    bool move(const int64_t* const* from, int32_t* to) const {
        bool fine = true;
        Packed{places, row, first, count, nullptr}.runs([&](int64_t v, int64_t at, int64_t each, int64_t cell) {
            for (int64_t c = 0; c < count; ++c)
                for (int64_t i = 0; i < each; ++i) {
                    const int64_t label = from[v][at + c * each + i];
                    fine &= label >= 0 && label < graph.labels[v];
                    to[(cell + i) * BESIDE + c] = static_cast<int32_t>(label);
                }
        });
        return fine;
    }
    void move_back() const {
        Packed{places, row, first, count, nullptr}.runs([&](int64_t v, int64_t at, int64_t each, int64_t cell) {
            for (int64_t c = 0; c < count; ++c)
                for (int64_t i = 0; i < each; ++i) places.out[v][at + c * each + i] = labels[(cell + i) * BESIDE + c];
        });
    }

    // The rows of scores that add up to those of a cell in chain c, its own first; how many, and how many of them are
    // settled.
    void listen(int64_t place, int64_t c, int64_t& heard, int64_t& settled) const {
        const int64_t cell = graph.order[place], v = graph.variable[cell], width = graph.padded[v];
        said[0] = graph.unary[v] + row * graph.unary_row[v] + graph.rank[cell] * width;
        heard = settled = 1;
        const int64_t begin = graph.start[place], middle = begin + graph.settled[place];
        for (int64_t entry = begin; entry < graph.start[place + 1]; ++entry) {
            if (entry == middle) settled = heard;
            const Lookup<T>& table = graph.lookups[graph.lookup[entry]];
            const int64_t element = graph.element[entry];
            if (table.valid && !table.valid[row * table.valid_row + element]) continue;
            int64_t joint = 0;
            for (int64_t other = graph.others[entry]; other < graph.others[entry + 1]; ++other)
                joint += static_cast<int64_t>(labels[graph.cell[other] * BESIDE + c]) * graph.stride[other];
            said[heard++] = table.rows + row * table.row + element * table.element + joint * width;
        }
        if (middle >= graph.start[place + 1]) settled = heard;
    }

    // Exponentials of tempered scores in `weights`, their sums in `sums`; the total, which is 0 where all labels are
    // forbidden.
    double weigh(int64_t heard, int64_t width, T beta) const {
        constexpr T never = -std::numeric_limits<T>::infinity();
        V<T> top = all<T>(never);
        for (int64_t k = 0; k < width; k += LANES) {
            V<T> total = load<T>(said[0] + k);
            for (int64_t n = 1; n < heard; ++n) total += load<T>(said[n] + k);
            store<T>(weights + k, total);
            top = larger<T>(top, total);
        }
        const T highest = horizontal_max<T>(top);
        if (highest == never) return 0;
        double whole = 0;
        for (int64_t k = 0; k < width; k += PART) {
            const int64_t end = std::min(width, k + PART);
            V<T> sum = V<T>{};
            for (int64_t j = k; j < end; j += LANES) {
                const V<T> total = load<T>(weights + j);
                // What is forbidden stays so at every temperature, where -inf times 0 would be no number.
                const V<T> weight = total == all<T>(never) ? V<T>{} : exponential<T>((total - highest) * beta);
                store<T>(weights + j, weight);
                sum += weight;
            }
            whole += sums[k / PART] = added(sum);
        }
        return whole;
    }
    static INLINE double added(V<T> x) {
        if constexpr (std::is_same_v<T, double>) {
            return horizontal_sum<double>(x);
        } else {
            const auto low = __builtin_convertvector(__builtin_shufflevector(x, x, 0, 1, 2, 3), V<double>);
            const auto high = __builtin_convertvector(__builtin_shufflevector(x, x, 4, 5, 6, 7), V<double>);
            return horizontal_sum<double>(low + high);
        }
    }
    // The label at a place in [0, total) of the cumulated weights.
    int32_t found(double place, int64_t width) const {
        int64_t k = 0;
        for (; k + PART < width && place >= sums[k / PART]; k += PART) place -= sums[k / PART];
        // Rounding may lead past the end, or to a part without weights: the last label with a weight is meant.
        while (k > 0 && !(sums[k / PART] > 0)) k -= PART;
        int32_t last = static_cast<int32_t>(k);
        for (int64_t j = k; j < std::min(width, k + PART); ++j) {
            if (!(weights[j] > 0)) continue;
            last = static_cast<int32_t>(j);
            if (place < weights[j]) break;
            place -= weights[j];
        }
        return last;
    }

    void draw(int64_t place, const Key& key, bool last) {
        const int64_t cell = graph.order[place], width = graph.padded[graph.variable[cell]];
        const int64_t own = (graph.example ? graph.example[cell] : 0) * BESIDE;
        int32_t* here = labels + cell * BESIDE;
        for (int64_t base = 0; base < count; base += TEAM) {
            Words number[4] = {};
            if (!request.chance) {
                count_up(cell, (first + base) / 2, row, number);
                threefry(key, number);
            }
            for (int64_t c = base; c < std::min(base + TEAM, count); ++c) {
                int64_t heard, settled;
                listen(place, c, heard, settled);
                const double total = weigh(heard, width, static_cast<T>(request.beta[first + c]));
                const int32_t old = here[c];
                int32_t made =
                    old;  // chains that start in what is forbidden stay until a conditional leaves them a label
                if (request.chance) {
                    made = wanted[cell * BESIDE + c];
                    chance[own + c] *= total > 0 ? weights[made] / total : made == old;
                } else if (total > 0) {
                    const int64_t lane = (c - base) % WIDTH, half = (c - base) / WIDTH * 2;
                    const uint64_t high = number[half][lane] >> 5, low = number[half + 1][lane] >> 6;
                    made = found(static_cast<double>(high << 26 | low) * 1.1102230246251565e-16 * total,
                                 width);  // 53 bits
                }
                if (last)
                    for (int64_t n = 0; n < settled; ++n) score[own + c] += said[n][made];
                novel[own + c] += made != old;
                here[c] = made;
            }
        }
    }

    // The scores of a cell in chains [c, c + LANES): a row of `PARTS` vectors for each, and what of it is settled.
    template <int PARTS> INLINE void listen(int64_t place, int64_t c, V<T> (&rows)[PARTS][LANES],
                                            V<T> (&settled)[PARTS][LANES]) const {
        const int64_t cell = graph.order[place], v = graph.variable[cell], width = graph.padded[v];
        const T* own = graph.unary[v] + row * graph.unary_row[v] + graph.rank[cell] * width;
        for (int part = 0; part < PARTS; ++part)
            for (int k = 0; k < LANES; ++k) rows[part][k] = load<T>(own + part * LANES);
        const int64_t begin = graph.start[place], middle = begin + graph.settled[place], end = graph.start[place + 1];
        for (int64_t entry = begin; entry < end; ++entry) {
            if (entry == middle) std::memcpy(settled, rows, sizeof rows);
            const Lookup<T>& table = graph.lookups[graph.lookup[entry]];
            const int64_t element = graph.element[entry];
            if (table.valid && !table.valid[row * table.valid_row + element]) continue;
            int64_t joint[LANES] = {};
            for (int64_t other = graph.others[entry]; other < graph.others[entry + 1]; ++other) {
                const int32_t* labels_there = labels + graph.cell[other] * BESIDE + c;
                for (int k = 0; k < LANES; ++k) joint[k] += static_cast<int64_t>(labels_there[k]) * graph.stride[other];
            }
            const T* first_row = table.rows + row * table.row + element * table.element;
            for (int part = 0; part < PARTS; ++part)
                for (int k = 0; k < LANES; ++k) rows[part][k] += load<T>(first_row + joint[k] * width + part * LANES);
        }
        if (middle == end) std::memcpy(settled, rows, sizeof rows);
    }

    // A cell of at most `PARTS` vectors of labels.
    template <int PARTS> void draw_few(int64_t place, const Key& key, bool last) {
        constexpr T never = -std::numeric_limits<T>::infinity();
        const int64_t cell = graph.order[place], many = graph.labels[graph.variable[cell]];
        const int64_t own = (graph.example ? graph.example[cell] : 0) * BESIDE;
        int32_t* here = labels + cell * BESIDE;
        for (int64_t base = 0; base < count; base += TEAM) {
            Words number[4] = {};
            if (!request.chance) {
                count_up(cell, (first + base) / 2, row, number);
                threefry(key, number);
            }
            for (int64_t c = base; c < std::min(base + TEAM, count); c += LANES) {
                V<T> rows[PARTS][LANES], settled[PARTS][LANES];
                listen<PARTS>(place, c, rows, settled);
                for (int part = 0; part < PARTS; ++part) transpose<T>(rows[part]);
                const V<T>* columns = &rows[0][0];
                V<T> top = columns[0];
                for (int64_t k = 1; k < many; ++k) top = larger<T>(top, columns[k]);
                const V<T> beta = tempered(c);
                V<T> weight[PARTS * LANES], total = V<T>{};
                for (int64_t k = 0; k < many; ++k) {
                    weight[k] = columns[k] == all<T>(never) ? V<T>{} : exponential<T>((columns[k] - top) * beta);
                    total += weight[k];
                }
                const int64_t lane = (c - base) % WIDTH, half = (c - base) / WIDTH * 2;
                V<T> made = V<T>{};  // as numbers of T, whose vectors every instruction set can compare
                if (request.chance) {
                    V<T> picked = V<T>{};
                    for (int k = 0; k < LANES; ++k) made[k] = static_cast<T>(wanted[cell * BESIDE + c + k]);
                    for (int64_t k = 0; k < many; ++k) picked += made == all<T>(static_cast<T>(k)) ? weight[k] : V<T>{};
                    for (int k = 0; k < LANES; ++k)
                        chance[own + c + k] *=
                            total[k] > 0 ? static_cast<double>(picked[k]) / total[k] : made[k] == here[c + k];
                } else {
                    const V<T> mark = uniform(number, half, lane) * total, one = all<T>(1);
                    V<T> sum = V<T>{}, final = V<T>{};
                    // Labels whose cumulated weight is below the mark; rounding must not lead past the last one with a
                    // weight.
                    for (int64_t k = 0; k < many; ++k) {
                        sum += weight[k];
                        made += sum <= mark ? one : V<T>{};
                        final = weight[k] > V<T>{} ? all<T>(static_cast<T>(k)) : final;
                    }
                    made = smaller<T>(made, final);
                }
                const auto* known = reinterpret_cast<const T*>(settled);
                for (int k = 0; k < std::min<int64_t>(LANES, count - c); ++k) {
                    const int32_t old = here[c + k];
                    // Chains that start in what is forbidden stay until a conditional leaves them a label.
                    const int32_t label = request.chance || total[k] > 0 ? static_cast<int32_t>(made[k]) : old;
                    if (last) score[own + c + k] += known[(label / LANES * LANES + k) * LANES + label % LANES];
                    novel[own + c + k] += label != old;
                    here[c + k] = label;
                }
            }
        }
    }
    INLINE V<T> tempered(int64_t c) const {
        V<T> beta = V<T>{};
        for (int k = 0; k < LANES; ++k) beta[k] = c + k < count ? static_cast<T>(request.beta[first + c + k]) : T(1);
        return beta;
    }
    // In [0, 1): 24 bits of float, 53 of double.
    static INLINE V<T> uniform(const Words (&number)[4], int64_t half, int64_t lane) {
        V<T> made = V<T>{};
        for (int k = 0; k < LANES; ++k) {
            if constexpr (std::is_same_v<T, float>)
                made[k] = static_cast<T>(number[half][lane + k] >> 8) * static_cast<T>(5.9604644775390625e-08);
            else
                made[k] = static_cast<T>(static_cast<uint64_t>(number[half][lane + k] >> 5) << 26 |
                                         number[half + 1][lane + k] >> 6) *
                          static_cast<T>(1.1102230246251565e-16);
        }
        return made;
    }

    void sweeps() {
        for (int64_t sweep = 0; sweep < request.sweeps; ++sweep) {
            const Key key(request.keys[sweep]);
            const bool last = sweep + 1 == request.sweeps;
            for (int64_t place = request.from; place < request.to; ++place) {
                const int64_t width = graph.padded[graph.variable[graph.order[place]]];
                if (width == LANES)
                    draw_few<1>(place, key, last);
                else if (width == 2 * LANES)
                    draw_few<2>(place, key, last);
                else
                    draw(place, key, last);
            }
        }
    }
    // False where a label is none of its variable's.
    bool run() {
        std::memset(labels, 0,
                    places.cells * BESIDE * sizeof(int32_t));  // lanes without a chain read rows of tables too
        if (!move(places.in, labels)) return false;
        for (int64_t k = 0; k < places.joined * BESIDE; ++k) score[k] = 0, chance[k] = 1, novel[k] = 0;
        if (request.chance) {
            std::memset(const_cast<int32_t*>(wanted), 0, places.cells * BESIDE * sizeof(int32_t));
            if (!move(const_cast<const int64_t* const*>(places.out), const_cast<int32_t*>(wanted))) return false;
        }
        sweeps();
        move_back();
        request.take(places, row, first, count, BESIDE, score, chance, novel);
        return true;
    }
};

}  // namespace energyml
