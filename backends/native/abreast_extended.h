// Chains abreast (see abreast.h) with an exponent for every number (see extended.h).

// What all groups of a thread work with.
template <class T> struct ExtendedAbreast {
    Numbers<T> table, transposed;  // [labels, labels]
    bool exact;                    // whether the table's exponents are
    Numbers<T> alpha;              // [T, labels, lanes], or two cells where nothing is kept
    Numbers<T> beta, after;        // [labels, lanes]: ways on from a cell; the same times its emission
    T *high, *scores;              // [labels, lanes]
};

// out[j] = the sum over i of in[i] * table[i, j]: the largest exponents first, then products shifted by how far they are below.
template <class T> static void extended_product(Numbers<T> in, Numbers<T> table, int64_t labels, Numbers<T> out) {
    constexpr int lanes = Lanes<T>::count;
    multiply_abreast<MaxSum>(in.exponent, table.exponent, labels, out.exponent);
    for (int64_t j = 0; j < labels; ++j) {
        const V<T> top = load(out.exponent + j * lanes);
        V<T> even = V<T>{}, odd = V<T>{};
        const auto part = [&](int64_t i) __attribute__((always_inline)) {
            const V<T> below = all<T>(table.exponent[i * labels + j]) + load(in.exponent + i * lanes) - top;  // in this order: numbers may be 0
            return shifted<T>(all<T>(table.mantissa[i * labels + j]), below) * load(in.mantissa + i * lanes);
        };
        int64_t i = 0;
        for (; i + 1 < labels; i += 2) {
            even += part(i);
            odd += part(i + 1);
        }
        if (i < labels) even += part(i);
        store(out.mantissa + j * lanes, even + odd);
    }
}

