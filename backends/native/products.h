// Elimination in exp space: sums of products, at the speed of memory.
//
// Factors are taken relative to their largest entry and messages relative to a power of two near theirs.  Before each step the smallest
// non-zero entries of its inputs are multiplied: if even that product is a normal number, none can vanish.  Otherwise the example is left
// to log space (eliminate.h).
#pragma once

#include "eliminate.h"

namespace energyml {

constexpr double LEAST = -650;  // the log of the smallest product that is let through

// Vectors of 64 bytes: rows of lanes are long here, and loads are what counts.
typedef double Wide __attribute__((vector_size(64), aligned(8), may_alias));

// The largest entry of a message and its smallest that is not 0.
struct Extremes {
    Wide highs = Wide{}, lows = std::numeric_limits<double>::max() - Wide{};

    INLINE void see(Wide sums) {
        highs = sums > highs ? sums : highs;
        const Wide there = sums > Wide{} ? sums : lows;
        lows = there < lows ? there : lows;
    }
    INLINE double high() const {
        double found = 0;
        for (int i = 0; i < 8; ++i) found = std::max(found, highs[i]);
        return found;
    }
    INLINE double low() const {
        double found = std::numeric_limits<double>::max();
        for (int i = 0; i < 8; ++i) found = std::min(found, lows[i]);
        return found;
    }
};

class ProductPass {
  public:
    ProductPass(const Graph& graph, Tables& tables, Room& room) : graph_(graph), tables_(tables), room_(room) {
        grow(room.exponentials, graph.blocks + PADDING);
        tables_.exponentials = room.exponentials.data();
        room.scale.assign(graph.steps.size(), 1.0);
        room.low.assign(graph.steps.size(), 0.0);
    }

    // log Z; false when the numbers spread too far.
    INLINE bool up(double& log_z) {
        double total = 0;
        int64_t exponent = 0;
        for (size_t k = 0; k < graph_.steps.size(); ++k) {
            const Elimination& step = graph_.steps[k];
            double least = 0;
            for (const Input& input : step.inputs) least += input.source < 0 ? room_.low[-1 - input.source] : exponentiate(input, total);
            if (!(least > LEAST)) return false;
            double high = 0, low = std::numeric_limits<double>::max();
            send(step, factor(step), high, low);
            if (high > 0) {
                const int64_t by = exponent_of<double>(high);
                exponent += by;
                room_.scale[k] = power_of_two<double>(-by);
                // By their exponents alone: a little less than the log of the ratio.
                room_.low[k] = static_cast<double>(exponent_of<double>(low) - by - 1) * LN2;
            }
        }
        for (const Input& one : graph_.loose) {
            if (one.source >= 0 && !(exponentiate(one, total) > LEAST)) return false;
            const double* value = tables_.at<true>(one);
            if (value) total += std::log(*value * (one.source < 0 ? room_.scale[-1 - one.source] : 1.0));
        }
        log_z = total + static_cast<double>(exponent) * LN2;
        return true;
    }

    // Shares of the probability times the weight, to all gradients.
    INLINE void down(double weight) {
        std::fill(tables_.shares, tables_.shares + graph_.workspace, 0.0);
        for (const Input& one : graph_.loose) {
            double* gradient = tables_.gradient(one);
            if (gradient) *gradient += weight;
        }
        for (size_t k = graph_.steps.size(); k-- > 0;) {
            const Elimination& step = graph_.steps[k];
            if (step.small)
                small_down(step);
            else
                blocks_down(step);
        }
    }

  private:
    static constexpr double LN2 = 0.693147180559945309417;

    static void grow(std::vector<double>& room, int64_t count) {
        if (static_cast<int64_t>(room.size()) < count) room.resize(static_cast<size_t>(count));
    }

