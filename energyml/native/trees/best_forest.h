// The best answer of trees: additions and maxima in the scores' own type, labels found again on the way back, scores
// added up in double precision.
#pragma once

#include "forest.h"

namespace energyml {

// A pair table with rows padded to whole vectors, by the labels of an edge's first end [0] and of its second [1].
template <class T> struct Padded {
    std::vector<T> rows[2];

    inline void take(const T* pair, int64_t labels, int64_t padded) {
        for (auto& one : rows) one.assign(static_cast<size_t>(labels * padded), -std::numeric_limits<T>::infinity());
        for (int64_t i = 0; i < labels; ++i)
            for (int64_t j = 0; j < labels; ++j)
                rows[0][i * padded + j] = rows[1][j * padded + i] = pair[i * labels + j];
    }
};

template <class T> class BestTree {
  public:
    BestTree(const Forest& forest, int64_t example, const T* unary, const T* pair, int64_t edge_stride,
             const Padded<T>* shared)
        : tree_(forest, example),
          labels_(forest.labels),
          padded_(round_up(forest.labels, Lanes<T>::count)),
          unary_(unary),
          pair_(pair),
          edge_stride_(edge_stride),
          shared_(shared) {}

    // The best score, and the labels [nodes] that have it.
    inline double run(std::vector<T>& room, int64_t* labels) {
        room.resize(static_cast<size_t>((tree_.nodes + 1) * padded_));
        const T nothing = -std::numeric_limits<T>::infinity();
        for (int64_t k = 0; k < tree_.count; ++k) {
            T* own = room.data() + tree_.order[k] * padded_;
            std::memcpy(own, unary_ + tree_.order[k] * labels_, sizeof(T) * labels_);
            for (int64_t c = labels_; c < padded_; ++c) own[c] = nothing;
        }
        for (int64_t k = 0; k < tree_.count; ++k) {
            const int64_t node = tree_.order[k];
            if (tree_.parent[node] < 0) continue;
            const T* own = room.data() + node * padded_;
            T* above = room.data() + tree_.parent[node] * padded_;
            const T* table = weights(node).rows[tree_.swapped[node]].data();
            int64_t p = 0;
            for (; p + 3 * Lanes<T>::count <= padded_; p += 3 * Lanes<T>::count) columns<3>(own, table + p, above + p);
            for (; p < padded_; p += Lanes<T>::count) columns<1>(own, table + p, above + p);
        }
        return walk(room.data(), labels);
    }

  private:
    // above += the best over own labels, for P vectors of the parent's labels; even and odd labels apart, as each waits
    // for its last.
    template <int P> inline void columns(const T* own, const T* table, T* above) const {
        constexpr int lanes = Lanes<T>::count;
        V<T> best[2][P];
        for (auto& row : best)
            for (V<T>& one : row) one = all<T>(-std::numeric_limits<T>::infinity());
        int64_t c = 0;
        for (; c + 1 < labels_; c += 2)
            for (int odd = 0; odd < 2; ++odd)
                for (int p = 0; p < P; ++p)
                    best[odd][p] =
                        larger<T>(all<T>(own[c + odd]) + load(table + (c + odd) * padded_ + p * lanes), best[odd][p]);
        if (c < labels_)
            for (int p = 0; p < P; ++p)
                best[0][p] = larger<T>(all<T>(own[c]) + load(table + c * padded_ + p * lanes), best[0][p]);
        for (int p = 0; p < P; ++p)
            store(above + p * lanes, load(above + p * lanes) + larger<T>(best[0][p], best[1][p]));
    }

    const Padded<T>& weights(int64_t node) {
        if (shared_) return *shared_;
        own_.take(pair_ + tree_.edge[node] * edge_stride_, labels_, padded_);
        return own_;
    }

    inline double walk(const T* beliefs, int64_t* labels) {
        double total = 0;
        for (int64_t k = tree_.count - 1; k >= 0; --k) {
            const int64_t node = tree_.order[k], parent = tree_.parent[node];
            const T* own = beliefs + node * padded_;
            int64_t pick;
            if (parent < 0) {
                pick = highest(own, [](int64_t) { return V<T>{}; });
            } else {
                const T* table = pair_ + tree_.edge[node] * edge_stride_;
                const int64_t above = labels[parent], step = tree_.swapped[node] ? 1 : labels_,
                              start = above * (tree_.swapped[node] ? labels_ : 1);
                if (shared_) {
                    const T* row = shared_->rows[!tree_.swapped[node]].data() + above * padded_;
                    pick = highest(own, [&](int64_t c) { return load(row + c); });
                } else {
                    pick = highest_of(own, table + start, step);
                }
                total += static_cast<double>(table[start + pick * step]);
            }
            labels[node] = pick;
            total += static_cast<double>(unary_[node * labels_ + pick]);
        }
        return total;
    }

    // The first label with the best score, where `more(c)` adds to a vector of them.
    template <class F> inline int64_t highest(const T* own, F more) const {
        constexpr int lanes = Lanes<T>::count;
        V<T> label, high = load(own) + more(0);
        for (int l = 0; l < lanes; ++l) label[l] = static_cast<T>(l);
        V<T> best = label;
        for (int64_t c = lanes; c < padded_; c += lanes) {
            label += static_cast<T>(lanes);
            const V<T> score = load(own + c) + more(c);
            best = score > high ? label : best;
            high = larger<T>(score, high);
        }
        const V<T> top = all<T>(horizontal_max<T>(high));
        return static_cast<int64_t>(-horizontal_max<T>(high == top ? -best : all<T>(-static_cast<T>(padded_))));
    }

    inline int64_t highest_of(const T* own, const T* from, int64_t step) const {
        int64_t pick = 0;
        T high = -std::numeric_limits<T>::infinity();
        for (int64_t c = 0; c < labels_; ++c) {
            const T score = own[c] + from[c * step];
            if (score > high) high = score, pick = c;
        }
        return pick;
    }

    Tree tree_;
    int64_t labels_, padded_;
    const T *unary_, *pair_;
    int64_t edge_stride_;
    const Padded<T>* shared_;
    Padded<T> own_;
};

}  // namespace energyml
