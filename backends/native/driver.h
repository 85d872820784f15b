// The work of a batch: chains are sorted by length and handed to threads in units; what a tier cannot hold goes to the next.

// A function of chains abreast, for groups of either width.
#if SPAN > 1
#define ABREAST(FUNCTION, BROAD) ((BROAD) ? abreast_broad::FUNCTION : abreast::FUNCTION)
#else
#define ABREAST(FUNCTION, BROAD) abreast::FUNCTION
#endif

// Whether one of the first cells of a chain has finite scores that spread further than down to `lowest` below the largest.
template <class In> static bool hopeless(const Chain<In>& chain, int64_t b, double lowest) {
    constexpr int64_t cells = 8;  // as many as are looked at sooner than they are found to be so on the way
    constexpr int lanes = Lanes<In>::count;
    const V<In> nothing = all<In>(-std::numeric_limits<In>::infinity());
    for (int64_t t = 0; t < std::min(cells, chain.length(b)); ++t) {
        const In* row = chain.row(b, t);
        V<In> high = nothing, low = -nothing;
        for (int64_t c = 0; c < chain.labels; c += lanes) {
            const V<In> x = load_labels<In>(row, c, chain.labels, reads_inside(row, chain.labels + lanes, chain.end()), nothing[0]);
            high = larger<In>(x, high);
            low = smaller<In>(x > nothing ? x : -nothing, low);
        }
        if (-static_cast<double>(horizontal_max<In>(-low)) - horizontal_max<In>(high) < lowest) return true;
    }
    return false;
}

template <class In, class T>
static void scaled_tier(const Chain<In>& chain, const Answer<In>& answer, std::vector<int64_t>& rows, uint8_t tier, ChainPasses passes,
                        int threads) {
    if (rows.empty()) return;
    const int64_t labels = chain.labels, padded = padded_to<T>(labels), cells = packed_size<T>(labels);
    const bool shared = chain.stationary();
    Packed<T> table{nullptr, nullptr, 0, 1, true};
    T floor = Limits<T>::varying_floor;
    if (shared) {
        measure<T>(chain.pair, labels, Limits<T>::table_lift, table);
        floor = std::numeric_limits<T>::min() * std::max<T>(1, 1 / table.least);
        const bool none = !(table.least >= Limits<T>::least);
        const auto left = std::remove_if(rows.begin(), rows.end(), [&](int64_t b) {
            const bool gone = none || (tier != NARROW && hopeless(chain, b, std::log(floor)));
            answer.tier[b] += gone;
            return gone;
        });
        rows.erase(left, rows.end());
        if (rows.empty()) return;
    }
    if (answer.pair && answer.pair_step && !answer.pair_example) threads = 1;  // all chains add to the same tables
    const int64_t each = unit_size(chain, rows.size(), threads, std::numeric_limits<int32_t>::max());
    const int64_t units = (static_cast<int64_t>(rows.size()) + each - 1) / each;
    const bool backward = passes != FORWARD, outer = backward && answer.pair && answer.pair_step == 0;
    const int64_t kept = passes == BOTH ? each * chain.size * padded : 0;
    const int64_t room = (ROWS + each) * padded + (shared ? 0 : 2 * cells) + (outer ? cells : 0) + 2 * kept;
    Buffer<T> memory(static_cast<size_t>(threads) * room + (shared ? 2 * cells : 0));
    T* const rooms = memory.data + (shared ? 2 * cells : 0);
    int64_t every = 1;
    if (shared) {
        table.forward = memory.data;
        table.backward = backward ? table.forward + cells : nullptr;
        exponentiate<T>(chain.pair, labels, table);
        every = rescale_every(table, labels);
    }
    std::vector<int64_t> local(each);
    std::iota(local.begin(), local.end(), 0);
    const int64_t sums = (ROWS + each) * padded + (shared ? 0 : 2 * cells);  // where the outer products of a thread are added up
    if (outer)  // for all threads, also those that the runtime may refuse
        for (int k = 0; k < threads; ++k) std::fill(rooms + k * room + sums, rooms + k * room + sums + cells, static_cast<T>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t u = 0; u < units; ++u) {
        T* next = rooms + thread_number() * room;
        Scratch<T> scratch{next, nullptr, nullptr, nullptr};
        next += (ROWS + each) * padded;
        if (!shared) {
            scratch.forward = next;
            scratch.backward = backward ? next + cells : nullptr;
            next += 2 * cells;
        }
        if (outer) {
            scratch.outer = next;
            next += cells;
        }
        const int64_t start = u * each;
        const int count = static_cast<int>(std::min<int64_t>(each, rows.size() - start));
        int64_t* mine = rows.data() + start;
        T *alpha = static_cast<T*>(answer.alpha), *emission = static_cast<T*>(answer.emission);
        if (passes == BOTH) {
            alpha = next;
            emission = next + kept;
        }
        Unit<In, T> unit{chain, answer, mine, passes == BOTH ? local.data() : mine, count, padded, table, floor, every, alpha, emission, scratch};
        if (passes != BACKWARD) forward_unit(unit);
        if (!backward) continue;
        std::vector<int64_t> chosen, slots;
        if (passes == BOTH) {
            choose_answered(chain, answer, mine, count, tier, chosen, slots);
            unit.rows = chosen.data();
            unit.slots = slots.data();
            unit.count = static_cast<int>(chosen.size());
        }
        backward_unit(unit);
        if (answer.pair && !(answer.pair_step && answer.pair_example)) sum_pairs(unit, tier);
    }
    if (outer && !answer.pair_example)
        for (int k = 0; k < threads; ++k) add_times_table<T>(rooms + k * room + sums, table.forward, labels, padded, answer.pair);
}

