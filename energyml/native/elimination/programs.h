// Elimination programs: the twin of `compile_order` in energyml/plan/elimination.py, and programs as the kernels run
// them.
//
// Between the two a program is a list of numbers: how many steps and loose tables there are; for each step its cell,
// how many cells its message has, these, how many tables it adds up, these; then the loose tables.
#pragma once

#include "blocks.h"
#include "orders.h"

namespace energyml {

struct Compiled {
    std::vector<int64_t> order;  // of the cells that are eliminated
    std::vector<int64_t> numbers;
    int64_t width = 0;
    double operations = 0, entries = 0;
};

// Tables by the first of their cells that is eliminated: chains of tables, in the order in which they came.
class Buckets {
  public:
    Buckets(int64_t buckets, int64_t tables)
        : first_(static_cast<size_t>(buckets), NONE), last_(first_), next_(static_cast<size_t>(tables), NONE) {}
    void put(int64_t bucket, int64_t table) {
        (last_[bucket] == NONE ? first_[bucket] : next_[last_[bucket]]) = table;
        last_[bucket] = table;
    }
    template <class F> void each(int64_t bucket, F visit) const {
        for (int64_t table = first_[bucket]; table != NONE; table = next_[table]) visit(table);
    }
    // The last table that is wanted, taken out; NONE where there is none.
    template <class F> int64_t take(int64_t bucket, F wanted) {
        int64_t before = NONE, ahead = NONE, found = NONE;
        for (int64_t table = first_[bucket]; table != NONE; before = table, table = next_[table])
            if (wanted(table)) {
                found = table;
                ahead = before;
            }
        if (found == NONE) return NONE;
        (ahead == NONE ? first_[bucket] : next_[ahead]) = next_[found];
        if (last_[bucket] == found) last_[bucket] = ahead;
        next_[found] = NONE;
        return found;
    }

    static constexpr int64_t NONE = -1;

  private:
    std::vector<int64_t> first_, last_, next_;
};

// The program of the order that is given with it (bucket elimination: Dechter 1999).
static void compile_order(const Scopes& graph, Compiled& made) {
    const std::vector<int64_t>& order = made.order;
    const auto steps = static_cast<int64_t>(order.size());
    made.width = 0;
    made.operations = made.entries = 0;
    std::vector<int64_t> place(static_cast<size_t>(graph.cells), steps);
    for (int64_t k = 0; k < steps; ++k) place[order[k]] = k;
    Buckets buckets(steps + 1, graph.factors + steps);  // the last one is for loose tables
    for (int64_t f = 0; f < graph.factors; ++f) {
        int64_t first = steps;
        for (int64_t m = graph.starts[f]; m < graph.starts[f + 1]; ++m)
            first = std::min(first, place[graph.members[m]]);
        buckets.put(first, f);
    }
    std::vector<int64_t> messages, starts{0}, kept;  // the places of the cells of messages, one message after another
    std::vector<int64_t> seen(static_cast<size_t>(steps), -1);
    messages.reserve(static_cast<size_t>(8 * steps));
    made.numbers.reserve(static_cast<size_t>(12 * steps + graph.factors));
    made.numbers.assign({steps, 0});
    for (int64_t k = 0; k < steps; ++k) {
        kept.clear();
        const auto keep = [&](int64_t at) {
            if (at <= k || at == steps || seen[at] == k) return;
            seen[at] = k;
            kept.push_back(at);
        };
        buckets.each(k, [&](int64_t table) {
            if (table < graph.factors)
                for (int64_t m = graph.starts[table]; m < graph.starts[table + 1]; ++m) keep(place[graph.members[m]]);
            else
                for (int64_t m = starts[table - graph.factors]; m < starts[table - graph.factors + 1]; ++m)
                    keep(messages[m]);
        });
        std::sort(kept.begin(), kept.end());
        const int64_t onward = kept.empty() ? steps : kept[0];
        // One message in place of many over the same cells.
        const int64_t same = kept.empty() ? Buckets::NONE : buckets.take(onward, [&](int64_t table) {
            if (table < graph.factors) return false;
            const int64_t start = starts[table - graph.factors], end = starts[table - graph.factors + 1];
            return end - start == static_cast<int64_t>(kept.size()) &&
                   std::equal(kept.begin(), kept.end(), messages.begin() + start);
        });
        if (same != Buckets::NONE) buckets.put(k, same);
        buckets.put(onward, graph.factors + k);
        messages.insert(messages.end(), kept.begin(), kept.end());
        starts.push_back(static_cast<int64_t>(messages.size()));
        double entries = 1;
        made.numbers.insert(made.numbers.end(), {order[k], static_cast<int64_t>(kept.size())});
        for (int64_t at : kept) {
            made.numbers.push_back(order[at]);
            entries *= static_cast<double>(graph.sizes[order[at]]);
        }
        const size_t count = made.numbers.size();
        made.numbers.push_back(0);
        buckets.each(k, [&](int64_t table) { made.numbers.push_back(table); });
        made.numbers[count] = static_cast<int64_t>(made.numbers.size() - count - 1);
        made.width = std::max(made.width, static_cast<int64_t>(kept.size()));
        made.operations += static_cast<double>(made.numbers[count] * graph.sizes[order[k]]) * entries;
        made.entries += entries;
    }
    const size_t end = made.numbers.size();
    buckets.each(steps, [&](int64_t table) { made.numbers.push_back(table); });
    made.numbers[1] = static_cast<int64_t>(made.numbers.size() - end);
}

// The cells of the elements of a table's index set: listed, or where there is no list one cell each, from the first on.
struct Places {
    const int64_t* cells;  // [count, arity]
    int64_t count, arity, first;
};

// The factors of a graph: the elements of its tables, one table after another, but for those with a cell that there is
// not.
struct Gathered {
    std::vector<int64_t> members, starts, sources, elements;  // as in `Scopes` and `Layout`

