// Elimination in exp space: sums of products, at the speed of memory.
//
// Tables are taken relative to their largest entry.  Products may underflow, as long as it does not matter: messages
// are looked at when they are made.  Tables have entries of at most 1 and messages of at most 2^LARGE_BITS, in a step
// 2^MOST_BITS together (see programs.h), so that what gets lost in a sum is below 2^-950; an entry of at least
// 2^-FLOOR_BITS is right to the last digit.  One that is 0 is so because tables have zeros, or because all underflowed:
// it counts where the smallest entries of all inputs, multiplied, would not underflow.  Where an entry is too small, or
// table entries are too far from the largest, the example is tried again with care: factors relative to their own
// largest entries, every message normalised.  Where that does not do, it is left to log space (eliminate.h).
#pragma once

#include "flat.h"
#include "rows.h"

namespace energyml {

constexpr double REACH =
    600;  // the log of how far entries of a table may be from the largest: e^-600 is above 2^-FLOOR_BITS
constexpr int64_t FLOOR_BITS = 900, LEAST_BITS = 1000;

class ProductPass;

// Steps that are visited in blocks: `ProductPass::add_up` and `ProductPass::blocks_down` as functions of their own, so
// that what they need stays in registers.
inline void send_blocks(ProductPass& pass, const Elimination& step, double* out, Extremes& found);
inline void hand_out_blocks(ProductPass& pass, const Elimination& step, double scale);

class ProductPass {
  public:
    // `shared`: whether the exponentials of tables that all examples share are there already, from the example before.
    ProductPass(const Graph& graph, Tables& tables, Room& room, const int64_t* example_strides, bool& shared)
        : graph_(graph), tables_(tables), room_(room), example_strides_(example_strides), shared_(shared) {
        room.shifts.resize(graph.shifted.size());
        room.shifts[0] = 0;
        for (size_t k = 1; k < graph.shifted.size(); ++k) room.shifts[k] = tables.shift(*graph.shifted[k]);
    }

    // log Z; false when the numbers spread too far.
    inline bool up(double& log_z) {
        double total = 0;
        if (exponentiate_all(total) && send_all<false>(total, log_z)) return true;
        total = 0;
        low_bits_ = 0;
        shared_ = false;
        return exponentiate_each(total) && send_all<true>(total, log_z);
    }

    // Shares of the probability times the weight, to all gradients.
    inline void down(double weight) {
        std::fill(tables_.shares, tables_.shares + graph_.workspace, 0.0);
        for (const Input& one : graph_.loose) {
            double* gradient = tables_.gradient(one);
            if (gradient) *gradient += weight;
        }
        room_.receivers.resize(graph_.sources.size() + 1);
        for (size_t k = 0; k < graph_.sources.size(); ++k)
            room_.receivers[k] = tables_.gradients[k] ? tables_.gradients[k] - graph_.sources[k].start : nullptr;
        room_.receivers.back() = tables_.shares - graph_.room;
        const int64_t* shifts = room_.shifts.data();
        for (size_t k = graph_.steps.size();;) {
            k = hand_out_flat(graph_, k, tables_.room, shifts, tables_.shares, room_.scale.data(),
                              room_.receivers.data());
            if (k-- == 0) return;
            hand_out_blocks(*this, graph_.steps[k], room_.scale[k]);
        }
    }

    // A message, without a block in between: the lanes of all tables are multiplied and the rows added up in registers.
    template <class L> inline Extremes add_up(const Elimination& step, double* out) {
        open(step, false);
        Odometer odometer(step, room_);
        int64_t entry = 0;
        const auto add_block = [&](auto& watched) {
            lay_out(step);
            const int64_t count = static_cast<int64_t>(room_.lanewise.size());
            add_rows(room_.lanewise.data(), count, room_.block.data(), step.rows, step.lanes, out + entry, watched);
            odometer.advance();
            entry += step.lanes;
        };
        Watched<L> watched;
        while (entry < step.entries && !watched.zeros()) add_block(watched);
        if (!watched.zeros()) return watched.found();
        Watched<L, true> careful = watched.with_lows(out, entry);
        while (entry < step.entries) add_block(careful);
        return careful.found();
    }

