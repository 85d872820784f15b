// Elimination in exp space: sums of products, at the speed of memory.
//
// Factors are taken relative to their largest entry and messages relative to a power of two near theirs.  Before each step the smallest
// non-zero entries of its inputs are multiplied: if even that product is a normal number, none can vanish.  Otherwise the example is left
// to log space (eliminate.h).
#pragma once

#include "eliminate.h"

namespace energyml {

constexpr double LEAST = -650;  // the log of the smallest product that is let through

class ProductPass {
  public:
    ProductPass(const Graph& graph, Tables& tables, std::vector<double>& room) : graph_(graph), tables_(tables) {
        room.resize(static_cast<size_t>(graph.blocks + PADDING));
        exponentials_ = room.data();
        tables_.exponentials = exponentials_;
        scale_.assign(graph.steps.size(), 1.0);
        low_.assign(graph.steps.size(), 0.0);
    }

    // log Z; false when the numbers spread too far.
    INLINE bool up(double& log_z, std::vector<double>& buffer) {
        double total = 0;
        int64_t exponent = 0;
        for (size_t k = 0; k < graph_.steps.size(); ++k) {
            const Elimination& step = graph_.steps[k];
            double least = 0;
            for (const Input& input : step.inputs) least += input.source < 0 ? low_[-1 - input.source] : exponentiate(input, total);
            if (!(least > LEAST)) return false;
            double high = 0, low = std::numeric_limits<double>::max();
            send(step, factor(step), high, low, buffer);
            if (high > 0) {
                const int64_t by = exponent_of<double>(high);
                exponent += by;
                scale_[k] = power_of_two<double>(-by);
                low_[k] = std::log(low / high);
            }
        }
        for (const Input& one : graph_.loose) {
            if (one.source >= 0 && !(exponentiate(one, total) > LEAST)) return false;
            const double* value = tables_.at<true>(one);
            if (value) total += std::log(*value * (one.source < 0 ? scale_[-1 - one.source] : 1.0));
        }
        log_z = total + exponent * 0.693147180559945309417;
        return true;
    }

    // Shares of the probability times the weight, to all gradients.
    INLINE void down(double weight, std::vector<double>& buffer) {
        std::fill(tables_.shares, tables_.shares + graph_.workspace, 0.0);
        for (const Input& one : graph_.loose) {
            double* gradient = tables_.gradient(one);
            if (gradient) *gradient += weight;
        }
        for (size_t k = graph_.steps.size(); k-- > 0;) {
            const Elimination& step = graph_.steps[k];
            if (small(step))
                small_down(step);
            else
                blocks_down(step, buffer);
        }
    }

  private:
    // exp(factor - its largest entry); returns the log of the smallest of them that is not 0, and adds the largest to the total.
    INLINE double exponentiate(const Input& input, double& total) {
        const double* from = tables_.values[input.source];
        if (!from) return 0;
        from += input.offset;
        double* to = exponentials_ + input.block;
        double high = NOTHING, low = -NOTHING;
        for (int64_t k = 0; k < input.size; ++k) {
            high = std::max(high, from[k]);
            if (from[k] > NOTHING) low = std::min(low, from[k]);
        }
        if (!(high > NOTHING)) {
            std::fill(to, to + input.size, 0.0);
            return 0;
        }
        for (int64_t k = 0; k < input.size; ++k) to[k] = std::exp(from[k] - high);
        total += high;
        return low - high;
    }

    double factor(const Elimination& step) const {
        double product = 1;
        for (const Input& input : step.inputs)
            if (input.source < 0) product *= scale_[-1 - input.source];
        return product;
    }

    INLINE void send(const Elimination& step, double factor, double& high, double& low, std::vector<double>& buffer) {
        double* out = tables_.messages + step.message;
        if (small(step)) {
            each_small<true>(step, tables_, factor, [&](int64_t entry, const double* row, const int64_t*) __attribute__((always_inline)) {
                double sum = 0;
                for (int64_t j = 0; j < step.rows; ++j) sum += row[j];
                out[entry] = sum;
                high = std::max(high, sum);
                if (sum > 0) low = std::min(low, sum);
            });
            return;
        }
        Blocks<true> blocks(step, tables_, factor);
        V<double> highs = V<double>{}, lows = all<double>(low);
        blocks.each(buffer, [&](int64_t entry, int64_t, int64_t width, double* block) __attribute__((always_inline)) {
            constexpr int lanes = Lanes<double>::count;
            for (int64_t l = 0; l < width; l += lanes) {
                V<double> sum = load(block + l);
                for (int64_t j = 1; j < step.rows; ++j) sum += load(block + j * blocks.stride() + l);
                const int64_t live = std::min<int64_t>(lanes, width - l);
                for (int64_t i = live; i < lanes; ++i) sum[i] = 0;
                highs = larger<double>(sum, highs);
                lows = sum > V<double>{} ? smaller<double>(sum, lows) : lows;
                for (int64_t i = 0; i < live && live < lanes; ++i) out[entry + l + i] = sum[i];
                if (live == lanes) store(out + entry + l, sum);
            }
        });
        high = horizontal_max<double>(highs);
        low = -horizontal_max<double>(-lows);
    }

    INLINE void small_down(const Elimination& step) {
        const double* message = tables_.messages + step.message;
        const double* share = tables_.shares + step.message;
        double* to[32];
        for (size_t k = 0; k < step.inputs.size(); ++k) to[k] = tables_.gradient(step.inputs[k]);
        each_small<true>(step, tables_, factor(step), [&](int64_t entry, const double* row, const int64_t* index) __attribute__((always_inline)) {
            if (share[entry] == 0 || !(message[entry] > 0)) return;
            const double ratio = share[entry] / message[entry];
            for (int64_t j = 0; j < step.rows; ++j) give_small<false>(step, to, j, index, row[j] * ratio);
        });
    }

    INLINE void blocks_down(const Elimination& step, std::vector<double>& buffer) {
        const double* message = tables_.messages + step.message;
        const double* share = tables_.shares + step.message;
        Blocks<true> blocks(step, tables_, factor(step));
        blocks.template open_common<false>();
        blocks.each(buffer, [&](int64_t entry, int64_t start, int64_t width, double* block) __attribute__((always_inline)) {
            bool any = false;
            for (int64_t l = 0; l < width; ++l) any |= share[entry + l] != 0;
            if (!any) return;
            for (int64_t l = 0; l < width; l += Lanes<double>::count) {
                const V<double> sum = load(message + entry + l), weight = load(share + entry + l);
                const V<double> ratio = sum > V<double>{} ? weight / (sum > V<double>{} ? sum : all<double>(1.0)) : V<double>{};
                for (int64_t j = 0; j < step.rows; ++j) {
                    double* row = block + j * blocks.stride() + l;
                    store(row, load(row) * ratio);
                }
            }
            blocks.template give<false>(block, start, width);
        });
        blocks.template close_common<false>();
    }

    const Graph& graph_;
    Tables& tables_;
    double* exponentials_;
    std::vector<double> scale_, low_;  // of the messages: a power of two, and the log of the smallest over the largest entry
};

}  // namespace energyml
