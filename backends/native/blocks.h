// One elimination, block by block: what every kernel on factor graphs reads its tables and hands out its gradients through.
//
// A step adds up the tables that mention a cell and sums (or maximises) the cell out; the clique is never stored.  Its entries are
// visited in blocks: rows are the labels of the cell, lanes are entries of the message that lie side by side in it.  Tables are
// sorted by what a block needs of them: one number, the same lanes for every block, or lanes of their own.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "simd.h"

namespace energyml {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();
constexpr int64_t PADDING = 8;   // doubles behind the messages, so that whole vectors can be read
constexpr int64_t BLOCK = 512;  // doubles of a block: rows times lanes; larger ones cost more to set up than they bring

// A table as a step reads it: strides over the labels of its cells, 0 for cells that it does not mention.
struct Input {
    int64_t source;  // a table, or below 0 for a message: -1 - the number of its step
    int64_t offset;
    int64_t size;  // entries of the factor, known cells included
    int64_t block;  // where its exponentials begin, in exp space
    int64_t row;  // stride of the cell that is summed out
    std::vector<int64_t> strides;
    std::vector<int64_t> known;  // pairs: which known cell, and its stride
};

struct Elimination {
    int64_t cell, rows, message, entries;
    std::vector<int64_t> kept, sizes;
    std::vector<Input> inputs;
};

struct Graph {
    int64_t cells, known, workspace;
    int64_t blocks = 0;  // entries of all factors as the steps use them
    std::vector<Elimination> steps;
    std::vector<Input> loose;
};

// Tables of one example and, on the way back, where their gradients go; null where there is none.
struct Tables {
    std::vector<const double*> values;
    std::vector<double*> gradients;
    const int64_t* labels;  // of the known cells
    double* messages;
    double* shares;  // gradients of the messages
    const double* exponentials = nullptr;  // of the factors, in exp space

