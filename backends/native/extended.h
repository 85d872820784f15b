// First-order chains at any magnitude: every number is a mantissa and an exponent of its own, value = mantissa * 2^exponent.
//
// Log space would take an exponential for every entry of the table at every step.  Here scores are split once, and a step needs
// none: the first pass finds the largest exponent for every column, the second adds up the products, each shifted by how far it is
// below (see extended_numbers.h).

template <class X> struct ExtendedTable {
    Numbers<X> forward, backward;
    X *forward_lines, *backward_lines;  // [panels, padded]: the largest exponent of each line of each panel
    bool exact;
};

// What the largest exponents take.
template <class X> INLINE int64_t lines_size(int64_t padded) {
    int64_t panels = 0;
    for (int64_t left = padded / Lanes<X>::count; left > 0; left -= panel_width(left)) ++panels;
    return panels * padded;
}

template <class X> INLINE ExtendedTable<X> extended_table_in(X* memory, int64_t labels, int64_t padded) {
    const int64_t cells = packed_size<X>(labels);
    X* lines = memory + 4 * cells;
    return {{memory, memory + cells}, {memory + 2 * cells, memory + 3 * cells}, lines, lines + lines_size<X>(padded), true};
}
template <class X> INLINE int64_t extended_table_size(int64_t labels, int64_t padded) { return 4 * packed_size<X>(labels) + 2 * lines_size<X>(padded); }

template <class X> static void highest_of_lines(const X* packed, int64_t labels, int64_t padded, X* out) {
    constexpr int lanes = Lanes<X>::count;
    for (int64_t column = 0; column < padded; out += padded) {
        const int64_t wide = panel_width((padded - column) / lanes) * lanes;
        const X* line = packed + column * labels;
        for (int64_t i = 0; i < labels; ++i, line += wide) {
            V<X> high = load(line);
            for (int64_t k = lanes; k < wide; k += lanes) high = larger<X>(load(line + k), high);
            out[i] = horizontal_max<X>(high);
        }
        for (int64_t i = labels; i < padded; ++i) out[i] = void_exponent<X>();
        column += wide;
    }
}

template <class X, class In> static void split_table(const In* pair, int64_t labels, bool backward, ExtendedTable<X>& table) {
    constexpr int lanes = Lanes<X>::count;
    const int64_t padded = padded_to<X>(labels);
    V<X> most = V<X>{};
    for (int64_t i = 0; i < labels; ++i) {
        const In* line = pair + i * labels;
        const bool inside = reads_inside(line, padded, pair + labels * labels);
        for (int64_t column = 0; column < padded;) {
            const int wide = panel_width((padded - column) / lanes);
            for (int p = 0; p < wide; ++p) {
                const int64_t at = column * labels + (i * wide + p) * lanes;
                const auto of = split_scores<X>(line, column + p * lanes, labels, inside);
                const V<X> size = larger<X>(of.exponent, -of.exponent);
                most = larger<X>(of.exponent > all<X>(void_exponent<X>()) ? size : V<X>{}, most);
                store<X>(table.forward.mantissa + at, of.mantissa);
                store<X>(table.forward.exponent + at, of.exponent);
            }
            column += wide * lanes;
        }
    }
    table.exact = horizontal_max<X>(most) <= Whole<X>::most;
    highest_of_lines<X>(table.forward.exponent, labels, padded, table.forward_lines);
    if (!backward) return;
    transpose_packed<X>(table.forward.mantissa, labels, padded, table.backward.mantissa);
    transpose_packed<X>(table.forward.exponent, labels, padded, table.backward.exponent);
    // Columns that do not exist have mantissa 0 and, out of the transposition, exponent 0, which must not count.
    for (int64_t column = 0; column < padded;) {
        const int64_t wide = panel_width((padded - column) / lanes) * lanes;
        for (int64_t c = std::max(column, labels); c < column + wide; ++c)
            for (int64_t i = 0; i < labels; ++i) table.backward.exponent[column * labels + i * wide + c - column] = void_exponent<X>();
        column += wide;
    }
    highest_of_lines<X>(table.backward.exponent, labels, padded, table.backward_lines);
}