    Gathered(const std::vector<Places>& tables, int64_t cells) {
        size_t most = 0, entries = 0;
        for (const Places& table : tables) {
            most += static_cast<size_t>(table.count);
            entries += static_cast<size_t>(table.count * table.arity);
        }
        members.resize(entries);
        starts.resize(most + 1);
        sources.resize(most);
        elements.resize(most);
        size_t factors = 0;
        int64_t end = 0;
        for (size_t source = 0; source < tables.size(); ++source) {
            const Places& table = tables[source];
            for (int64_t element = 0; element < table.count; ++element) {
                const int64_t alone = table.first + element;
                const int64_t* own = table.cells ? table.cells + element * table.arity : &alone;
                bool there = true;
                for (int64_t m = 0; m < table.arity; ++m) {
                    members[static_cast<size_t>(end + m)] = own[m];
                    there = there && own[m] >= 0 && own[m] < cells;
                }
                if (!there) continue;
                starts[factors] = end;
                sources[factors] = static_cast<int64_t>(source);
                elements[factors++] = element;
                end += table.arity;
            }
        }
        starts[factors] = end;
        members.resize(static_cast<size_t>(end));
        starts.resize(factors + 1);
        sources.resize(factors);
        elements.resize(factors);
    }
};

// Where the factors stand in their tables.
struct Layout {
    const int64_t* sources;       // [factors]: which table
    const int64_t* elements;      // [factors]: which element of its index set
    std::vector<int64_t> tables;  // for each table: its entries for one example (0 where there is none), how many cells
                                  // its factors have, the strides of these, how many axes its index set has, these with
                                  // sizes and strides; strides of a cell that stands in a scope twice are added up
    int64_t count = 0;            // tables
    const int64_t* known;         // [known_count]: the known cells, in the order of their labels
    int64_t known_count;

    // One more table: the sizes of its index set, and where there is one its shape without the batch axis.
    void add(const std::vector<int64_t>& domain, int64_t arity, const std::vector<int64_t>* shape) {
        const auto rank = static_cast<int64_t>(domain.size());
        std::vector<int64_t> strides(static_cast<size_t>(rank + arity), 0);
        int64_t entries = shape ? 1 : 0;
        for (size_t axis = shape ? strides.size() : 0; axis-- > 0; entries *= (*shape)[axis]) strides[axis] = entries;
        tables.push_back(entries);
        tables.push_back(arity);
        tables.insert(tables.end(), strides.begin() + rank, strides.end());
        tables.push_back(rank);
        for (size_t axis = 0; axis < domain.size(); ++axis)
            tables.insert(tables.end(), {domain[axis], shape && (*shape)[axis] == 1 ? 0 : strides[axis]});
        ++count;
    }
};

// A program as the kernels run it, from its numbers.
class Assembly {
  public:
    Assembly(const Scopes& scopes, const Layout& layout)
        : scopes_(scopes),
          layout_(layout),
          ranks_(static_cast<size_t>(scopes.cells), -1),
          stride_(static_cast<size_t>(scopes.cells), 0) {
        for (int64_t rank = 0; rank < layout.known_count; ++rank) ranks_[layout.known[rank]] = rank;
        const int64_t* next = layout.tables.data();
        for (int64_t k = 0; k < layout.count; ++k) {
            graph_.sources.push_back({graph_.room, *next, 0});
            graph_.room += *next++;
            tables_.push_back(next);
            next += 1 + *next;
            next += 1 + 2 * *next;
        }
        graph_.room = round_up(graph_.room + PADDING, 8);
        graph_.shifted.push_back(nullptr);
    }

