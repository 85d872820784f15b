// Elimination orders: the twin of energyml/plan/width.py, which finds the same orders.
#pragma once

#include <utility>

#include <vector>

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

// The factors of a graph, without their tables.
struct Scopes {
    int64_t cells, factors;
    const int64_t* members;  // the cells of all factors, one after another
    const int64_t* starts;   // [factors + 1]
    const int64_t* sizes;    // [cells]
    const uint8_t* marks;    // [cells]
    std::vector<int64_t> weights =
        {};  // [cells]: logarithms of the sizes as whole numbers, whose sums are exact; for searches

    // As `clique_weights` in Python.
    void weigh() {
        weights.resize(static_cast<size_t>(cells));
        for (int64_t cell = 0; cell < cells; ++cell)
            weights[cell] =
                cell && sizes[cell] == sizes[cell - 1]
                    ? weights[cell - 1]
                    : std::llrint(std::log2(static_cast<double>(std::max<int64_t>(1, sizes[cell]))) * 4294967296.0);
    }

    bool known(int64_t cell) const { return marks[cell] & 1; }
    bool late(int64_t cell) const { return !(marks[cell] & 2); }
};

// What decides which cell is eliminated next, the smallest: whether it comes late and the edges it adds, the weight of
// its clique, its rank among those alike and, in the last 32 bits, its number.
struct Key {
    uint64_t fill;
    int64_t weight;
    uint64_t rank;

    Key(bool late, int64_t edges, int64_t clique, uint64_t among, int64_t number)
        : fill(static_cast<uint64_t>(edges) | uint64_t{late} << 63),
          weight(clique),
          rank(among << 32 | static_cast<uint64_t>(number)) {}
    int64_t cell() const { return static_cast<int64_t>(rank & 0xffffffffu); }
    bool operator==(const Key& other) const {
        return fill == other.fill && weight == other.weight && rank == other.rank;
    }
    bool operator>(const Key& other) const {
        if (fill != other.fill) return fill > other.fill;
        return weight != other.weight ? weight > other.weight : rank > other.rank;
    }
};

// Cells by their keys, where keys change: a heap that knows where each cell stands in it.
class Queue {
  public:
    explicit Queue(int64_t cells) : place_(static_cast<size_t>(cells), ABSENT) {
        heap_.reserve(static_cast<size_t>(cells));
    }
    void put(const Key& key) {
        int64_t& place = place_[key.cell()];
        if (place == ABSENT) {
            place = static_cast<int64_t>(heap_.size());
            heap_.push_back(key);
            rise(key, place);
        } else if (heap_[place] > key) {
            rise(key, place);
        } else if (!(heap_[place] == key)) {
            sink(key, place);
        }
    }
    // The next cell, or -1 when none is left.
    int64_t take() {
        if (heap_.empty()) return -1;
        const int64_t cell = heap_.front().cell();
        const Key last = heap_.back();
        heap_.pop_back();
        place_[cell] = ABSENT;
        if (!heap_.empty()) sink(last, 0);
        return cell;
    }

  private:
    void set(const Key& key, int64_t place) {
        heap_[place] = key;
        place_[key.cell()] = place;
    }
    void rise(const Key& key, int64_t place) {
        for (int64_t above; place && heap_[above = (place - 1) / 2] > key; place = above) set(heap_[above], place);
        set(key, place);
    }
    void sink(const Key& key, int64_t place) {
        const auto count = static_cast<int64_t>(heap_.size());
        for (int64_t below; (below = 2 * place + 1) < count; place = below) {
            below += below + 1 < count && heap_[below] > heap_[below + 1];
            if (!(key > heap_[below])) break;
            set(heap_[below], place);
        }
        set(key, place);
    }

    static constexpr int64_t ABSENT = -1;
    std::vector<Key> heap_;
    std::vector<int64_t> place_;
};

// For each cell the cells it shares a factor with, in any order; known ones are nobody's neighbours.
class Lists {
  public:
    explicit Lists(const Scopes& graph)
        : around_(static_cast<size_t>(graph.cells)), seen_(static_cast<size_t>(graph.cells), 0) {
        for (int64_t f = 0; f < graph.factors; ++f)
            for (int64_t a = graph.starts[f]; graph.starts[f + 1] - graph.starts[f] > 1 && a < graph.starts[f + 1]; ++a)
                for (int64_t b = graph.starts[f]; b < graph.starts[f + 1]; ++b) {
                    const int64_t one = graph.members[a], other = graph.members[b];
                    if (one != other && !graph.known(one) && !graph.known(other)) around_[one].push_back(other);
                }
        for (auto& one : around_) {
            const int64_t mark = ++marks_;
            const auto again = [&](int64_t other) { return std::exchange(seen_[other], mark) == mark; };
            one.erase(std::remove_if(one.begin(), one.end(), again), one.end());
        }
    }
    const std::vector<int64_t>& around(int64_t cell) const { return around_[cell]; }

