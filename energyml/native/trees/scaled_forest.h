// Trees in exp space, in the scores' own type: the fast way (see forest.h for the safe one).
//
// Nodes of one height send their messages together, four at a time, so that one load of the pair table serves all of
// them.  Numbers are rescaled by powers of two; an example whose non-zero numbers fall below `floor` of their largest
// is left to the safe way, as a product of two of them might vanish.
#pragma once

#include "forest.h"

namespace energyml {

template <class T> struct Bounds;
template <> struct Bounds<float> {
    static constexpr float floor = 1e-12f, spread = 27.0f;  // exp(-27) is above the floor
};
template <> struct Bounds<double> {
    static constexpr double floor = 1e-90, spread = 207.0;
};

// exp(pair - shift), rows padded to whole vectors: [0] has the labels of an edge's first end as rows, [1] those of its
// second.
template <class T> struct Exponentials {
    std::vector<T> rows[2];
    double shift = 0;
    bool narrow = true;

    inline void take(const T* pair, int64_t labels, int64_t padded) {
        const T nothing = -std::numeric_limits<T>::infinity();
        T high = nothing, low = -nothing;
        for (int64_t k = 0; k < labels * labels; ++k) {
            high = pair[k] > high ? pair[k] : high;
            low = pair[k] < low && pair[k] > nothing ? pair[k] : low;
        }
        shift = high > nothing ? high : 0;
        narrow = !(high > nothing) || high - low <= Bounds<T>::spread;
        for (auto& one : rows) one.assign(static_cast<size_t>(labels * padded), 0);
        alignas(64) T some[Lanes<T>::count];
        const V<T> base = all<T>(static_cast<T>(shift));
        for (int64_t i = 0; i < labels; ++i)
            for (int64_t j = 0; j < labels; j += Lanes<T>::count) {
                const int64_t live = std::min<int64_t>(Lanes<T>::count, labels - j);
                for (int64_t k = 0; k < Lanes<T>::count; ++k) some[k] = k < live ? pair[i * labels + j + k] : nothing;
                store(some, exponential<T>(load(some) - base));
                for (int64_t k = 0; k < live; ++k) {
                    rows[0][i * padded + j + k] = some[k];
                    rows[1][(j + k) * padded + i] = some[k];
                }
            }
    }
};

// out[r] = in[r] @ table for R rows that need not lie side by side.  Few sums are split S ways, as each waits for its
// own last one.
template <class T, int R, int P>
inline void some_columns(const T* const* in, const T* table, int64_t labels, int64_t padded, T* const* out,
                         int64_t column) {
    constexpr int lanes = Lanes<T>::count;
    constexpr int S = R * P >= 8 ? 1 : (R * P >= 4 ? 2 : 4);
    V<T> sum[S][R][P];
    for (auto& some : sum)
        for (auto& row : some)
            for (V<T>& one : row) one = V<T>{};
    const auto add = [&](int64_t i, V<T>(&to)[R][P]) {
        V<T> entry[P];
        for (int p = 0; p < P; ++p) entry[p] = load(table + i * padded + column + p * lanes);
        for (int r = 0; r < R; ++r) {
            const V<T> factor = all<T>(in[r][i]);
            for (int p = 0; p < P; ++p) to[r][p] += factor * entry[p];
        }
    };
    int64_t i = 0;
    for (; i + S <= labels; i += S)
        for (int way = 0; way < S; ++way) add(i + way, sum[way]);
    for (; i < labels; ++i) add(i, sum[0]);
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) {
            for (int way = 1; way < S; ++way) sum[0][r][p] += sum[way][r][p];
            store(out[r] + column + p * lanes, sum[0][r][p]);
        }
}

template <class T, int R> inline void rows_times(const T* const* in, const T* table, int64_t labels, int64_t padded,
                                                 T* const* out) {
    constexpr int lanes = Lanes<T>::count;
    int64_t column = 0;
    for (; column + 3 * lanes <= padded; column += 3 * lanes)
        some_columns<T, R, 3>(in, table, labels, padded, out, column);
    if (column + 2 * lanes <= padded) {
        some_columns<T, R, 2>(in, table, labels, padded, out, column);
        column += 2 * lanes;
    }
    if (column < padded) some_columns<T, R, 1>(in, table, labels, padded, out, column);
}

template <class T> inline void group_times(int count, const T* const* in, const T* table, int64_t labels,
                                           int64_t padded, T* const* out) {
    switch (count) {
        case 1: return rows_times<T, 1>(in, table, labels, padded, out);
        case 2: return rows_times<T, 2>(in, table, labels, padded, out);
        case 3: return rows_times<T, 3>(in, table, labels, padded, out);
        default: return rows_times<T, 4>(in, table, labels, padded, out);
    }
}

