// Chains abreast (see abreast.h) with an exponent for every number (see extended.h).

// What all groups of a thread work with.
template <class T> struct ExtendedAbreast {
    Numbers<T> table, transposed;  // [labels, labels]
    bool exact;                    // whether the table's exponents are
    Numbers<T> alpha, emission;    // [T, labels, lanes], or two cells of each where nothing is kept
    Numbers<T> beta, after;        // [labels, lanes]: ways on from a cell; the same times its emission
    T* scores;                     // [labels, lanes]

    static Numbers<T> cell(Numbers<T> all, int64_t at, int64_t size) { return {all.mantissa + at * size, all.exponent + at * size}; }
};

// The second pass over J columns: products shifted by how far they are below the largest one, which the first pass has found.
template <class T, int J> INLINE void extended_columns(Numbers<T> in, const T* mantissas, const T* exponents, int64_t labels, Numbers<T> out) {
    constexpr int lanes = Lanes<T>::count;
    constexpr int S = J >= 4 ? 1 : 2;  // few sums are split, as each waits for its own last one
    V<T> top[J], sum[S][J];
    for (int j = 0; j < J; ++j) top[j] = load(out.exponent + j * lanes);
    for (int s = 0; s < S; ++s)
        for (int j = 0; j < J; ++j) sum[s][j] = V<T>{};
    const auto line = [&](int64_t i, int s) __attribute__((always_inline)) {
        const V<T> mantissa = load(in.mantissa + i * lanes), exponent = load(in.exponent + i * lanes);
        for (int j = 0; j < J; ++j) {
            const V<T> below = all<T>(exponents[i * labels + j]) + exponent - top[j];  // in this order: numbers may be 0
            sum[s][j] += shifted<T>(all<T>(mantissas[i * labels + j]), below) * mantissa;
        }
    };
    int64_t i = 0;
    for (; i + S <= labels; i += S)
        for (int s = 0; s < S; ++s) line(i + s, s);
    for (; i < labels; ++i) line(i, 0);
    for (int j = 0; j < J; ++j) store(out.mantissa + j * lanes, S > 1 ? sum[0][j] + sum[S - 1][j] : sum[0][j]);
}

// out[j] = the sum over i of in[i] * table[i, j].
template <class T> static void extended_product(Numbers<T> in, Numbers<T> table, int64_t labels, Numbers<T> out) {
    constexpr int lanes = Lanes<T>::count;
    multiply_abreast<MaxSum>(in.exponent, table.exponent, labels, out.exponent);
    const auto columns = [&](auto count, int64_t j) __attribute__((always_inline)) {
        const Numbers<T> to{out.mantissa + j * lanes, out.exponent + j * lanes};
        extended_columns<T, decltype(count)::value>(in, table.mantissa + j, table.exponent + j, labels, to);
    };
    int64_t j = 0;
    for (; j + 4 <= labels; j += 4) columns(std::integral_constant<int, 4>(), j);
    for (; j < labels; ++j) columns(std::integral_constant<int, 1>(), j);
}

// out = exp(scores).
template <class T> INLINE void split_cell(const T* scores, int64_t size, Numbers<T> out) {
    for (int64_t c = 0; c < size; c += Lanes<T>::count) {
        const auto of = split_scores<T>(load(scores + c));
        store<T>(out.mantissa + c, of.mantissa);
        store<T>(out.exponent + c, of.exponent);
    }
}

// out = ahead (or ones) times emission, exponents less the largest of each chain, which is returned; `exact` as in `times_emission`.
template <class T> INLINE V<T> times_cell(Numbers<T> emission, Numbers<T> ahead, int64_t size, Numbers<T> out, I<T>& exact) {
    constexpr int lanes = Lanes<T>::count;
    const V<T> none = all<T>(void_exponent<T>() / 2), most = all<T>(Whole<T>::most);
    V<T> high = all<T>(void_exponent<T>()), low = V<T>{};
    for (int64_t c = 0; c < size; c += lanes) {
        auto here = parts(load(emission.mantissa + c), load(emission.exponent + c));
        if (ahead.mantissa) here = normalised<T>(parts(here.mantissa * load(ahead.mantissa + c), here.exponent + load(ahead.exponent + c)));
        high = larger<T>(here.exponent, high);
        store<T>(out.mantissa + c, here.mantissa);
        store<T>(out.exponent + c, here.exponent);
    }
    const V<T> top = high > none ? high : V<T>{};
    for (int64_t c = 0; c < size; c += lanes) {
        const V<T> exponent = load(out.exponent + c), less = exponent - top;
        const I<T> there = exponent > none;
        low = there ? smaller<T>(less, low) : low;
        store(out.exponent + c, there ? less : exponent);
    }
    exact &= (low >= -most) & (top <= most) & (top >= -most);
    return top;
}