template <class X> struct ExtendedScratch {
    ExtendedTable<X> own;  // where each step or example has its own table
    Numbers<X> in, out;    // [ROWS, padded] each
    X* high;               // [ROWS, padded]
    int32_t* lines;        // [labels + 16]
    X* share;              // [padded]
    X* outer;              // [labels, padded]: the pair gradient of this unit, or null
};

// A sum of shifted products for one vector of columns.
template <class X, int BYTES> struct ShiftedSum {
    typedef X B __attribute__((vector_size(BYTES)));
    B total, top;
    INLINE ShiftedSum() : total(B{}) {}
    INLINE void begin(const X* high) { top = vector_at<B>(high); }
    INLINE void add(const X* mantissas, const X* exponents, X mantissa, X exponent) {
        const B below = vector_at<B>(exponents) + spread<B>(exponent) - top;
        total += shifted<X>(vector_at<B>(mantissas), below) * spread<B>(mantissa);
    }
    INLINE void end(X* out) const { put<B>(out, total); }
};

// Those of W vectors of columns, over the lines listed.
template <class X, int W>
INLINE void sum_shifted(Numbers<X> in, Numbers<X> table, const int32_t* lines, int32_t count, const X* high, X* out) {
    constexpr int lanes = Lanes<X>::count, broad = SPAN * lanes, P = W / SPAN;
    constexpr bool odd = W % SPAN;
    ShiftedSum<X, 32 * SPAN> sum[P ? P : 1];
    ShiftedSum<X, 32> last;
    for (int p = 0; p < P; ++p) sum[p].begin(high + p * broad);
    if (odd) last.begin(high + P * broad);
    for (int32_t k = 0; k < count; ++k) {
        const int64_t i = lines[k];
        const X *mantissas = table.mantissa + i * W * lanes, *exponents = table.exponent + i * W * lanes;
        for (int p = 0; p < P; ++p) sum[p].add(mantissas + p * broad, exponents + p * broad, in.mantissa[i], in.exponent[i]);
        if (odd) last.add(mantissas + P * broad, exponents + P * broad, in.mantissa[i], in.exponent[i]);
    }
    for (int p = 0; p < P; ++p) sum[p].end(out + p * broad);
    if (odd) last.end(out + P * broad);
}

// The same for `wide` vectors of columns.
template <class X, int W = WIDEST>
INLINE void sum_shifted_of(int wide, Numbers<X> in, Numbers<X> table, const int32_t* lines, int32_t count, const X* high, X* out) {
    if constexpr (W > 1)
        if (wide < W) return sum_shifted_of<X, W - 1>(wide, in, table, lines, count, high, out);
    sum_shifted<X, W>(in, table, lines, count, high, out);
}

// Which of the sums of two numbers are at least so large; room for 16 more than there are.
template <class X> INLINE int32_t at_least(const X* numbers, const X* more, X least, int64_t labels, int32_t* found) {
    int32_t count = 0;
#ifdef TARGET_HAS_SCALE
    if constexpr (std::is_same_v<X, float>) {
        const __m512 bound = _mm512_set1_ps(least);
        __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (int64_t i = 0; i < labels; i += 16) {
            const __mmask16 there = static_cast<__mmask16>(labels - i < 16 ? (1u << (labels - i)) - 1 : 0xffffu);
            const __m512 sums = _mm512_maskz_loadu_ps(there, numbers + i) + _mm512_maskz_loadu_ps(there, more + i);
            const __mmask16 here = _mm512_mask_cmp_ps_mask(there, sums, bound, _CMP_GE_OQ);
            _mm512_storeu_si512(found + count, _mm512_maskz_compress_epi32(here, index));
            count += __builtin_popcount(here);
            index = _mm512_add_epi32(index, _mm512_set1_epi32(16));
        }
        return count;
    }
#endif
    for (int32_t i = 0; i < labels; ++i) {
        found[count] = i;
        count += numbers[i] + more[i] >= least;
    }
    return count;
}

