// One step of a beam search: the best continuations of every example, from the scores of a network in one pass over
// memory.
//
// The rows of an example stand together, those of all examples one after another.  A row is a hypothesis that goes on;
// complete answers stand in a pool.  Hypotheses that can no longer come before the answers that are wanted are dropped,
// so examples have as many rows as can still matter, and in the end none.
#pragma once

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

// How to search; the same for all steps.
struct Beam {
    int64_t examples, width, labels, size;
    int64_t end;     // the label that ends an answer, -1 where lengths are given
    int64_t wanted;  // how many answers are wanted
    bool local;      // whether scores become log-probabilities, which only fall
    bool within;     // whether complete answers keep their place in the beam
    double penalty;  // answers are ranked by score / length ^ penalty
    const int64_t* lengths;

    int64_t room() const { return examples * width; }
    // Of 2n, at least n do not end: each hypothesis ends in one way.
    int64_t considered() const { return end >= 0 && !within ? 2 * width : width; }
};

// Complete answers of each example, [examples, width], the best first: label `label` at step `last` after row `parent`.
template <class T> struct Pool {
    T *rank, *score;
    int32_t *label, *parent, *last, *count;
};

// The rows of a step: where those of each example begin, their scores so far; label, parent and example are those of
// the step before.
template <class T> struct Rows {
    int64_t* first;  // [examples + 1]
    T* total;
    int64_t *label, *parent, *example;
    int64_t *distinct, *slot;  // the different parents, and which of them each row has
};

// A candidate; `label` -1 for an answer that was complete before, number `row` of the pool.
template <class T> struct Candidate {
    T value;
    int32_t row, label;
};