// total [labels, labels] += sum over k of outer(left[k], right[k]), rows of both `padded` long: R lines and P vectors
// at a time.
template <class T, int R, int P> inline void outer_block(const T* left, const T* right, int64_t count, int64_t padded,
                                                         V<T> (&sum)[R][P]) {
    constexpr int lanes = Lanes<T>::count;
    for (auto& row : sum)
        for (V<T>& one : row) one = V<T>{};
    for (int64_t k = 0; k < count; ++k) {
        V<T> column[P];
        for (int p = 0; p < P; ++p) column[p] = load(right + k * padded + p * lanes);
        for (int r = 0; r < R; ++r) {
            const V<T> factor = all<T>(left[k * padded + r]);
            for (int p = 0; p < P; ++p) sum[r][p] += factor * column[p];
        }
    }
}
template <class T> inline void add_outer(const T* left, const T* right, int64_t count, int64_t labels, int64_t padded,
                                         T* total) {
    constexpr int lanes = Lanes<T>::count, R = 4;
    for (int64_t i = 0; i < labels; i += R)  // padding makes up for lines that there are not
        for (int64_t j = 0; j < padded; j += 2 * lanes) {
            alignas(64) T some[R][2 * lanes] = {};
            if (j + lanes < padded) {
                V<T> sum[R][2];
                outer_block<T, R, 2>(left + i, right + j, count, padded, sum);
                for (int r = 0; r < R; ++r) store(some[r], sum[r][0]), store(some[r] + lanes, sum[r][1]);
            } else {
                V<T> sum[R][1];
                outer_block<T, R, 1>(left + i, right + j, count, padded, sum);
                for (int r = 0; r < R; ++r) store(some[r], sum[r][0]);
            }
            for (int64_t r = 0; r < std::min<int64_t>(R, labels - i); ++r)
                for (int64_t c = 0; c < std::min<int64_t>(2 * lanes, labels - j); ++c)
                    total[(i + r) * labels + j + c] += some[r][c];
        }
}

