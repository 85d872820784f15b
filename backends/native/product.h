// Products of a few rows with a table, over (+, *) or (max, +): rows x columns of accumulators stay in registers while the lines of
// the table stream by.  Tables are packed: one panel of columns after another, each with all its lines, so that they stream in order.

template <class T> struct SumProduct {
    static INLINE V<T> start() { return V<T>{}; }
    INLINE V<T> join(V<T> total, V<T> factor, V<T> entry) const { return total + factor * entry; }
    static INLINE V<T> merge(V<T> a, V<T> b) { return a + b; }
};

// Some processors add and compare in the same units and multiply in others: adding by a multiplication with one is then twice as
// fast.  The compiler must not know that it is one.
template <class T> struct MaxSum {
    V<T> one = all<T>(1);
    INLINE MaxSum() {
#ifdef TARGET_HAS_FMA
        asm volatile("" : "+x"(one));
#endif
    }
    static INLINE V<T> start() { return all<T>(-std::numeric_limits<T>::infinity()); }
    INLINE V<T> join(V<T> total, V<T> factor, V<T> entry) const {
#ifdef TARGET_HAS_FMA
        return larger<T>(factor * one + entry, total);
#else
        return larger<T>(factor + entry, total);
#endif
    }
    static INLINE V<T> merge(V<T> a, V<T> b) { return larger<T>(a, b); }
};

// How many vectors wide the next panel is: 3 as long as no single one remains, which would not fill the pipeline.
INLINE int panel_width(int64_t vectors) { return vectors == 1 ? 1 : (vectors == 2 || vectors == 4 ? 2 : 3); }

struct Strides {
    int64_t row, step;  // of the factors: from row to row, and from line to line
    int64_t line;       // of the table
    int64_t out;
};

// out[r] (+)= sum over i of in[r, i] * table[i].  Few accumulators are split S ways, as each waits for its own last sum.
template <class Op, class T, int R, int P>
INLINE void panel(const T* in, const T* table, int64_t lines, T* out, Strides by, bool add) {
    constexpr int lanes = Lanes<T>::count;
    constexpr int S = R * P >= 8 ? 1 : (R * P >= 4 ? 2 : 4);
    const Op op;
    V<T> total[S][R][P];
    for (int s = 0; s < S; ++s)
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) total[s][r][p] = Op::start();
    if (add)
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) total[0][r][p] = load(out + r * by.out + p * lanes);
    int64_t i = 0;
    for (; i + S <= lines; i += S) {
        for (int s = 0; s < S; ++s) {
            V<T> entry[P];
            for (int p = 0; p < P; ++p) entry[p] = R == 2 ? load_once(table + (i + s) * by.line + p * lanes) : load(table + (i + s) * by.line + p * lanes);
            for (int r = 0; r < R; ++r) {
                V<T> factor = all<T>(in[r * by.row + (i + s) * by.step]);
                for (int p = 0; p < P; ++p) total[s][r][p] = op.join(total[s][r][p], factor, entry[p]);
            }
        }
    }
    for (; i < lines; ++i) {
        for (int r = 0; r < R; ++r) {
            V<T> factor = all<T>(in[r * by.row + i * by.step]);
            for (int p = 0; p < P; ++p)
                total[0][r][p] = op.join(total[0][r][p], factor, load(table + i * by.line + p * lanes));
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) {
            V<T> whole = total[0][r][p];
            for (int s = 1; s < S; ++s) whole = Op::merge(whole, total[s][r][p]);
            store(out + r * by.out + p * lanes, whole);
        }
    }
}

template <class Op, class T, int R> INLINE void all_panels(const T* in, const T* packed, int64_t labels, int64_t padded, T* out) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t column = 0; column < padded;) {
        const int wide = panel_width((padded - column) / lanes);
        const T* table = packed + column * labels;
        const Strides by{padded, 1, wide * lanes, padded};
        if (wide == 3)
            panel<Op, T, R, 3>(in, table, labels, out + column, by, false);
        else if (wide == 2)
            panel<Op, T, R, 2>(in, table, labels, out + column, by, false);
        else
            panel<Op, T, R, 1>(in, table, labels, out + column, by, false);
        column += wide * lanes;
    }
}

// out [rows, padded] = in [rows, padded] @ table, for at most ROWS rows.
template <template <class> class Op, class T> static void multiply(int rows, const T* in, const T* packed, int64_t labels, int64_t padded, T* out) {
    switch (rows) {
        case 1: return all_panels<Op<T>, T, 1>(in, packed, labels, padded, out);
        case 2: return all_panels<Op<T>, T, 2>(in, packed, labels, padded, out);
#if ROWS > 2
        case 3: return all_panels<Op<T>, T, 3>(in, packed, labels, padded, out);
        case 4: return all_panels<Op<T>, T, 4>(in, packed, labels, padded, out);
#endif
#if ROWS > 4
        case 5: return all_panels<Op<T>, T, 5>(in, packed, labels, padded, out);
        case 6: return all_panels<Op<T>, T, 6>(in, packed, labels, padded, out);
        case 7: return all_panels<Op<T>, T, 7>(in, packed, labels, padded, out);
        case 8: return all_panels<Op<T>, T, 8>(in, packed, labels, padded, out);
#endif
    }
}

template <class T, int R>
INLINE void add_outer_lines(const T* left, const T* right, int64_t steps, int64_t padded, T* out) {
    constexpr int lanes = Lanes<T>::count;
    const Strides by{1, padded, padded, padded};
    for (int64_t column = 0; column < padded;) {
        const int wide = panel_width((padded - column) / lanes);
        if (wide == 3)
            panel<SumProduct<T>, T, R, 3>(left, right + column, steps, out + column, by, true);
        else if (wide == 2)
            panel<SumProduct<T>, T, R, 2>(left, right + column, steps, out + column, by, true);
        else
            panel<SumProduct<T>, T, R, 1>(left, right + column, steps, out + column, by, true);
        column += wide * lanes;
    }
}

// total [labels, padded] += sum over k of outer(left[k], right[k]), rows of both `padded` long; blocks of k stay in the first cache.
template <class T> static void add_outer(const T* left, const T* right, int64_t count, int64_t labels, int64_t padded, T* total) {
    constexpr int64_t block = 64;
    for (int64_t k = 0; k < count; k += block) {
        const int64_t steps = std::min(block, count - k);
        const T *a = left + k * padded, *b = right + k * padded;
        for (int64_t i = 0; i < labels; i += ROWS) {
            T* out = total + i * padded;
            switch (std::min<int64_t>(ROWS, labels - i)) {
                case 1: add_outer_lines<T, 1>(a + i, b, steps, padded, out); break;
                case 2: add_outer_lines<T, 2>(a + i, b, steps, padded, out); break;
#if ROWS > 2
                case 3: add_outer_lines<T, 3>(a + i, b, steps, padded, out); break;
                case 4: add_outer_lines<T, 4>(a + i, b, steps, padded, out); break;
#endif
#if ROWS > 4
                case 5: add_outer_lines<T, 5>(a + i, b, steps, padded, out); break;
                case 6: add_outer_lines<T, 6>(a + i, b, steps, padded, out); break;
                case 7: add_outer_lines<T, 7>(a + i, b, steps, padded, out); break;
                case 8: add_outer_lines<T, 8>(a + i, b, steps, padded, out); break;
#endif
            }
        }
    }
}