template <class T> struct Choice {
    const Beam& beam;
    int64_t t;
    T* scores;      // [rows, labels]
    const T* bias;  // [labels], added to each row in place
    Rows<T> now;
    Pool<T> pool;
    Candidate<T>* going;  // [examples, width]
    int64_t* count;       // [examples]

    static constexpr T NOTHING = -std::numeric_limits<T>::infinity();

    // False where a score is not a number, or infinitely large.
    INLINE bool run(int64_t example, Candidate<T>* best) const {
        const int64_t from = now.first[example], to = now.first[example + 1], most = beam.considered();
        int64_t found = 0;
        count[example] = 0;
        if (from == to) return true;
        if (beam.within)
            for (int64_t k = 0; k < pool.count[example]; ++k)
                insert(best, found, most, {pool.score[example * beam.width + k], static_cast<int32_t>(k), -1});
        for (int64_t row = from; row < to; ++row)
            if (!consider(row, best, found, most)) return false;
        if (beam.end < 0) {
            if (beam.lengths[example] == t + 1) {
                for (int64_t k = 0; k < found; ++k) complete(example, best[k]);
                return true;
            }
        } else if (beam.within) {
            keep_within(example, best, found);
            return true;
        }
        int64_t kept = 0;
        for (int64_t k = 0; k < found; ++k) {
            if (best[k].label == beam.end) {
                if (k < beam.width) complete(example, best[k]);
            } else if (kept < beam.width) {
                going[example * beam.width + kept++] = best[k];
            }
        }
        count[example] = beam.local && beam.end >= 0 ? hopeful(example, kept) : kept;
        return true;
    }

  private:
    // The candidates of a row.
    INLINE bool consider(int64_t row, Candidate<T>* best, int64_t& found, int64_t most) const {
        constexpr int lanes = Lanes<T>::count;
        T* x = scores + row * beam.labels;
        const int64_t whole = beam.labels / lanes * lanes;
        V<T> high = all<T>(NOTHING);
        V<T> wrong = {};  // not a number as soon as a score is none
        for (int64_t j = 0; j < whole; j += lanes) {
            const V<T> v = load(x + j) + load(bias + j);
            store(x + j, v);
            high = larger<T>(v, high);
            wrong += v;
        }
        T top = horizontal_max<T>(high), sum = horizontal_sum<T>(wrong);
        for (int64_t j = whole; j < beam.labels; ++j) {
            x[j] += bias[j];
            sum += x[j];
            top = std::max(top, x[j]);
        }
        const bool fine = sum == sum;
        if (!fine || top > std::numeric_limits<T>::max()) return false;
        if (top == NOTHING) return true;
        T log_z = 0;
        if (beam.local) log_z = top + std::log(sum_of_exponentials(x, whole, top));
        const T before = now.total[row];
        const auto number = static_cast<int32_t>(row);
        if (beam.end >= 0 && t + 1 == beam.size) {  // at the longest length, the end is all that is left
            const T value = before + (x[beam.end] - log_z);
            if (value > NOTHING) insert(best, found, most, {value, number, static_cast<int32_t>(beam.end)});
            return true;
        }
        T limit = least(best, found, most, before, log_z);
        constexpr int64_t stretch = 8 * lanes;
        const int64_t stretches = beam.labels / stretch * stretch;
        for (int64_t j = 0; j < stretches; j += stretch) {
            V<T> highest = load(x + j);
            for (int64_t k = j + lanes; k < j + stretch; k += lanes) highest = larger<T>(load(x + k), highest);
            if (!any<T>(highest > all<T>(limit))) continue;
            for (int64_t k = j; k < j + stretch; ++k) {
                if (!(x[k] > limit)) continue;
                insert(best, found, most, {before + (x[k] - log_z), number, static_cast<int32_t>(k)});
                limit = least(best, found, most, before, log_z);
            }
        }
        for (int64_t k = stretches; k < beam.labels; ++k) {
            if (!(x[k] > limit)) continue;
            insert(best, found, most, {before + (x[k] - log_z), number, static_cast<int32_t>(k)});
            limit = least(best, found, most, before, log_z);
        }
        return true;
    }

    INLINE T sum_of_exponentials(const T* x, int64_t whole, T top) const {
        constexpr int lanes = Lanes<T>::count;
        V<T> one = {}, other = {};
        int64_t j = 0;
        for (; j + 2 * lanes <= whole; j += 2 * lanes) {
            one += exponential<T>(load(x + j) - top);
            other += exponential<T>(load(x + j + lanes) - top);
        }
        if (j < whole) one += exponential<T>(load(x + j) - top);
        T sum = horizontal_sum<T>(one + other);
        for (j = whole; j < beam.labels; ++j) sum += std::exp(x[j] - top);
        return sum;
    }

    // What a raw score must exceed to be worth a closer look: a little less than the last of the best.
    INLINE T least(const Candidate<T>* best, int64_t found, int64_t most, T before, T log_z) const {
        if (found < most) return NOTHING;
        const T last = best[most - 1].value;
        const T slack = 4 * std::numeric_limits<T>::epsilon() * (std::abs(last) + std::abs(before) + std::abs(log_z));
        return last - before + log_z - slack;
    }

    // Into the best, in order; among equals the first one stays.
    static INLINE void insert(Candidate<T>* best, int64_t& found, int64_t most, Candidate<T> one) {
        if (found == most && !(one.value > best[most - 1].value)) return;
        int64_t k = found < most ? found++ : most - 1;
        for (; k > 0 && best[k - 1].value < one.value; --k) best[k] = best[k - 1];
        best[k] = one;
    }

    INLINE T ranked(T score, int64_t length) const {
        return beam.penalty == 0 ? score : static_cast<T>(score / std::pow(static_cast<double>(length), beam.penalty));
    }

    INLINE void put(int64_t at, T rank, T score, int32_t label, int32_t parent, int32_t last) const {
        pool.rank[at] = rank;
        pool.score[at] = score;
        pool.label[at] = label;
        pool.parent[at] = parent;
        pool.last[at] = last;
    }

    // A complete answer into the pool, by rank.
    INLINE void complete(int64_t example, const Candidate<T>& one) const {
        const int64_t base = example * beam.width;
        const T rank = beam.end < 0 ? one.value : ranked(one.value, t + 1);
        int32_t& held = pool.count[example];
        if (held == beam.width && !(rank > pool.rank[base + held - 1])) return;
        int64_t k = held < beam.width ? held++ : beam.width - 1;
        for (; k > 0 && pool.rank[base + k - 1] < rank; --k) {
            const int64_t from = base + k - 1;
            put(base + k, pool.rank[from], pool.score[from], pool.label[from], pool.parent[from], pool.last[from]);
        }
        put(base + k, rank, one.value, one.label, one.row, static_cast<int32_t>(t));
    }

    // Complete answers and rows share the places of the beam.  The pool stays in the order of scores: it is written
    // from its end, where no answer is overwritten before it is read, as each moves back or stays.
    INLINE void keep_within(int64_t example, const Candidate<T>* best, int64_t found) const {
        const int64_t base = example * beam.width;
        int64_t kept = 0;
        for (int64_t k = 0; k < found; ++k)
            if (best[k].label != -1 && best[k].label != beam.end) going[base + kept++] = best[k];
        int64_t at = found - kept;
        pool.count[example] = static_cast<int32_t>(at);
        count[example] = kept;
        for (int64_t k = found - 1; k >= 0; --k) {
            if (best[k].label == -1) {
                const int64_t from = base + best[k].row;
                put(base + --at, pool.rank[from], pool.score[from], pool.label[from], pool.parent[from],
                    pool.last[from]);
            } else if (best[k].label == beam.end) {
                const T rank = ranked(best[k].value, t + 1);
                put(base + --at, rank, best[k].value, best[k].label, best[k].row, static_cast<int32_t>(t));
            }
        }
    }

    // How many of the rows, the best first, may still come before what is wanted: log-probabilities only fall, and at
    // best the longest length divides them.
    INLINE int64_t hopeful(int64_t example, int64_t kept) const {
        if (pool.count[example] < beam.wanted) return kept;
        const T bar = pool.rank[example * beam.width + beam.wanted - 1];
        while (kept > 0 && ranked(going[example * beam.width + kept - 1].value, beam.size) <= bar) --kept;
        return kept;
    }
};

// The rows of the next step, one after another, with back-pointers [rows]; how many there are, and how many parents
// they have.
template <class T>
static void line_up(const Beam& beam, const Candidate<T>* going, const int64_t* count, Rows<T> next, int32_t* label,
                    int32_t* parent, int64_t* sizes) {
    int64_t rows = 0, parents = 0;
    for (int64_t example = 0; example < beam.examples; ++example) {
        next.first[example] = rows;
        const Candidate<T>* one = going + example * beam.width;
        const int64_t before = parents;
        for (int64_t k = 0; k < count[example]; ++k, ++rows) {
            next.total[rows] = one[k].value;
            next.label[rows] = label[rows] = one[k].label;
            next.parent[rows] = parent[rows] = one[k].row;
            next.example[rows] = example;
            int64_t at = before;
            while (at < parents && next.distinct[at] != one[k].row) ++at;
            if (at == parents) next.distinct[parents++] = one[k].row;
            next.slot[rows] = at;
        }
    }
    next.first[beam.examples] = rows;
    sizes[0] = rows;
    sizes[1] = parents;
}

}  // namespace energyml