template <class X, class In> static void add_rows(const X* padded_rows, int64_t labels, int64_t padded, In* out) {
    for (int64_t i = 0; i < labels; ++i)
        for (int64_t c = 0; c < labels; ++c) out[i * labels + c] += static_cast<In>(padded_rows[i * padded + c]);
}

// As above, with an exponent for every number.  What the forward pass keeps takes the place of alpha and emission.
template <class In, class X>
static void extended_tier(const Chain<In>& chain, const Answer<In>& answer, std::vector<int64_t>& rows, uint8_t tier, ChainPasses passes,
                          int threads) {
    if (rows.empty()) return;
    if constexpr (std::is_same_v<In, X>)
        if (passes != BACKWARD && sums_abreast(chain, answer, rows.size()))
            return ABREAST(extended_abreast_tier<X>, groups_are_broad(chain, rows.size(), threads))(chain, answer, rows, tier, passes == BOTH, threads);
    const int64_t labels = chain.labels, padded = padded_to<X>(labels), cells = labels * padded;
    const bool backward = passes != FORWARD, shared = chain.stationary(), outer = backward && answer.pair && answer.pair_step == 0;
    if (backward && answer.pair && answer.pair_step && !answer.pair_example) threads = 1;  // all chains add to the same tables
    const int64_t each = unit_size(chain, rows.size(), threads, ROWS);
    const int64_t units = (static_cast<int64_t>(rows.size()) + each - 1) / each;
    const int64_t tables = extended_table_size<X>(labels, padded);
    const int64_t kept = passes == BOTH ? each * chain.size * padded : 0;
    const int64_t room = (5 * ROWS + 1) * padded + (shared ? 0 : tables) + (outer ? 2 * cells : 0) + 2 * kept;
    Buffer<X> memory(static_cast<size_t>(threads) * room + (shared ? tables : 0));
    Buffer<int32_t> lists(static_cast<size_t>(threads) * (labels + 16));
    std::vector<int64_t> local(each);
    std::iota(local.begin(), local.end(), 0);
    X* const rooms = memory.data + (shared ? tables : 0);
    ExtendedTable<X> table = extended_table_in<X>(memory.data, labels, padded);
    if (shared) split_table<X>(chain.pair, labels, backward, table);
    const int64_t sums = (5 * ROWS + 1) * padded + (shared ? 0 : tables);  // where the sums of a thread are
    if (outer)
        for (int k = 0; k < threads; ++k) std::fill(rooms + k * room + sums, rooms + k * room + sums + 2 * cells, static_cast<X>(0));
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t u = 0; u < units; ++u) {
        X* own = rooms + thread_number() * room;
        ExtendedScratch<X> scratch;
        scratch.in = {own, own + ROWS * padded};
        scratch.out = {own + 2 * ROWS * padded, own + 3 * ROWS * padded};
        scratch.high = own + 4 * ROWS * padded;
        scratch.share = own + 5 * ROWS * padded;
        scratch.own = extended_table_in<X>(own + (5 * ROWS + 1) * padded, labels, padded);
        scratch.outer = outer ? own + sums : nullptr;
        scratch.lines = lists.data + thread_number() * (labels + 16);
        Numbers<X> alpha{static_cast<X*>(answer.alpha), static_cast<X*>(answer.emission)};
        if (passes == BOTH) alpha = {own + room - 2 * kept, own + room - kept};
        const int64_t start = u * each;
        const int count = static_cast<int>(std::min<int64_t>(each, rows.size() - start));
        const int64_t* mine = rows.data() + start;
        ExtendedUnit<In, X> unit{chain, answer, mine, passes == BOTH ? local.data() : mine, count, padded, table, alpha, scratch};
        if (passes != BACKWARD) extended_forward(unit);
        if (!backward) continue;
        std::vector<int64_t> chosen, slots;
        choose_answered(chain, answer, mine, count, tier, chosen, slots);
        unit.rows = chosen.data();
        unit.slots = passes == BOTH ? slots.data() : chosen.data();
        unit.count = static_cast<int>(chosen.size());
        const bool fine = extended_backward(unit);
        if (!fine)
            for (int64_t b : chosen) ++answer.tier[b];
        if (!outer || !unit.count) continue;
        X* done = scratch.outer + cells;
        if (fine && answer.pair_example)
            add_rows<X>(scratch.outer, labels, padded, answer.pair + unit.rows[0] * answer.pair_example);
        else if (fine)
            for (int64_t k = 0; k < cells; ++k) done[k] += scratch.outer[k];
        std::fill(scratch.outer, done, static_cast<X>(0));
    }
    if (outer && !answer.pair_example)
        for (int k = 0; k < threads; ++k) add_rows<X>(rooms + k * room + sums + cells, labels, padded, answer.pair);
}

