// Trees: messages from the leaves to the roots and back, each example with a tree of its own.
//
// A message is a product of a vector and a table in exp space, in double precision: numbers are taken relative to the
// largest, and what lies within `SPREAD` of it is kept exactly.  A message whose scores spread further is computed in
// log space instead.
#pragma once

#include "../elimination/eliminate.h"

namespace energyml {

constexpr double SPREAD = 600;  // exp(-600) times exp(0) is still far from underflow

// Where each node of each example sends its message.
struct Forest {
    int64_t nodes, labels;
    const int64_t* parent;   // [B, nodes]: -1 for a root
    const int64_t* edge;     // [B, nodes]: the row of the pair table that joins a node to its parent
    const int64_t* order;    // [B, nodes]: by height, so that children come before their parents
    const int64_t* height;   // [B, nodes]: 0 for leaves
    const uint8_t* swapped;  // [B, nodes]: whether the node is the second end of its edge
    const int64_t* count;    // [B]: how many nodes exist
};

// The trees of one example.
struct Tree {
    int64_t nodes, count;
    const int64_t *parent, *edge, *order, *height;
    const uint8_t* swapped;

    Tree(const Forest& forest, int64_t example)
        : nodes(forest.nodes),
          count(forest.count[example]),
          parent(forest.parent + example * nodes),
          edge(forest.edge + example * nodes),
          order(forest.order + example * nodes),
          height(forest.height + example * nodes),
          swapped(forest.swapped + example * nodes) {}
};

// An answer to an example: a label for each node that exists.
template <class In> struct TreeAnswer {
    Tree tree;
    int64_t labels;
    const int64_t* chosen;  // [nodes]

    // Whether all of them are labels.
    bool exists() const {
        for (int64_t k = 0; k < tree.count; ++k)
            if (chosen[tree.order[k]] < 0 || chosen[tree.order[k]] >= labels) return false;
        return true;
    }
    // visit(entry of the unaries) and visit(row, entry of that row of the pair table), for all that have a part in its
    // score.
    template <class Single, class Pair> inline void each(Single single, Pair pair) const {
        for (int64_t k = 0; k < tree.count; ++k) {
            const int64_t node = tree.order[k], own = chosen[node];
            single(node * labels + own);
            if (tree.parent[node] < 0) continue;
            const int64_t above = chosen[tree.parent[node]];
            pair(tree.edge[node], tree.swapped[node] ? above * labels + own : own * labels + above);
        }
    }
    double score(const In* unary, const In* pair, int64_t edge_stride) const {
        double total = 0;
        each([&](int64_t entry) { total += unary[entry]; },
             [&](int64_t row, int64_t entry) { total += pair[row * edge_stride + entry]; });
        return total;
    }
    void add(In weight, In* unary, In* pair, int64_t edge_stride) const {
        each([&](int64_t entry) { unary[entry] += weight; },
             [&](int64_t row, int64_t entry) {
                 if (pair) pair[row * edge_stride + entry] += weight;
             });
    }
};

// exp(pair - shift), with the node's labels as rows and with the parent's labels as rows.
struct Weights {
    std::vector<double> by_node, by_parent;
    double shift = 0;
    bool narrow = true;