    template <bool EXP> const double* at(const Input& input) const {
        if (EXP && input.source >= 0) return values[input.source] ? exponentials + input.block + shift(input) : nullptr;
        const double* base = input.source < 0 ? messages : values[input.source];
        return base ? base + input.offset + shift(input) : nullptr;
    }
    double* gradient(const Input& input) const {
        double* base = input.source < 0 ? shares : gradients[input.source];
        return base ? base + input.offset + shift(input) : nullptr;
    }
    int64_t shift(const Input& input) const {
        int64_t total = 0;
        for (size_t k = 0; k < input.known.size(); k += 2) total += labels[input.known[k]] * input.known[k + 1];
        return total;
    }
};

// log of numbers of at least 1, after the fdlibm reduction to [sqrt(1/2), sqrt(2)).
INLINE V<double> logarithm(V<double> x) {
    typedef I<double> Whole;
    Whole bits = reinterpret_cast<Whole&>(x);
    Whole high = (bits >> 52) - 1023;
    Whole mantissa_bits = (bits & 0x000fffffffffffffLL) | 0x3ff0000000000000LL;
    V<double> m = reinterpret_cast<V<double>&>(mantissa_bits);
    const V<double> half = m * 0.5;
    Whole large = m > all<double>(1.4142135623730951);
    m = large ? half : m;
    V<double> k = __builtin_convertvector(high - large, V<double>);  // `large` is -1 where it holds
    V<double> f = m - 1.0, s = f / (2.0 + f), z = s * s;
    V<double> r = z * (0.6666666666666735130 + z * (0.3999999999940941908 + z * (0.2857142874366239149 +
                  z * (0.2222219843214978396 + z * (0.1818357216161805012 + z * (0.1531383769920937332 + z * 0.1479819860511658591))))));
    V<double> square = f * f * 0.5;
    return k * 6.93147180369123816490e-01 - ((square - (s * (square + r) + k * 1.90821492927058770002e-10)) - f);
}

// One step, ready to visit its blocks.  In exp space scores are multiplied in place of added, and `factor` brings messages to their scale.
template <bool EXP> class Blocks {
  public:
    enum Kind { SCALAR, COMMON, CONTIGUOUS, SCATTERED };

    Blocks(const Elimination& step, const Tables& tables, double factor = 1) : step_(step), tables_(tables), neutral_(EXP ? factor : 0) {
        split();
        parts_.reserve(step.inputs.size());
        for (const Input& input : step.inputs) add(input);
    }

    int64_t rows() const { return step_.rows; }
    int64_t lanes() const { return lanes_; }
    int64_t stride() const { return stride_; }  // from one row of a block to the next: whole vectors

    // Visit(first entry of the message, first lane, lanes, block [rows, stride]) for every block.
    template <class F> INLINE void each(std::vector<double>& buffer, F visit) {
        buffer.resize(static_cast<size_t>(rows() * stride_));
        std::vector<int64_t> index(outer_.size(), 0);
        for (int64_t entry = 0; entry < step_.entries; entry += lanes_) {
            for (int64_t start = 0; start < lanes_; start += chunk_) {
                const int64_t width = std::min(chunk_, lanes_ - start);
                fill(buffer.data(), start, width);
                visit(entry + start, start, width, buffer.data());
            }
            advance(index);
        }
    }

    // Hand the block of shares [rows, stride] to the gradients of all inputs: added, or the maximum of both.
    template <bool MAX> INLINE void give(const double* block, int64_t start, int64_t width) {
        for (int64_t j = 0; j < rows(); ++j) {
            const double* row = block + j * stride_;
            const double whole = scalars_ ? total<MAX>(row, width) : 0;
            for (Part& part : parts_) {
                if (!part.gradient) continue;
                double* to = part.gradient + j * part.input->row;
                if (part.kind == SCALAR) {
                    *to = MAX ? std::max(*to, whole) : *to + whole;
                } else if (part.kind == CONTIGUOUS) {
                    to += start;
                    for (int64_t l = 0; l < width; ++l) to[l] = MAX ? (row[l] > to[l] ? row[l] : to[l]) : to[l] + row[l];
                } else if (part.kind == SCATTERED && part.run < SHORT) {
                    const int32_t* place = part.places.data() + start;
                    for (int64_t l = 0; l < width; ++l) {
                        double& one = to[place[l]];
                        one = MAX ? std::max(one, row[l]) : one + row[l];
                    }
                } else if (part.kind == SCATTERED) {
                    const int32_t* place = part.places.data() + start;
                    each_run(part, start, width, [&](int64_t first, int64_t count) __attribute__((always_inline)) {
                        double* here = to + place[first];
                        const double* from = row + first;
                        if (part.repeats) {
                            const double part_of = total<MAX>(from, count);
                            *here = MAX ? std::max(*here, part_of) : *here + part_of;
                        } else {
                            for (int64_t l = 0; l < count; ++l) here[l] = MAX ? (from[l] > here[l] ? from[l] : here[l]) : here[l] + from[l];
                        }
                    });
                }
            }
            if (!common_shares_.empty()) {
                double* to = common_shares_.data() + j * lanes_ + start;
                for (int64_t l = 0; l < width; ++l) to[l] = MAX ? (row[l] > to[l] ? row[l] : to[l]) : to[l] + row[l];
            }
        }
    }

    template <bool MAX> static INLINE double total(const double* row, int64_t width) {
        constexpr int lanes = Lanes<double>::count;
        V<double> sums = all<double>(MAX ? NOTHING : 0.0);
        int64_t l = 0;
        for (; l + lanes <= width; l += lanes) sums = MAX ? larger<double>(load(row + l), sums) : sums + load(row + l);
        double whole = MAX ? horizontal_max<double>(sums) : horizontal_sum<double>(sums);
        for (; l < width; ++l) whole = MAX ? std::max(whole, row[l]) : whole + row[l];
        return whole;
    }

    // Before and after a way back: shares of the tables that are the same for every block are gathered apart.
    template <bool MAX> void open_common() {
        bool any = false;
        for (const Part& part : parts_) any = any || (part.kind == COMMON && part.gradient);
        common_shares_.assign(any ? static_cast<size_t>(rows() * lanes_) : 0, MAX ? NOTHING : 0.0);
    }
    template <bool MAX> void close_common() {
        if (common_shares_.empty()) return;
        for (Part& part : parts_) {
            if (part.kind != COMMON || !part.gradient) continue;
            for (int64_t j = 0; j < rows(); ++j)
                for (int64_t l = 0; l < lanes_; ++l) {
                    double& to = part.gradient[j * part.input->row + part.places[l]];
                    const double share = common_shares_[j * lanes_ + l];
                    to = MAX ? std::max(to, share) : to + share;
                }
        }
    }

  private:
    struct Part {
        Kind kind;
        const Input* input;
        const double* value;
        double* gradient;
        std::vector<int32_t> places = {};  // of the lanes
        int64_t run = 1;       // as many lanes follow one another in the table, or
        bool repeats = false;  // are one number of it
    };

    static constexpr int64_t SHORT = 4;  // lanes of a run that is not worth a loop of its own

    static INLINE void join(double& total, double one) { total = EXP ? total * one : total + one; }

    // The innermost cells of the message whose entries make the lanes; the others are counted by an odometer.
    void split() {
        inner_ = step_.sizes.size();
        while (inner_ > 0 && lanes_ < 64) lanes_ *= step_.sizes[--inner_];
        while (inner_ > 0 && lanes_ * step_.sizes[inner_ - 1] * rows() <= BLOCK) lanes_ *= step_.sizes[--inner_];
        outer_.assign(step_.sizes.begin(), step_.sizes.begin() + inner_);
        chunk_ = std::max<int64_t>(8, std::min(lanes_, BLOCK / std::max<int64_t>(1, rows())));
        chunk_ = std::min(chunk_, lanes_);
        stride_ = round_up(chunk_, 8);
    }

    void add(const Input& input) {
        bool outer = false, inner = false;
        for (size_t k = 0; k < input.strides.size(); ++k) (k < inner_ ? outer : inner) |= input.strides[k] != 0;
        Part part{SCALAR, &input, tables_.template at<EXP>(input), tables_.shares || !tables_.gradients.empty() ? tables_.gradient(input) : nullptr};
        if (!part.value && !part.gradient) return;
        if (inner) {
            part.kind = side_by_side(input) ? CONTIGUOUS : outer ? SCATTERED : COMMON;
            if (part.kind != CONTIGUOUS) part.places = places(input);
            if (part.kind == SCATTERED) find_run(part);
        }
        if (part.kind == COMMON && part.value) {
            if (common_.empty()) common_.assign(static_cast<size_t>(rows() * lanes_), EXP ? 1.0 : 0.0);
            for (int64_t j = 0; j < rows(); ++j)
                for (int64_t l = 0; l < lanes_; ++l) join(common_[j * lanes_ + l], part.value[j * input.row + part.places[l]]);
        }
        scalars_ = scalars_ || (part.kind == SCALAR && part.gradient);
        parts_.push_back(std::move(part));
    }

    // Whether the lanes of a table follow one another in it.
    bool side_by_side(const Input& input) const {
        int64_t stride = 1;
        for (size_t k = step_.sizes.size(); k-- > inner_; stride *= step_.sizes[k])
            if (step_.sizes[k] > 1 && input.strides[k] != stride) return false;
        return true;
    }

    // Where the lanes stand in a table: those of the last cell, then copies of them for each label of the cell before.
    std::vector<int32_t> places(const Input& input) const {
        std::vector<int32_t> found(static_cast<size_t>(lanes_), 0);
        int64_t known = 1;
        for (size_t k = step_.sizes.size(); k-- > inner_;) {
            for (int64_t label = 1; label < step_.sizes[k]; ++label)
                for (int64_t l = 0; l < known; ++l) found[label * known + l] = found[l] + static_cast<int32_t>(label * input.strides[k]);
            known *= step_.sizes[k];
        }
        return found;
    }

    // How many lanes follow one another in a table, or are one number of it: those of the last cells, as far as they go.
    void find_run(Part& part) const {
        const std::vector<int64_t>& strides = part.input->strides;
        part.repeats = strides.back() == 0;
        for (size_t k = step_.sizes.size(); k-- > inner_; part.run *= step_.sizes[k])
            if (strides[k] != (part.repeats ? 0 : part.run)) break;
    }

    // visit(first lane, how many) for the runs of a table among `width` lanes from `start` on.
    template <class F> static INLINE void each_run(const Part& part, int64_t start, int64_t width, F visit) {
        int64_t count = std::min(width, part.run - start % part.run);
        for (int64_t first = 0; first < width; first += count, count = std::min(width - first, part.run)) visit(first, count);
    }

    INLINE void fill(double* block, int64_t start, int64_t width) const {
        for (int64_t j = 0; j < rows(); ++j) {
            double* row = block + j * stride_;
            double constant = neutral_;
            for (const Part& part : parts_)
                if (part.kind == SCALAR && part.value) join(constant, part.value[j * part.input->row]);
            if (common_.empty()) {
                for (int64_t l = 0; l < width; ++l) row[l] = constant;
            } else {
                const double* from = common_.data() + j * lanes_ + start;
                for (int64_t l = 0; l < width; ++l) row[l] = EXP ? constant * from[l] : constant + from[l];
            }
            for (const Part& part : parts_) {
                if (!part.value) continue;
                const double* from = part.value + j * part.input->row;
                if (part.kind == CONTIGUOUS) {
                    from += start;
                    for (int64_t l = 0; l < width; ++l) join(row[l], from[l]);
                } else if (part.kind == SCATTERED && part.run < SHORT) {
                    const int32_t* place = part.places.data() + start;
                    for (int64_t l = 0; l < width; ++l) join(row[l], from[place[l]]);
                } else if (part.kind == SCATTERED) {
                    const int32_t* place = part.places.data() + start;
                    each_run(part, start, width, [&](int64_t first, int64_t count) __attribute__((always_inline)) {
                        const double* here = from + place[first];
                        double* to = row + first;
                        if (part.repeats)
                            for (int64_t l = 0; l < count; ++l) join(to[l], *here);
                        else
                            for (int64_t l = 0; l < count; ++l) join(to[l], here[l]);
                    });
                }
            }
        }
    }

    void advance(std::vector<int64_t>& index) {
        for (size_t k = outer_.size(); k-- > 0;) {
            const bool carry = ++index[k] == outer_[k];
            const int64_t by = carry ? 1 - outer_[k] : 1;
            for (Part& part : parts_) {
                const int64_t move = by * part.input->strides[k];
                if (part.value) part.value += move;
                if (part.gradient) part.gradient += move;
            }
            if (!carry) return;
            index[k] = 0;
        }
    }

    const Elimination& step_;
    const Tables& tables_;
    double neutral_;
    size_t inner_ = 0;
    bool scalars_ = false;  // whether a table wants one number for each row of a block
    int64_t lanes_ = 1, chunk_ = 1, stride_ = 8;
    std::vector<int64_t> outer_;
    std::vector<Part> parts_;
    std::vector<double> common_, common_shares_;
};

}  // namespace energyml
