// Elimination orders: the twin of energyml/plan/width.py, which finds the same orders.
#pragma once

#include <functional>
#include <iterator>
#include <queue>
#include <tuple>

#include "simd.h"

namespace energyml {

// The factors of a graph, without their tables.
struct Scopes {
    int64_t cells, factors;
    const int64_t* members;  // the cells of all factors, one after another
    const int64_t* starts;   // [factors + 1]
    const int64_t* sizes;    // [cells]
    const int64_t* weights;  // [cells]: logarithms of the sizes as whole numbers, whose sums are exact
    const uint8_t* marks;    // [cells]

    bool known(int64_t cell) const { return marks[cell] & 1; }
    bool late(int64_t cell) const { return !(marks[cell] & 2); }
};

// Whether a cell comes late, the edges it adds, the weight of its clique, its rank among those alike, and its number: the smallest is
// eliminated next.
using Key = std::tuple<bool, int64_t, int64_t, int64_t, int64_t>;

// Cells by their keys, where keys change: an entry that is not its cell's last is skipped.
class Queue {
  public:
    explicit Queue(int64_t cells) : current_(static_cast<size_t>(cells), Key{false, 0, 0, 0, GONE}) {}
    void put(const Key& key) {
        Key& before = current_[std::get<4>(key)];
        if (before == key) return;
        before = key;
        waiting_.push(key);
    }
    // The next cell, or -1 when none is left.
    int64_t take() {
        while (!waiting_.empty()) {
            const Key key = waiting_.top();
            waiting_.pop();
            const int64_t cell = std::get<4>(key);
            if (current_[cell] != key) continue;
            std::get<4>(current_[cell]) = GONE;
            return cell;
        }
        return -1;
    }

  private:
    static constexpr int64_t GONE = -1;
    std::vector<Key> current_;
    std::priority_queue<Key, std::vector<Key>, std::greater<Key>> waiting_;
};

// For each cell the cells it shares a factor with, sorted; known ones are nobody's neighbours.
class Lists {
  public:
    explicit Lists(const Scopes& graph) : around_(static_cast<size_t>(graph.cells)) {
        for (int64_t f = 0; f < graph.factors; ++f)
            for (int64_t a = graph.starts[f]; a < graph.starts[f + 1]; ++a)
                for (int64_t b = graph.starts[f]; b < graph.starts[f + 1]; ++b) {
                    const int64_t one = graph.members[a], other = graph.members[b];
                    if (one != other && !graph.known(one) && !graph.known(other)) around_[one].push_back(other);
                }
        for (auto& one : around_) {
            std::sort(one.begin(), one.end());
            one.erase(std::unique(one.begin(), one.end()), one.end());
        }
    }
    const std::vector<int64_t>& around(int64_t cell) const { return around_[cell]; }

    // Connect the neighbours of a cell and take it out of their lists; visit(neighbour, its new neighbours).
    template <class F> void eliminate(int64_t cell, F visit) {
        const std::vector<int64_t> clique = std::move(around_[cell]);
        for (int64_t one : clique) {
            std::vector<int64_t>& own = around_[one];
            own.erase(std::lower_bound(own.begin(), own.end(), cell));
            fresh_.clear();
            std::set_difference(clique.begin(), clique.end(), own.begin(), own.end(), std::back_inserter(fresh_));
            fresh_.erase(std::lower_bound(fresh_.begin(), fresh_.end(), one));
            if (!fresh_.empty()) {
                const auto middle = static_cast<std::ptrdiff_t>(own.size());
                own.insert(own.end(), fresh_.begin(), fresh_.end());
                std::inplace_merge(own.begin(), own.begin() + middle, own.end());
            }
            visit(one, fresh_);
        }
    }

  private:
    std::vector<std::vector<int64_t>> around_;
    std::vector<int64_t> fresh_;
};

// The greedy order of the smallest cliques.  Each search returns the width, or -1 where it is above the limit.
static int64_t min_weight(const Scopes& graph, double limit, int64_t, int64_t* order) {
    Lists lists(graph);
    Queue queue(graph.cells);
    std::vector<int64_t> weight(graph.weights, graph.weights + graph.cells);
    for (int64_t cell = 0; cell < graph.cells; ++cell) {
        if (graph.known(cell)) continue;
        for (int64_t one : lists.around(cell)) weight[cell] += graph.weights[one];
        queue.put(Key{graph.late(cell), 0, weight[cell], cell, cell});
    }
    size_t width = 0;
    for (int64_t cell; (cell = queue.take()) >= 0;) {
        width = std::max(width, lists.around(cell).size());
        if (static_cast<double>(width) > limit) return -1;
        *order++ = cell;
        lists.eliminate(cell, [&](int64_t one, const std::vector<int64_t>& fresh) {
            weight[one] -= graph.weights[cell];
            for (int64_t other : fresh) weight[one] += graph.weights[other];
            queue.put(Key{graph.late(one), 0, weight[one], one, one});
        });
    }
    return static_cast<int64_t>(width);
}

// The cells in the order in which they are numbered.
static int64_t natural(const Scopes& graph, double limit, int64_t, int64_t* order) {
    int64_t* end = order;
    for (int late = 0; late < 2; ++late)
        for (int64_t cell = 0; cell < graph.cells; ++cell)
            if (!graph.known(cell) && graph.late(cell) == (late == 1)) *end++ = cell;
    Lists lists(graph);
    size_t width = 0;
    for (; order < end; ++order) {
        width = std::max(width, lists.around(*order).size());
        if (static_cast<double>(width) > limit) return -1;
        lists.eliminate(*order, [](int64_t, const std::vector<int64_t>&) {});
    }
    return static_cast<int64_t>(width);
}

// The greedy order that adds the fewest edges, with a bit set of neighbours for each cell.
class MinFill {
  public:
    MinFill(const Scopes& graph, int64_t ties)
        : graph_(graph), ties_(static_cast<uint64_t>(ties)), words_((graph.cells + 63) / 64), bits_(static_cast<size_t>(graph.cells * words_), 0), touched_(static_cast<size_t>(words_)),
          clique_(touched_), fresh_(touched_), keys_(static_cast<size_t>(graph.cells)) {
        for (int64_t f = 0; f < graph.factors; ++f)
            for (int64_t a = graph.starts[f]; a < graph.starts[f + 1]; ++a)
                for (int64_t b = graph.starts[f]; b < graph.starts[f + 1]; ++b) {
                    const int64_t one = graph.members[a], other = graph.members[b];
                    if (one != other && !graph.known(one) && !graph.known(other)) around(one)[other / 64] |= bit(other);
                }
    }