    template <class In> inline void take(const In* scores, int64_t labels, bool swapped) {
        const int64_t size = labels * labels;
        by_node.resize(size + 8);
        by_parent.resize(size + 8);
        const std::vector<double> table(scores, scores + size);
        const double* pair = table.data();
        double high = NOTHING, low = -NOTHING;
        for (int64_t k = 0; k < size; ++k) {
            high = pair[k] > high ? pair[k] : high;
            low = pair[k] < low && pair[k] > NOTHING ? pair[k] : low;
        }
        shift = high > NOTHING ? high : 0;
        narrow = !(high > NOTHING) || high - low <= SPREAD / 2;
        double* straight = (swapped ? by_parent : by_node).data();
        double* turned = (swapped ? by_node : by_parent).data();
        const V<double> base = all<double>(shift);
        for (int64_t k = 0; k < size; k += Lanes<double>::count) {
            alignas(64) double some[Lanes<double>::count] = {NOTHING, NOTHING, NOTHING, NOTHING};
            const int64_t live = std::min<int64_t>(Lanes<double>::count, size - k);
            std::memcpy(some, pair + k, sizeof(double) * live);
            store(straight + k, exponential<double>(load(some) - base));
        }
        for (int64_t i = 0; i < labels; ++i)
            for (int64_t j = 0; j < labels; ++j) turned[j * labels + i] = straight[i * labels + j];
    }
};

// out = vector @ table, the table's rows following the vector's labels.
inline void times(const double* vector, const double* table, int64_t labels, double* out) {
    for (int64_t k = 0; k < labels; ++k) out[k] = 0;
    for (int64_t i = 0; i < labels; ++i) {
        const double factor = vector[i];
        const double* row = table + i * labels;
        for (int64_t k = 0; k < labels; ++k) out[k] += factor * row[k];
    }
}

// The trees of one example, safe at any magnitude.
template <class In> class TreePass {
  public:
    TreePass(const Forest& forest, int64_t example, const In* unary, const In* pair, int64_t edge_stride)
        : tree_(forest, example), labels_(forest.labels), unary_(unary), pair_(pair), edge_stride_(edge_stride) {}

    // log Z.
    inline double up(std::vector<double>& room) {
        const size_t size = static_cast<size_t>(tree_.nodes * labels_);
        room.resize(4 * size + tree_.nodes + labels_ + 64);
        belief_ = room.data();
        scaled_ = belief_ + size;
        sums_ = scaled_ + size;
        marginal_ = sums_ + size;
        wide_ = marginal_ + size;
        spare_ = wide_ + tree_.nodes;
        for (int64_t k = 0; k < tree_.count; ++k) {
            const In* from = unary_ + tree_.order[k] * labels_;
            std::copy(from, from + labels_, at(belief_, tree_.order[k]));
        }
        double total = 0;
        for (int64_t k = 0; k < tree_.count; ++k) {
            const int64_t node = tree_.order[k];
            if (tree_.parent[node] < 0)
                total += root(node);
            else
                send(node);
        }
        return total;
    }

    // Marginals times the weight into `unary_gradient` [nodes, labels]; those of pairs are added to `pair_gradient`.
    inline void down(double weight, In* unary_gradient, In* pair_gradient, int64_t gradient_stride) {
        for (int64_t k = tree_.count - 1; k >= 0; --k) {
            const int64_t node = tree_.order[k], parent = tree_.parent[node];
            double* own = at(marginal_, node);
            if (parent < 0) {
                const double* p = at(scaled_, node);
                const double sum = *at(sums_, node);
                for (int64_t c = 0; c < labels_; ++c) own[c] = sum > 0 ? p[c] / sum * weight : 0;
            } else {
                In* gradient = pair_gradient ? pair_gradient + tree_.edge[node] * gradient_stride : nullptr;
                if (wide_[node] != 0)
                    wide_shares(node, at(marginal_, parent), own, gradient);
                else
                    shares(node, at(marginal_, parent), own, gradient);
            }
            std::copy(own, own + labels_, unary_gradient + node * labels_);
        }
    }

  private:
    template <class T> T* at(T* base, int64_t node) const { return base + node * labels_; }

    double pair_at(int64_t node, int64_t own, int64_t above) const {
        const In* table = pair_ + tree_.edge[node] * edge_stride_;
        return tree_.swapped[node] ? table[above * labels_ + own] : table[own * labels_ + above];
    }

    // exp(belief - max) of a node; returns the maximum, and whether its numbers are close enough together.
    inline double scale(int64_t node, bool& narrow) {
        const double* belief = at(belief_, node);
        double* scaled = at(scaled_, node);
        double high = NOTHING, low = -NOTHING;
        for (int64_t c = 0; c < labels_; ++c) {
            high = belief[c] > high ? belief[c] : high;
            low = belief[c] < low && belief[c] > NOTHING ? belief[c] : low;
        }
        narrow = !(high > NOTHING) || high - low <= SPREAD / 2;
        const V<double> base = all<double>(high > NOTHING ? high : 0);
        for (int64_t c = 0; c < labels_; c += Lanes<double>::count) {
            alignas(64) double some[Lanes<double>::count] = {NOTHING, NOTHING, NOTHING, NOTHING};
            const int64_t live = std::min<int64_t>(Lanes<double>::count, labels_ - c);
            std::memcpy(some, belief + c, sizeof(double) * live);
            store(some, exponential<double>(load(some) - base));
            std::memcpy(scaled + c, some, sizeof(double) * live);
        }
        return high;
    }

    inline double root(int64_t node) {
        bool narrow;
        const double high = scale(node, narrow);
        const double* scaled = at(scaled_, node);
        double sum = 0;
        for (int64_t c = 0; c < labels_; ++c) sum += scaled[c];
        *at(sums_, node) = high > NOTHING ? sum : 0;
        return high > NOTHING ? high + std::log(sum) : NOTHING;
    }

    const Weights& weights(int64_t node) {
        own_.take(pair_ + tree_.edge[node] * edge_stride_, labels_, tree_.swapped[node]);
        return own_;
    }

    inline void send(int64_t node) {
        double* above = at(belief_, tree_.parent[node]);
        bool narrow;
        const double high = scale(node, narrow);
        const Weights& table = weights(node);
        double* sums = at(sums_, node);
        wide_[node] = !narrow || !table.narrow;
        if (wide_[node] != 0) {
            for (int64_t p = 0; p < labels_; ++p) above[p] += sums[p] = log_sum(node, p);
            return;
        }
        times(at(scaled_, node), table.by_node.data(), labels_, sums);
        const double base = high > NOTHING ? high + table.shift : 0;
        for (int64_t p = 0; p < labels_; ++p) above[p] += sums[p] > 0 ? std::log(sums[p]) + base : NOTHING;
    }

    double log_sum(int64_t node, int64_t p) const {
        const double* belief = at(belief_, node);
        double high = NOTHING, sum = 0;
        for (int64_t c = 0; c < labels_; ++c) high = std::max(high, belief[c] + pair_at(node, c, p));
        if (!(high > NOTHING)) return NOTHING;
        for (int64_t c = 0; c < labels_; ++c) sum += std::exp(belief[c] + pair_at(node, c, p) - high);
        return high + std::log(sum);
    }

    inline void shares(int64_t node, const double* above, double* own, In* gradient) {
        const Weights& table = weights(node);
        const double* sums = at(sums_, node);
        const double* scaled = at(scaled_, node);
        double* ratio = spare_;
        for (int64_t p = 0; p < labels_; ++p) ratio[p] = sums[p] > 0 ? above[p] / sums[p] : 0;
        times(ratio, table.by_parent.data(), labels_, own);
        for (int64_t c = 0; c < labels_; ++c) own[c] *= scaled[c];
        if (!gradient) return;
        for (int64_t c = 0; c < labels_; ++c)
            for (int64_t p = 0; p < labels_; ++p)
                entry(gradient, node, c, p) += static_cast<In>(scaled[c] * ratio[p] * table.by_node[c * labels_ + p]);
    }

    inline void wide_shares(int64_t node, const double* above, double* own, In* gradient) {
        const double* belief = at(belief_, node);
        double* terms = spare_;
        for (int64_t c = 0; c < labels_; ++c) own[c] = 0;
        for (int64_t p = 0; p < labels_; ++p) {
            double high = NOTHING, sum = 0;
            for (int64_t c = 0; c < labels_; ++c) high = std::max(high, terms[c] = belief[c] + pair_at(node, c, p));
            if (!(high > NOTHING) || above[p] == 0) continue;
            // divided by their own sum, as the logarithm of a large one has no digits for it
            for (int64_t c = 0; c < labels_; ++c) sum += terms[c] = std::exp(terms[c] - high);
            for (int64_t c = 0; c < labels_; ++c) {
                const double share = above[p] * terms[c] / sum;
                own[c] += share;
                if (gradient) entry(gradient, node, c, p) += static_cast<In>(share);
            }
        }
    }

    In& entry(In* gradient, int64_t node, int64_t own, int64_t above) const {
        return gradient[tree_.swapped[node] ? above * labels_ + own : own * labels_ + above];
    }

    Tree tree_;
    int64_t labels_;
    const In *unary_, *pair_;
    int64_t edge_stride_;
    Weights own_;
    double *belief_ = nullptr, *scaled_ = nullptr, *sums_ = nullptr, *marginal_ = nullptr, *wide_ = nullptr,
           *spare_ = nullptr;
};

// What rooting trees needs, for one example after another.
struct Rooting {
    struct Node {
        int32_t degree, others,
            lines;  // neighbours, and the exclusive-or of these and of the edges to them: a leaf's are its only ones
        int32_t height;
    };
    std::vector<Node> nodes;
    std::vector<int64_t> queue, second, roots;
};

// Leaves first: parents, edges and order of one example; false when its edges make a cycle.  Edges with an end that is
// no node do not count. Nodes are ordered by height, then by the end of the edge that they are, roots last: those alike
// stand together.
inline bool order_forest(int64_t nodes, int64_t edges, const int64_t* ends, const uint8_t* exists, int64_t* parent,
                         int64_t* edge, int64_t* order, int64_t* height, uint8_t* swapped, int64_t* count,
                         Rooting& room) {
    room.nodes.assign(nodes, {});
    for (auto* one : {&room.queue, &room.second, &room.roots}) one->resize(static_cast<size_t>(nodes) + 1);
    Rooting::Node* const all = room.nodes.data();
    int64_t *const queue = room.queue.data(), *const second = room.second.data(), *const roots = room.roots.data();
    int64_t joined = 0, present = 0, found = 0;
    for (int64_t e = 0; e < edges; ++e) {
        const int64_t a = ends[2 * e], b = ends[2 * e + 1];
        if (a < 0 || b < 0 || a >= nodes || b >= nodes) continue;
        if (a == b) return false;
        const int32_t line = static_cast<int32_t>(e);
        ++joined;
        ++all[a].degree, ++all[b].degree;
        all[a].others ^= static_cast<int32_t>(b), all[b].others ^= static_cast<int32_t>(a);
        all[a].lines ^= line, all[b].lines ^= line;
    }
    std::fill(parent, parent + nodes, -1);
    std::fill(edge, edge + nodes, -1);
    std::fill(swapped, swapped + nodes, static_cast<uint8_t>(0));
    // A node enters the queue when one neighbour is left, so that trees are as low as can be; by sums rather than
    // branches, which nobody foresees.
    for (int64_t n = 0; n < nodes; ++n) {
        queue[found] = n;
        found += exists[n] && all[n].degree == 1;
        present += exists[n] != 0;
    }
    // Those that the queue has are of growing height, but for roots.  Second ends of one height wait for the first
    // ends.
    int64_t placed = 0, waiting = 0, rooted = 0;
    int32_t level = 0;
    const auto let_in = [&] {
        placed = std::copy(second, second + waiting, order + placed) - order;
        waiting = 0;
    };
    for (int64_t k = 0; k < found; ++k) {
        const int64_t leaf = queue[k];
        const Rooting::Node own = all[leaf];
        if (own.degree == 0) {
            roots[rooted++] = leaf;
            continue;
        }
        if (own.height != level) let_in();
        level = own.height;
        const bool is_second = ends[2 * static_cast<int64_t>(own.lines) + 1] == leaf;
        parent[leaf] = own.others, edge[leaf] = own.lines, swapped[leaf] = is_second;
        order[placed] = second[waiting] = leaf;
        placed += !is_second, waiting += is_second;
        Rooting::Node& above = all[own.others];
        above.height = std::max(above.height, own.height + 1);
        above.others ^= static_cast<int32_t>(leaf), above.lines ^= own.lines;
        --joined;
        queue[found] = own.others;
        found += --above.degree == 1;
    }
    if (joined) return false;
    let_in();
    for (int64_t n = 0; n < nodes; ++n) {
        height[n] = all[n].height;
        if (exists[n] && all[n].degree == 0 && all[n].height == 0) roots[rooted++] = n;  // alone
    }
    *count = placed + rooted;
    if (*count != present) return false;
    std::copy(roots, roots + rooted, order + placed);
    return true;
}

}  // namespace energyml
