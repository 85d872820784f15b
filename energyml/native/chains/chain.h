// A batch of chains and what is wanted of it, as plain pointers and sizes.
#pragma once

#include <cmath>
#include <cstdint>

namespace energyml {

// A batch of chains: unaries [B, T, C] and pair tables [C, C] (earlier, later) with strides over examples and steps, 0
// where shared.
template <class In> struct Chain {
    const In* unary;
    const In* pair;
    const int64_t* lengths;  // null: all T
    int64_t batch, size, labels;
    int64_t pair_example, pair_step;

    int64_t length(int64_t b) const { return lengths ? lengths[b] : size; }
    bool stationary() const { return pair_example == 0 && pair_step == 0; }
    const In* row(int64_t b, int64_t t) const { return unary + (b * size + t) * labels; }
    const In* end() const { return unary + batch * size * labels; }
    const In* table(int64_t b, int64_t t) const { return pair + b * pair_example + t * pair_step; }
};

// Which way an example was answered: in exp space in the scores' own type or in double, or in log space.
enum Tier : uint8_t { NARROW = 0, WIDE = 1, LOGARITHMIC = 2 };

// What is done in one call: log-partitions, gradients from what an earlier call kept, or all at once.
enum ChainPasses { FORWARD, BACKWARD, BOTH };

// Where the answers go.  Gradients are those of the weighted sum of log-partitions.
template <class In> struct Answer {
    In* value;         // [B]: log Z in the scores' own type, or null
    double* log_z;     // [B]
    uint8_t* tier;     // [B], a Tier
    const In* weight;  // [B], every `weight_stride`; null: ones
    int64_t weight_stride;
    In* unary;  // [B, T, C] or null
    In* pair;   // null, or [B or 1, T-1 or 1, C, C] with the strides below; summed where they are 0
    int64_t pair_example, pair_step;
    void* alpha;     // [B, T, padded]: kept by the forward pass for the backward pass, or null
    void* emission;  // the same

    In weight_of(int64_t b) const { return weight ? weight[b * weight_stride] : static_cast<In>(1); }
};

// Marginals, and the gradient of a function of them.
template <class In> struct Moments {
    const In* cells;  // [B, T, C]: of cells
    const In* steps;  // [B, T-1, C, C]: of neighbours
    const In* v;      // [B, T, C]: the gradient by cells, or null: zeros
    const In* w;      // [B, T-1, C, C]: the gradient by steps, or null: zeros
};

}  // namespace energyml