    Graph read(const int64_t* next) {
        graph_.cells = scopes_.cells;
        graph_.known = layout_.known_count;
        graph_.workspace = 0;
        int64_t steps = *next++, loose = *next++;
        graph_.steps.reserve(static_cast<size_t>(steps));
        graph_.flats.reserve(static_cast<size_t>(steps));
        graph_.pieces.reserve(static_cast<size_t>(4 * steps));
        for (; steps > 0; --steps) {
            graph_.steps.emplace_back();
            Elimination& step = graph_.steps.back();
            step.cell = *next++;
            step.rows = scopes_.sizes[step.cell];
            step.message = graph_.workspace;
            step.entries = 1;
            step.kept = {graph_.numbers.take(*next), *next};
            step.sizes = {graph_.numbers.take(*next), *next};
            ++next;
            for (int64_t k = 0; k < step.kept.count; ++k) {
                step.kept[k] = *next++;
                step.sizes[k] = scopes_.sizes[step.kept[k]];
                step.entries *= step.sizes[k];
            }
            graph_.workspace += round_up(step.entries, 8);  // whole vectors are written where messages are small
            step.inputs = {graph_.inputs.take(*next), *next};
            ++next;
            graph_.most_inputs = std::max(graph_.most_inputs, step.inputs.count);
            divide(step);
            for (Input& one : step.inputs) one = input(*next++, &step);
            const bool flat = flatten(step);
            if (!flat || !step.small)
                for (Input& one : step.inputs) place(step, one);
            bound(step, flat);
        }
        for (; loose > 0; --loose) graph_.loose.push_back(input(*next++, nullptr));
        for (size_t k = 0; k < graph_.steps.size(); ++k) graph_.flats[k].normalised = graph_.steps[k].normalised;
        return std::move(graph_);
    }

  private:
    // A table as a step reads it, or alone where there is none.
    Input input(int64_t table, const Elimination* step) {
        Input made{};
        const bool factor = table < scopes_.factors;
        const int64_t* members = nullptr;
        int64_t count = 0;
        if (factor) {
            members = scopes_.members + scopes_.starts[table];
            count = scopes_.starts[table + 1] - scopes_.starts[table];
            made.source = layout_.sources[table];
            const int64_t* strides = tables_[made.source] + 1;
            made.offset = offset(strides + strides[-1], layout_.elements[table]);
            made.size = 1;
            for (int64_t m = 0; m < count; ++m) {
                made.size *= scopes_.sizes[members[m]];
                stride_[members[m]] += strides[m];
            }
            ++graph_.sources[made.source].uses;
            made.block = graph_.sources[made.source].start + made.offset;
        } else {
            const Elimination& sender = graph_.steps[table - scopes_.factors];
            members = sender.kept.data;
            count = sender.kept.count;
            made.source = -1 - (table - scopes_.factors);
            made.offset = sender.message;
            made.block = graph_.room + sender.message;
            int64_t stride = 1;
            for (int64_t m = count; m-- > 0; stride *= sender.sizes[m]) stride_[members[m]] = stride;
        }
        if (step) {
            made.row = stride_[step->cell];
            int64_t* strides = graph_.numbers.take(step->kept.count);
            for (int64_t k = 0; k < step->kept.count; ++k) strides[k] = stride_[step->kept[k]];
            made.strides = strides;
        }
        int64_t* known = factor ? graph_.numbers.take(2 * count) : nullptr;
        made.known = known;
        for (int64_t m = 0; m < count; ++m) {
            const int64_t cell = members[m];
            if (factor && ranks_[cell] >= 0 && stride_[cell]) {
                known[made.known_count++] = ranks_[cell];
                known[made.known_count++] = stride_[cell];
            }
            stride_[cell] = 0;
        }
        return made;
    }

    // Where an element of an index set begins in its table: its axes are how many, then sizes and strides.
    static int64_t offset(const int64_t* axes, int64_t element) {
        int64_t found = 0;
        for (int64_t axis = axes[0]; axis-- > 0;) {
            const int64_t size = axes[1 + 2 * axis];
            found += element % size * axes[2 + 2 * axis];
            element /= size;
        }
        return found;
    }

