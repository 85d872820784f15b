// One elimination, block by block: what every kernel on factor graphs reads its tables and hands out its gradients
// through.
//
// A step adds up the tables that mention a cell and sums (or maximises) the cell out; the clique is never stored.  Its
// entries are visited in blocks: rows are the labels of the cell, lanes are entries of the message that lie side by
// side in it.  Tables are sorted by what a block needs of them: one number, the same lanes for every block, or lanes of
// their own.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();
constexpr int64_t PADDING = 8;  // doubles behind the messages, so that whole vectors can be read
constexpr int64_t SHORT = 4;    // lanes of a run that is not worth a loop of its own
constexpr int64_t MOST_SPREAD =
    1 << 20;  // doubles that the lanes of a table may take side by side: more would leave the cache, and the budget
constexpr int64_t BLOCK = 512;  // doubles of a block: rows times lanes; larger ones cost more to set up than they bring

// A clique of so few entries is visited one by one; so many tables and cells of the message it may have.
constexpr int64_t SMALL = 16, MOST_INPUTS = 32, MOST_KEPT = 8;

// In exp space: chunks of eight entries that the clique of a step may have that is laid out as pieces; powers of two
// that the entries of a message stay below, and those of the inputs of a step together; by how many powers the reader
// of messages multiplies them at most; factors in a message that has to be normalised.
constexpr int64_t MOST_CHUNKS = 16, LARGE_BITS = 24, MOST_BITS = 60, MOST_DEFERRED = 512, MANY_FACTORS = 24;

// Numbers that live as long as a program: a few large pieces of memory in place of many small ones.
template <class T> class Arena {
  public:
    T* take(int64_t count) {
        if (count > left_) {
            left_ = std::max<int64_t>(count, PIECE);
            pieces_.emplace_back(new T[static_cast<size_t>(left_)]);
            next_ = pieces_.back().get();
        }
        T* found = next_;
        next_ += count;
        left_ -= count;
        return found;
    }

  private:
    // Small enough to come from memory that was used before: fresh pages take longer to get than programs to make.
    static constexpr int64_t PIECE = 16384 / sizeof(T);
    std::vector<std::unique_ptr<T[]>> pieces_;
    T* next_ = nullptr;
    int64_t left_ = 0;
};

// What the lanes of a block need of a table: one number for all, the same lanes for every block, or lanes of their own:
// side by side in the table, or anywhere in it.
enum Need : uint8_t { SCALAR, COMMON, CONTIGUOUS, SCATTERED };

// A table as a step reads it: strides over the labels of its cells, 0 for cells that it does not mention.
struct Input {
    int64_t source;  // a table, or below 0 for a message: -1 - the number of its step
    int64_t offset;
    int64_t size;            // entries of the factor, known cells included
    int64_t block;           // where its exponentials, or the message, stand in the room of exp space
    int64_t row;             // stride of the cell that is summed out
    const int64_t* strides;  // of the cells of the message
    const int64_t* known;    // pairs: which known cell, and its stride
    int64_t known_count;
    Need kind;
    bool repeats;           // as many lanes as a run has are one number of the table, or
    int64_t run;            // follow one another in it
    const int32_t* places;  // of the lanes, where they are common or scattered
    // Scattered lanes laid side by side for all blocks, [blocks that differ, rows, lanes], and its strides over the
    // outer cells; no blocks where all differ, so that nothing would be saved, or where they are too many.
    int64_t spread_count;
    const int64_t* spread;
};

// A range of an arena.
template <class T> struct Range {
    T* data = nullptr;
    int64_t count = 0;
    T* begin() const { return data; }
    T* end() const { return data + count; }
    T& operator[](int64_t k) const { return data[k]; }
};

struct Elimination {
    int64_t cell, rows, message, entries;
    Range<int64_t> kept, sizes;
    Range<Input> inputs;
    // Blocks: the cells of the message from `inner` on make the lanes, the others are counted by an odometer.
    int64_t inner, lanes, chunk, stride;
    bool small;
    // In exp space: whether the largest entry of the message is brought near 1; of one that is visited in blocks, how
    // many powers of two it may be above that (and eight times as many below), and how many below it may be for its
    // reader to take care of that; 0 for none.
    bool normalised;
    int64_t allowed, deferred;
};

