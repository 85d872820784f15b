// Trees that are given at run time: messages along them and back, examples side by side.
#pragma once

#include "best_forest.h"
#include "scaled_forest.h"

namespace energyml {

// What a call on trees wants; null pointers for what it does not.
template <class T> struct Trees {
    Forest forest;
    int64_t batch;
    const T* unary;  // [B, nodes, labels]
    const T* pair;
    int64_t example_stride, edge_stride;  // of the pair table: 0 where it is shared
    double* log_z;                        // [B]
    const double* weights;                // [B]
    T* unary_gradient;
    T* pair_gradient;  // [B or threads, edges or 1, labels, labels]
    int64_t gradient_stride;
    T* apart;         // [threads, labels, labels]: the safe way's share of the gradient of a table that all edges share
    int64_t* labels;  // [B, nodes]
    const int64_t* answers;  // [B, nodes]: log-probabilities of these are wanted in place of log Z, not a number where
                             // one is no label

    bool shared() const { return !example_stride && !edge_stride; }
};

// What a thread needs while it works on its examples.
template <class T> struct TreeRoom {
    std::vector<T> state, some;
    std::vector<uint8_t> received;
    std::vector<double> safe;
};

template <class T> inline void sum_tree(const Trees<T>& trees, int64_t example, int thread,
                                        const Exponentials<T>* shared, TreeRoom<T>& room) {
    const int64_t cells = trees.forest.nodes * trees.forest.labels, table = trees.forest.labels * trees.forest.labels;
    const T* unary = trees.unary + example * cells;
    const T* pair = trees.pair + example * trees.example_stride;
    const int64_t gradient_step = trees.edge_stride ? table : 0;
    T* gradient = trees.pair_gradient
                      ? trees.pair_gradient + (trees.example_stride ? example : thread) * trees.gradient_stride
                      : nullptr;
    T* const safe_gradient = gradient && trees.apart ? trees.apart + thread * table : gradient;
    T* const unary_gradient = trees.unary_gradient + example * cells;
    const bool back = trees.weights != nullptr;
    const double weight = back ? trees.weights[example] : 0;
    const auto sum = [&](double by) {  // log Z, and its gradient times this
        bool safe = !shared || shared->narrow;
        double log_z = NOTHING;
        if (safe) {
            ScaledTree<T> fast(trees.forest, example, unary, pair, trees.edge_stride, shared, room.state.data(),
                               room.received.data());
            log_z = fast.up(safe);
            if (safe && back && log_z > NOTHING) fast.down(by, unary_gradient, gradient, gradient_step, room.some);
        }
        if (safe) return log_z;
        TreePass<T> slow(trees.forest, example, unary, pair, trees.edge_stride);
        log_z = slow.up(room.safe);
        if (back && log_z > NOTHING) slow.down(by, unary_gradient, safe_gradient, gradient_step);
        return log_z;
    };
    double& value = trees.log_z[example];
    if (!trees.answers) {
        value = sum(weight);
        return;
    }
    const TreeAnswer<T> answer{
        {trees.forest, example}, trees.forest.labels, trees.answers + example * trees.forest.nodes};
    value = answer.exists() ? answer.score(unary, pair, trees.edge_stride) : std::numeric_limits<double>::quiet_NaN();
    if (!(value > NOTHING)) return;
    value -= sum(-weight);
    if (back) answer.add(static_cast<T>(weight), unary_gradient, safe_gradient, gradient_step);
}

template <class T>
inline void sum_trees(const Trees<T>& trees, int64_t first, int64_t last, int thread, const Exponentials<T>* shared) {
    TreeRoom<T> room;
    room.received.resize(static_cast<size_t>(trees.forest.nodes));
    room.state.resize(static_cast<size_t>(2 * trees.forest.nodes * round_up(trees.forest.labels, Lanes<T>::count)) +
                      16);
    for (int64_t example = first; example < last; ++example) sum_tree<T>(trees, example, thread, shared, room);
}

// Whether no score of the best answer is so large that rounding to floats might have decided between it and others.
template <class T> inline bool rounding_is_small(const Trees<T>& trees, int64_t example, const T* unary,
                                                 const T* pair) {
    constexpr T most = 1 << 15;  // the spacing of such floats is 0.004
    const TreeAnswer<T> answer{
        {trees.forest, example}, trees.forest.labels, trees.labels + example * trees.forest.nodes};
    bool small = std::isfinite(trees.log_z[example]);
    answer.each(
        [&](int64_t entry) { small = small && std::fabs(unary[entry]) <= most; },
        [&](int64_t row, int64_t entry) { small = small && std::fabs(pair[row * trees.edge_stride + entry]) <= most; });
    return small;
}

// The best answer of an example in double precision, and its score.
template <class T> inline double best_in_double(const Trees<T>& trees, int64_t example, std::vector<double>& wide) {
    const Tree tree(trees.forest, example);
    const int64_t labels = trees.forest.labels, cells = tree.nodes * labels;
    int64_t tables = 1;
    for (int64_t node = 0; node < tree.nodes && trees.edge_stride; ++node)
        tables = std::max(tables, tree.edge[node] + 1);
    const T *unary = trees.unary + example * cells, *pair = trees.pair + example * trees.example_stride;
    wide.assign(unary, unary + cells);
    wide.insert(wide.end(), pair, pair + tables * labels * labels);
    std::vector<double> room;
    BestTree<double> best(trees.forest, example, wide.data(), wide.data() + cells, trees.edge_stride, nullptr);
    return best.run(room, trees.labels + example * tree.nodes);
}

template <class T> inline void best_trees(const Trees<T>& trees, int64_t first, int64_t last, const Padded<T>* shared) {
    std::vector<T> room;
    std::vector<double> wide;
    const int64_t cells = trees.forest.nodes * trees.forest.labels;
    for (int64_t example = first; example < last; ++example) {
        const T *unary = trees.unary + example * cells, *pair = trees.pair + example * trees.example_stride;
        int64_t* labels = trees.labels + example * trees.forest.nodes;
        BestTree<T> tree(trees.forest, example, unary, pair, trees.edge_stride, shared);
        trees.log_z[example] = tree.run(room, labels);
        if (std::is_same_v<T, float> && !rounding_is_small(trees, example, unary, pair))
            trees.log_z[example] = best_in_double(trees, example, wide);
    }
}

template <class T> static void sweep_trees(const Trees<T>& trees, int threads) {
    const int64_t labels = trees.forest.labels, padded = round_up(labels, Lanes<T>::count), table = labels * labels;
    if (labels == 0) {  // nodes without labels have no answer
        for (int64_t b = 0; b < trees.batch; ++b)
            trees.log_z[b] = trees.forest.count[b] == 0 ? 0
                             : trees.answers            ? std::numeric_limits<double>::quiet_NaN()
                                                        : NOTHING;
        return;
    }
    const int64_t each = (trees.batch + threads - 1) / threads;
    Exponentials<T> exponentials;
    Padded<T> scores;
    if (trees.shared() && trees.labels) scores.take(trees.pair, labels, padded);
    if (trees.shared() && !trees.labels) exponentials.take(trees.pair, labels, padded);
    bool fine = true;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(&& : fine)
#endif
    for (int thread = 0; thread < threads; ++thread) {
        const int64_t first = thread * each, last = std::min(trees.batch, (thread + 1) * each);
        const auto work = [&] {
            if (trees.labels)
                best_trees<T>(trees, first, last, trees.shared() ? &scores : nullptr);
            else
                sum_trees<T>(trees, first, last, thread, trees.shared() ? &exponentials : nullptr);
        };
        fine = memory_suffices(work) && fine;
    }
    if (!fine) throw std::bad_alloc();
    if (!trees.shared() || !trees.pair_gradient) return;
    for (int64_t thread = 0; thread < threads; ++thread)
        for (int64_t i = 0; i < labels; ++i)
            for (int64_t j = 0; j < labels; ++j) {
                T& to = trees.pair_gradient[thread * trees.gradient_stride + i * labels + j];
                to = to * exponentials.rows[0][i * padded + j] + trees.apart[thread * table + i * labels + j];
            }
}

}  // namespace energyml
