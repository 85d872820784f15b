// Chains side by side: a vector holds one label of as many chains as it has lanes, in exp space as in scaled.h, with
// the same rules.
//
// For few labels: a row of them would leave lanes empty, and each row would search its own largest entry across its
// lanes.  Unaries and marginals are transposed on the way in and out.  All steps of all chains share one table.  Scores
// may be of another type, In.
#pragma once

#include "../simd/math.h"
#include "interleaved_table.h"

namespace energyml {

// Vectors of W bytes have one part of 32 bytes, of as many chains as such a part has labels, or two.
template <class T, int W> INLINE V<T, W> beside(V<T> one, [[maybe_unused]] V<T> other) {
    if constexpr (W == 64)
        return joined<T>(one, other);
    else
        return one;
}
template <class T, int W> INLINE V<T> first_part(V<T, W> v) {
    if constexpr (W == 64)
        return low_half<T>(v);
    else
        return v;
}
template <class T, int W> INLINE V<T> last_part(V<T, W> v) {
    if constexpr (W == 64)
        return high_half<T>(v);
    else
        return v;
}
template <class T, int W> INLINE T sum_of(V<T, W> v) {
    return horizontal_sum<T>(W == 32 ? first_part<T, W>(v) : first_part<T, W>(v) + last_part<T, W>(v));
}

// Some chains, one in each lane, longest first.  Lanes without a chain read the first one, and nothing of theirs is
// written.
template <class T, int W, class In = T> struct Group {
    static constexpr int lanes = Lanes<T, W>::count, side = Lanes<T>::count;
    const Chain<In>& chain;
    const int64_t* rows;
    int count;
    const In* first[lanes];  // cell of each chain
    int64_t last[lanes];     // cell of each chain, as it is read
    I<T, W> ends;            // the same as a vector; -1 where a lane is not in use (any more)

    Group(const Chain<In>& chain_, const int64_t* rows_, int count_) : chain(chain_), rows(rows_), count(count_) {
        for (int k = 0; k < lanes; ++k) {
            const int64_t b = rows[k < count ? k : 0];
            first[k] = chain.row(b, 0);
            last[k] = chain.length(b) - 1;
            ends[k] = static_cast<typename Lanes<T, W>::Whole>(k < count ? last[k] : -1);
        }
    }
    int64_t size() const { return chain.labels * lanes; }  // of a cell
    I<T, W> at(int64_t t) const { return static_cast<typename Lanes<T, W>::Whole>(t) - I<T, W>{}; }

    struct Reach {
        V<T, W> high, low;
    };

    // The unaries of cell t into [labels, lanes]; a chain that has ended repeats its last cell.  Returns the largest
    // and the smallest ones of each chain.
    INLINE Reach read(int64_t t, T* out) const {
        constexpr T nothing = -std::numeric_limits<T>::infinity();
        const int64_t labels = chain.labels;
        const In* row[lanes];
        const int64_t shortest = last[count - 1];
        for (int k = 0; k < lanes; ++k) row[k] = first[k] + (t <= shortest ? t : std::min(t, last[k])) * labels;
        V<T, W> high = all<T, W>(nothing), low = all<T, W>(-nothing), block[side];
        const auto part = [&](int k, int64_t column) __attribute__((always_inline)) {
            return load_labels<T>(row[k], column, labels, reads_inside(row[k], side, chain.end()), nothing);
        };
        for (int64_t next = 0; next < labels; next += side) {
            // the last block reaches back where it would reach beyond the row
            const int64_t column = std::max<int64_t>(0, std::min(next, labels - side));
            for (int k = 0; k < side; ++k) block[k] = beside<T, W>(part(k, column), part(k + lanes - side, column));
            transpose<T, W>(block);
            const int width = static_cast<int>(std::min<int64_t>(side, labels));
#pragma GCC unroll 8
            for (int c = 0; c < side;
                 ++c) {  // vectors that stay in registers, where a loop up to `width` would copy memory
                if (c >= width) break;
                store<T, W>(out + (column + c) * lanes, block[c]);
                high = larger<T, W>(block[c], high);
                low = smaller<T, W>(block[c], low);
            }
        }
        return {high, low};
    }

    // A cell [labels, lanes], the product of two (or one, and null), times a number for each chain into [batch, T,
    // labels], for the chains that have the cell and are in use.
    INLINE void write(int64_t t, const T* left, const T* right, V<T, W> by, In* out) const {
        const int64_t labels = chain.labels, size = chain.size;
        const bool inside = (size - 1 - t) * labels >= side - labels;
        V<T, W> block[side];
        const auto part = [&](int k, int64_t column, V<T> of) __attribute__((always_inline)) {
            if (k < count && ends[k] >= t)
                store_labels<T>(out + (rows[k] * size + t) * labels, column, labels, inside, of);
        };
        for (int64_t next = 0; next < labels; next += side) {
            const int64_t column = std::max<int64_t>(0, std::min(next, labels - side));
            const int width = static_cast<int>(std::min<int64_t>(side, labels));
            for (int c = 0; c < side; ++c) {
                const int64_t at = (column + c) * lanes;
                block[c] = c >= width ? V<T, W>{}
                           : right    ? load<T, W>(left + at) * load<T, W>(right + at) * by
                                      : load<T, W>(left + at) * by;
            }
            transpose<T, W>(block);
            for (int k = 0; k < side; ++k) {
                part(k, column, first_part<T, W>(block[k]));
                if (lanes > side) part(k + side, column, last_part<T, W>(block[k]));
            }
        }
    }
};

// out[j] = sum over i of in[i] * table[i, j], for J columns; or the maximum of sums.
template <class Op, class T, int W, int J> INLINE void some_columns(const T* in, const T* table, int64_t labels,
                                                                    T* out) {
    constexpr int lanes = Lanes<T, W>::count;
    const Op op;
    V<T, W> total[J];
    for (int j = 0; j < J; ++j) total[j] = Op::template start<V<T, W>>();
    for (int64_t i = 0; i < labels; ++i) {
        const V<T, W> entry = load<T, W>(in + i * lanes);
        for (int j = 0; j < J; ++j) total[j] = op.join(total[j], table[i * labels + j], entry);
    }
    for (int j = 0; j < J; ++j) store<T, W>(out + j * lanes, total[j]);
}

constexpr int64_t MOST_COLUMNS = 12;  // as many sums as the registers hold

// out [labels, lanes] = the transposed table times in [labels, lanes]; columns in parts of about the same size.
template <template <class> class Op, class T, int W> static void multiply_interleaved(const T* in, const T* table,
                                                                                      int64_t labels, T* out) {
    constexpr int lanes = Lanes<T, W>::count;
    const int64_t parts = (labels + MOST_COLUMNS - 1) / MOST_COLUMNS;
    for (int64_t part = 0, j = 0; part < parts; ++part) {
        const int64_t width = (labels - j + parts - part - 1) / (parts - part);
        T* to = out + j * lanes;
        switch (width) {
            case 1: some_columns<Op<T>, T, W, 1>(in, table + j, labels, to); break;
            case 2: some_columns<Op<T>, T, W, 2>(in, table + j, labels, to); break;
            case 3: some_columns<Op<T>, T, W, 3>(in, table + j, labels, to); break;
            case 4: some_columns<Op<T>, T, W, 4>(in, table + j, labels, to); break;
            case 5: some_columns<Op<T>, T, W, 5>(in, table + j, labels, to); break;
            case 6: some_columns<Op<T>, T, W, 6>(in, table + j, labels, to); break;
            case 7: some_columns<Op<T>, T, W, 7>(in, table + j, labels, to); break;
            case 8: some_columns<Op<T>, T, W, 8>(in, table + j, labels, to); break;
            case 9: some_columns<Op<T>, T, W, 9>(in, table + j, labels, to); break;
            case 10: some_columns<Op<T>, T, W, 10>(in, table + j, labels, to); break;
            case 11: some_columns<Op<T>, T, W, 11>(in, table + j, labels, to); break;
            default: some_columns<Op<T>, T, W, 12>(in, table + j, labels, to);
        }
        j += width;
    }
}

// Scale each chain's cell by a power of two, as `rescale` does with a row, given its largest entries.
template <class T, int W> INLINE I<T, W> rescale_interleaved(T* cell, int64_t labels, V<T, W> high, V<T, W> floor,
                                                             I<T, W>& bad) {
    constexpr int lanes = Lanes<T, W>::count;
    typedef typename Lanes<T, W>::Whole Whole;
    I<T, W> exponent =
        (bits_as<I<T, W>>(high) >> Lanes<T, W>::mantissa) - static_cast<Whole>(Lanes<T, W>::bias + Limits<T>::lift);
    const I<T, W> usable = (high >= all<T, W>(std::numeric_limits<T>::min())) &
                           (high <= all<T, W>(std::numeric_limits<T>::max() / 4)) &
                           (exponent >= static_cast<Whole>(2 - Lanes<T, W>::bias) - I<T, W>{});
    exponent &= usable;
    I<T, W> bits = (static_cast<Whole>(Lanes<T, W>::bias) - exponent) << Lanes<T, W>::mantissa;
    const V<T, W> factor = bits_as<V<T, W>>(bits);
    for (int64_t c = 0; c < labels; ++c) {
        const V<T, W> before = load<T, W>(cell + c * lanes), after = before * factor;
        bad |= (after < floor) & (before > V<T, W>{});
        store<T, W>(cell + c * lanes, after);
    }
    return exponent;
}

// log Z of each chain of a group, and alpha and emission [T, labels, lanes] where they are kept (else they have two
// cells and one). Chains that leave the range of the numbers go up a tier; a group all of whose chains do is given up.
template <class T, int W, class In>
static void forward_interleaved(const Group<T, W, In>& group, const PlainTable<T>& table, bool keep, T* alpha,
                                T* emission, const Answer<In>& answer) {
    constexpr int lanes = Lanes<T, W>::count;
    const int64_t labels = group.chain.labels, size = group.size();
    const V<T, W> floor = all<T, W>(table.floor), low = all<T, W>(Lanes<T, W>::low),
                  nothing = all<T, W>(-std::numeric_limits<T>::infinity()), zero = V<T, W>{};
    double total[lanes] = {};
    I<T, W> bad = I<T, W>{}, exponent = I<T, W>{};
    V<T, W> left_out = nothing;
    int going = group.count;
    for (int64_t t = 0; t <= group.last[0]; ++t) {
        T* here = alpha + (keep ? t : t & 1) * size;
        T* factors = emission + (keep ? t * size : 0);
        const typename Group<T, W, In>::Reach of = group.read(t, factors);
        const V<T, W> top = of.high > nothing ? of.high : zero;
        for (int k = 0; k < lanes; ++k) total[k] += top[k];
        if (t > 0)
            multiply_interleaved<SumProduct, T, W>(alpha + (keep ? t - 1 : (t - 1) & 1) * size, table.forward, labels,
                                                   here);
        V<T, W> high = zero, least = floor;
        const auto enter = [&](int64_t c, bool close) __attribute__((always_inline)) {
            const V<T, W> score = load<T, W>(factors + c * lanes), x = score - top;
            const V<T, W> factor = close ? small_exponential<T>(x) : exponential<T>(x);
            const V<T, W> ahead = t > 0 ? load<T, W>(here + c * lanes) : all<T, W>(1), value = ahead * factor;
            const I<T, W> counts = close ? ahead > zero : (ahead > zero) & (x >= all<T, W>(static_cast<T>(FAR)));
            if (!close) left_out = larger<T, W>(counted_out<T>(score, x), left_out);
            least = smaller<T, W>(counts ? value : floor, least);
            high = larger<T, W>(value, high);
            store<T, W>(factors + c * lanes, factor);
            store<T, W>(here + c * lanes, value);
        };
        if (any<T, W>(of.low - top < low))
            for (int64_t c = 0; c < labels; ++c) enter(c, false);
        else  // none of them vanishes
            for (int64_t c = 0; c < labels; ++c) enter(c, true);
        bad |= least < floor;
        if (t % table.every == table.every - 1) exponent += rescale_interleaved<T, W>(here, labels, high, floor, bad);
        if (going > 0 && group.last[going - 1] == t) {
            V<T, W> sum = zero;
            for (int64_t c = 0; c < labels; ++c) sum += load<T, W>(here + c * lanes);
            for (; going > 0 && group.last[going - 1] == t; --going) {
                const int k = going - 1;
                const int64_t b = group.rows[k];
                const double mass = log_of(static_cast<double>(sum[k]), exponent[k]);
                if (bad[k] || !outweighs(mass - static_cast<double>(t) * table.above,
                                         std::max<double>(left_out[k], table.left_out), t + 1, labels))
                    ++answer.tier[b];
                else
                    answer.log_z[b] = total[k] + static_cast<double>(t) * table.shift + mass;
            }
        }
        if (t % 4 == 0 && !any<T, W>(~bad)) break;
    }
    for (int k = 0; k < going; ++k) ++answer.tier[group.rows[k]];
}

// Marginals times weight into answer.unary; alpha becomes the left and emission the right factor of the pair gradient,
// zero where a chain has no such step.  Chains that leave the range of the numbers go up a tier, and have no factors.
template <class T, int W, class In>
static void backward_interleaved(Group<T, W, In>& group, const PlainTable<T>& table, T* alpha, T* emission, T* room,
                                 const Answer<In>& answer) {
    constexpr int lanes = Lanes<T, W>::count;
    typedef typename Lanes<T, W>::Whole Whole;
    const int64_t labels = group.chain.labels, size = group.size();
    const V<T, W> floor = all<T, W>(table.floor), zero = V<T, W>{};
    V<T, W> weight = zero;
    for (int k = 0; k < group.count; ++k) weight[k] = answer.weight_of(group.rows[k]);
    T *beta = room, *right = room + size;
    std::fill(beta, beta + size, static_cast<T>(0));
    I<T, W> bad = I<T, W>{}, exponent = I<T, W>{};
    for (int64_t t = group.last[0]; t >= 0; --t) {
        T *left = alpha + t * size, *factors = emission + t * size;
        const I<T, W> begins = group.ends == group.at(t), active = group.ends >= group.at(t);
        V<T, W> sum = zero;
        for (int64_t c = 0; c < labels; ++c) {
            const V<T, W> value = begins ? all<T, W>(1) : load<T, W>(beta + c * lanes);
            store<T, W>(beta + c * lanes, value);
            sum += load<T, W>(left + c * lanes) * value;
        }
        const I<T, W> fine = sum >= all<T, W>(Limits<T>::overlap);
        bad |= active & ~fine;
        const V<T, W> by = fine & active ? weight / sum : zero;
        if (answer.unary) group.write(t, left, beta, by, answer.unary);
        if (answer.pair) {
            // beta was scaled after it was multiplied with the table; the pair gradient was not
            I<T, W> bits = (static_cast<Whole>(Lanes<T, W>::bias) - exponent) << Lanes<T, W>::mantissa;
            const V<T, W> scale = bits_as<V<T, W>>(bits), both = by * scale;
            const I<T, W> goes_on = group.ends > group.at(t);
            const V<T, W> most = all<T, W>(Limits<T>::factor);
            bad |= goes_on & ~((both <= all<T, W>(Limits<T>::largest)) & (both >= all<T, W>(-Limits<T>::largest)));
            for (int64_t c = 0; c < labels; ++c) {
                const V<T, W> value = load<T, W>(left + c * lanes) * by * scale;  // in this order: by * scale may be 0
                bad |= goes_on & ((value > most) | (value < -most));
                store<T, W>(left + c * lanes, goes_on ? value : zero);
            }
        }
        if (t == 0) break;
        for (int64_t c = 0; c < labels; ++c) {
            const V<T, W> factor = load<T, W>(factors + c * lanes), one = load<T, W>(beta + c * lanes),
                          value = active ? factor * one : zero;
            bad |= active & (value < floor) & (factor > zero) & (one > zero);
            store<T, W>(factors + c * lanes, value);
            store<T, W>(right + c * lanes, value);
        }
        multiply_interleaved<SumProduct, T, W>(right, table.backward, labels, beta);
        if (t % table.every == 0) {
            V<T, W> high = zero;
            for (int64_t c = 0; c < labels; ++c) high = larger<T, W>(load<T, W>(beta + c * lanes), high);
            exponent = rescale_interleaved<T, W>(beta, labels, high, floor, bad);
        } else {
            exponent = I<T, W>{};
        }
    }
    if (!any<T, W>(bad)) return;
    for (int k = 0; k < group.count; ++k)
        if (bad[k] && group.ends[k] >= 0) ++answer.tier[group.rows[k]];
    for (int64_t c = 0; c < (group.last[0] + 1) * size; c += lanes) {
        store<T, W>(alpha + c, bad ? zero : load<T, W>(alpha + c));
        store<T, W>(emission + c, bad ? zero : load<T, W>(emission + c));
    }
}

// total[i, j] += sum over steps of left[i] * right[j], for N lines and M columns.
template <class T, int W, int N, int M> INLINE void outer_block(const T* left, const T* right, int64_t steps,
                                                                int64_t labels, T* total) {
    constexpr int lanes = Lanes<T, W>::count;
    V<T, W> sum[N][M];
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) sum[i][j] = load<T, W>(total + (i * labels + j) * lanes);
    for (int64_t t = 0; t < steps; ++t, left += labels * lanes, right += labels * lanes) {
        V<T, W> column[M];
        for (int j = 0; j < M; ++j) column[j] = load<T, W>(right + j * lanes);
        for (int i = 0; i < N; ++i) {
            const V<T, W> factor = load<T, W>(left + i * lanes);
            for (int j = 0; j < M; ++j) sum[i][j] += factor * column[j];
        }
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) store<T, W>(total + (i * labels + j) * lanes, sum[i][j]);
}