    // exp(factor - its largest entry); returns the log of the smallest of them that is not 0, and adds the largest to the total.
    INLINE double exponentiate(const Input& input, double& total) {
        constexpr int lanes = Lanes<double>::count;
        const double* from = tables_.values[input.source];
        if (!from) return 0;
        from += input.offset;
        double* to = room_.exponentials.data() + input.block;
        double high = NOTHING, low = -NOTHING;
        for (int64_t k = 0; k < input.size; ++k) {
            high = std::max(high, from[k]);
            low = from[k] > NOTHING && from[k] < low ? from[k] : low;
        }
        if (!(high > NOTHING)) {
            std::fill(to, to + input.size, 0.0);
            return 0;
        }
        int64_t k = 0;
        for (; k + lanes <= input.size; k += lanes) store(to + k, exponential<double>(load(from + k) - high));
        if (k < input.size) {
            V<double> rest = V<double>{};
            for (int64_t i = k; i < input.size; ++i) rest[i - k] = from[i] - high;
            rest = exponential<double>(rest);
            for (int64_t i = k; i < input.size; ++i) to[i] = rest[i - k];
        }
        total += high;
        return low - high;
    }

    double factor(const Elimination& step) const {
        double product = 1;
        for (const Input& input : step.inputs)
            if (input.source < 0) product *= room_.scale[-1 - input.source];
        return product;
    }

    INLINE void send(const Elimination& step, double factor, double& high, double& low) {
        double* out = tables_.messages + step.message;
        if (!step.small) {
            Extremes found;
            add_up(step, factor, out, found);
            high = found.high();
            low = found.low();
            return;
        }
        each_small<true>(step, tables_, factor, [&](int64_t entry, const double* row, const int64_t*) __attribute__((always_inline)) {
            double sum = 0;
            for (int64_t j = 0; j < step.rows; ++j) sum += row[j];
            out[entry] = sum;
            high = std::max(high, sum);
            if (sum > 0) low = std::min(low, sum);
        });
    }

    // A message, without a block in between: the lanes of all tables are multiplied and the rows added up in registers.
    INLINE void add_up(const Elimination& step, double factor, double* out, Extremes& found) {
        open(step, false);
        Odometer odometer(step, room_);
        for (int64_t entry = 0; entry < step.entries; entry += step.lanes) {
            lay_out(step, factor);
            add_rows(room_.block.data(), step.rows, step.lanes, out + entry, found);
            odometer.advance();
        }
    }

    // The tables of a step.  Scattered lanes are laid side by side: where a table does not mention all outer cells, once for all blocks that
    // share them.  On the way back the shares of such a table are gathered in the same way.
    INLINE void open(const Elimination& step, bool back) {
        const int64_t block = step.rows * step.lanes;
        room_.parts.clear();
        room_.common.clear();
        room_.common_shares.clear();
        int64_t needed = 0;
        for (const Input& input : step.inputs) needed += input.kind == SCATTERED ? std::max<int64_t>(1, input.spread_count) * block : 0;
        grow(room_.spread, back ? 2 * needed : needed);
        grow(room_.block, step.rows);
        double* free = room_.spread.data();
        for (const Input& input : step.inputs) {
            const double* value = tables_.at<true>(input);
            double* gradient = back ? tables_.gradient(input) : nullptr;
            if (!value && !gradient) continue;
            Part part{&input, value, gradient, input.strides};
            if (input.kind == COMMON) {
                if (value) multiply_common(step, input, value);
                if (gradient) room_.common_shares.resize(static_cast<size_t>(block), 0.0);
            } else if (input.kind == SCATTERED && input.spread_count) {
                part.strides = input.spread;
                if (value) {
                    part.value = free;
                    each_spread(step, input, [&](int64_t place) __attribute__((always_inline)) {
                        spread(step, input, value + place, free);
                        free += block;
                    });
                }
                if (gradient) {
                    part.gradient = free;
                    free += input.spread_count * block;
                    std::fill(part.gradient, free, 0.0);
                }
            }
            room_.parts.push_back(part);
        }
        free_ = free;
    }