    // Connect the neighbours of a cell and take it out of their lists; visit(neighbour, its new neighbours, how many).
    template <class F> void eliminate(int64_t cell, F visit) {
        const std::vector<int64_t> clique = std::move(around_[cell]);
        for (int64_t one : clique) {
            std::vector<int64_t>& own = around_[one];
            const int64_t mark = ++marks_;
            seen_[one] = mark;
            size_t place = 0;
            for (size_t k = 0; k < own.size(); ++k) {
                seen_[own[k]] = mark;
                if (own[k] == cell) place = k;
            }
            own[place] = own.back();
            own.pop_back();
            const size_t before = own.size();
            for (int64_t other : clique)
                if (seen_[other] != mark) own.push_back(other);
            visit(one, own.data() + before, static_cast<int64_t>(own.size() - before));
        }
    }

  private:
    std::vector<std::vector<int64_t>> around_;
    std::vector<int64_t> seen_;
    int64_t marks_ = 0;
};

// The greedy order of the smallest cliques.  Each search returns the width: the most cells that a message has; -1 where
// that is above a limit.
static int64_t min_weight(const Scopes& graph, double limit, int64_t, int64_t* order) {
    Lists lists(graph);
    Queue queue(graph.cells);
    std::vector<int64_t> weight(graph.weights);
    const auto put = [&](int64_t cell) {
        queue.put(Key{graph.late(cell), 0, weight[cell], static_cast<uint64_t>(cell), cell});
    };
    for (int64_t cell = 0; cell < graph.cells; ++cell) {
        if (graph.known(cell)) continue;
        for (int64_t one : lists.around(cell)) weight[cell] += graph.weights[one];
        put(cell);
    }
    int64_t width = 0;
    for (int64_t cell; (cell = queue.take()) >= 0;) {
        width = std::max(width, static_cast<int64_t>(lists.around(cell).size()));
        if (static_cast<double>(width) > limit) return -1;
        *order++ = cell;
        lists.eliminate(cell, [&](int64_t one, const int64_t* fresh, int64_t count) {
            weight[one] -= graph.weights[cell];
            for (int64_t k = 0; k < count; ++k) weight[one] += graph.weights[fresh[k]];
            put(one);
        });
    }
    return width;
}

// The cells in the order in which they are numbered.
static int64_t natural(const Scopes& graph, double limit, int64_t, int64_t* order) {
    int64_t* end = order;
    for (int late = 0; late < 2; ++late)
        for (int64_t cell = 0; cell < graph.cells; ++cell)
            if (!graph.known(cell) && graph.late(cell) == (late == 1)) *end++ = cell;
    Lists lists(graph);
    int64_t width = 0;
    for (; order < end; ++order) {
        width = std::max(width, static_cast<int64_t>(lists.around(*order).size()));
        if (static_cast<double>(width) > limit) return -1;
        lists.eliminate(*order, [](int64_t, const int64_t*, int64_t) {});
    }
    return width;
}

// The greedy order that adds the fewest edges, with a bit set of neighbours for each cell.
class MinFill {
  public:
    MinFill(const Scopes& graph, int64_t ties)
        : graph_(graph),
          ties_(static_cast<uint64_t>(ties)),
          words_((graph.cells + 63) / 64),
          bits_(static_cast<size_t>(graph.cells * words_), 0),
          touched_(static_cast<size_t>(words_)),
          clique_(touched_),
          fresh_(touched_),
          keys_(static_cast<size_t>(graph.cells), Key{false, 0, 0, 0, 0}) {
        for (int64_t f = 0; f < graph.factors; ++f)
            for (int64_t a = graph.starts[f]; a < graph.starts[f + 1]; ++a)
                for (int64_t b = graph.starts[f]; b < graph.starts[f + 1]; ++b) {
                    const int64_t one = graph.members[a], other = graph.members[b];
                    if (one != other && !graph.known(one) && !graph.known(other)) around(one)[other / 64] |= bit(other);
                }
    }