// The lines whose number is not too low, even with the line's largest entry, beside the lowest of some columns' results: only they
// can matter there.
template <class X>
INLINE int32_t lines_that_matter(const X* exponents, const X* highest, const X* results, int64_t labels, int64_t width, int32_t* lines) {
    constexpr int lanes = Lanes<X>::count;
    V<X> lowest = all<X>(std::numeric_limits<X>::max());
    for (int64_t c = 0; c < width; c += lanes) {
        V<X> top = load(results + c);
        lowest = top > all<X>(void_exponent<X>() / 2) ? smaller<X>(top, lowest) : lowest;
    }
    return at_least<X>(exponents, highest, -horizontal_max<X>(-lowest) - Whole<X>::depth, labels, lines);
}

// scratch.out [rows, padded] = scratch.in @ table; the exponents of the result are in scratch.high, its mantissas not yet in range.
template <class X>
static void extended_step(int rows, ExtendedScratch<X>& scratch, Numbers<X> table, const X* highest, int64_t labels, int64_t padded) {
    constexpr int lanes = Lanes<X>::count;
    multiply<MaxSum, X>(rows, scratch.in.exponent, table.exponent, labels, padded, scratch.high);
    for (int64_t column = 0; column < padded; highest += padded) {  // rows inside, as a panel fits the cache and a table may not
        const int wide = panel_width((padded - column) / lanes);
        const Numbers<X> here{table.mantissa + column * labels, table.exponent + column * labels};
        for (int r = 0; r < rows; ++r) {
            const Numbers<X> in{scratch.in.mantissa + r * padded, scratch.in.exponent + r * padded};
            const X* high = scratch.high + r * padded + column;
            const int32_t count = lines_that_matter<X>(in.exponent, highest, high, labels, wide * lanes, scratch.lines);
            sum_shifted_of<X>(wide, in, here, scratch.lines, count, high, scratch.out.mantissa + r * padded + column);
        }
        column += wide * lanes;
    }
}

// row = ahead (or ones) times exp(unary), exponents less the largest, which is returned.  `exact` is cleared when exponents get too
// large to be exact.
template <class X, class In>
INLINE double times_emission(const X* mantissas, const X* exponents, const In* unary, const In* end, int64_t labels, int64_t padded,
                             Numbers<X> row, bool& exact) {
    const bool inside = reads_inside(unary, padded, end);
    const X none = void_exponent<X>() / 2;
    Gathered<X> high(void_exponent<X>()), depth(0);
    in_vectors<X>(std::is_same_v<X, In> ? labels : 0, padded, [&](auto of, int64_t c) __attribute__((always_inline)) {
        typedef decltype(of) B;
        Parts<B> here;
        if constexpr (sizeof(B) > sizeof(V<X>))
            here = split_scores<X>(vector_at<B>(unary + c));
        else
            here = split_scores<X>(unary, c, labels, inside);
        if (mantissas) {
            here.mantissa *= vector_at<B>(mantissas + c);
            here.exponent += vector_at<B>(exponents + c);
        }
        here = normalised<X>(here);
        high.see(here.exponent);
        put<B>(row.mantissa + c, here.mantissa);
        put<B>(row.exponent + c, here.exponent);
    });
    const X top = high.largest();
    if (!(top > none)) return 0;
    in_vectors<X>(padded, padded, [&](auto of, int64_t c) __attribute__((always_inline)) {
        typedef decltype(of) B;
        const B exponent = vector_at<B>(row.exponent + c), below = spread<B>(top) - exponent;
        const Bits<B> empty = exponent < spread<B>(none);
        depth.see(empty ? B{} : below);
        put<B>(row.exponent + c, empty ? exponent : -below);
    });
    exact = exact && depth.largest() <= Whole<X>::most && std::fabs(top) <= Whole<X>::most;
    return top;
}

template <class In, class X> struct ExtendedUnit {
    const Chain<In>& chain;
    const Answer<In>& answer;
    const int64_t* rows;  // at most ROWS
    const int64_t* slots;
    int count;
    int64_t padded;
    ExtendedTable<X> table;
    Numbers<X> alpha;  // [*, T, padded] by slot; or null
    ExtendedScratch<X> scratch;

    Numbers<X> kept(int r, int64_t t) const {
        const int64_t at = (slots[r] * chain.size + t) * padded;
        return {alpha.mantissa + at, alpha.exponent + at};
    }
};