    // The shares of the inputs of a step, from those of its message.
    inline void blocks_down(const Elimination& step, double scale) {
        const double* message = tables_.messages + step.message;
        const double* share = tables_.shares + step.message;
        open(step, true);
        grow(room_.ratio, step.lanes + PADDING);
        Odometer odometer(step, room_);
        for (int64_t entry = 0; entry < step.entries; entry += step.lanes) {
            if (ratios(message + entry, share + entry, scale, step.lanes)) {
                lay_out(step);
                hand_out(step);
            }
            odometer.advance();
        }
        close(step);
    }

  private:
    static constexpr double LN2 = 0.693147180559945309417;

    static void grow(std::vector<double>& room, int64_t count) {
        if (static_cast<int64_t>(room.size()) < count) room.resize(static_cast<size_t>(count));
    }

    // exp(table - its largest entry) of all tables; adds what the factors lost to the total.  False where entries are
    // too far apart.
    inline bool exponentiate_all(double& total) {
        grow(room_.highs, static_cast<int64_t>(graph_.sources.size()));
        grow(room_.lows, static_cast<int64_t>(graph_.sources.size()));
        for (size_t k = 0; k < graph_.sources.size(); ++k) {
            const Source& source = graph_.sources[k];
            double* to = tables_.room + source.start;
            if (!tables_.values[k]) {
                std::fill(to, to + source.entries, 1.0);
                continue;
            }
            if (!shared_ || example_strides_[k])
                room_.highs[k] = exponentiate(tables_.values[k], source.entries, to, room_.lows[k]);
            if (!reached(room_.lows[k])) return false;
            if (source.uses) total += room_.highs[k] * static_cast<double>(source.uses);
        }
        shared_ = true;
        return true;
    }

    // The same for one factor after another.
    inline bool exponentiate_each(double& total) {
        const auto each = [&](const Input& input) {
            if (input.source < 0 || !tables_.values[input.source]) return true;
            double low;
            total +=
                exponentiate(tables_.values[input.source] + input.offset, input.size, tables_.room + input.block, low);
            return reached(low);
        };
        for (const Elimination& step : graph_.steps)
            for (const Input& input : step.inputs)
                if (!each(input)) return false;
        for (const Input& input : graph_.loose)
            if (!each(input)) return false;
        return true;
    }

    // Whether entries so far below the largest can be taken.
    bool reached(double low) {
        if (!(low > -REACH)) return false;
        low_bits_ = std::min(low_bits_, static_cast<int64_t>(low / LN2) - 1);
        return true;
    }

    // All messages, and what is left in the end.
    template <bool CAREFUL> inline bool send_all(double total, double& log_z) {
        int64_t exponent = 0;
        room_.scale.assign(graph_.steps.size(), 1.0);
        room_.pending.assign(graph_.steps.size(), 1.0);
        room_.found.resize(std::max(room_.found.size(), graph_.steps.size()));
        double lows[8];  // the smallest entries of all messages
        std::fill(lows, lows + 8, 1.0);
        for (size_t k = 0;; ++k) {
            k = send_flat(graph_, k, tables_.room, room_.shifts.data(), CAREFUL, lows, room_.scale.data(), exponent);
            if (k == graph_.steps.size()) break;
            exponent += send<CAREFUL>(k, lows);
        }
        const double least = *std::min_element(lows, lows + 8);
        if (!(least >= power_of_two<double>(-FLOOR_BITS)) || !zeros_count(exponent_of<double>(least))) return false;
        double product = 1;
        for (const Input& one : graph_.loose) {
            const double* value = tables_.at<true>(one);
            if (!value) continue;
            product *= *value;
            if (!(product > 0)) break;
            const int64_t by = exponent_of<double>(product);
            product *= power_of_two<double>(-by);
            exponent += by;
        }
        log_z = total + std::log(product) + static_cast<double>(exponent) * LN2;
        return true;
    }

