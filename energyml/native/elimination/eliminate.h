// Elimination of cells from a factor graph, in log space and double precision.
//
// The way up leaves a message for every step.  The way back visits the same blocks and hands each table its share of
// the probability (or of the best score), so that one sweep gives the gradients of log Z by all tables: marginals.
#pragma once

#include "blocks.h"

namespace energyml {

// out[l] = log sum exp (or max) of column l of a block; -inf where every entry is.
template <bool MAX> inline void reduce(double* block, int64_t rows, int64_t stride, int64_t width, double* out) {
    constexpr int lanes = Lanes<double>::count;
    int64_t l = 0;
    for (; l < width; l += lanes) {
        alignas(64) double spare[lanes];
        const int64_t live = std::min<int64_t>(lanes, width - l);
        V<double> high = load(block + l);
        for (int64_t j = 1; j < rows; ++j) {
            V<double> x = load(block + j * stride + l);
            high = x > high ? x : high;
        }
        V<double> result = high;
        if (!MAX) {
            const V<double> base = high > all<double>(NOTHING) ? high : V<double>{};
            const V<double> one = all<double>(1.0);
            V<double> sum = V<double>{};
            if (rows == 2) {  // the larger of the two adds exp(0)
                V<double> first = load(block + l), second = load(block + stride + l);
                sum = one + exponential<double>((first < second ? first : second) - base);
            } else {
                for (int64_t j = 0; j < rows; ++j) sum += exponential<double>(load(block + j * stride + l) - base);
            }
            result = high > all<double>(NOTHING) ? logarithm(sum > one ? sum : one) + base : all<double>(NOTHING);
        }
        if (live == lanes) {
            store(out + l, result);
        } else {
            store(spare, result);
            std::memcpy(out + l, spare, sizeof(double) * live);
        }
    }
}

// A long column alone: rows are added up in lanes.
template <bool MAX> inline double reduce_column(const double* block, int64_t rows, int64_t stride) {
    double high = NOTHING;
    for (int64_t j = 0; j < rows; ++j) high = std::max(high, block[j * stride]);
    if (MAX || !(high > NOTHING)) return high;
    double sum = 0;
    for (int64_t j = 0; j < rows; ++j) sum += std::exp(block[j * stride] - high);
    return high + std::log(sum);
}

// A small step, entry by entry.  `visit(entry, row)` gets the sums for the labels of the cell.
template <class F> inline void each_small(const Elimination& step, const Tables& tables, F visit) {
    const int64_t inputs = step.inputs.count, kept = step.kept.count;
    const double* from[MOST_INPUTS];
    for (int64_t k = 0; k < inputs; ++k) from[k] = tables.at<false>(step.inputs[k]);
    int64_t index[MOST_KEPT] = {};
    double row[SMALL];
    for (int64_t entry = 0; entry < step.entries; ++entry) {
        for (int64_t j = 0; j < step.rows; ++j) row[j] = 0;
        for (int64_t k = 0; k < inputs; ++k)
            if (from[k])
                for (int64_t j = 0; j < step.rows; ++j) row[j] += from[k][j * step.inputs[k].row];
        visit(entry, row, index);
        for (int64_t d = kept; d-- > 0;) {
            const bool carry = ++index[d] == step.sizes[d];
            const int64_t by = carry ? 1 - step.sizes[d] : 1;
            for (int64_t k = 0; k < inputs; ++k)
                if (from[k]) from[k] += by * step.inputs[k].strides[d];
            if (!carry) break;
            index[d] = 0;
        }
    }
}

template <bool MAX> inline void send(const Elimination& step, const Tables& tables, Room& room) {
    if (step.small) {
        double* to = tables.messages + step.message;
        each_small(step, tables, [&](int64_t entry, const double* row, const int64_t*) {
            to[entry] = reduce_column<MAX>(row, step.rows, 1);
        });
        return;
    }
    Blocks blocks(step, tables, room);
    double* out = tables.messages + step.message;
    blocks.each([&](int64_t entry, int64_t, int64_t width, double* block) {
        if (width == 1)
            out[entry] = reduce_column<MAX>(block, step.rows, blocks.stride());
        else
            reduce<MAX>(block, step.rows, blocks.stride(), width, out + entry);
    });
}

// All messages: the first `sums` steps sum their cell out, the others take the best label.
inline void sweep_up(const Graph& graph, const Tables& tables, int64_t sums, Room& room) {
    for (size_t k = 0; k < graph.steps.size(); ++k) {
        if (static_cast<int64_t>(k) < sums)
            send<false>(graph.steps[k], tables, room);
        else
            send<true>(graph.steps[k], tables, room);
    }
}

// The sum of what depends on no cell any more: log Z, or the best score.
inline double total_of(const Graph& graph, const Tables& tables) {
    double total = 0;
    for (const Input& one : graph.loose) {
        const double* value = tables.at<false>(one);
        if (value) total += *value;
    }
    return total;
}

// Hand one share to the gradients of a small step's inputs.
template <bool MAX> inline void give_small(const Elimination& step, double* const* to, int64_t j, const int64_t* index,
                                           double value) {
    for (int64_t k = 0; k < step.inputs.count; ++k) {
        if (!to[k]) continue;
        int64_t place = j * step.inputs[k].row;
        for (int64_t d = 0; d < step.kept.count; ++d) place += index[d] * step.inputs[k].strides[d];
        to[k][place] = MAX ? std::max(to[k][place], value) : to[k][place] + value;
    }
}

// The way back through a small step; its part of the entropy.
template <bool MAX> inline double small_shares(const Elimination& step, const Tables& tables) {
    const double* message = tables.messages + step.message;
    const double* share = tables.shares + step.message;
    double* to[MOST_INPUTS];
    for (int64_t k = 0; k < step.inputs.count; ++k) to[k] = tables.gradient(step.inputs[k]);
    double entropy = 0;
    each_small(step, tables, [&](int64_t entry, const double* row, const int64_t* index) {
        if (share[entry] == (MAX ? NOTHING : 0.0)) return;
        const double base = message[entry] > NOTHING ? message[entry] : 0;
        for (int64_t j = 0; j < step.rows; ++j) {
            const double below = row[j] - base;
            const double value = MAX ? below + share[entry] : std::exp(below) * share[entry];
            if (!MAX && value > 0) entropy -= value * below;
            give_small<MAX>(step, to, j, index, value);
        }
    });
    return entropy;
}

// Shares of the probability (SUM: weighted by `weight`), or the best score that goes through each entry (MAX: `weight`
// is the best), for the steps from `first` on.  In the sum case it returns the entropy of the cells of the steps from
// `counted` on.
template <bool MAX>
inline double sweep_down(const Graph& graph, const Tables& tables, double weight, int64_t first, int64_t counted,
                         Room& room) {
    std::fill(tables.shares, tables.shares + graph.workspace, MAX ? NOTHING : 0.0);
    V<double> entropy = V<double>{};
    for (const Input& one : graph.loose) {
        double* gradient = tables.gradient(one);
        if (gradient) *gradient = MAX ? std::max(*gradient, weight) : *gradient + weight;
    }
    for (int64_t k = static_cast<int64_t>(graph.steps.size()) - 1; k >= first; --k) {
        const Elimination& step = graph.steps[k];
        const double count = k >= counted;
        const double* message = tables.messages + step.message;
        const double* share = tables.shares + step.message;
        if (step.small) {
            entropy[0] += small_shares<MAX>(step, tables) * count;
            continue;
        }
        Blocks blocks(step, tables, room);
        blocks.template open_common<MAX>();
        blocks.each([&](int64_t entry, int64_t start, int64_t width, double* block) {
            bool any = false;
            for (int64_t l = 0; l < width; ++l) any |= share[entry + l] != (MAX ? NOTHING : 0.0);
            if (!any) return;
            for (int64_t l = 0; l < width; l += Lanes<double>::count) {
                // Past the last lane lies room (see `PADDING`); what is read there counts for nothing.
                V<double> base = load(message + entry + l), weight = load(share + entry + l);
                for (int64_t i = width - l; i < Lanes<double>::count; ++i) base[i] = weight[i] = 0;
                base = base > all<double>(NOTHING) ? base : V<double>{};
                for (int64_t j = 0; j < step.rows; ++j) {
                    double* row = block + j * blocks.stride() + l;
                    const V<double> below = load(row) - base;
                    if (MAX) {
                        store(row, below + weight);
                    } else {
                        const V<double> p = exponential<double>(below) * weight;
                        entropy -= (p > V<double>{} ? p * below : V<double>{}) * count;
                        store(row, p);
                    }
                }
            }
            blocks.template give<MAX>(block, start, width);
        });
        blocks.template close_common<MAX>();
    }
    return horizontal_sum<double>(entropy);
}

// Labels of the cells of the steps from `first` on, from the last eliminated to the first: the best ones, or drawn with
// one uniform number for each step.
template <bool MAX>
inline void walk(const Graph& graph, const Tables& tables, int64_t first, const double* uniform, int64_t* labels,
                 std::vector<double>& row) {
    for (int64_t k = static_cast<int64_t>(graph.steps.size()) - 1; k >= first; --k) {
        const Elimination& step = graph.steps[k];
        row.assign(step.rows, 0.0);
        for (const Input& input : step.inputs) {
            const double* value = tables.at<false>(input);
            if (!value) continue;
            for (int64_t d = 0; d < step.kept.count; ++d) value += labels[step.kept[d]] * input.strides[d];
            for (int64_t j = 0; j < step.rows; ++j) row[j] += value[j * input.row];
        }
        int64_t pick = 0;
        for (int64_t j = 1; j < step.rows; ++j) pick = row[j] > row[pick] ? j : pick;
        if (!MAX && row[pick] > NOTHING) {
            const double high = row[pick];
            double sum = 0;
            for (double& one : row) sum += one = std::exp(one - high);
            double left = uniform[k] * sum;
            for (int64_t j = 0; j < step.rows; ++j) {
                if (row[j] > 0) pick = j;
                left -= row[j];
                if (left < 0) break;
            }
        }
        labels[step.cell] = pick;
    }
}

}  // namespace energyml