// The trees of one example.  `state` is [2, nodes, padded], zeros at first: beliefs of the nodes, and the messages they
// sent.
template <class T> class ScaledTree {
  public:
    ScaledTree(const Forest& forest, int64_t example, const T* unary, const T* pair, int64_t edge_stride,
               const Exponentials<T>* shared, T* state, uint8_t* received)
        : tree_(forest, example),
          labels_(forest.labels),
          padded_(round_up(forest.labels, Lanes<T>::count)),
          unary_(unary),
          pair_(pair),
          edge_stride_(edge_stride),
          shared_(shared),
          belief_(state),
          message_(state + forest.nodes * padded_),
          received_(received) {}

    // log Z; `safe` is cleared when the numbers spread too far.
    inline double up(bool& safe) {
        double total = 0;
        I<T> lost = I<T>{};  // numbers that vanish or grow beyond all bounds
        for (int64_t k = 0; k < tree_.count; ++k) total += start(tree_.order[k], lost);
        int64_t exponent = 0;
        safe = safe && !any<T>(lost);
        for (int64_t k = 0; k < tree_.count && safe;) {
            const int size = group(k);
            const T* in[4];
            T* out[4];
            for (int r = 0; r < size; ++r) {
                if (tree_.height[tree_.order[k + r]]) exponent += settle(tree_.order[k + r], safe);
                in[r] = belief(tree_.order[k + r]);
                out[r] = message(tree_.order[k + r]);
            }
            if (tree_.parent[tree_.order[k]] < 0) {
                total += root(tree_.order[k]);
            } else {
                const Exponentials<T>& table = weights(tree_.order[k]);
                safe = safe && table.narrow;
                group_times<T>(size, in, table.rows[tree_.swapped[tree_.order[k]]].data(), labels_, padded_, out);
                for (int r = 0; r < size; ++r) exponent += receive(tree_.order[k + r], lost, safe);
                total += size * table.shift;
            }
            k += size;
        }
        safe = safe && !any<T>(lost);
        return total + exponent * 0.693147180559945309417;
    }

    // Marginals times the weight; pairs as in `TreePass::down`.
    inline void down(double weight, T* unary_gradient, T* pair_gradient, int64_t gradient_stride,
                     std::vector<T>& room) {
        const bool later = pair_gradient && shared_;  // outer products that are added up at once
        room.resize(static_cast<size_t>((8 + (later ? 2 * tree_.count : 0)) * padded_));
        T *lines = room.data() + 8 * padded_, *columns = lines + tree_.count * padded_;
        int64_t steps = 0;
        for (int64_t last = tree_.count; last > 0;) {
            int64_t k = last - 1;
            const int size = group_back(k);
            k = last - size;
            const int64_t first = tree_.order[k];
            if (tree_.parent[first] < 0) {
                const T* p = belief(first);
                T sum = *message(first);
                T* own = belief(first);
                const T scale = sum > 0 ? static_cast<T>(weight) / sum : 0;
                for (int64_t c = 0; c < padded_; ++c) own[c] = p[c] * scale;
                last = k;
                continue;
            }
            const Exponentials<T>& table = weights(first);
            const T* ratio[4];
            T* share[4];
            for (int r = 0; r < size; ++r) {
                const int64_t node = tree_.order[k + r];
                T* to = room.data() + r * padded_;
                const T* above = belief(tree_.parent[node]);  // a marginal by now
                const T* sums = message(node);
                for (int64_t p = 0; p < padded_; p += Lanes<T>::count) {
                    const V<T> sum = load(sums + p);
                    store(to + p, sum > V<T>{} ? load(above + p) / (sum > V<T>{} ? sum : all<T>(1)) : V<T>{});
                }
                ratio[r] = to;
                share[r] = room.data() + (4 + r) * padded_;
            }
            group_times<T>(size, ratio, table.rows[!tree_.swapped[first]].data(), labels_, padded_, share);
            for (int r = 0; r < size; ++r) {
                const int64_t node = tree_.order[k + r];
                T* own = belief(node);
                if (later) {
                    const bool swapped = tree_.swapped[node];
                    std::copy(swapped ? ratio[r] : own, (swapped ? ratio[r] : own) + padded_, lines + steps * padded_);
                    std::copy(swapped ? own : ratio[r], (swapped ? own : ratio[r]) + padded_,
                              columns + steps * padded_);
                    ++steps;
                } else if (pair_gradient) {
                    pairs(node, ratio[r], pair_gradient + tree_.edge[node] * gradient_stride, table);
                }
                for (int64_t c = 0; c < padded_; c += Lanes<T>::count)
                    store(own + c, load(own + c) * load(share[r] + c));
            }
            last = k;
        }
        if (later) add_outer<T>(lines, columns, steps, labels_, padded_, pair_gradient);
        for (int64_t k = 0; k < tree_.count; ++k)
            std::memcpy(unary_gradient + tree_.order[k] * labels_, belief(tree_.order[k]), sizeof(T) * labels_);
    }

  private:
    T* belief(int64_t node) const { return belief_ + node * padded_; }
    T* message(int64_t node) const { return message_ + node * padded_; }

    // How many nodes from place k on send through the same table at once.
    inline int group(int64_t k) const {
        const int64_t first = tree_.order[k];
        int size = 1;
        if (tree_.parent[first] < 0 || !shared_) return 1;
        while (size < 4 && k + size < tree_.count && alike(first, tree_.order[k + size])) ++size;
        return size;
    }
    // The same, counted backwards; parents of one height differ from their children's, so nobody waits for another of
    // the group.
    inline int group_back(int64_t k) const {
        const int64_t last = tree_.order[k];
        int size = 1;
        if (tree_.parent[last] < 0 || !shared_) return 1;
        while (size < 4 && k - size >= 0 && alike(last, tree_.order[k - size])) ++size;
        return size;
    }
    bool alike(int64_t a, int64_t b) const {
        return tree_.parent[b] >= 0 && tree_.height[a] == tree_.height[b] && tree_.swapped[a] == tree_.swapped[b];
    }

    const Exponentials<T>& weights(int64_t node) {
        if (shared_) return *shared_;
        own_.take(pair_ + tree_.edge[node] * edge_stride_, labels_, padded_);
        return own_;
    }

    // The scores of a node, a vector at a time; the last one reaches back where it would reach beyond the row.
    template <class F> inline void each(int64_t node, F visit) const {
        constexpr int lanes = Lanes<T>::count;
        const int64_t labels = labels_, last = labels - lanes;
        const T* from = unary_ + node * labels;
        if (last < 0) {
            V<T> x = all<T>(-std::numeric_limits<T>::infinity());
            for (int64_t c = 0; c < labels; ++c) x[c] = from[c];
            return visit(0, x);
        }
        for (int64_t c = 0; c <= last; c += lanes) visit(c, load(from + c));
        if (labels % lanes) visit(last, load(from + last));
    }

    // exp(unary - max) of a node; returns the maximum, and notes scores that spread too far.  What pads a row is zero
    // from the start.
    inline double start(int64_t node, I<T>& lost) {
        const V<T> nothing = all<T>(-std::numeric_limits<T>::infinity()), far = all<T>(-Bounds<T>::spread);
        T* out = belief(node);
        received_[node] = 0;
        V<T> highs = nothing, lows = -nothing;
        each(node, [&](int64_t, V<T> x) {
            highs = larger<T>(x, highs);
            lows = smaller<T>(x, lows);
        });
        const T high = horizontal_max<T>(highs), base = high > nothing[0] ? high : 0;
        if (-horizontal_max<T>(-lows) - base >= far[0])  // none of them is too far away, or not allowed
            each(node, [&](int64_t c, V<T> x) { store(out + c, small_exponential<T>(x - base)); });
        else
            each(node, [&](int64_t c, V<T> x) {
                lost |= (x - base < far) & (x > nothing);
                store(out + c, exponential<T>(x - base));
            });
        return high;
    }

    inline double root(int64_t node) {
        const T* own = belief(node);
        V<T> sums = V<T>{};
        for (int64_t c = 0; c < padded_; c += Lanes<T>::count) sums += load(own + c);
        const T sum = horizontal_sum<T>(sums);
        *message(node) = sum;
        return sum > 0 ? std::log(static_cast<double>(sum)) : NOTHING;
    }

    // The parent's belief times a message; now and then it is rescaled on the way: returns the exponent that was taken
    // out.
    inline int64_t receive(int64_t node, I<T>& lost, bool& safe) {
        const int64_t parent = tree_.parent[node];
        const T* sent = message(node);
        T* above = belief(parent);
        const V<T> zero = V<T>{}, least = all<T>(std::numeric_limits<T>::min()),
                   most = all<T>(std::numeric_limits<T>::max());
        for (int64_t c = 0; c < padded_; c += Lanes<T>::count) {
            const V<T> before = load(above + c), factor = load(sent + c), after = before * factor;
            lost |= ((after < least) & (smaller<T>(before, factor) > zero)) | (after > most);
            store(above + c, after);
        }
        return ++received_[parent] % 4 ? 0 : settle(parent, safe);
    }

    // Rescale a belief; returns the exponent that was taken out.  A settled belief is at least the floor, so that its
    // products with the table are normal numbers.
    inline int64_t settle(int64_t node, bool& safe) {
        T* own = belief(node);
        int64_t exponent = 0;
        const T again = scale_of(own, exponent, safe);
        for (int64_t c = 0; c < padded_; c += Lanes<T>::count) store(own + c, load(own + c) * again);
        return exponent;
    }

    // The power of two that brings the largest number of a row into [1, 2).
    inline T scale_of(const T* row, int64_t& exponent, bool& safe) {
        V<T> high_lanes = load(row), low_lanes = all<T>(std::numeric_limits<T>::max());
        for (int64_t c = 0; c < padded_; c += Lanes<T>::count) {
            const V<T> x = load(row + c);
            high_lanes = larger<T>(x, high_lanes);
            low_lanes = x > V<T>{} ? smaller<T>(x, low_lanes) : low_lanes;
        }
        const T high = horizontal_max<T>(high_lanes);
        if (!(high > 0)) return 1;  // nothing is possible: zeros stay zeros
        safe = safe && -horizontal_max<T>(-low_lanes) >= high * Bounds<T>::floor;
        const int64_t by = exponent_of<T>(high);
        exponent += by;
        return power_of_two<T>(-by);
    }

    // Where each edge has a table of its own.
    inline void pairs(int64_t node, const T* ratio, T* gradient, const Exponentials<T>& table) {
        const T* own = belief(node);  // not a marginal yet
        const T* lines = tree_.swapped[node] ? ratio : own;
        const T* columns = tree_.swapped[node] ? own : ratio;
        for (int64_t i = 0; i < labels_; ++i) {
            const T factor = lines[i];
            T* to = gradient + i * labels_;
            for (int64_t j = 0; j < labels_; ++j) to[j] += factor * columns[j] * table.rows[0][i * padded_ + j];
        }
    }

    Tree tree_;
    int64_t labels_, padded_;
    const T *unary_, *pair_;
    int64_t edge_stride_;
    const Exponentials<T>* shared_;
    T *belief_, *message_;
    uint8_t* received_;  // [nodes]: messages since the last turn of 256
    Exponentials<T> own_;
};

}  // namespace energyml
