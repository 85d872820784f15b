// The small systems of one example, in double precision: those of Woodbury's identity in the mean over channels and in
// the differences from it, and what the bound's gradient is made of.
#pragma once

#include "lowrank.h"

namespace energyml {

// How channels are coupled with each other: S has `within` on its diagonal and `across` elsewhere.
struct Channels {
    int64_t count;
    double within, across;
    inline double of_mean() const { return within + (static_cast<double>(count) - 1) * across; }
    inline double of_differences() const { return within - across; }
};

// What the forward pass leaves of one example for the backward pass, in doubles.
struct Capacities {
    double* data;
    int64_t rank;

    static int64_t size(int64_t rank, int64_t channels) { return 8 + (5 * rank + channels) * padded(rank); }
    double& ridge() const { return data[0]; }
    double& strength() const { return data[1]; }
    double& norm() const { return data[2]; }  // of A Aᵀ; negative where the strength was given
    double& definite() const { return data[3]; }
    double& condition() const { return data[4]; }
    double* gram() const { return data + 8; }
    double* differences() const { return gram() + rank * padded(rank); }
    double* mean() const { return differences() + rank * padded(rank); }
    double* second() const { return mean() + rank * padded(rank); }  // powers behind the norm
    double* fourth() const { return second() + rank * padded(rank); }
    double* seen() const {
        return fourth() + rank * padded(rank);
    }  // [channels, padded]: the products of the solution with A
};

// Products with the small inverse of each subspace: rows [channels, padded] of A times D⁻¹ fields become Aᵀ's factors.
inline void apply_inverse(const Channels& channels, const Capacities& kept, double* rows) {
    const int64_t count = channels.count, rank = kept.rank, pitch = padded(rank);
    std::vector<double> mean(pitch);
    for (int64_t c = 0; c < count; ++c)
        for (int64_t k = 0; k < rank; ++k) mean[k] += rows[c * pitch + k] / static_cast<double>(count);
    const double of_mean = kept.strength() * channels.of_mean(),
                 of_differences = kept.strength() * channels.of_differences();
    if (count > 1) {
        double* last =
            rows + (count - 1) * pitch;  // differences from the mean add up to zero, and so do their solutions
        std::fill(last, last + pitch, 0.0);
        for (int64_t c = 0; c + 1 < count; ++c) {
            double* row = rows + c * pitch;
            for (int64_t k = 0; k < rank; ++k) row[k] -= mean[k];
            substitute(kept.differences(), rank, row);
            for (int64_t k = 0; k < rank; ++k) last[k] -= row[k];
        }
    }
    substitute(kept.mean(), rank, mean.data());
    for (int64_t c = 0; c < count; ++c)
        for (int64_t k = 0; k < rank; ++k)
            rows[c * pitch + k] = (count > 1 ? of_differences * rows[c * pitch + k] : 0.0) + of_mean * mean[k];
}

// From products of A with fields: what Aᵀ is multiplied by in the solution, and the products of A with the solution;
// all [channels, padded].
inline void solve_small(const Channels& channels, const Capacities& kept, const double* products, double* inner,
                        double* seen) {
    const int64_t rank = kept.rank, pitch = padded(rank), all = channels.count * pitch;
    for (int64_t i = 0; i < all; ++i) inner[i] = products[i] / kept.ridge();
    apply_inverse(channels, kept, inner);
    std::copy(products, products + all, seen);
    for (int64_t c = 0; c < channels.count; ++c)
        add_multiples(inner + c * pitch, -1, {kept.gram(), pitch}, rank, seen + c * pitch);
    for (int64_t i = 0; i < all; ++i) seen[i] /= kept.ridge();
}

// S times rows [channels, padded].
inline void mix(const Channels& channels, const double* rows, int64_t pitch, double* __restrict out) {
    for (int64_t k = 0; k < pitch; ++k) {
        double sum = 0;
        for (int64_t c = 0; c < channels.count; ++c) sum += rows[c * pitch + k];
        for (int64_t c = 0; c < channels.count; ++c)
            out[c * pitch + k] = channels.of_differences() * rows[c * pitch + k] + channels.across * sum;
    }
}

// Rows [extra, padded] behind the share of the bound, (G / norm)⁷ A: a factor of the matrix where few rows make it up
// to `part` of its trace, or all of it.
inline std::vector<double> bound_rows(const Capacities& kept, double part, int64_t& extra) {
    const int64_t rank = kept.rank, matrix = rank * padded(rank);
    std::vector<double> third(matrix), rows(matrix), diagonal(padded(rank));
    third_power(kept.gram(), kept.norm(), kept.second(), rank, third.data(), rows.data());
    const int64_t found =
        low_rank_factor(kept.fourth(), third.data(), rank, part, rank / 2, rows.data(), diagonal.data());
    extra = found < 0 ? rank : found;
    if (found < 0) symmetric_product(third.data(), kept.fourth(), rank, rows.data());
    return rows;
}

}  // namespace energyml
