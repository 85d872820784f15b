// The work of a batch: chains are sorted by length and handed to threads in units; what a tier cannot hold goes to the
// next.
#pragma once

#include <numeric>
#include "interleaved.h"
#include "interleaved_viterbi.h"
#include "log_space.h"
#include "scaled.h"
#include "viterbi.h"
#include "viterbi_double.h"

namespace energyml {

// A call with the bytes of a vector of chains that stand side by side, as a constant.
template <class Work> static void with_width([[maybe_unused]] bool broad, const Work& work) {
    if constexpr (REGISTER == 64)
        if (broad) return work(std::integral_constant<int, 64>());
    work(std::integral_constant<int, 32>());
}

template <class In, class T>
static void scaled_tier(const Chain<In>& chain, const Answer<In>& answer, std::vector<int64_t>& rows, uint8_t tier,
                        ChainPasses passes, int threads) {
    if (rows.empty()) return;
    const int64_t labels = chain.labels, padded = padded_to<T>(labels), cells = packed_size<T>(labels);
    const bool shared = chain.stationary();
    Packed<T> table{};
    T floor = Limits<T>::varying_floor;
    if (shared) {
        measure<T>(chain.pair, labels, Limits<T>::table_lift, table);
        floor = std::numeric_limits<T>::min() * std::max<T>(1, 1 / table.least);
        if (!(table.least >= Limits<T>::least)) {
            for (int64_t b : rows) ++answer.tier[b];
            return;
        }
    }
    if (answer.pair && answer.pair_step && !answer.pair_example) threads = 1;  // all chains add to the same tables
    const int64_t each = unit_size(chain, rows.size(), threads, std::numeric_limits<int32_t>::max());
    const int64_t units = (static_cast<int64_t>(rows.size()) + each - 1) / each;
    const bool backward = passes != FORWARD, outer = backward && answer.pair && answer.pair_step == 0;
    const int64_t kept = passes == BOTH ? each * chain.size * padded : 0;
    const int64_t room = (ROWS + each) * padded + (shared ? 0 : 2 * cells) + (outer ? cells : 0) + 2 * kept;
    Buffer<T> memory(static_cast<size_t>(threads) * room + (shared ? 2 * cells : 0));
    T* const rooms = memory.data + (shared ? 2 * cells : 0);
    int64_t every = 1;
    if (shared) {
        table.forward = memory.data;
        table.backward = backward ? table.forward + cells : nullptr;
        exponentiate<T>(chain.pair, labels, table);
        every = rescale_every(table, labels);
    }
    std::vector<int64_t> local(each);
    std::iota(local.begin(), local.end(), 0);
    Buffer<Progress<T>> progress(static_cast<size_t>(threads * each));
    Buffer<int64_t> lists(static_cast<size_t>(threads * each * 3));  // lengths, chains and places of each unit
    const int64_t sums =
        (ROWS + each) * padded + (shared ? 0 : 2 * cells);  // where the outer products of a thread are added up
    if (outer)                                              // for all threads, also those that the runtime may refuse
        for (int k = 0; k < threads; ++k)
            std::fill(rooms + k * room + sums, rooms + k * room + sums + cells, static_cast<T>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t u = 0; u < units; ++u) {
        T* next = rooms + thread_number() * room;
        int64_t *const lengths = lists.data + thread_number() * each * 3, *const chosen = lengths + each,
                       *const slots = chosen + each;
        Scratch<T> scratch{next, nullptr, nullptr, nullptr, progress.data + thread_number() * each, lengths};
        next += (ROWS + each) * padded;
        if (!shared) {
            scratch.forward = next;
            scratch.backward = backward ? next + cells : nullptr;
            next += 2 * cells;
        }
        if (outer) {
            scratch.outer = next;
            next += cells;
        }
        const int64_t start = u * each;
        const int count = static_cast<int>(std::min<int64_t>(each, rows.size() - start));
        int64_t* mine = rows.data() + start;
        T *alpha = static_cast<T*>(answer.alpha), *emission = static_cast<T*>(answer.emission);
        if (passes == BOTH) {
            alpha = next;
            emission = next + kept;
        }
        Unit<In, T> unit{chain,         answer, mine,     passes == BOTH ? local.data() : mine,
                         count,         padded, table,    floor,
                         every,         alpha,  emission, scratch,
                         table.left_out};
        if (passes != BACKWARD) forward_unit(unit);
        if (!backward) continue;
        if (passes == BOTH) {
            unit.count = choose_answered(chain, answer, mine, count, tier, chosen, slots);
            unit.rows = chosen;
            unit.slots = slots;
        }
        backward_unit(unit);
        if (answer.pair && !(answer.pair_step && answer.pair_example)) sum_pairs(unit, tier);
    }
    if (outer && !answer.pair_example)
        for (int k = 0; k < threads; ++k)
            add_times_table<T>(rooms + k * room + sums, table.forward, labels, padded, answer.pair);
}

template <class In> static std::vector<int64_t> rows_of_tier(const Chain<In>& chain, const Answer<In>& answer,
                                                             uint8_t tier, bool backward) {
    std::vector<int64_t> rows;
    rows.reserve(chain.batch);
    for (int64_t b = 0; b < chain.batch; ++b)
        if (answer.tier[b] == tier && (!backward || answer.weight_of(b) != 0)) rows.push_back(b);
    sort_by_length(chain, rows);
    return rows;
}

// The chains of a tier in exp space, in numbers T.
template <class T, class In>
static void run_tier(const Chain<In>& chain, const Answer<In>& answer, std::vector<int64_t>& rows, uint8_t tier,
                     ChainPasses passes, int threads) {
    if (passes != BACKWARD && sums_interleaved<T>(chain, answer, rows.size()))
        with_width(groups_are_broad<T>(chain, rows.size(), threads), [&](auto width) {
            interleaved_tier<T, decltype(width)::value>(chain, answer, rows, tier, passes, threads);
        });
    else
        scaled_tier<In, T>(chain, answer, rows, tier, passes, threads);
}

// Everything in one go: log Z, and the gradients where they are asked for.  With kept alpha, only one of the passes.
template <class In> static void run_tiers(const Chain<In>& chain, const Answer<In>& answer, ChainPasses passes,
                                          int threads) {
    if (passes != BACKWARD) std::fill(answer.tier, answer.tier + chain.batch, static_cast<uint8_t>(NARROW));
    const bool backward = passes != FORWARD;
    if (backward) clear(chain, answer);
    std::vector<int64_t> rows = rows_of_tier(chain, answer, NARROW, backward);
    if (passes == BACKWARD) {
        size_t alive = 0;
        for (int64_t b : rows) {
            if (answer.log_z[b] == -INFINITY)
                clear_chain(chain, answer, b);
            else if (chain.length(b) > 0)
                rows[alive++] = b;
        }
        rows.resize(alive);
    }
    run_tier<In>(chain, answer, rows, NARROW, passes, threads);
    if (std::all_of(answer.tier, answer.tier + chain.batch, [](uint8_t tier) { return tier == NARROW; })) return;
    // Numbers of another width than the scores are not kept: both passes come again.
    const ChainPasses again = backward ? BOTH : FORWARD;
    Answer<In> fresh = answer;
    fresh.alpha = fresh.emission = nullptr;
    rows = rows_of_tier(chain, fresh, WIDE, backward);
    if constexpr (std::is_same_v<In, float>)
        run_tier<double>(chain, fresh, rows, WIDE, again, threads);
    else
        for (int64_t b : rows) answer.tier[b] = LOGARITHMIC;
    log_tier(chain, fresh, rows_of_tier(chain, fresh, LOGARITHMIC, backward), backward, threads);
}

template <class In> void run_all(const Chain<In>& chain, const Answer<In>& answer, ChainPasses passes, int threads) {
    if (chain.labels > 0)
        run_tiers(chain, answer, passes, threads);
    else  // cells without labels have no answer
        for (int64_t b = 0; b < chain.batch; ++b) answer.log_z[b] = chain.length(b) > 0 ? -INFINITY : 0;
    for (int64_t b = 0; b < chain.batch && answer.value; ++b) answer.value[b] = static_cast<In>(answer.log_z[b]);
}

template <class In>
static void best_narrow(const Chain<In>& chain, int64_t* labels_out, In* score, uint8_t* marks, int threads) {
    const int64_t labels = chain.labels, padded = padded_to<In>(labels), cells = packed_size<In>(labels);
    std::vector<int64_t> rows(chain.batch);
    std::iota(rows.begin(), rows.end(), 0);
    sort_by_length(chain, rows);
    if (goes_interleaved<In>(chain, rows.size(), 2))
        return with_width(groups_are_broad<In>(chain, rows.size(), threads), [&](auto width) {
            best_interleaved<In, decltype(width)::value>(chain, rows, labels_out, score, marks, threads);
        });
    const int64_t each = chain.batch ? std::min<int64_t>(ROWS, unit_size(chain, chain.batch, threads, ROWS)) : 1;
    const int64_t units = (chain.batch + each - 1) / each;
    const int64_t room = cells + each * chain.size * padded;
    Buffer<In> memory(static_cast<size_t>(threads) * room + 2 * cells);
    In *const forward = memory.data, *const rooms = forward + 2 * cells;
    if (chain.stationary() && units) pack_scores<In>(chain.pair, labels, forward, forward + cells);
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t u = 0; u < units; ++u) {
        In* own = rooms + thread_number() * room;
        const int count = static_cast<int>(std::min<int64_t>(each, chain.batch - u * each));
        BestUnit<In> unit{
            chain, rows.data() + u * each, count, padded, forward, forward + cells, own, own + cells, labels_out, score,
            marks};
        best_unit(unit);
    }
}

template <class In> static void best(const Chain<In>& chain, int64_t* labels_out, In* score, int threads) {
    if (chain.labels == 0) {
        std::fill(labels_out, labels_out + chain.batch * chain.size, static_cast<int64_t>(-1));
        for (int64_t b = 0; b < chain.batch; ++b)
            score[b] = chain.length(b) > 0 ? -std::numeric_limits<In>::infinity() : 0;
        return;
    }
    std::vector<uint8_t> marks(chain.batch);
    best_narrow(chain, labels_out, score, marks.data(), threads);
    best_wide(chain, marks, labels_out, score, threads);
}

}  // namespace energyml
