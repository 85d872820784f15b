// Viterbi over chains abreast (see abreast.h).  As in viterbi.h no back-pointers are stored: the way back finds the best earlier label
// of all chains at once, as a line of the table fits into two vectors.

template <class T> struct BestGroup {
    const Group<T>& group;
    const T* lines;  // [labels, 2 lanes]: the table, a line in two vectors
    T* delta;        // [T, labels, lanes]: the best scores of ways into each label
    T* unary;        // [labels, lanes]; on the way back, scores of ways into a label
    I<T>* path;      // [T]: the labels of all chains
};

// The first label of each chain whose score is the largest.  Apart from finding the largest: the next comparison need not wait then.
template <class T> INLINE I<T> first_of(const T* scores, int64_t labels, V<T> largest) {
    I<T> place = I<T>{};
    for (int64_t c = labels; c-- > 0;) place = load(scores + c * Lanes<T>::count) == largest ? static_cast<typename Lanes<T>::Whole>(c) - I<T>{} : place;
    return place;
}

// The best scores of all ways; returns the best last label of each chain and whether it has an answer.
template <class T> static I<T> best_ways(const BestGroup<T>& given, I<T>& found) {
    constexpr int lanes = Lanes<T>::count;
    const Group<T>& group = given.group;
    const int64_t labels = group.chain.labels, size = group.size();
    const V<T> nothing = all<T>(-std::numeric_limits<T>::infinity());
    I<T> last = I<T>{};
    found = I<T>{};
    for (int64_t t = 0; t <= group.last[0]; ++t) {
        T* here = given.delta + t * size;
        group.read(t, t > 0 ? given.unary : here);
        if (t > 0) multiply_abreast<MaxSum>(here - size, group.chain.pair, labels, here);
        V<T> high = nothing;
        for (int64_t c = 0; c < labels; ++c) {
            V<T> x = load(here + c * lanes);
            if (t > 0) x += load(given.unary + c * lanes);
            high = larger<T>(x, high);
            store(here + c * lanes, x);
        }
        const I<T> ends = group.ends == group.at(t);
        if (any<T>(ends)) {
            last = ends ? first_of(here, labels, high) : last;
            found |= ends & (high > nothing);
        }
        if (t % RECENTRE_EVERY) continue;
        const V<T> top = high > nothing ? high : V<T>{};
        for (int64_t c = 0; c < labels; ++c) store(here + c * lanes, load(here + c * lanes) - top);
    }
    return last;
}

// The labels of all chains, from their last ones back; the largest magnitude of the scores of the ways that they follow.
template <class T> static V<T> way_back(const BestGroup<T>& given, I<T> last) {
    constexpr int lanes = Lanes<T>::count;
    const Group<T>& group = given.group;
    const int64_t labels = group.chain.labels, size = group.size();
    I<T> label = given.path[group.last[0]] = last;
    V<T> reach = V<T>{};
    for (int64_t t = group.last[0] - 1; t >= 0; --t) {
        const T* here = given.delta + t * size;
        V<T> best = all<T>(-std::numeric_limits<T>::infinity());
        for (int64_t i = 0; i < labels; ++i) {
            const T* line = given.lines + i * 2 * lanes;
            const V<T> x = load(here + i * lanes) + __builtin_shuffle(load(line), load(line + lanes), label);
            best = larger<T>(x, best);
            store(given.unary + i * lanes, x);
        }
        const I<T> place = first_of(given.unary, labels, best);
        const I<T> goes_on = group.ends > group.at(t);
        label = given.path[t] = goes_on ? place : last;
        reach = larger<T>(goes_on ? larger<T>(best, -best) : reach, reach);
    }
    return reach;
}

// Best labels into [batch, T], -1 where there is no cell or no answer, and their scores.
template <class T> static void best_group(const BestGroup<T>& given, int64_t* best, T* score, uint8_t* marks) {
    const Group<T>& group = given.group;
    const Chain<T>& chain = group.chain;
    const int64_t labels = chain.labels;
    I<T> found;
    const V<T> reach = way_back(given, best_ways(given, found));
    for (int k = 0; k < group.count; ++k) {
        int64_t* mine = best + group.rows[k] * chain.size;
        const int64_t n = found[k] ? group.last[k] + 1 : 0;
        double cells = n ? 0 : -INFINITY, steps = 0;
        T largest = reach[k];
        for (int64_t t = 0; t < n; ++t) {
            mine[t] = reinterpret_cast<const typename Lanes<T>::Whole*>(given.path + t)[k];
            const T cell = group.first[k][t * labels + mine[t]], step = t > 0 ? chain.pair[mine[t - 1] * labels + mine[t]] : 0;
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
template <class T> static void best_abreast(const Chain<T>& chain, std::vector<int64_t>& rows, int64_t* best, T* score, uint8_t* marks, int threads) {
    constexpr int lanes = Lanes<T>::count;
    for (; !rows.empty() && chain.length(rows.back()) == 0; rows.pop_back()) {
        std::fill(best + rows.back() * chain.size, best + (rows.back() + 1) * chain.size, static_cast<int64_t>(-1));
        score[rows.back()] = 0;
    }
    const int64_t labels = chain.labels, count = static_cast<int64_t>(rows.size()), groups = (count + lanes - 1) / lanes, cell = labels * lanes;
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
        const Group<T> group(chain, rows.data() + g * lanes, static_cast<int>(std::min<int64_t>(lanes, count - g * lanes)));
        best_group<T>({group, lines, own, own + ways, reinterpret_cast<I<T>*>(own + ways + cell)}, best, score, marks);
    }
}