template <class T> static void extended_forward(const Group<T>& group, const ExtendedAbreast<T>& with, bool keep, const Answer<T>& answer) {
    constexpr int lanes = Lanes<T>::count;
    const int64_t labels = group.chain.labels, size = group.size();
    const auto cell = [&](Numbers<T> all, int64_t t) { return with.cell(all, keep ? t : t & 1, size); };
    double total[lanes] = {};
    I<T> exact = with.exact ? ~I<T>{} : group.ends == group.at(0);  // without steps the table does not matter
    int going = group.count;
    for (int64_t t = 0; t <= group.last[0]; ++t) {
        const Numbers<T> here = cell(with.alpha, t), emission = cell(with.emission, t);
        group.read(t, with.scores);
        split_cell<T>(with.scores, size, emission);
        if (t > 0) extended_product<T>(cell(with.alpha, t - 1), with.table, labels, with.after);
        const V<T> top = times_cell<T>(emission, t > 0 ? with.after : Numbers<T>{nullptr, nullptr}, size, here, exact);
        for (int k = 0; k < lanes; ++k) total[k] += top[k];
        if (!(going > 0 && group.last[going - 1] == t)) continue;
        V<T> sum = V<T>{};
        for (int64_t c = 0; c < size; c += lanes) sum += shifted<T>(load(here.mantissa + c), load(here.exponent + c));
        for (; going > 0 && group.last[going - 1] == t; --going) {
            const int64_t b = group.rows[going - 1];
            answer.log_z[b] = total[going - 1] * 0.693147180559945309417 + std::log(static_cast<double>(sum[going - 1]));
            if (!exact[going - 1] && std::is_same_v<T, float>) ++answer.tier[b];
        }
    }
}

// Marginals times weight; the pair gradient is added to outer [labels, labels, lanes] (or null).  False when exponents grew too large
// to be exact: then nothing of the group counts.
template <class T> static bool extended_backward(const Group<T>& group, const ExtendedAbreast<T>& with, T* outer, const Answer<T>& answer) {
    constexpr int lanes = Lanes<T>::count;
    const int64_t labels = group.chain.labels, size = group.size();
    const V<T> zero = V<T>{}, nowhere = all<T>(void_exponent<T>());
    V<T> weight = zero;
    for (int k = 0; k < group.count; ++k) weight[k] = answer.weight_of(group.rows[k]);
    I<T> exact = ~I<T>{};
    const Numbers<T> beta = with.beta, after = with.after;  // names of their own: what is written might be what `with` refers to
    T* const shares = with.scores;
    for (int64_t t = group.last[0]; t >= 0; --t) {
        const Numbers<T> alpha = with.cell(with.alpha, t, size);
        if (t < group.last[0]) extended_product<T>(after, with.transposed, labels, beta);
        const I<T> begins = group.ends <= group.at(t), active = group.ends >= group.at(t), goes_on = group.ends > group.at(t);
        V<T> high = 4 * nowhere;
        for (int64_t c = 0; c < size; c += lanes) {
            const V<T> exponent = begins ? zero : load(beta.exponent + c);
            store(beta.mantissa + c, begins ? all<T>(1) : load(beta.mantissa + c));
            store(beta.exponent + c, exponent);
            high = larger<T>(load(alpha.exponent + c) + exponent, high);
        }
        V<T> sum = zero;
        for (int64_t c = 0; c < size; c += lanes) {
            const V<T> below = load(alpha.exponent + c) + load(beta.exponent + c) - high;
            const V<T> value = shifted<T>(load(alpha.mantissa + c) * load(beta.mantissa + c), below);
            sum += value;
            store(shares + c, value);
        }
        const V<T> by = active ? weight / sum : zero;
        if (answer.unary) group.write(t, shares, nullptr, by, answer.unary);
        for (int64_t i = 0; i < labels && outer && t < group.last[0]; ++i) {
            if (!any<T>(goes_on & (load(shares + i * lanes) > sum * Whole<T>::mass))) continue;
            const V<T> mantissa = goes_on ? load(alpha.mantissa + i * lanes) * by : zero;
            const V<T> exponent = goes_on ? load(alpha.exponent + i * lanes) - high : nowhere;
            const T *mantissas = with.table.mantissa + i * labels, *exponents = with.table.exponent + i * labels;
            T* to = outer + i * size;
            for (int64_t j = 0; j < labels; ++j, to += lanes) {
                const V<T> place = all<T>(exponents[j]) + (load(after.exponent + j * lanes) + exponent);
                const V<T> value = shifted<T>(all<T>(mantissas[j]) * load(after.mantissa + j * lanes), place);
                store(to, load(to) + value * mantissa);
            }
        }
        if (t == 0) break;
        I<T> still = ~I<T>{};
        times_cell<T>(with.cell(with.emission, t, size), beta, size, after, still);
        exact &= still | ~active;
    }
    return !any<T>(~exact) || std::is_same_v<T, double>;
}