template <class In, class X> INLINE void extended_table_at(ExtendedUnit<In, X>& unit, int64_t t, bool first) {
    const Chain<In>& chain = unit.chain;
    if (chain.stationary() || (!first && chain.pair_step == 0)) return;
    unit.table = unit.scratch.own;
    split_table<X>(chain.table(unit.rows[0], t), chain.labels, unit.alpha.mantissa != nullptr, unit.table);
}

template <class In, class X> static void extended_forward(ExtendedUnit<In, X>& unit) {
    constexpr int lanes = Lanes<X>::count;
    const Chain<In>& chain = unit.chain;
    const int64_t labels = chain.labels, padded = unit.padded;
    ExtendedScratch<X>& scratch = unit.scratch;
    int64_t lengths[ROWS];
    double total[ROWS];
    bool exact[ROWS];
    for (int r = 0; r < unit.count; ++r) {
        lengths[r] = chain.length(unit.rows[r]);
        total[r] = 0;
        exact[r] = true;
    }
    int active = active_at(lengths, unit.count, 0);
    for (int64_t t = 0; active > 0; active = active_at(lengths, active, ++t)) {
        if (t > 0) {
            extended_table_at(unit, t - 1, t == 1);
            extended_step<X>(active, scratch, unit.table.forward, unit.table.forward_lines, labels, padded);
        }
        for (int r = 0; r < active; ++r) {
            const Numbers<X> row{scratch.in.mantissa + r * padded, scratch.in.exponent + r * padded};
            const X* ahead = t > 0 ? scratch.out.mantissa + r * padded : nullptr;
            total[r] += times_emission<X>(ahead, scratch.high + r * padded, chain.row(unit.rows[r], t), chain.end(), labels, padded, row, exact[r]);
            exact[r] = exact[r] && (t == 0 || unit.table.exact);
            if (!unit.alpha.mantissa) continue;
            const Numbers<X> kept = unit.kept(r, t);
            copy_row<X>(row.mantissa, padded, kept.mantissa);
            copy_row<X>(row.exponent, padded, kept.exponent);
        }
    }
    for (int r = 0; r < unit.count; ++r) {
        const int64_t b = unit.rows[r];
        V<X> sums = V<X>{};
        for (int64_t c = r * padded; c < (r + 1) * padded && lengths[r]; c += lanes)
            sums += shifted<X>(load(scratch.in.mantissa + c), load(scratch.in.exponent + c));
        const double sum = horizontal_sum<X>(sums);
        unit.answer.log_z[b] = lengths[r] ? total[r] * 0.693147180559945309417 + std::log(sum) : 0.0;
        if (!exact[r] && std::is_same_v<X, float>) ++unit.answer.tier[b];
    }
}

// The pair gradient between two cells for the lines that have any mass; set, or added to lines `stride` apart.  The first form is
// for sums, whose lines are padded.
template <class X, class Out>
static void extended_pair(Numbers<X> alpha, const X* share, Numbers<X> after, Numbers<X> table, int64_t labels, int64_t padded, X high,
                          X by, Out* out, int64_t stride, bool add) {
    constexpr int lanes = Lanes<X>::count;
    if (!add) std::fill(out, out + labels * stride, static_cast<Out>(0));
    const bool whole = stride == padded;
    for (int64_t i = 0; i < labels; ++i) {
        if (!(share[i] > Whole<X>::mass)) continue;
        const V<X> mantissa = all<X>(alpha.mantissa[i] * by), exponent = all<X>(alpha.exponent[i] - high);
        Out* line = out + i * stride;
        const bool inside = whole || (labels - 1 - i) * labels >= padded - labels;
        for (int64_t column = 0; column < padded;) {
            const int wide = panel_width((padded - column) / lanes);
            for (int p = 0; p < wide; ++p) {
                const int64_t at = column * labels + (i * wide + p) * lanes, c = column + p * lanes;
                V<X> place = load(table.exponent + at) + load(after.exponent + c) + exponent;
                V<X> value = shifted<X>(load(table.mantissa + at) * load(after.mantissa + c), place) * mantissa;
                store_labels<X>(line, c, labels, inside, value + load_labels<X>(line, c, labels, inside, static_cast<X>(0)));
            }
            column += wide * lanes;
        }
    }
}