// out = ahead (or ones) times exp(scores), exponents less the largest of each chain, which is returned; `exact` as in `times_emission`.
template <class T> INLINE V<T> times_scores(const T* scores, const Numbers<T>* ahead, int64_t labels, Numbers<T> out, I<T>& exact) {
    constexpr int lanes = Lanes<T>::count;
    const V<T> none = all<T>(void_exponent<T>() / 2), most = all<T>(Whole<T>::most);
    V<T> high = all<T>(void_exponent<T>()), low = V<T>{};
    for (int64_t c = 0; c < labels * lanes; c += lanes) {
        V<T> mantissa, exponent;
        split_scores<T>(load(scores + c), mantissa, exponent);
        if (ahead) {
            mantissa *= load(ahead->mantissa + c);
            exponent += load(ahead->exponent + c);
        }
        normalise<T>(mantissa, exponent);
        high = larger<T>(exponent, high);
        store(out.mantissa + c, mantissa);
        store(out.exponent + c, exponent);
    }
    const V<T> top = high > none ? high : V<T>{};
    for (int64_t c = 0; c < labels * lanes; c += lanes) {
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
    const auto cell = [&](int64_t t) { return Numbers<T>{with.alpha.mantissa + (keep ? t : t & 1) * size, with.alpha.exponent + (keep ? t : t & 1) * size}; };
    double total[lanes] = {};
    I<T> exact = with.exact ? ~I<T>{} : group.ends == group.at(0);  // without steps the table does not matter
    int going = group.count;
    for (int64_t t = 0; t <= group.last[0]; ++t) {
        const Numbers<T> here = cell(t);
        group.read(t, with.scores);
        if (t > 0) extended_product<T>(cell(t - 1), with.table, labels, with.after);
        const V<T> top = times_scores<T>(with.scores, t > 0 ? &with.after : nullptr, labels, here, exact);
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
    for (int64_t t = group.last[0]; t >= 0; --t) {
        const Numbers<T> alpha{with.alpha.mantissa + t * size, with.alpha.exponent + t * size};
        if (t < group.last[0]) extended_product<T>(with.after, with.transposed, labels, with.beta);
        const I<T> begins = group.ends <= group.at(t), active = group.ends >= group.at(t), goes_on = group.ends > group.at(t);
        V<T> high = 4 * nowhere;
        for (int64_t c = 0; c < size; c += lanes) {
            V<T> mantissa = begins ? all<T>(1) : load(with.beta.mantissa + c), exponent = begins ? zero : load(with.beta.exponent + c);
            normalise<T>(mantissa, exponent);
            store(with.beta.mantissa + c, mantissa);
            store(with.beta.exponent + c, exponent);
            high = larger<T>(load(alpha.exponent + c) + exponent, high);
        }
        V<T> sum = zero;
        for (int64_t c = 0; c < size; c += lanes) {
            const V<T> below = load(alpha.exponent + c) + load(with.beta.exponent + c) - high;
            const V<T> value = shifted<T>(load(alpha.mantissa + c) * load(with.beta.mantissa + c), below);
            sum += value;
            store(with.high + c, value);
        }
        const V<T> by = active ? weight / sum : zero;
        if (answer.unary) group.write(t, with.high, nullptr, by, answer.unary);
        for (int64_t i = 0; i < labels && outer && t < group.last[0]; ++i) {
            if (!any<T>(goes_on & (load(with.high + i * lanes) > sum * Whole<T>::mass))) continue;
            const V<T> mantissa = load(alpha.mantissa + i * lanes) * by;
            const V<T> exponent = goes_on ? load(alpha.exponent + i * lanes) - high : nowhere;
            for (int64_t j = 0; j < labels; ++j) {
                const V<T> place = all<T>(with.table.exponent[i * labels + j]) + (load(with.after.exponent + j * lanes) + exponent);
                const V<T> value = shifted<T>(all<T>(with.table.mantissa[i * labels + j]) * load(with.after.mantissa + j * lanes), place);
                T* to = outer + (i * labels + j) * lanes;
                store(to, load(to) + (goes_on ? value * mantissa : zero));
            }
        }
        if (t == 0) break;
        group.read(t, with.scores);
        I<T> still = ~I<T>{};
        times_scores<T>(with.scores, &with.beta, labels, with.after, still);
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
    const int64_t kept = (both ? chain.size : 2) * cell, sums = outer ? cells * lanes : 0, room = 2 * kept + 6 * cell + 2 * sums;
    Buffer<T> memory(static_cast<size_t>(threads) * room + 4 * whole);
    T* tables = memory.data + threads * room;
    const Numbers<T> table{tables, tables + whole}, transposed{tables + 2 * whole, tables + 3 * whole};
    V<T> most = V<T>{};
    for (int64_t k = 0; k < cells; k += lanes) {
        V<T> mantissa, exponent;
        split_scores<T>(chain.pair, k, cells, false, mantissa, exponent);
        most = larger<T>(exponent > all<T>(void_exponent<T>()) ? larger<T>(exponent, -exponent) : V<T>{}, most);
        store(table.mantissa + k, mantissa);
        store(table.exponent + k, exponent);
    }
    for (int64_t i = 0; i < labels; ++i)
        for (int64_t j = 0; j < labels; ++j) {
            transposed.mantissa[j * labels + i] = table.mantissa[i * labels + j];
            transposed.exponent[j * labels + i] = table.exponent[i * labels + j];
        }
    for (int k = 0; k < threads && outer; ++k)  // for all threads, also those that the runtime may refuse
        std::fill(memory.data + (k + 1) * room - 2 * sums, memory.data + (k + 1) * room, static_cast<T>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t g = 0; g < groups; ++g) {
        T *own = memory.data + thread_number() * room, *more = own + 2 * kept, *mine = outer ? own + room - 2 * sums : nullptr;
        const ExtendedAbreast<T> with{table, transposed, horizontal_max<T>(most) <= Whole<T>::most, {own, own + kept}, {more, more + cell},
                                      {more + 2 * cell, more + 3 * cell}, more + 4 * cell, more + 5 * cell};
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
        for (int64_t i = 0; i < cells; ++i) answer.pair[i] += horizontal_sum<T>(load(memory.data + (k + 1) * room - sums + i * lanes));
}