    // Which cells of the message make the lanes of blocks: the last ones.
    static void divide(Elimination& step) {
        step.small =
            step.rows * step.entries <= SMALL && step.inputs.count <= MOST_INPUTS && step.kept.count <= MOST_KEPT;
        step.inner = step.kept.count;
        step.lanes = 1;
        while (step.inner > 0 && step.lanes < 64) step.lanes *= step.sizes[--step.inner];
        while (step.inner > 0 && step.lanes * step.sizes[step.inner - 1] * step.rows <= BLOCK)
            step.lanes *= step.sizes[--step.inner];
        step.chunk = std::max<int64_t>(8, std::min(step.lanes, BLOCK / std::max<int64_t>(1, step.rows)));
        step.chunk = std::min(step.chunk, step.lanes);
        step.stride = round_up(step.chunk, 8);
    }

    // A small step as pieces; false where it is none, or its entries stand too far from each other.
    bool flatten(const Elimination& step) {
        graph_.flats.emplace_back();
        const bool paired = step.entries <= 4 && step.rows % 2 == 0;
        const int64_t groups = (step.entries + 7) / 8, chunks = paired ? step.rows / 2 : step.rows;
        if (groups * chunks > MOST_CHUNKS || step.inputs.count > MOST_INPUTS || graph_.sources.size() >= UINT16_MAX)
            return false;
        if (graph_.room + graph_.workspace > INT32_MAX || graph_.shifted.size() + MOST_INPUTS > UINT16_MAX)
            return false;
        const size_t first = graph_.pieces.size();
        int64_t inputs = 0;
        for (const Input& input : step.inputs) inputs += given(input);
        graph_.pieces.resize(first + static_cast<size_t>(groups * chunks * inputs));
        int64_t furthest = 0;
        Piece* column = graph_.pieces.data() + first;
        for (const Input& input : step.inputs) {
            if (!given(input)) continue;
            spots(step, input);
            uint16_t known = 0;
            if (input.known_count) {
                known = static_cast<uint16_t>(graph_.shifted.size());
                graph_.shifted.push_back(&input);
            }
            const uint16_t source = static_cast<uint16_t>(input.source < 0 ? graph_.sources.size() : input.source);
            Piece* piece = column++;
            for (int64_t group = 0; group < groups; ++group)
                for (int64_t chunk = 0; chunk < chunks; ++chunk, piece += inputs) {
                    int64_t own[8];
                    if (paired)
                        for (int64_t lane = 0; lane < 8; ++lane)
                            own[lane] = (2 * chunk + lane / 4) * input.row + spots_[lane % 4];
                    else
                        for (int64_t lane = 0; lane < 8; ++lane)
                            own[lane] = chunk * input.row + spots_[8 * group + lane];
                    int64_t least = own[0], most = own[0];
                    for (int64_t lane = 1; lane < 8; ++lane) {
                        least = std::min(least, own[lane]);
                        most = std::max(most, own[lane]);
                    }
                    furthest = std::max(furthest, most - least);
                    piece->from = static_cast<int32_t>(input.block + least);
                    piece->source = source;
                    piece->known = known;
                    for (int64_t lane = 0; lane < 8; ++lane)
                        piece->places[lane] = static_cast<uint8_t>(own[lane] - least);
                }
        }
        if (furthest > UINT8_MAX) {
            graph_.pieces.resize(first);
            return false;
        }
        Flat& made = graph_.flats.back();
        made.message = static_cast<int32_t>(graph_.room + step.message);
        made.first = static_cast<int32_t>(first);
        made.inputs = static_cast<uint16_t>(inputs);
        made.groups = static_cast<uint8_t>(groups);
        made.chunks = static_cast<uint8_t>(chunks);
        made.paired = paired;
        made.far = furthest > 7 || !WIDE_REGISTERS;
        made.plain = paired && inputs == 2 && groups == 1 && chunks == 1 && !made.far;
        return true;
    }

    // Whether a table is there at all.
    bool given(const Input& input) const { return input.source < 0 || graph_.sources[input.source].entries > 0; }

    // Where the entries of a message stand in a table, filled up to a whole chunk: lanes behind the last entry repeat
    // the first one of their chunk, so that what is found about all lanes holds for entries.
    void spots(const Elimination& step, const Input& input) {
        spots_[0] = 0;
        int64_t known = 1;
        for (int64_t k = step.kept.count; k-- > 0; known *= step.sizes[k])
            for (int64_t label = 1; label < step.sizes[k]; ++label)
                for (int64_t e = 0; e < known; ++e) spots_[label * known + e] = spots_[e] + label * input.strides[k];
        for (int64_t e = known; e % 8; ++e) spots_[e] = spots_[known & ~int64_t{7}];
    }