// Marginals and pair gradients.  False when exponents grew too large to be exact: then nothing of the unit counts.
template <class In, class X> static bool extended_backward(ExtendedUnit<In, X>& unit) {
    constexpr int lanes = Lanes<X>::count;
    const Chain<In>& chain = unit.chain;
    const Answer<In>& answer = unit.answer;
    const int64_t labels = chain.labels, size = chain.size, padded = unit.padded;
    ExtendedScratch<X>& scratch = unit.scratch;
    int64_t lengths[ROWS] = {};
    bool exact[ROWS];
    for (int r = 0; r < unit.count; ++r) {
        lengths[r] = chain.length(unit.rows[r]);
        exact[r] = true;
    }
    int active = 0;
    for (int64_t t = unit.count ? lengths[0] - 1 : -1; t >= 0; --t) {
        if (active > 0) {
            extended_table_at(unit, t, t == lengths[0] - 2);
            extended_step<X>(active, scratch, unit.table.backward, unit.table.backward_lines, labels, padded);
        }
        const int before = active;
        for (; active < unit.count && lengths[active] > t; ++active) {
            for (int64_t c = 0; c < padded; ++c) {
                scratch.out.mantissa[active * padded + c] = c < labels ? static_cast<X>(1) : 0;
                scratch.high[active * padded + c] = c < labels ? 0 : void_exponent<X>();
            }
        }
        for (int r = 0; r < active; ++r) {
            const int64_t b = unit.rows[r];
            const X weight = static_cast<X>(answer.weight_of(b));
            const Numbers<X> row{scratch.in.mantissa + r * padded, scratch.in.exponent + r * padded}, alpha = unit.kept(r, t);
            X *beta = scratch.out.mantissa + r * padded, *exponents = scratch.high + r * padded, *share = scratch.share;
            Gathered<X> high(4 * void_exponent<X>());
            in_vectors<X>(padded, padded, [&](auto of, int64_t c) __attribute__((always_inline)) {
                typedef decltype(of) B;
                high.see(vector_at<B>(alpha.exponent + c) + vector_at<B>(exponents + c));
            });
            const X top = high.largest();
            Gathered<X> sums(0);
            in_vectors<X>(padded, padded, [&](auto of, int64_t c) __attribute__((always_inline)) {
                typedef decltype(of) B;
                const auto at = [&](const X* p) __attribute__((always_inline)) { return vector_at<B>(p + c); };
                const B value = shifted<X>(at(alpha.mantissa) * at(beta), at(alpha.exponent) + at(exponents) - top);
                sums.add(value);
                put<B>(share + c, value);
            });
            const X whole = 1 / sums.sum(), by = weight * whole;
            for (int64_t c = 0; c < padded; c += lanes) store(share + c, load(share + c) * whole);
            if (r < before && answer.pair) {  // `row` still holds emission times beta of the next cell
                if (scratch.outer)
                    extended_pair<X>(alpha, share, row, unit.table.forward, labels, padded, top, by, scratch.outer, padded, true);
                else
                    extended_pair<X>(alpha, share, row, unit.table.forward, labels, padded, top, by,
                                     answer.pair + b * answer.pair_example + t * answer.pair_step, labels, answer.pair_example == 0);
            }
            if (answer.unary) {
                In* out = answer.unary + (b * size + t) * labels;
                const bool inside = (size - 1 - t) * labels >= padded - labels;
                for (int64_t c = 0; c < labels; c += lanes) store_labels<X>(out, c, labels, inside, load(share + c) * weight);
            }
            if (t > 0) times_emission<X>(beta, exponents, chain.row(b, t), chain.end(), labels, padded, row, exact[r]);
        }
    }
    bool fine = true;
    for (int r = 0; r < unit.count; ++r) fine = fine && exact[r];
    return fine || std::is_same_v<X, double>;
}