    // The tables of the block at hand: a number for each row, and those that have lanes.
    INLINE void lay_out(const Elimination& step, double factor) {
        const int64_t rows = step.rows, lanes = step.lanes;
        double *constant = room_.block.data(), *here = free_;
        for (int64_t j = 0; j < rows; ++j) constant[j] = factor;
        room_.lanewise.clear();
        if (!room_.common.empty()) room_.lanewise.push_back({room_.common.data(), lanes});
        for (const Part& part : room_.parts) {
            const Input& input = *part.input;
            if (!part.value || input.kind == COMMON) continue;
            if (input.kind == SCALAR) {
                for (int64_t j = 0; j < rows; ++j) constant[j] *= part.value[j * input.row];
            } else if (input.kind == CONTIGUOUS) {
                room_.lanewise.push_back({part.value, input.row});
            } else if (input.spread_count) {
                room_.lanewise.push_back({part.value, lanes});
            } else {
                spread(step, input, part.value, here);
                room_.lanewise.push_back({here, lanes});
                here += rows * lanes;
            }
        }
    }

    INLINE void add_rows(const double* constant, int64_t rows, int64_t width, double* out, Extremes& found) {
        const Lanewise* tables = room_.lanewise.data();
        const int64_t count = static_cast<int64_t>(room_.lanewise.size());
        if (rows == 2 && count == 1)
            add_rows_of<1, 2>(tables, count, constant, rows, width, out, found);
        else if (rows == 2 && count == 2)
            add_rows_of<2, 2>(tables, count, constant, rows, width, out, found);
        else if (rows == 2 && count == 3)
            add_rows_of<3, 2>(tables, count, constant, rows, width, out, found);
        else if (count == 1)
            add_rows_of<1, 0>(tables, count, constant, rows, width, out, found);
        else if (count == 2)
            add_rows_of<2, 0>(tables, count, constant, rows, width, out, found);
        else
            add_rows_of<-1, 0>(tables, count, constant, rows, width, out, found);
    }

    // COUNT tables and ROWS rows where the compiler is to know them; -1 and 0 else.
    template <int COUNT, int ROWS_>
    static INLINE void add_rows_of(
        const Lanewise* tables, int64_t count, const double* constant, int64_t rows, int64_t width, double* out, Extremes& found) {
        const int64_t tables_count = COUNT < 0 ? count : COUNT, row_count = ROWS_ ? ROWS_ : rows;
        int64_t l = 0;
        for (; l + 8 <= width; l += 8) {
            Wide sums = Wide{};
            for (int64_t j = 0; j < row_count; ++j) {
                Wide product = constant[j] - Wide{};
                for (int64_t k = 0; k < tables_count; ++k) product *= *reinterpret_cast<const Wide*>(tables[k].from + j * tables[k].row + l);
                sums += product;
            }
            found.see(sums);
            *reinterpret_cast<Wide*>(out + l) = sums;
        }
        if (l == width) return;
        Wide rest = Wide{};
        for (int64_t i = 0; i < width - l; ++i) {
            double sum = 0;
            for (int64_t j = 0; j < row_count; ++j) {
                double product = constant[j];
                for (int64_t k = 0; k < tables_count; ++k) product *= tables[k].from[j * tables[k].row + l + i];
                sum += product;
            }
            out[l + i] = rest[i] = sum;
        }
        found.see(rest);
    }

    INLINE void multiply_common(const Elimination& step, const Input& input, const double* value) {
        if (room_.common.empty()) room_.common.assign(static_cast<size_t>(step.rows * step.lanes), 1.0);
        for (int64_t j = 0; j < step.rows; ++j)
            for (int64_t l = 0; l < step.lanes; ++l) room_.common[j * step.lanes + l] *= value[j * input.row + input.places[l]];
    }

