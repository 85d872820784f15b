// Numbers by counting: Threefry-4x32 with 20 rounds on eight counters at once.
// Source: Salmon, Moraes, Dror & Shaw 2011.  A number follows from its key and counter alone, so that draws are the
// same in any order and for any number of threads; shifts and sums are all it takes, which every instruction set has
// for vectors.
#pragma once

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

typedef uint32_t Words __attribute__((vector_size(32), aligned(4), may_alias));
constexpr int WIDTH = 8;  // counters that are worked on together

struct Key {
    uint32_t words[5];  // the fifth one is the parity of the others

    explicit Key(uint64_t seed, uint32_t third = 0, uint32_t fourth = 0)
        : words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), third, fourth, 0} {
        words[4] = 0x1BD11BDAu ^ words[0] ^ words[1] ^ words[2] ^ words[3];
    }
};

template <int BY> INLINE void mix(Words& a, Words& b) {
    a += b;
    b = ((b << BY) | (b >> (32 - BY))) ^ a;
}

// Four rounds and the key that follows them.
template <int A, int B, int C, int D, int E, int F, int G, int H> INLINE void rounds(const Key& key, int number,
                                                                                     Words (&x)[4]) {
    mix<A>(x[0], x[1]);
    mix<B>(x[2], x[3]);
    mix<C>(x[0], x[3]);
    mix<D>(x[2], x[1]);
    mix<E>(x[0], x[1]);
    mix<F>(x[2], x[3]);
    mix<G>(x[0], x[3]);
    mix<H>(x[2], x[1]);
    for (int k = 0; k < 4; ++k) x[k] += key.words[(number + k) % 5];
    x[3] += static_cast<uint32_t>(number);
}

// Turns counters into numbers.
INLINE void threefry(const Key& key, Words (&x)[4]) {
    for (int k = 0; k < 4; ++k) x[k] += key.words[k];
    rounds<10, 26, 11, 21, 13, 27, 23, 5>(key, 1, x);
    rounds<6, 20, 17, 11, 25, 10, 18, 20>(key, 2, x);
    rounds<10, 26, 11, 21, 13, 27, 23, 5>(key, 3, x);
    rounds<6, 20, 17, 11, 25, 10, 18, 20>(key, 4, x);
    rounds<10, 26, 11, 21, 13, 27, 23, 5>(key, 5, x);
}

// Counters of a cell of a row in chains side by side.
INLINE void count_up(int64_t cell, int64_t chain, int64_t row, Words (&x)[4]) {
    const Words zero = {0, 0, 0, 0, 0, 0, 0, 0}, lane = {0, 1, 2, 3, 4, 5, 6, 7};
    x[0] = zero + static_cast<uint32_t>(cell);
    x[1] = lane + static_cast<uint32_t>(chain);
    x[2] = zero + static_cast<uint32_t>(row);
    x[3] = zero;
}

}  // namespace energyml