template <class T, int W, int N> INLINE void outer_lines(const T* left, const T* right, int64_t steps, int64_t labels,
                                                         T* total) {
    constexpr int lanes = Lanes<T, W>::count;
    for (int64_t j = 0; j < labels; j += 3) {
        switch (std::min<int64_t>(3, labels - j)) {
            case 1: outer_block<T, W, N, 1>(left, right + j * lanes, steps, labels, total + j * lanes); break;
            case 2: outer_block<T, W, N, 2>(left, right + j * lanes, steps, labels, total + j * lanes); break;
            default: outer_block<T, W, N, 3>(left, right + j * lanes, steps, labels, total + j * lanes);
        }
    }
}

// total [labels, labels, lanes] += sum over t of outer(left[t], right[t]); some steps at a time, which stay in the
// first cache.
template <class T, int W> static void add_outer_interleaved(const T* left, const T* right, int64_t steps,
                                                            int64_t labels, T* total) {
    constexpr int lanes = Lanes<T, W>::count;
    const int64_t cell = labels * lanes, block = std::max<int64_t>(8, 12288 / static_cast<int64_t>(sizeof(T)) / cell);
    for (int64_t t = 0; t < steps; t += block) {
        const int64_t some = std::min(block, steps - t);
        for (int64_t i = 0; i < labels; i += 4) {
            const T *a = left + t * cell + i * lanes, *b = right + t * cell;
            T* out = total + i * cell;
            switch (std::min<int64_t>(4, labels - i)) {
                case 1: outer_lines<T, W, 1>(a, b, some, labels, out); break;
                case 2: outer_lines<T, W, 2>(a, b, some, labels, out); break;
                case 3: outer_lines<T, W, 3>(a, b, some, labels, out); break;
                default: outer_lines<T, W, 4>(a, b, some, labels, out);
            }
        }
    }
}