template <class In> static std::vector<int64_t> rows_of_tier(const Chain<In>& chain, const Answer<In>& answer, uint8_t tier, bool backward) {
    std::vector<int64_t> rows;
    rows.reserve(chain.batch);
    for (int64_t b = 0; b < chain.batch; ++b)
        if (answer.tier[b] == tier && (!backward || answer.weight_of(b) != 0)) rows.push_back(b);
    sort_by_length(chain, rows);
    return rows;
}

// Everything in one go: log Z, and the gradients where they are asked for.  With kept alpha, only one of the passes.
template <class In> static void run_tiers(const Chain<In>& chain, const Answer<In>& answer, ChainPasses passes, int threads) {
    if (passes != BACKWARD) std::fill(answer.tier, answer.tier + chain.batch, static_cast<uint8_t>(NARROW));
    const bool backward = passes != FORWARD;
    if (backward) clear(chain, answer);
    std::vector<int64_t> rows = rows_of_tier(chain, answer, NARROW, backward);
    if (passes == BACKWARD) {
        size_t alive = 0;
        for (int64_t b : rows) {
            if (answer.log_z[b] == -INFINITY)
                clear_chain(chain, answer, b);
            else if (chain.length(b) > 0)
                rows[alive++] = b;
        }
        rows.resize(alive);
    }
    if (passes != BACKWARD && sums_abreast(chain, answer, rows.size()))
        ABREAST(abreast_tier<In>, groups_are_broad(chain, rows.size(), threads))(chain, answer, rows, passes, threads);
    else
        scaled_tier<In, In>(chain, answer, rows, NARROW, passes, threads);
    if (std::all_of(answer.tier, answer.tier + chain.batch, [](uint8_t tier) { return tier == NARROW; })) return;
    // Numbers of another width than the scores are not kept: both passes come again.
    const ChainPasses again = backward ? BOTH : FORWARD;
    Answer<In> fresh = answer;
    fresh.alpha = fresh.emission = nullptr;
    if constexpr (std::is_same_v<In, float>) {
        std::vector<int64_t> extended = passes == BACKWARD ? rows_of_tier(chain, answer, EXTENDED, backward) : std::vector<int64_t>();
        const bool adding = backward && answer.pair && answer.pair_step && !answer.pair_example;  // sums that cannot be taken back
        if (!adding) extended_tier<In, float>(chain, answer, extended, EXTENDED, BACKWARD, threads);
        rows = rows_of_tier(chain, fresh, WIDE, backward);
        if (passes != BACKWARD && sums_abreast(chain, answer, rows.size())) {
            for (int64_t b : rows) ++answer.tier[b];  // abreast, exponents take no longer than rows of doubles
            rows.clear();
        }
        scaled_tier<In, double>(chain, fresh, rows, WIDE, again, threads);
        rows = rows_of_tier(chain, fresh, EXTENDED, backward);
        if (adding) {
            for (int64_t b : rows) answer.tier[b] = EXTENDED_WIDE;
            rows.clear();
        }
        if (!extended.empty()) {  // they are done
            std::vector<bool> done(chain.batch);
            for (int64_t b : extended) done[b] = true;
            rows.erase(std::remove_if(rows.begin(), rows.end(), [&](int64_t b) { return done[b]; }), rows.end());
        }
        extended_tier<In, float>(chain, passes == FORWARD ? answer : fresh, rows, EXTENDED, again, threads);
        rows = rows_of_tier(chain, fresh, EXTENDED_WIDE, backward);
        extended_tier<In, double>(chain, fresh, rows, EXTENDED_WIDE, again, threads);
    } else {
        std::vector<int64_t> extended = passes == BACKWARD ? rows_of_tier(chain, answer, EXTENDED_WIDE, backward) : std::vector<int64_t>();
        extended_tier<In, double>(chain, answer, extended, EXTENDED_WIDE, BACKWARD, threads);
        rows = rows_of_tier(chain, fresh, WIDE, backward);
        for (int64_t b : rows) answer.tier[b] = EXTENDED_WIDE;
        extended_tier<In, double>(chain, passes == FORWARD ? answer : fresh, rows, EXTENDED_WIDE, again, threads);
    }
}