    // How large the entries of messages can get in exp space, where those of tables are at most 1: where products could
    // leave the bounds that products.h needs, or too many factors are multiplied for them to stay far from 0, messages
    // are normalised.
    void bound(Elimination& step, bool flat) {
        double bits = 0;
        int64_t factors = 0, blocks = 0;
        for (const Input& input : step.inputs) {
            if (input.source < 0) {
                bits += bits_[-1 - input.source];
                blocks += !graph_.flats[-1 - input.source].groups;
            }
            factors += input.source < 0 ? factors_[-1 - input.source] : 1;
        }
        const bool many = bits > MOST_BITS / 2;
        if (many) bits = 0;
        const int64_t each = blocks ? std::min(LARGE_BITS, MOST_BITS / 2 / blocks) : 0;
        for (const Input& input : step.inputs) {
            if (input.source >= 0) continue;
            Elimination& sender = graph_.steps[-1 - input.source];
            if (graph_.flats[-1 - input.source].groups) {
                sender.normalised = sender.normalised || many;
                continue;
            }
            sender.allowed = each;
            sender.deferred =
                sender.entries > 8 * MOST_CHUNKS ? MOST_DEFERRED / blocks : 0;  // only blocks read so many entries
        }
        step.allowed = step.deferred = 0;
        bits += static_cast<double>(each * blocks) + std::log2(static_cast<double>(step.rows));
        step.normalised = flat && (bits > LARGE_BITS || factors > MANY_FACTORS);
        bits_.push_back(step.normalised || !flat ? 0 : bits);
        factors_.push_back(step.normalised || !flat ? 0 : factors);
    }

    // What the lanes need of a table, and where they stand in it: those of the last cell, then copies of them for each
    // label of the cell before.
    void place(const Elimination& step, Input& input) {
        bool outer = false, inner = false, straight = true;
        for (int64_t k = 0; k < step.inner; ++k) outer |= input.strides[k] != 0;
        int64_t stride = 1;
        for (int64_t k = step.kept.count; k-- > step.inner; stride *= step.sizes[k]) {
            inner |= input.strides[k] != 0;
            straight = straight && (step.sizes[k] == 1 || input.strides[k] == stride);
        }
        input.kind = !inner ? SCALAR : straight ? CONTIGUOUS : outer ? SCATTERED : COMMON;
        if (input.kind == SCALAR || input.kind == CONTIGUOUS) return;
        int32_t* found = graph_.places.take(step.lanes);
        found[0] = 0;
        int64_t known = 1;
        for (int64_t k = step.kept.count; k-- > step.inner; known *= step.sizes[k])
            for (int64_t label = 1; label < step.sizes[k]; ++label)
                for (int64_t l = 0; l < known; ++l)
                    found[label * known + l] = found[l] + static_cast<int32_t>(label * input.strides[k]);
        input.places = found;
        input.repeats = input.strides[step.kept.count - 1] == 0;
        input.run = 1;
        for (int64_t k = step.kept.count; k-- > step.inner; input.run *= step.sizes[k])
            if (input.strides[k] != (input.repeats ? 0 : input.run)) break;
        if (input.kind == SCATTERED) spread(step, input);
    }

    // How the lanes of a table stand when they are laid side by side, once for all blocks that share them.
    void spread(const Elimination& step, Input& input) {
        int64_t* strides = graph_.numbers.take(step.inner);
        int64_t blocks = 1;
        bool shared = false;
        for (int64_t k = step.inner; k-- > 0;) {
            strides[k] = input.strides[k] ? blocks * step.rows * step.lanes : 0;
            shared = shared || (!input.strides[k] && step.sizes[k] > 1);
            blocks *= input.strides[k] ? step.sizes[k] : 1;
        }
        input.spread = strides;
        input.spread_count = shared && blocks * step.rows * step.lanes <= MOST_SPREAD ? blocks : 0;
    }

    const Scopes& scopes_;
    const Layout& layout_;
    std::vector<const int64_t*> tables_;  // where the layout of each begins
    std::vector<int64_t> ranks_;          // [cells]: the number of a known cell among them, -1 for others
    std::vector<int64_t> stride_;         // of the cells of the table at hand; 0 for all others
    int64_t spots_[8 * MOST_CHUNKS];      // where the entries of a message stand in the table at hand
    std::vector<double> bits_;  // [steps]: powers of two that the entries of messages stay below, where they are pieces
    std::vector<int64_t> factors_;  // [steps]: how many are in a message since the last one that was normalised
    Graph graph_;
};

}  // namespace energyml
