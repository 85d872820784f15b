// Viterbi over chains side by side (see interleaved.h).  As in viterbi.h no back-pointers are stored: the way back
// finds the best earlier label of all chains at once, as a line of the table fits into two vectors.
#pragma once

#include "interleaved.h"
#include "viterbi.h"

namespace energyml {

template <class T, int W> struct BestGroup {
    const Group<T, W>& group;
    const T* lines;  // [labels, 2 lanes]: the table, a line in two vectors
    T* delta;        // [T, labels, lanes]: the best scores of ways into each label
    T* unary;        // [labels, lanes]; on the way back, scores of ways into a label
    I<T, W>* path;   // [T]: the labels of all chains
};

// The first label of each chain whose score is the largest.  Apart from finding the largest: the next comparison need
// not wait then.
template <class T, int W> INLINE I<T, W> first_of(const T* scores, int64_t labels, V<T, W> largest) {
    I<T, W> place = I<T, W>{};
    for (int64_t c = labels; c-- > 0;)
        place = load<T, W>(scores + c * Lanes<T, W>::count) == largest
                    ? static_cast<typename Lanes<T, W>::Whole>(c) - I<T, W>{}
                    : place;
    return place;
}

// The best scores of all ways; returns the best last label of each chain and whether it has an answer.
template <class T, int W> static I<T, W> best_ways(const BestGroup<T, W>& given, I<T, W>& found) {
    constexpr int lanes = Lanes<T, W>::count;
    const Group<T, W>& group = given.group;
    const int64_t labels = group.chain.labels, size = group.size();
    const V<T, W> nothing = all<T, W>(-std::numeric_limits<T>::infinity());
    I<T, W> last = I<T, W>{};
    found = I<T, W>{};
    for (int64_t t = 0; t <= group.last[0]; ++t) {
        T* here = given.delta + t * size;
        group.read(t, t > 0 ? given.unary : here);
        if (t > 0) multiply_interleaved<MaxSum, T, W>(here - size, group.chain.pair, labels, here);
        V<T, W> high = nothing;
        for (int64_t c = 0; c < labels; ++c) {
            V<T, W> x = load<T, W>(here + c * lanes);
            if (t > 0) x += load<T, W>(given.unary + c * lanes);
            high = larger<T, W>(x, high);
            store<T, W>(here + c * lanes, x);
        }
        const I<T, W> ends = group.ends == group.at(t);
        if (any<T, W>(ends)) {
            last = ends ? first_of<T, W>(here, labels, high) : last;
            found |= ends & (high > nothing);
        }
        if (t % RECENTRE_EVERY) continue;
        const V<T, W> top = high > nothing ? high : V<T, W>{};
        for (int64_t c = 0; c < labels; ++c) store<T, W>(here + c * lanes, load<T, W>(here + c * lanes) - top);
    }
    return last;
}

// The labels of all chains, from their last ones back; the largest magnitude of the scores of the ways that they
// follow.
template <class T, int W> static V<T, W> way_back(const BestGroup<T, W>& given, I<T, W> last) {
    constexpr int lanes = Lanes<T, W>::count;
    const Group<T, W>& group = given.group;
    const int64_t labels = group.chain.labels, size = group.size();
    I<T, W> label = given.path[group.last[0]] = last;
    V<T, W> reach = V<T, W>{};
    for (int64_t t = group.last[0] - 1; t >= 0; --t) {
        const T* here = given.delta + t * size;
        V<T, W> best = all<T, W>(-std::numeric_limits<T>::infinity());
        for (int64_t i = 0; i < labels; ++i) {
            const T* line = given.lines + i * 2 * lanes;
            const V<T, W> x =
                load<T, W>(here + i * lanes) + __builtin_shuffle(load<T, W>(line), load<T, W>(line + lanes), label);
            best = larger<T, W>(x, best);
            store<T, W>(given.unary + i * lanes, x);
        }
        const I<T, W> place = first_of<T, W>(given.unary, labels, best);
        const I<T, W> goes_on = group.ends > group.at(t);
        label = given.path[t] = goes_on ? place : last;
        reach = larger<T, W>(goes_on ? larger<T, W>(best, -best) : reach, reach);
    }
    return reach;
}

// Best labels into [batch, T], -1 where there is no cell or no answer, and their scores.
template <class T, int W> static void best_group(const BestGroup<T, W>& given, int64_t* best, T* score,
                                                 uint8_t* marks) {
    const Group<T, W>& group = given.group;
    const Chain<T>& chain = group.chain;
    const int64_t labels = chain.labels;
    I<T, W> found;
    const V<T, W> reach = way_back<T, W>(given, best_ways<T, W>(given, found));
    for (int k = 0; k < group.count; ++k) {
        int64_t* mine = best + group.rows[k] * chain.size;
        const int64_t n = found[k] ? group.last[k] + 1 : 0;
        double cells = n ? 0 : -INFINITY, steps = 0;
        T largest = reach[k];
        for (int64_t t = 0; t < n; ++t) {
            mine[t] = reinterpret_cast<const typename Lanes<T, W>::Whole*>(given.path + t)[k];
            const T cell = group.first[k][t * labels + mine[t]],
                    step = t > 0 ? chain.pair[mine[t - 1] * labels + mine[t]] : 0;
            cells += cell;
            steps += step;
            largest = std::max({largest, std::fabs(cell), std::fabs(step)});
        }
        std::fill(mine + n, mine + chain.size, static_cast<int64_t>(-1));
        score[group.rows[k]] = static_cast<T>(cells + steps);
        marks[group.rows[k]] = !found[k] || !(largest <= farthest_way<T>());
    }
}

// All chains of a batch, their rows sorted, longest first.
template <class T, int W> static void best_interleaved(const Chain<T>& chain, std::vector<int64_t>& rows, int64_t* best,
                                                       T* score, uint8_t* marks, int threads) {
    constexpr int lanes = Lanes<T, W>::count;
    for (; !rows.empty() && chain.length(rows.back()) == 0; rows.pop_back()) {
        std::fill(best + rows.back() * chain.size, best + (rows.back() + 1) * chain.size, static_cast<int64_t>(-1));
        score[rows.back()] = 0;
    }
    const int64_t labels = chain.labels, count = static_cast<int64_t>(rows.size()),
                  groups = (count + lanes - 1) / lanes, cell = labels * lanes;
    threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, groups)));
    const int64_t ways = chain.size * cell, room = ways + cell + chain.size * lanes;
    Buffer<T> memory(static_cast<size_t>(threads) * room + 2 * cell);
    T* lines = memory.data + threads * room;
    for (int64_t i = 0; i < labels; ++i)
        for (int64_t j = 0; j < 2 * lanes; ++j) lines[i * 2 * lanes + j] = j < labels ? chain.pair[i * labels + j] : 0;
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = 0; g < groups; ++g) {
        T* own = memory.data + thread_number() * room;
        const Group<T, W> group(chain, rows.data() + g * lanes,
                                static_cast<int>(std::min<int64_t>(lanes, count - g * lanes)));
        best_group<T, W>({group, lines, own, own + ways, reinterpret_cast<I<T, W>*>(own + ways + cell)}, best, score,
                         marks);
    }
}

}  // namespace energyml