    // One message that is visited in blocks, normalised where it has to be or whoever reads it can; the exponent of
    // what it is divided by.
    template <bool CAREFUL> inline int64_t send(size_t k, double* lows) {
        const Elimination& step = graph_.steps[k];
        Extremes found;
        double* out = tables_.messages + step.message;
        send_blocks(*this, step, out, found);
        int64_t by = found.high > 0 ? exponent_of<double>(found.high) + 1 : 0;
        const bool deferred = step.deferred && by <= step.allowed && by >= -step.deferred;
        if (!deferred && !CAREFUL && by <= step.allowed && by >= -8 * step.allowed) by = 0;
        const double scale = power_of_two<double>(-by);
        if (by && !deferred)
            for (int64_t entry = 0; entry < step.entries; ++entry) out[entry] *= scale;
        (deferred ? room_.pending : room_.scale)[k] = scale;
        lows[0] = std::min({lows[0], found.low, found.low * scale});
        room_.found[k] = {found.least == 0, exponent_of<double>(found.low) - by};
        return by;
    }

    // Whether the zeros of all messages are those of tables: no product of other entries underflows, as the smallest
    // ones do not.
    bool zeros_count(int64_t bits) const {
        if (graph_.most_inputs * std::min(bits, low_bits_) > -LEAST_BITS) return true;
        for (size_t k = 0; k < graph_.steps.size(); ++k) {
            const double* out = tables_.messages + graph_.steps[k].message;
            const bool zeros = graph_.flats[k].groups
                                   ? std::find(out, out + graph_.steps[k].entries, 0.0) != out + graph_.steps[k].entries
                                   : room_.found[k].zeros;
            if (zeros && !(product_bits(graph_.steps[k]) > -LEAST_BITS)) return false;
        }
        return true;
    }

    // The exponent of the product of the smallest entries of the inputs of a step.
    int64_t product_bits(const Elimination& step) const {
        int64_t bits = 0;
        for (const Input& input : step.inputs) {
            const int64_t sender = -1 - input.source;
            if (sender < 0 && !tables_.values[input.source]) continue;
            if (sender >= 0 && !graph_.flats[sender].groups) {
                bits += room_.found[sender].bits;
                continue;
            }
            const double* from = tables_.room + input.block;
            const int64_t count = sender < 0 ? input.size : graph_.steps[sender].entries;
            double least = 1;
            for (int64_t k = 0; k < count; ++k) least = from[k] > 0 && from[k] < least ? from[k] : least;
            bits += exponent_of<double>(least);
        }
        return bits;
    }

