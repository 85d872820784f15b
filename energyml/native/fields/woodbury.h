// Solves with (ridge I + strength S ⊗ A Aᵀ) by the Woodbury identity, and their gradients: two passes over A each.
// S has `within` on its diagonal and `across` elsewhere, so that the mean over channels and the differences from it are
// apart.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "capacity.h"

namespace energyml {

// A batch of couplings: vectors [examples or 1, rank, positions]; numbers of examples every `stride`, 0 where all share
// one.
template <class T> struct LowRank {
    int64_t examples, channels, positions, rank;
    const T* vectors;
    bool shared;
    const T* ridge;
    int64_t ridge_stride;
    const T* strength;  // null: gain / (1 + gain norm / (share ridge)), the norm that of the eighth powers of A Aᵀ
    int64_t strength_stride;
    double gain, share, within, across;
    const uint8_t* present;  // [examples, positions] or null; vectors are zero where it is
    int threads;

    int64_t groups() const { return shared ? 1 : examples; }
    int64_t of_group() const { return shared ? examples : 1; }
    int64_t pitch() const { return padded(rank); }
    Channels mixing() const { return {channels, within, across}; }
    Coupled<T> coupled(int64_t group, const T* fields, int64_t count) const {
        return {{vectors + group * rank * positions, positions}, rank, {fields, positions}, count * channels};
    }
};

// Memory that is about to be written for the first time comes in large pages, where the system has them.
inline void in_large_pages(void* data, size_t bytes) {
#ifdef __linux__
    constexpr uintptr_t page = uintptr_t{1} << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page,
                    end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

// Columns in parts that do not depend on the number of threads, and so neither do sums over them.
template <class T> struct Parts {
    int64_t positions, length, count;
    explicit Parts(int64_t positions_) : positions(positions_) {
        constexpr int64_t most = 16, least = 16 * PANEL<T>;
        length = std::max(least, round_up((positions + most - 1) / most, PANEL<T>));
        count = (positions + length - 1) / length;
    }
    int64_t from(int64_t part) const { return part * length; }
    int64_t to(int64_t part) const { return std::min(positions, (part + 1) * length); }
};

// The strength of one example, and the factors of its small systems.
template <class T> void prepare(const LowRank<T>& batch, int64_t example, const Capacities& kept) {
    const double ridge = kept.ridge() = batch.ridge[example * batch.ridge_stride];
    kept.norm() = -1;
    kept.definite() = 0;
    kept.condition() = std::numeric_limits<double>::quiet_NaN();
    if (batch.strength) {
        kept.strength() = batch.strength[example * batch.strength_stride];
    } else {
        kept.norm() = eighth_norm(kept.gram(), batch.rank, kept.second(), kept.fourth());
        const double above = std::max<double>(ridge, std::numeric_limits<T>::min());
        kept.strength() = batch.gain / (1 + batch.gain * kept.norm() / (batch.share * above));
    }
    if (!(ridge > 0) || !std::isfinite(ridge)) return;
    const double by = kept.strength() / ridge;
    if (!factorise(kept.gram(), by * batch.mixing().of_mean(), batch.rank, kept.mean())) return;
    double spread = spread_of_pivots(kept.mean(), batch.rank);
    if (batch.channels > 1) {
        if (!factorise(kept.gram(), by * batch.mixing().of_differences(), batch.rank, kept.differences())) return;
        spread = std::max(spread, spread_of_pivots(kept.differences(), batch.rank));
    }
    kept.definite() = 1;
    kept.condition() = spread * spread;
}

// Threads for groups of examples, each of which works alone; or, where there is one group, for parts of its columns.
template <class T> struct Shares {
    Parts<T> parts;
    int outer, inner;
    explicit Shares(const LowRank<T>& batch) : parts(batch.positions) {
        outer = static_cast<int>(std::min<int64_t>(batch.threads, batch.groups()));
        inner = outer > 1 ? 1 : static_cast<int>(std::min<int64_t>(batch.threads, parts.count));
    }
    int all() const { return std::max(outer, inner); }

    template <class Work> void for_groups(int64_t groups, const Work& work) const {
        bool fine = true;
#ifdef _OPENMP
#pragma omp parallel for num_threads(outer) if (outer > 1) schedule(dynamic) reduction(&& : fine)
#endif
        for (int64_t group = 0; group < groups; ++group) fine = memory_suffices([&] { work(group, thread()); }) && fine;
        if (!fine) throw std::bad_alloc();
    }
    template <class Work> void for_parts(int64_t own, const Work& work) const {
        bool fine = true;
#ifdef _OPENMP
#pragma omp parallel for num_threads(inner) if (inner > 1) schedule(dynamic) reduction(&& : fine)
#endif
        for (int64_t part = 0; part < parts.count; ++part)
            fine = memory_suffices([&] { work(part, inner > 1 ? thread() : own); }) && fine;
        if (!fine) throw std::bad_alloc();
    }

  private:
    static int64_t thread() {
#ifdef _OPENMP
        return omp_get_thread_num();
#else
        return 0;
#endif
    }
};

// Memory for each of some threads, from the beginning of a line of the cache: a vector that crosses two of them takes
// twice as long to read.
template <class T> class Rooms {
  public:
    Rooms(int64_t count, int64_t size) : size_(round_up(size, LINE)), all_(count * size_ + LINE) {
        first_ = reinterpret_cast<T*>(round_up(reinterpret_cast<intptr_t>(all_.data), LINE * sizeof(T)));
    }
    T* operator[](int64_t thread) const { return first_ + thread * size_; }

  private:
    static constexpr int64_t LINE = 64 / sizeof(T);
    int64_t size_;
    Buffer<T> all_;
    T* first_;
};

// Products over all columns, added up in the order of their parts.
template <class T>
void measure_all(const Shares<T>& shares, const Coupled<T>& given, int64_t own, const Rooms<T>& rooms, double* sums,
                 double* gram, double* products) {
    const int64_t matrix = gram ? given.rank * padded(given.rank) : 0, rows = given.rows * padded(given.rank),
                  size = matrix + rows;
    std::fill(sums, sums + shares.parts.count * size, 0.0);
    shares.for_parts(own, [&](int64_t part, int64_t thread) {
        double* mine = sums + part * size;
        const int64_t from = shares.parts.from(part), to = shares.parts.to(part);
        if (gram)
            measure<Narrow<T>>(given, from, to, rooms[thread], mine);
        else
            measure_fields<Narrow<T>>(given, from, to, mine);
    });
    for (int64_t part = 1; part < shares.parts.count; ++part)
        for (int64_t i = 0; i < size; ++i) sums[i] += sums[part * size + i];
    std::copy(sums, sums + rows, products);
    if (!gram) return;
    mirrored(sums + rows, given.rank, gram);
}

// Where the answers go.
template <class T> struct Solutions {
    T* x;               // [examples, channels, positions]; NaN where a matrix is not positive definite
    double* kept;       // `Capacities::size` numbers for each example
    uint8_t* definite;  // [examples]
    T* condition;       // [examples]
};

// The worst condition number, or NaN where a matrix is not positive definite or a solution not finite.
template <class T> double woodbury_forward(const LowRank<T>& batch, const T* rhs, const Solutions<T>& answer) {
    T* const x = answer.x;
    double* const kept = answer.kept;
    const Shares<T> shares(batch);
    const int64_t rank = batch.rank, pitch = batch.pitch(), field = batch.channels * batch.positions,
                  keeps = Capacities::size(rank, batch.channels);
    const int64_t together = batch.of_group(), rows = together * batch.channels * pitch;
    const Rooms<T> rooms(shares.all(), measure_room<T>(rank) + batch.channels * pitch);
    const Rooms<double> sums(shares.outer, shares.parts.count * (rank * pitch + rows) + rows);
    std::vector<uint8_t> fine(batch.examples, 1);
    in_large_pages(x, batch.examples * field * sizeof(T));
    shares.for_groups(batch.groups(), [&](int64_t group, int64_t own) {
        const int64_t first = group * together;
        const Capacities leader{kept + first * keeps, rank};
        double *products = sums[own], *parts = products + rows;
        measure_all<T>(shares, batch.coupled(group, rhs + first * field, together), own, rooms, parts, leader.gram(),
                       products);
        for (int64_t e = 0; e < together; ++e) {
            const int64_t example = first + e;
            const Capacities mine{kept + example * keeps, rank};
            if (e) std::copy(leader.gram(), leader.gram() + rank * pitch, mine.gram());
            prepare<T>(batch, example, mine);
            T* out = x + example * field;
            answer.definite[example] = mine.definite() != 0;
            answer.condition[example] = static_cast<T>(mine.condition());
            if (!mine.definite()) {
                std::fill(out, out + field, std::numeric_limits<T>::quiet_NaN());
                continue;
            }
            T* inner = rooms[own] + measure_room<T>(rank);
            std::vector<double> wide(batch.channels * pitch);
            solve_small(batch.mixing(), mine, products + e * batch.channels * pitch, wide.data(), mine.seen());
            std::copy(wide.begin(), wide.end(), inner);
            const Inverse<T> by{static_cast<T>(1 / mine.ridge()),
                                batch.present ? batch.present + example * batch.positions : nullptr};
            const Coupled<T> given = batch.coupled(group, rhs + example * field, 1);
            std::vector<uint8_t> finite(shares.parts.count);
            shares.for_parts(own, [&](int64_t part, int64_t) {
                finite[part] =
                    finish<Narrow<T>>(given, {inner, pitch}, by, shares.parts.from(part), shares.parts.to(part), out);
            });
            if (std::find(finite.begin(), finite.end(), 0) != finite.end()) fine[example] = 0;
        }
    });
    double worst = 1;
    for (int64_t example = 0; example < batch.examples; ++example) {
        if (!answer.definite[example] || !fine[example]) return std::numeric_limits<double>::quiet_NaN();
        worst = std::max(worst, Capacities{kept + example * keeps, rank}.condition());
    }
    return worst;
}

// Gradients: of the right-hand sides [examples, channels, positions], of the vectors (or null), of ridge and strength
// [examples].
template <class T> struct Gradients {
    T* rhs;
    T* vectors;
    double* ridge;
    double* strength;  // where it was given
};

// What the gradient of the vectors is made of, for one example: see `Slope`.
template <class T> struct Recipe {
    std::vector<T> makers, factors;
    int64_t extra = 0;
};

// What one example's gradient is made of.  `inner` makes the adjoint, whose products with A are `seen`, both [channels,
// padded]; the share of the bound is 2 slope (G / norm)⁷ A, of the first example of a group alone.
template <class T>
Recipe<T> recipe_of(const LowRank<T>& batch, const Capacities& kept, const double* inner, const double* seen,
                    double slope, bool gradient) {
    const int64_t rank = batch.rank, pitch = batch.pitch(), channels = batch.channels;
    Recipe<T> recipe;
    std::vector<double> rows;
    if (gradient && kept.norm() > 0 && slope != 0)
        rows = bound_rows(kept, 4 * std::numeric_limits<T>::epsilon(), recipe.extra);
    const int64_t made = recipe.extra == rank ? 0 : recipe.extra, wide = made + channels;
    recipe.makers.resize(rank * wide);
    for (int64_t k = 0; k < rank; ++k) {
        for (int64_t j = 0; j < made; ++j) recipe.makers[k * wide + j] = static_cast<T>(rows[j * pitch + k]);
        for (int64_t c = 0; c < channels; ++c)
            recipe.makers[k * wide + made + c] = static_cast<T>(inner[c * pitch + k]);
    }
    if (!gradient) return recipe;
    std::vector<double> of_solution(channels * pitch), of_adjoint(channels * pitch);
    mix(batch.mixing(), seen, pitch, of_solution.data());
    mix(batch.mixing(), kept.seen(), pitch, of_adjoint.data());
    recipe.factors.resize((recipe.extra + 2 * channels) * rank);
    T *of_bound = recipe.factors.data() + (made ? 0 : 2 * channels * rank),
      *of_fields = recipe.factors.data() + made * rank;
    for (int64_t k = 0; k < rank; ++k) {
        for (int64_t j = 0; j < recipe.extra; ++j)
            of_bound[j * rank + k] = static_cast<T>(2 * slope * rows[j * pitch + k]);
        for (int64_t c = 0; c < channels; ++c) {
            of_fields[c * rank + k] = static_cast<T>(-kept.strength() * of_adjoint[c * pitch + k]);
            of_fields[(channels + c) * rank + k] = static_cast<T>(-kept.strength() * of_solution[c * pitch + k]);
        }
    }
    return recipe;
}

template <class T> void woodbury_backward(const LowRank<T>& batch, const T* back, const T* x, const double* kept,
                                          const Gradients<T>& out) {
    const Shares<T> shares(batch);
    const int64_t rank = batch.rank, pitch = batch.pitch(), channels = batch.channels,
                  field = channels * batch.positions;
    const int64_t keeps = Capacities::size(rank, channels), together = batch.of_group(), rows = channels * pitch;
    const Rooms<T> rooms(shares.all(), slope_room<T>(rank, channels));
    const Rooms<double> sums(shares.outer, (shares.parts.count + 1) * together * rows + shares.parts.count);
    in_large_pages(out.rhs, batch.examples * field * sizeof(T));
    const int64_t written = batch.groups() * rank * batch.positions * sizeof(T);
    if (out.vectors) in_large_pages(out.vectors, written);
    shares.for_groups(batch.groups(), [&](int64_t group, int64_t own) {
        const int64_t first = group * together;
        double *products = sums[own], *parts = products + together * rows,
               *totals = parts + shares.parts.count * together * rows;
        T* vectors = out.vectors ? out.vectors + group * rank * batch.positions : nullptr;
        measure_all<T>(shares, batch.coupled(group, back + first * field, together), own, rooms, parts, nullptr,
                       products);
        std::vector<double> inner(together * rows), seen(together * rows), other(rows);
        double slope = 0;  // of the norm of A Aᵀ, which the examples of a group share
        int64_t leader = -1;
        for (int64_t e = 0; e < together; ++e) {
            const int64_t example = first + e;
            const Capacities mine{const_cast<double*>(kept) + example * keeps, rank};
            out.ridge[example] = out.strength[example] = 0;
            if (!mine.definite()) continue;
            if (leader < 0) leader = e;
            solve_small(batch.mixing(), mine, products + e * rows, inner.data() + e * rows, seen.data() + e * rows);
            mix(batch.mixing(), mine.seen(), pitch, other.data());
            double found = 0;
            for (int64_t i = 0; i < rows; ++i) found -= other[i] * seen[e * rows + i];
            if (mine.norm() < 0) {
                out.strength[example] = found;
            } else {
                const double by = found * mine.strength() * mine.strength() / (batch.share * mine.ridge());
                slope -= by;
                out.ridge[example] = by * mine.norm() / mine.ridge();
            }
        }
        if (vectors && leader < 0) std::fill(vectors, vectors + rank * batch.positions, T{});
        for (int64_t e = 0; e < together; ++e) {
            const int64_t example = first + e;
            const Capacities mine{const_cast<double*>(kept) + example * keeps, rank};
            if (!mine.definite()) {
                std::fill(out.rhs + example * field, out.rhs + (example + 1) * field, T{});
                continue;
            }
            const Recipe<T> recipe = recipe_of(batch, mine, inner.data() + e * rows, seen.data() + e * rows,
                                               e == leader ? slope : 0.0, vectors != nullptr);
            const Slope<T> to_do{
                batch.coupled(group, back + example * field, 1),
                x + example * field,
                {static_cast<T>(1 / mine.ridge()), batch.present ? batch.present + example * batch.positions : nullptr},
                {recipe.makers.data(), static_cast<int64_t>(recipe.makers.size()) / rank},
                recipe.extra,
                {recipe.factors.data(), rank},
                out.rhs + example * field,
                vectors,
                e != leader};
            shares.for_parts(own, [&](int64_t part, int64_t thread) {
                totals[part] =
                    slope_of_part<Narrow<T>>(to_do, shares.parts.from(part), shares.parts.to(part), rooms[thread]);
            });
            for (int64_t part = 0; part < shares.parts.count; ++part) out.ridge[example] -= totals[part];
        }
    });
}

}  // namespace energyml