// Eight entries of a clique as a table or message gives them: where these stand in the room of exp space, each at most
// 255 behind `from`.
struct Piece {
    int32_t from;
    uint16_t source;  // a table, or as many as there are for a message
    uint16_t known;   // which of the shifts by known labels, 0 for none
    uint8_t places[8];
    uint8_t words;  // that bring shares back to the places, each with one lane for every place; 0 where lanes are
                    // handed out one by one
    uint8_t count;  // of places
    int32_t back;   // where the words begin
};

// A step as a run of pieces (see flat.h); one without groups is visited in blocks.
struct Flat {
    int32_t message;     // where it stands in the room
    int32_t first;       // piece
    uint16_t inputs;     // pieces that are multiplied
    uint8_t groups = 0;  // of eight entries of the message
    uint8_t chunks;      // of eight entries of the clique, for each group
    bool paired;         // a chunk is two rows of at most four entries
    bool far;            // lanes are loaded one by one: places go beyond 7, or shuffles are slow
    bool normalised;     // as the step's: the way up reads nothing else of that
    bool plain;          // two pieces, of which all lanes are near, and no more
};

// A table of which the factors take their entries.
struct Source {
    int64_t start;    // in the room
    int64_t entries;  // of one example
    int64_t uses;     // how many factors there are
};

struct Graph {
    int64_t cells, known, workspace;
    int64_t room = 0;  // of exp space, for exponentials: messages stand behind it
    std::vector<Elimination> steps;
    std::vector<Input> loose;
    std::vector<Source> sources;
    std::vector<Flat> flats;  // one for each step
    std::vector<Piece> pieces;
    std::vector<uint64_t> backs;        // a byte for each place: a lane, or 8 for none
    bool returns = false;               // whether it is known how shares come back
    int64_t most_inputs = 0;            // of a step
    std::vector<const Input*> shifted;  // those that known labels move, from number 1 on
    Arena<int64_t> numbers;
    Arena<int32_t> places;
    Arena<Input> inputs;

    // Finds how shares come back, when that is wanted for the first time.  Not for two threads at once.
    void find_returns() {
        if (returns) return;
        for (Piece& piece : pieces) bring_back(piece);
        returns = true;
    }

  private:
    void bring_back(Piece& piece) {
        uint64_t words[4];
        uint8_t met[8] = {}, count = 0, last = 0;
        piece.words = 0;
        for (int lane = 0; lane < 8; ++lane) {
            const uint8_t place = piece.places[lane];
            if (place > 7 || met[place] == 4 || !WIDE_REGISTERS) return;
            if (met[place] == count) words[count++] = 0x0808080808080808;
            words[met[place]++] ^= static_cast<uint64_t>(8 ^ lane) << 8 * place;
            last = std::max(last, place);
        }
        piece.words = count;
        piece.count = static_cast<uint8_t>(last + 1);
        piece.back = static_cast<int32_t>(backs.size());
        backs.insert(backs.end(), words, words + count);
    }
};

// Tables of one example and, on the way back, where their gradients go; null where there is none.
struct Tables {
    std::vector<const double*> values;
    std::vector<double*> gradients;
    const int64_t* labels;  // of the known cells
    double* messages;
    double* shares;          // gradients of the messages
    double* room = nullptr;  // of exp space: exponentials of the tables, and the messages behind them

    template <bool EXP> const double* at(const Input& input) const {
        if (EXP) return input.source < 0 || values[input.source] ? room + input.block + shift(input) : nullptr;
        const double* base = input.source < 0 ? messages : values[input.source];
        return base ? base + input.offset + shift(input) : nullptr;
    }
    double* gradient(const Input& input) const {
        double* base = input.source < 0 ? shares : gradients[input.source];
        return base ? base + input.offset + shift(input) : nullptr;
    }
    int64_t shift(const Input& input) const {
        int64_t total = 0;
        for (int64_t k = 0; k < input.known_count; k += 2) total += labels[input.known[k]] * input.known[k + 1];
        return total;
    }
};

// A table of the step at hand: where its values and its gradients stand for the block at hand; null where there are
// none.
struct Part {
    const Input* input;
    const double* value;
    double* gradient;
    const int64_t* strides;  // of both over the outer cells
};

// A table whose lanes stand side by side: where they begin, and the stride of the cell that is summed out.
struct Lanewise {
    const double* from;
    int64_t row;
};

// The same of a gradient.
struct Receiving {
    double* to;
    int64_t row;
};

