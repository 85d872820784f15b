// The exponential, powers of two, and the transpose of a square, for vectors of any width; every module uses these.
#pragma once

#include "vectors.h"

namespace energyml {

// exp on a polynomial after Cody-Waite reduction; relative error about 1e-7 (float) and 1e-15 (double).
template <class T, class X> INLINE X polynomial(X r) {
    if constexpr (std::is_same_v<T, float>) {
        X p = r * 1.9875691500e-4f + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        return p * r * r + r + 1.0f;
    } else {
        X p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
        p = p * r + 1.0 / 39916800.0;
        p = p * r + 1.0 / 3628800.0;
        p = p * r + 1.0 / 362880.0;
        p = p * r + 1.0 / 40320.0;
        p = p * r + 1.0 / 5040.0;
        p = p * r + 1.0 / 720.0;
        p = p * r + 1.0 / 120.0;
        p = p * r + 1.0 / 24.0;
        p = p * r + 1.0 / 6.0;
        p = p * r + 0.5;
        return p * r * r + r + 1.0;
    }
}

// Of numbers that are known to be neither below `low` nor large.
template <class T, class X> INLINE X small_exponential(X x) {
    typedef Lanes<T> L;
    if constexpr (FAST_SHUFFLES && std::is_same_v<T, float>) {
        // With powers of 2^(1/8) from a register: a third fewer multiplications, as the polynomial has to reach less far.
        constexpr float power[8] = {1.0f,        1.09050773f, 1.18920711f, 1.29683955f,
                                    1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
        X powers;
        for (size_t k = 0; k < sizeof(X) / sizeof(float); ++k) powers[k] = power[k % 8];
        X shifted = x * 11.5415603271f + L::magic;
        X n = shifted - L::magic;
        X r = x - n * (L::ln2_high / 8) - n * (L::ln2_low / 8);
        X rest = (r * 0.16666667f + 0.50005864f) * r + 1.0f;  // of (exp(r) - 1) / r, within 4e-8
        // The low bits of `shifted` say which of the powers; those above are the exponent.
        const X chosen = shuffled(powers, bits_as<Bits<X>>(shifted));
        const X scale = bits_as<X>(unsigned_bits(chosen) + ((unsigned_bits(shifted) & -8u) << (L::mantissa - 3)));
        return scale * (rest * r) + scale;
    } else {
        X shifted = x * static_cast<T>(1.44269504088896340736) + L::magic;
        X n = shifted - L::magic;
        X r = x - n * L::ln2_high - n * L::ln2_low;
        X p = polynomial<T>(r);
        // The low bits of `shifted` hold the whole number already; shifting drops everything above them.
        return p * bits_as<X>((unsigned_bits(shifted) + static_cast<unsigned>(L::bias)) << L::mantissa);
    }
}

// exp(x), and 0 below `low`, for numbers that are not large.
template <class T, class X> INLINE X exponential(X x) {
    const X low = spread<X>(Lanes<T>::low);
    const X found = small_exponential<T>(low > x ? low : x);
    return x < low ? X{} : found;
}

// The exponent of a positive normal number, and a power of two, by their bits.
template <class T> INLINE int64_t exponent_of(T x) {
    typename Lanes<T>::Whole bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<int64_t>(bits >> Lanes<T>::mantissa) - Lanes<T>::bias;
}
template <class T> INLINE T power_of_two(int64_t exponent) {
    typename Lanes<T>::Whole bits = static_cast<typename Lanes<T>::Whole>(exponent + Lanes<T>::bias) << Lanes<T>::mantissa;
    T x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Lanes of two vectors, as `from` chooses them for each part of 32 bytes: those of the second one count on from the end of a part.
template <class T, int BYTES, class... From> INLINE V<T, BYTES> chosen(V<T, BYTES> one, V<T, BYTES> other, From... from) {
    constexpr int side = Lanes<T>::count, lanes = Lanes<T, BYTES>::count;
    const int lane[side] = {from...};
    I<T, BYTES> mask;
    for (int k = 0; k < lanes; ++k)
        mask[k] = lane[k % side] % side + k / side * side + (lane[k % side] < side ? 0 : lanes);
    return shuffled(one, other, mask);
}

// A square of as many vectors as a part of 32 bytes has lanes, transposed; each part on its own.
template <class T, int BYTES = 32> INLINE void transpose(V<T, BYTES>* v) {
    if constexpr (std::is_same_v<T, float>) {
        V<float, BYTES> pairs[8], fours[8];
        for (int k = 0; k < 8; k += 2) {
            pairs[k] = chosen<float, BYTES>(v[k], v[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
            pairs[k + 1] = chosen<float, BYTES>(v[k], v[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        }
        for (int k = 0; k < 8; k += 4)
            for (int half = 0; half < 2; ++half) {
                fours[k + 2 * half] = chosen<float, BYTES>(pairs[k + half], pairs[k + half + 2], 0, 1, 8, 9, 4, 5, 12, 13);
                fours[k + 2 * half + 1] = chosen<float, BYTES>(pairs[k + half], pairs[k + half + 2], 2, 3, 10, 11, 6, 7, 14, 15);
            }
        for (int k = 0; k < 4; ++k) {
            v[k] = chosen<float, BYTES>(fours[k], fours[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
            v[k + 4] = chosen<float, BYTES>(fours[k], fours[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        }
    } else {
        V<double, BYTES> pairs[4];
        for (int k = 0; k < 4; k += 2) {
            pairs[k] = chosen<double, BYTES>(v[k], v[k + 1], 0, 4, 2, 6);
            pairs[k + 1] = chosen<double, BYTES>(v[k], v[k + 1], 1, 5, 3, 7);
        }
        for (int k = 0; k < 2; ++k) {
            v[k] = chosen<double, BYTES>(pairs[k], pairs[k + 2], 0, 1, 4, 5);
            v[k + 2] = chosen<double, BYTES>(pairs[k], pairs[k + 2], 2, 3, 6, 7);
        }
    }
}

}  // namespace energyml