template <class In> static void run(const Chain<In>& chain, const Answer<In>& answer, int passes, int threads) {
    run_tiers(chain, answer, static_cast<ChainPasses>(passes), threads);
    for (int64_t b = 0; b < chain.batch && answer.value; ++b) answer.value[b] = static_cast<In>(answer.log_z[b]);
}

template <class In> static void best(const Chain<In>& chain, int64_t* labels_out, In* score, int threads) {
    const int64_t labels = chain.labels, padded = padded_to<In>(labels), cells = packed_size<In>(labels);
    std::vector<int64_t> rows(chain.batch);
    std::iota(rows.begin(), rows.end(), 0);
    sort_by_length(chain, rows);
    if (goes_abreast(chain, rows.size(), 2))
        return ABREAST(best_abreast<In>, groups_are_broad(chain, rows.size(), threads))(chain, rows, labels_out, score, threads);
    const int64_t each = chain.batch ? std::min<int64_t>(ROWS, unit_size(chain, chain.batch, threads, ROWS)) : 1;
    const int64_t units = (chain.batch + each - 1) / each;
    const int64_t room = cells + each * chain.size * padded;
    Buffer<In> memory(static_cast<size_t>(threads) * room + 2 * cells);
    In *const forward = memory.data, *const rooms = forward + 2 * cells;
    if (chain.stationary() && units) pack_scores<In>(chain.pair, labels, forward, forward + cells);
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t u = 0; u < units; ++u) {
        In* own = rooms + thread_number() * room;
        const int count = static_cast<int>(std::min<int64_t>(each, chain.batch - u * each));
        BestUnit<In> unit{chain, rows.data() + u * each, count, padded, forward, forward + cells, own, own + cells, labels_out, score};
        best_unit(unit);
    }
}
#undef ABREAST