// After the forward pass: chains that another tier answers, or that have no answer and get their zeros, are in use no
// longer.
template <class T, int W, class In> static void leave_out_unanswered(Group<T, W, In>& group, const Answer<In>& answer,
                                                                     uint8_t tier) {
    for (int k = 0; k < group.count; ++k) {
        const int64_t b = group.rows[k];
        const bool mine = answer.tier[b] == tier;
        if (mine && answer.log_z[b] > -INFINITY) continue;
        if (mine) clear_chain(group.chain, answer, b);
        group.ends[k] = -1;
    }
}

// A batch in numbers T; forward alone, or both passes.
template <class T, int W, class In>
static void interleaved_tier(const Chain<In>& chain, const Answer<In>& answer, std::vector<int64_t>& rows, uint8_t tier,
                             ChainPasses passes, int threads) {
    constexpr int lanes = Lanes<T, W>::count;
    const int64_t labels = chain.labels, cells = labels * labels, cell = labels * lanes;
    answer_empty(chain, answer, rows);
    const int64_t count = static_cast<int64_t>(rows.size()), groups = (count + lanes - 1) / lanes;
    const bool both = passes == BOTH, outer = both && answer.pair;
    threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, groups)));
    const int64_t kept = both ? chain.size * cell : 2 * cell;
    const int64_t room = 2 * kept + 2 * cell + (outer ? cells * lanes : 0);
    Buffer<T> memory(static_cast<size_t>(threads) * room + 2 * round_up(cells, lanes));
    T *forward = memory.data + threads * room, *backward = forward + round_up(cells, lanes);
    PlainTable<T> table{forward, both ? backward : nullptr, 0, 0, 1, 0, 0};
    if (!exponentiate_plain(chain, table)) {
        for (int64_t b : rows) ++answer.tier[b];
        return;
    }
    for (int k = 0; k < threads && outer; ++k)  // for all threads, also those that the runtime may refuse
        std::fill(memory.data + (k + 1) * room - cells * lanes, memory.data + (k + 1) * room, static_cast<T>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = 0; g < groups; ++g) {
        T* own = memory.data + thread_number() * room;
        T *alpha = own, *emission = own + kept;
        Group<T, W, In> group(chain, rows.data() + g * lanes,
                              static_cast<int>(std::min<int64_t>(lanes, count - g * lanes)));
        forward_interleaved(group, table, both, alpha, emission, answer);
        if (!both) continue;
        leave_out_unanswered(group, answer, tier);
        backward_interleaved(group, table, alpha, emission, own + 2 * kept, answer);
        if (outer)
            add_outer_interleaved<T, W>(alpha, emission + cell, group.last[0], labels, own + room - cells * lanes);
    }
    for (int k = 0; k < threads && outer; ++k)
        for (int64_t i = 0; i < cells; ++i)
            answer.pair[i] += static_cast<In>(
                forward[i] * sum_of<T, W>(load<T, W>(memory.data + (k + 1) * room - (cells - i) * lanes)));
}

}  // namespace energyml