// A batch in one type of numbers; forward alone, or both passes.
template <class T>
static void extended_abreast_tier(const Chain<T>& chain, const Answer<T>& answer, std::vector<int64_t>& rows, uint8_t tier, bool both, int threads) {
    constexpr int lanes = Lanes<T>::count;
    const int64_t labels = chain.labels, cells = labels * labels, whole = round_up(cells, lanes), cell = labels * lanes;
    answer_empty(chain, answer, rows);
    const int64_t count = static_cast<int64_t>(rows.size()), groups = (count + lanes - 1) / lanes;
    const bool outer = both && answer.pair;
    threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, groups)));
    const int64_t kept = (both ? chain.size : 2) * cell, sums = outer ? cells * lanes : 0, room = 4 * kept + 5 * cell + 2 * sums;
    Buffer<T> memory(static_cast<size_t>(threads) * room + 4 * whole);
    T* tables = memory.data + threads * room;
    const Numbers<T> table{tables, tables + whole}, transposed{tables + 2 * whole, tables + 3 * whole};
    const bool exact = split_plain(chain, table, transposed);
    for (int k = 0; k < threads && outer; ++k)  // for all threads, also those that the runtime may refuse
        std::fill(memory.data + (k + 1) * room - 2 * sums, memory.data + (k + 1) * room, static_cast<T>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = 0; g < groups; ++g) {
        T *own = memory.data + thread_number() * room, *more = own + 4 * kept, *mine = outer ? own + room - 2 * sums : nullptr;
        const ExtendedAbreast<T> with{table, transposed, exact, {own, own + kept}, {own + 2 * kept, own + 3 * kept},
                                      {more, more + cell}, {more + 2 * cell, more + 3 * cell}, more + 4 * cell};
        Group<T> group(chain, rows.data() + g * lanes, static_cast<int>(std::min<int64_t>(lanes, count - g * lanes)));
        extended_forward(group, with, both, answer);
        if (!both) continue;
        leave_out_unanswered(group, answer, tier);
        const bool fine = extended_backward(group, with, mine, answer);
        for (int k = 0; k < group.count && !fine; ++k)
            if (group.ends[k] >= 0) ++answer.tier[group.rows[k]];
        for (int64_t k = 0; k < sums; ++k) {
            if (fine) mine[sums + k] += mine[k];
            mine[k] = 0;
        }
    }
    for (int k = 0; k < threads && outer; ++k)
        for (int64_t i = 0; i < cells; ++i) answer.pair[i] += sum_of<T>(load(memory.data + (k + 1) * room - sums + i * lanes));
}