// What was seen of a message that is visited in blocks: whether it has zeros, and the exponent of its smallest other
// entry.
struct Seen {
    bool zeros;
    int64_t bits;
};

// What a thread needs while it visits blocks, kept from step to step.
struct Room {
    std::vector<Part> parts;
    std::vector<int64_t> index;  // of the odometer
    std::vector<double> block, common, common_shares;
    // In exp space: for each step the power of two that its message was multiplied with, and the one that its reader
    // has to; lanes that were laid side by side; what makes the products of a block shares; the tables and the
    // gradients of a block; by how much known labels move tables; where gradients go; the largest entries of tables,
    // and how far below them the smallest are; what was seen of messages.
    std::vector<double> scale, pending, spread, ratio, highs, lows;
    std::vector<Lanewise> lanewise;
    std::vector<Receiving> receiving;
    std::vector<int64_t> shifts;
    std::vector<double*> receivers;
    std::vector<Seen> found;

    // Give back what is large.
    void settle() {
        if (spread.size() > RETAINED) std::vector<double>().swap(spread);
    }

    static constexpr size_t RETAINED = size_t{1} << 22;  // 32 MB
};

// Moves the parts of a step from block to block.
class Odometer {
  public:
    Odometer(const Elimination& step, Room& room) : step_(step), room_(room) {
        room.index.assign(static_cast<size_t>(step.inner), 0);
    }

    inline void advance() {
        for (int64_t k = step_.inner; k-- > 0;) {
            const bool carry = ++room_.index[k] == step_.sizes[k];
            const int64_t by = carry ? 1 - step_.sizes[k] : 1;
            for (Part& part : room_.parts) {
                if (part.value) part.value += by * part.strides[k];
                if (part.gradient) part.gradient += by * part.strides[k];
            }
            if (!carry) return;
            room_.index[k] = 0;
        }
    }

  private:
    const Elimination& step_;
    Room& room_;
};

// One step in log space, ready to visit its blocks.
class Blocks {
  public:
    Blocks(const Elimination& step, const Tables& tables, Room& room)
        : step_(step), tables_(tables), room_(room), lanes_(step.lanes), stride_(step.stride) {
        room.parts.clear();
        room.common.clear();
        room.common_shares.clear();
        for (const Input& input : step.inputs) add(input);
    }

    int64_t rows() const { return step_.rows; }
    int64_t stride() const { return stride_; }  // from one row of a block to the next: whole vectors

    // Visit(first entry of the message, first lane, lanes, block [rows, stride]) for every block.
    template <class F> inline void each(F visit) {
        room_.block.resize(static_cast<size_t>(rows() * stride_));
        double* block = room_.block.data();
        Odometer odometer(step_, room_);
        for (int64_t entry = 0; entry < step_.entries; entry += lanes_) {
            for (int64_t start = 0; start < lanes_; start += step_.chunk) {
                const int64_t width = std::min(step_.chunk, lanes_ - start);
                fill(block, start, width);
                visit(entry + start, start, width, block);
            }
            odometer.advance();
        }
    }

    // Hand the block of shares [rows, stride] to the gradients of all inputs: added, or the maximum of both.
    template <bool MAX> inline void give(const double* block, int64_t start, int64_t width) {
        for (int64_t j = 0; j < rows(); ++j) {
            const double* row = block + j * stride_;
            const double whole = scalars_ ? total<MAX>(row, width) : 0;
            for (const Part& part : room_.parts) {
                if (!part.gradient) continue;
                const Input& input = *part.input;
                double* to = part.gradient + j * input.row;
                if (input.kind == SCALAR) {
                    *to = MAX ? std::max(*to, whole) : *to + whole;
                } else if (input.kind == CONTIGUOUS) {
                    to += start;
                    for (int64_t l = 0; l < width; ++l)
                        to[l] = MAX ? (row[l] > to[l] ? row[l] : to[l]) : to[l] + row[l];
                } else if (input.kind == SCATTERED && input.run < SHORT) {
                    const int32_t* place = input.places + start;
                    for (int64_t l = 0; l < width; ++l) {
                        double& one = to[place[l]];
                        one = MAX ? std::max(one, row[l]) : one + row[l];
                    }
                } else if (input.kind == SCATTERED) {
                    const int32_t* place = input.places + start;
                    each_run(input, start, width, [&](int64_t first, int64_t count) {
                        double* here = to + place[first];
                        const double* from = row + first;
                        if (input.repeats) {
                            const double part_of = total<MAX>(from, count);
                            *here = MAX ? std::max(*here, part_of) : *here + part_of;
                        } else {
                            for (int64_t l = 0; l < count; ++l)
                                here[l] = MAX ? (from[l] > here[l] ? from[l] : here[l]) : here[l] + from[l];
                        }
                    });
                }
            }
            if (!room_.common_shares.empty()) {
                double* to = room_.common_shares.data() + j * lanes_ + start;
                for (int64_t l = 0; l < width; ++l) to[l] = MAX ? (row[l] > to[l] ? row[l] : to[l]) : to[l] + row[l];
            }
        }
    }

