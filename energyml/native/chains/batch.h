// What every kernel over a batch of chains begins and ends with: their order, their shares, and zeros where nothing is
// computed.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstdint>
#include <vector>
#include "../simd/product.h"
#include "chain.h"

namespace energyml {

INLINE int thread_number() {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Longest first: the chains of a unit are alike, and those that have ended are the last of it.
template <class In> static void sort_by_length(const Chain<In>& chain, std::vector<int64_t>& rows) {
    const auto longer = [&](int64_t a, int64_t b) { return chain.lengths[a] > chain.lengths[b]; };
    if (chain.lengths && !std::is_sorted(rows.begin(), rows.end(), longer))
        std::stable_sort(rows.begin(), rows.end(), longer);
}

// How many chains of a unit, the longest first, have cell t.
INLINE int active_at(const int64_t* lengths, int active, int64_t t) {
    while (active > 0 && lengths[active - 1] <= t) --active;
    return active;
}

// How many chains share a unit: all that share each step's table when tables change from step to step, as each is
// exponentiated once.
template <class In> static int64_t unit_size(const Chain<In>& chain, int64_t count, int64_t threads, int64_t most) {
    if (chain.pair_example) return 1;
    const int64_t each = std::max<int64_t>(1, (count + threads - 1) / threads);
    if (chain.pair_step) return std::min(each, most);
    const int64_t turns = (each + ROWS - 1) / ROWS;
    return (count + threads * turns - 1) / (threads * turns);
}

// Zeros where no tier writes: cells that do not exist, chains without an answer or a weight, and sums before anything
// is added.
template <class In> static void clear(const Chain<In>& chain, const Answer<In>& answer) {
    const int64_t labels = chain.labels, size = chain.size, cells = labels * labels,
                  steps = std::max<int64_t>(0, size - 1);
    const bool direct = answer.pair && answer.pair_example && answer.pair_step;
    for (int64_t b = 0; b < chain.batch; ++b) {
        const bool empty = answer.weight_of(b) == 0;
        const int64_t n = empty ? 0 : chain.length(b);
        if (answer.unary)
            std::fill(answer.unary + (b * size + n) * labels, answer.unary + (b + 1) * size * labels,
                      static_cast<In>(0));
        if (direct) {
            In* all_steps = answer.pair + b * answer.pair_example;
            std::fill(all_steps + std::max<int64_t>(0, n - 1) * cells, all_steps + steps * cells, static_cast<In>(0));
        }
    }
    if (answer.pair && !direct)
        std::fill(answer.pair,
                  answer.pair + (answer.pair_example ? chain.batch : 1) * (answer.pair_step ? steps : 1) * cells,
                  static_cast<In>(0));
}

template <class In> static void clear_chain(const Chain<In>& chain, const Answer<In>& answer, int64_t b) {
    const int64_t labels = chain.labels, size = chain.size;
    if (answer.unary)
        std::fill(answer.unary + b * size * labels, answer.unary + (b + 1) * size * labels, static_cast<In>(0));
    if (answer.pair && answer.pair_example && answer.pair_step)
        std::fill(answer.pair + b * answer.pair_example,
                  answer.pair + b * answer.pair_example + (size - 1) * labels * labels, static_cast<In>(0));
}

// After the forward pass: the chains that go on, as they are safe and have an answer; how many.  Those without one get
// their zeros.
template <class In>
static int choose_answered(const Chain<In>& chain, const Answer<In>& answer, const int64_t* rows, int count,
                           uint8_t tier, int64_t* chosen, int64_t* slots) {
    int found = 0;
    for (int r = 0; r < count; ++r) {
        const int64_t b = rows[r];
        if (answer.tier[b] != tier || chain.length(b) == 0) continue;
        if (answer.log_z[b] == -INFINITY) {
            clear_chain(chain, answer, b);
            continue;
        }
        chosen[found] = b;
        slots[found++] = r;
    }
    return found;
}

}  // namespace energyml