    INLINE int64_t run(double limit, int64_t* order) {
        Queue queue(graph_.cells);
        for (int64_t cell = 0; cell < graph_.cells; ++cell)
            if (!graph_.known(cell)) queue.put(keys_[cell] = key(cell));
        int64_t width = 0;
        for (int64_t cell; (cell = queue.take()) >= 0;) {
            width = std::max(width, degree(around(cell)));
            if (static_cast<double>(width) > limit) return -1;
            *order++ = cell;
            join(cell);
            each(clique_.data(), [&](int64_t one) __attribute__((always_inline)) { keys_[one] = key(one); });
            each(touched_.data(), [&](int64_t one) __attribute__((always_inline)) { queue.put(keys_[one]); });
        }
        return width;
    }

  private:
    static uint64_t bit(int64_t cell) { return uint64_t{1} << (cell % 64); }
    uint64_t* around(int64_t cell) { return bits_.data() + cell * words_; }

    INLINE int64_t degree(const uint64_t* set) const {
        int64_t count = 0;
        for (int64_t w = 0; w < words_; ++w) count += __builtin_popcountll(set[w]);
        return count;
    }

    template <class F> INLINE void each(const uint64_t* set, F visit) const {
        for (int64_t w = 0; w < words_; ++w)
            for (uint64_t left = set[w]; left; left &= left - 1) visit(w * 64 + __builtin_ctzll(left));
    }

    INLINE Key key(int64_t cell) {
        const uint64_t* own = around(cell);
        int64_t count = 0, joined = 0, weight = graph_.weights[cell];
        each(own, [&](int64_t other) __attribute__((always_inline)) {
            const uint64_t* theirs = around(other);
            ++count;
            weight += graph_.weights[other];
            for (int64_t w = 0; w < words_; ++w) joined += __builtin_popcountll(own[w] & theirs[w]);
        });
        return Key{graph_.late(cell), (count * (count - 1) - joined) / 2, weight, rank(cell), cell};
    }

    // As `tie_rank` in Python.
    int64_t rank(int64_t cell) const {
        const uint64_t hash = (static_cast<uint64_t>(cell) + 1) * 2654435761u * (2 * ties_ - 1) & 0xffffffffu;
        return ties_ ? static_cast<int64_t>(hash) : cell;
    }

    // Connect the neighbours of a cell; the cells whose key may have changed are touched.  A new edge fills one gap for each cell that
    // sees both of its ends; of the cells of the clique the keys are counted anew.
    INLINE void join(int64_t cell) {
        std::copy(around(cell), around(cell) + words_, clique_.begin());
        touched_ = clique_;
        each(clique_.data(), [&](int64_t one) __attribute__((always_inline)) { around(one)[cell / 64] &= ~bit(cell); });
        each(clique_.data(), [&](int64_t one) __attribute__((always_inline)) {
            uint64_t* own = around(one);
            for (int64_t w = 0; w < words_; ++w) fresh_[w] = clique_[w] & ~own[w];
            fresh_[one / 64] &= ~bit(one);
            each(fresh_.data(), [&](int64_t other) __attribute__((always_inline)) {
                uint64_t* theirs = around(other);
                for (int64_t w = 0; w < words_; ++w) {
                    const uint64_t both = own[w] & theirs[w] & ~clique_[w];
                    touched_[w] |= both;
                    for (uint64_t left = both; left; left &= left - 1) --std::get<1>(keys_[w * 64 + __builtin_ctzll(left)]);
                }
                own[other / 64] |= bit(other);
                theirs[one / 64] |= bit(one);
            });
        });
    }

    const Scopes& graph_;
    uint64_t ties_;
    int64_t words_;
    std::vector<uint64_t> bits_, touched_, clique_, fresh_;
    std::vector<Key> keys_;
};

DISPATCH int64_t min_fill(const Scopes& graph, double limit, int64_t ties, int64_t* order) { return MinFill(graph, ties).run(limit, order); }

}  // namespace energyml