    template <bool MAX> static inline double total(const double* row, int64_t width) {
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
        for (const Part& part : room_.parts) any = any || (part.input->kind == COMMON && part.gradient);
        room_.common_shares.assign(any ? static_cast<size_t>(rows() * lanes_) : 0, MAX ? NOTHING : 0.0);
    }
    template <bool MAX> void close_common() {
        if (room_.common_shares.empty()) return;
        for (const Part& part : room_.parts) {
            if (part.input->kind != COMMON || !part.gradient) continue;
            for (int64_t j = 0; j < rows(); ++j)
                for (int64_t l = 0; l < lanes_; ++l) {
                    double& to = part.gradient[j * part.input->row + part.input->places[l]];
                    const double share = room_.common_shares[j * lanes_ + l];
                    to = MAX ? std::max(to, share) : to + share;
                }
        }
    }

  private:
    void add(const Input& input) {
        double* gradient = tables_.shares || !tables_.gradients.empty() ? tables_.gradient(input) : nullptr;
        Part part{&input, tables_.at<false>(input), gradient, input.strides};
        if (!part.value && !part.gradient) return;
        if (input.kind == COMMON && part.value) {
            if (room_.common.empty()) room_.common.assign(static_cast<size_t>(rows() * lanes_), 0.0);
            for (int64_t j = 0; j < rows(); ++j)
                for (int64_t l = 0; l < lanes_; ++l)
                    room_.common[j * lanes_ + l] += part.value[j * input.row + input.places[l]];
        }
        scalars_ = scalars_ || (input.kind == SCALAR && part.gradient);
        room_.parts.push_back(part);
    }

    // visit(first lane, how many) for the runs of a table among `width` lanes from `start` on.
    template <class F> static inline void each_run(const Input& input, int64_t start, int64_t width, F visit) {
        int64_t count = std::min(width, input.run - start % input.run);
        for (int64_t first = 0; first < width; first += count, count = std::min(width - first, input.run))
            visit(first, count);
    }

    inline void fill(double* block, int64_t start, int64_t width) const {
        for (int64_t j = 0; j < rows(); ++j) {
            double* row = block + j * stride_;
            double constant = 0;
            for (const Part& part : room_.parts)
                if (part.input->kind == SCALAR && part.value) constant += part.value[j * part.input->row];
            if (room_.common.empty()) {
                for (int64_t l = 0; l < width; ++l) row[l] = constant;
            } else {
                const double* from = room_.common.data() + j * lanes_ + start;
                for (int64_t l = 0; l < width; ++l) row[l] = constant + from[l];
            }
            for (const Part& part : room_.parts) {
                if (!part.value) continue;
                const Input& input = *part.input;
                const double* from = part.value + j * input.row;
                if (input.kind == CONTIGUOUS) {
                    from += start;
                    for (int64_t l = 0; l < width; ++l) row[l] += from[l];
                } else if (input.kind == SCATTERED && input.run < SHORT) {
                    const int32_t* place = input.places + start;
                    for (int64_t l = 0; l < width; ++l) row[l] += from[place[l]];
                } else if (input.kind == SCATTERED) {
                    const int32_t* place = input.places + start;
                    each_run(input, start, width, [&](int64_t first, int64_t count) {
                        const double* here = from + place[first];
                        double* to = row + first;
                        if (input.repeats)
                            for (int64_t l = 0; l < count; ++l) to[l] += *here;
                        else
                            for (int64_t l = 0; l < count; ++l) to[l] += here[l];
                    });
                }
            }
        }
    }

    const Elimination& step_;
    const Tables& tables_;
    Room& room_;
    int64_t lanes_, stride_;
    bool scalars_ = false;  // whether a table wants one number for each row of a block
};

}  // namespace energyml