    // The lanes [rows, lanes] of one block, side by side.
    static INLINE void spread(const Elimination& step, const Input& input, const double* value, double* to) {
        for (int64_t j = 0; j < step.rows; ++j, to += step.lanes) {
            const double* from = value + j * input.row;
            if (input.run < SHORT) {
                for (int64_t l = 0; l < step.lanes; ++l) to[l] = from[input.places[l]];
                continue;
            }
            for (int64_t l = 0; l < step.lanes; l += input.run) {
                const double* here = from + input.places[l];
                for (int64_t i = 0; i < input.run; ++i) to[l + i] = here[input.repeats ? 0 : i];
            }
        }
    }

    // The shares [rows, lanes] of one block, back to where the lanes stand.
    static INLINE void gather(const Elimination& step, const Input& input, const double* from, double* gradient) {
        for (int64_t j = 0; j < step.rows; ++j, from += step.lanes) {
            double* to = gradient + j * input.row;
            if (input.run < SHORT) {
                for (int64_t l = 0; l < step.lanes; ++l) to[input.places[l]] += from[l];
                continue;
            }
            for (int64_t l = 0; l < step.lanes; l += input.run) {
                double* here = to + input.places[l];
                if (input.repeats)
                    *here += Blocks::total<false>(from + l, input.run);
                else
                    for (int64_t i = 0; i < input.run; ++i) here[i] += from[l + i];
            }
        }
    }

    // visit(place) for all blocks that differ for a table: where it begins for each of them.
    template <class F> INLINE void each_spread(const Elimination& step, const Input& input, F visit) {
        room_.index.assign(static_cast<size_t>(step.inner), 0);
        int64_t place = 0;
        for (int64_t block = 0; block < input.spread_count; ++block) {
            visit(place);
            for (int64_t k = step.inner; k-- > 0;) {
                if (!input.strides[k]) continue;
                const bool carry = ++room_.index[k] == step.sizes[k];
                place += (carry ? 1 - step.sizes[k] : 1) * input.strides[k];
                if (!carry) break;
                room_.index[k] = 0;
            }
        }
    }

    INLINE void small_down(const Elimination& step) {
        const double* message = tables_.messages + step.message;
        const double* share = tables_.shares + step.message;
        double* to[MOST_INPUTS];
        for (int64_t k = 0; k < step.inputs.count; ++k) to[k] = tables_.gradient(step.inputs[k]);
        each_small<true>(step, tables_, factor(step), [&](int64_t entry, const double* row, const int64_t* index) __attribute__((always_inline)) {
            if (share[entry] == 0 || !(message[entry] > 0)) return;
            const double ratio = share[entry] / message[entry];
            for (int64_t j = 0; j < step.rows; ++j) give_small<false>(step, to, j, index, row[j] * ratio);
        });
    }

    INLINE void blocks_down(const Elimination& step) {
        const double* message = tables_.messages + step.message;
        const double* share = tables_.shares + step.message;
        const double scale = factor(step);
        open(step, true);
        grow(room_.ratio, step.lanes + PADDING);
        Odometer odometer(step, room_);
        for (int64_t entry = 0; entry < step.entries; entry += step.lanes) {
            if (ratios(message + entry, share + entry, step.lanes)) {
                lay_out(step, scale);
                hand_out(step);
            }
            odometer.advance();
        }
        close(step);
    }

    // What the products of a block are multiplied with to be shares; false where all are 0.
    INLINE bool ratios(const double* message, const double* share, int64_t lanes) {
        // Behind the last lane lies room (see `PADDING`); what is read there is not used.
        Wide any = Wide{};
        for (int64_t l = 0; l < lanes; l += 8) {
            const Wide sums = *reinterpret_cast<const Wide*>(message + l), weights = *reinterpret_cast<const Wide*>(share + l);
            const Wide found = sums > Wide{} ? weights / (sums > Wide{} ? sums : 1.0 - Wide{}) : Wide{};
            *reinterpret_cast<Wide*>(room_.ratio.data() + l) = found;
            any = found != Wide{} ? found : any;
        }
        bool some = false;
        for (int i = 0; i < 8; ++i) some = some || any[i] != 0;
        return some;
    }