    // The tables of a step.  Scattered lanes are laid side by side: where a table does not mention all outer cells,
    // once for all blocks that share them.  On the way back the shares of such a table are gathered in the same way.
    inline void open(const Elimination& step, bool back) {
        const int64_t block = step.rows * step.lanes;
        room_.parts.clear();
        room_.common.clear();
        room_.common_shares.clear();
        int64_t needed = 0;
        factor_ = 1;
        for (const Input& input : step.inputs)
            if (input.source < 0) factor_ *= room_.pending[-1 - input.source];
        for (const Input& input : step.inputs)
            needed += input.kind == SCATTERED ? std::max<int64_t>(1, input.spread_count) * block : 0;
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
                    each_spread(step, input, [&](int64_t place) {
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
    inline void lay_out(const Elimination& step) {
        const int64_t rows = step.rows, lanes = step.lanes;
        double *constant = room_.block.data(), *here = free_;
        for (int64_t j = 0; j < rows; ++j) constant[j] = factor_;
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

    inline void multiply_common(const Elimination& step, const Input& input, const double* value) {
        if (room_.common.empty()) room_.common.assign(static_cast<size_t>(step.rows * step.lanes), 1.0);
        for (int64_t j = 0; j < step.rows; ++j)
            for (int64_t l = 0; l < step.lanes; ++l)
                room_.common[j * step.lanes + l] *= value[j * input.row + input.places[l]];
    }

    // The lanes [rows, lanes] of one block, side by side.
    static inline void spread(const Elimination& step, const Input& input, const double* value, double* to) {
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
    static inline void gather(const Elimination& step, const Input& input, const double* from, double* gradient) {
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
    template <class F> inline void each_spread(const Elimination& step, const Input& input, F visit) {
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

    // What the products of a block are multiplied with to be shares; false where all are 0.
    inline bool ratios(const double* message, const double* share, double scale, int64_t lanes) {
        // Behind the last lane lies room (see `PADDING`); what is read there is not used.
        V<double> any = V<double>{};
        for (int64_t l = 0; l < lanes; l += Lanes<double>::count) {
            const V<double> found = quotient(load(share + l) * scale, load(message + l));
            store(room_.ratio.data() + l, found);
            any = found != V<double>{} ? found : any;
        }
        bool some = false;
        for (int i = 0; i < Lanes<double>::count; ++i) some = some || any[i] != 0;
        return some;
    }

    // The shares of a block, to all gradients.
    inline void hand_out(const Elimination& step) {
        const int64_t lanes = step.lanes, block = step.rows * lanes;
        double* there = free_;
        for (const Part& part : room_.parts)
            there += part.input->kind == SCATTERED && !part.input->spread_count && part.value ? block : 0;
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
    inline double hand_out_row(const Elimination& step, int64_t j) {
        const double *ratio = room_.ratio.data(), constant = room_.block[j];
        const Lanewise *tables = room_.lanewise.data(), *tables_end = tables + room_.lanewise.size();
        const Receiving *gradients = room_.receiving.data(), *gradients_end = gradients + room_.receiving.size();
        const int64_t lanes = step.lanes;
        Wide sums = Wide{};
        int64_t l = 0;
        for (; l + 8 <= lanes; l += 8) {
            Wide share = constant * *reinterpret_cast<const Wide*>(ratio + l);
            for (const Lanewise* one = tables; one != tables_end; ++one)
                share *= *reinterpret_cast<const Wide*>(one->from + j * one->row + l);
            for (const Receiving* one = gradients; one != gradients_end; ++one)
                *reinterpret_cast<Wide*>(one->to + j * one->row + l) += share;
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
    inline void close(const Elimination& step) {
        const int64_t block = step.rows * step.lanes;
        for (const Part& part : room_.parts) {
            const Input& input = *part.input;
            if (!part.gradient) continue;
            double* gradient = tables_.gradient(input);
            if (input.kind == COMMON) {
                gather(step, input, room_.common_shares.data(), gradient);
            } else if (input.kind == SCATTERED && input.spread_count) {
                const double* from = part.gradient;  // at the first block again: the odometer has gone round
                each_spread(step, input, [&](int64_t place) {
                    gather(step, input, from, gradient + place);
                    from += block;
                });
            }
        }
    }

    const Graph& graph_;
    Tables& tables_;
    Room& room_;
    const int64_t* example_strides_;
    bool& shared_;
    int64_t low_bits_ = 0;    // the exponents of all table entries are at least this
    double factor_ = 1;       // what messages of the step at hand have to be multiplied with
    double* free_ = nullptr;  // room behind the lanes that were laid side by side for all blocks
};

inline void send_blocks(ProductPass& pass, const Elimination& step, double* out, Extremes& found) {
    found = WIDE_REGISTERS ? pass.add_up<Lanes<double, 64>>(step, out) : pass.add_up<Lanes<double>>(step, out);
}
inline void hand_out_blocks(ProductPass& pass, const Elimination& step, double scale) { pass.blocks_down(step, scale); }

}  // namespace energyml