    inline int64_t run(double limit, int64_t* order) {
        Queue queue(graph_.cells);
        for (int64_t cell = 0; cell < graph_.cells; ++cell)
            if (!graph_.known(cell)) queue.put(keys_[cell] = key(cell));
        int64_t width = 0;
        for (int64_t cell; (cell = queue.take()) >= 0;) {
            width = std::max(width, degree(around(cell)));
            if (static_cast<double>(width) > limit) return -1;
            *order++ = cell;
            join(cell);
            each(touched_.data(), [&](int64_t one) { queue.put(keys_[one]); });
        }
        return width;
    }

  private:
    static uint64_t bit(int64_t cell) { return uint64_t{1} << (cell % 64); }
    uint64_t* around(int64_t cell) { return bits_.data() + cell * words_; }

    inline int64_t degree(const uint64_t* set) const {
        int64_t count = 0;
        for (int64_t w = 0; w < words_; ++w) count += __builtin_popcountll(set[w]);
        return count;
    }

    template <class F> inline void each(const uint64_t* set, F visit) const {
        for (int64_t w = 0; w < words_; ++w)
            for (uint64_t left = set[w]; left; left &= left - 1) visit(w * 64 + __builtin_ctzll(left));
    }

    inline Key key(int64_t cell) {
        const uint64_t* own = around(cell);
        int64_t count = 0, joined = 0, weight = graph_.weights[cell];
        each(own, [&](int64_t other) {
            const uint64_t* theirs = around(other);
            ++count;
            weight += graph_.weights[other];
            for (int64_t w = 0; w < words_; ++w) joined += __builtin_popcountll(own[w] & theirs[w]);
        });
        return Key{graph_.late(cell), (count * (count - 1) - joined) / 2, weight, rank(cell), cell};
    }

    // As `tie_rank` in Python.
    uint64_t rank(int64_t cell) const {
        return ties_ ? (static_cast<uint64_t>(cell) + 1) * 2654435761u * (2 * ties_ - 1) & 0xffffffffu
                     : static_cast<uint64_t>(cell);
    }

    // Connect the neighbours of a cell and keep all keys; the cells whose key may have changed are touched.
    inline void join(int64_t cell) {
        std::copy(around(cell), around(cell) + words_, clique_.begin());
        touched_ = clique_;
        each(clique_.data(), [&](int64_t one) {
            // With the cell go the gaps between it and the neighbours that it does not see.
            uint64_t* own = around(one);
            own[cell / 64] &= ~bit(cell);
            int64_t unseen = 0;
            for (int64_t w = 0; w < words_; ++w) unseen += __builtin_popcountll(own[w] & ~clique_[w]);
            keys_[one].fill -= static_cast<uint64_t>(unseen);
            keys_[one].weight -= graph_.weights[cell];
        });
        each(clique_.data(), [&](int64_t one) {
            const uint64_t* own = around(one);
            for (int64_t w = 0; w < words_; ++w) fresh_[w] = clique_[w] & ~own[w];
            fresh_[one / 64] &= ~bit(one);
            each(fresh_.data(), [&](int64_t other) { connect(one, other); });
        });
    }

    // A new edge fills a gap for each cell that sees both of its ends, and each end has gaps to the neighbours of the
    // other that it does not see.
    inline void connect(int64_t one, int64_t other) {
        uint64_t *own = around(one), *theirs = around(other);
        int64_t own_gaps = 0, their_gaps = 0;
        for (int64_t w = 0; w < words_; ++w) {
            const uint64_t both = own[w] & theirs[w];
            touched_[w] |= both;
            own_gaps += __builtin_popcountll(own[w] ^ both);
            their_gaps += __builtin_popcountll(theirs[w] ^ both);
            for (uint64_t left = both; left; left &= left - 1) --keys_[w * 64 + __builtin_ctzll(left)].fill;
        }
        keys_[one].fill += static_cast<uint64_t>(own_gaps);
        keys_[other].fill += static_cast<uint64_t>(their_gaps);
        keys_[one].weight += graph_.weights[other];
        keys_[other].weight += graph_.weights[one];
        own[other / 64] |= bit(other);
        theirs[one / 64] |= bit(one);
    }

    const Scopes& graph_;
    uint64_t ties_;
    int64_t words_;
    std::vector<uint64_t> bits_, touched_, clique_, fresh_;
    std::vector<Key> keys_;
};

inline int64_t min_fill(const Scopes& graph, double limit, int64_t ties, int64_t* order) {
    return MinFill(graph, ties).run(limit, order);
}

}  // namespace energyml