    // The shares of a block, to all gradients.
    INLINE void hand_out(const Elimination& step) {
        const int64_t lanes = step.lanes, block = step.rows * lanes;
        double* there = free_;
        for (const Part& part : room_.parts) there += part.input->kind == SCATTERED && !part.input->spread_count && part.value ? block : 0;
        room_.receiving.clear();
        if (!room_.common_shares.empty()) room_.receiving.push_back({room_.common_shares.data(), lanes});
        double* next = there;
        for (const Part& part : room_.parts) {
            const Input& input = *part.input;
            if (!part.gradient || input.kind == SCALAR || input.kind == COMMON) continue;
            if (input.kind == CONTIGUOUS) {
                room_.receiving.push_back({part.gradient, input.row});
            } else if (input.spread_count) {
                room_.receiving.push_back({part.gradient, lanes});
            } else {
                room_.receiving.push_back({next, lanes});
                std::fill(next, next + block, 0.0);
                next += block;
            }
        }
        for (int64_t j = 0; j < step.rows; ++j) {
            const double whole = hand_out_row(step, j);
            for (const Part& part : room_.parts)
                if (part.gradient && part.input->kind == SCALAR) part.gradient[j * part.input->row] += whole;
        }
        next = there;
        for (const Part& part : room_.parts)
            if (part.gradient && part.input->kind == SCATTERED && !part.input->spread_count) {
                gather(step, *part.input, next, part.gradient);
                next += block;
            }
    }

    // The shares of one row of a block, added to all that have lanes; their sum.
    INLINE double hand_out_row(const Elimination& step, int64_t j) {
        const double *ratio = room_.ratio.data(), constant = room_.block[j];
        const Lanewise *tables = room_.lanewise.data(), *tables_end = tables + room_.lanewise.size();
        const Receiving *gradients = room_.receiving.data(), *gradients_end = gradients + room_.receiving.size();
        const int64_t lanes = step.lanes;
        Wide sums = Wide{};
        int64_t l = 0;
        for (; l + 8 <= lanes; l += 8) {
            Wide share = constant * *reinterpret_cast<const Wide*>(ratio + l);
            for (const Lanewise* one = tables; one != tables_end; ++one) share *= *reinterpret_cast<const Wide*>(one->from + j * one->row + l);
            for (const Receiving* one = gradients; one != gradients_end; ++one) *reinterpret_cast<Wide*>(one->to + j * one->row + l) += share;
            sums += share;
        }
        double whole = 0;
        for (int i = 0; i < 8; ++i) whole += sums[i];
        for (; l < lanes; ++l) {
            double share = constant * ratio[l];
            for (const Lanewise* one = tables; one != tables_end; ++one) share *= one->from[j * one->row + l];
            for (const Receiving* one = gradients; one != gradients_end; ++one) one->to[j * one->row + l] += share;
            whole += share;
        }
        return whole;
    }

    // Shares that were gathered apart go to their gradients.
    INLINE void close(const Elimination& step) {
        const int64_t block = step.rows * step.lanes;
        for (const Part& part : room_.parts) {
            const Input& input = *part.input;
            if (!part.gradient) continue;
            double* gradient = tables_.gradient(input);
            if (input.kind == COMMON) {
                gather(step, input, room_.common_shares.data(), gradient);
            } else if (input.kind == SCATTERED && input.spread_count) {
                const double* from = part.gradient;  // at the first block again: the odometer has gone round
                each_spread(step, input, [&](int64_t place) __attribute__((always_inline)) {
                    gather(step, input, from, gradient + place);
                    from += block;
                });
            }
        }
    }

    const Graph& graph_;
    Tables& tables_;
    Room& room_;
    double* free_ = nullptr;  // room behind the lanes that were laid side by side for all blocks
};

}  // namespace energyml
