// The exponential, the logarithm, powers of two, and the transpose of a square, for vectors of any width; every module
// uses these.
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
        // Even and odd powers side by side, so that less is waited for.
        const X z = r * r;
        X odd = z * (1.0 / 6227020800.0) + 1.0 / 39916800.0, even = z * (1.0 / 479001600.0) + 1.0 / 3628800.0;
        odd = odd * z + 1.0 / 362880.0;
        even = even * z + 1.0 / 40320.0;
        odd = odd * z + 1.0 / 5040.0;
        even = even * z + 1.0 / 720.0;
        odd = odd * z + 1.0 / 120.0;
        even = even * z + 1.0 / 24.0;
        odd = odd * z + 1.0 / 6.0;
        even = even * z + 0.5;
        return (odd * r + even) * z + r + 1.0;
    }
}

// Of numbers that are known to be neither below `low` nor large.
template <class T, class X> INLINE X small_exponential(X x) {
    typedef Lanes<T> L;
    if constexpr (FAST_SHUFFLES && std::is_same_v<T, float>) {
        // With powers of 2^(1/8) from a register: a third fewer multiplications, as the polynomial has to reach less
        // far.
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
    } else if constexpr (WIDE_REGISTERS && sizeof(X) == 64) {
        // Two registers hold the powers of 2^(1/16), and what remains is so small that half as many powers of it do.
        X shifted = x * (16 * 1.44269504088896340736) + L::magic;
        const X n = shifted - L::magic;
        const X r = x - n * (L::ln2_high / 16) - n * (L::ln2_low / 16), z = r * r;
        // exp(r) - 1: its power series with the seventh power as the nearest sum of lower ones.
        const X first = 0.5 + r * 0.16666666662844765, second = 1.0 / 24 + r * 0.008333496247359863 + z * (1.0 / 720);
        const X rest = r * 1.0000000000000022 + z * (first + z * second);
        const X low_parts = {1.0,
                             1.0442737824274138,
                             1.0905077326652577,
                             1.1387886347566916,
                             1.189207115002721,
                             1.241857812073484,
                             1.2968395546510096,
                             1.3542555469368927};
        const X high_parts = {1.4142135623730951, 1.4768261459394993, 1.5422108254079407, 1.6104903319492543,
                              1.681792830507429,  1.7562521603732995, 1.8340080864093424, 1.9152065613971474};
        const X part = shuffled(low_parts, high_parts, bits_as<Bits<X>>(shifted));
        const X power = bits_as<X>(unsigned_bits(part) + ((unsigned_bits(shifted) & ~uint64_t{15}) << 48));
        return power + power * rest;
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

// log of numbers of at least 1, after the fdlibm reduction to [sqrt(1/2), sqrt(2)).
INLINE V<double> logarithm(V<double> x) {
    typedef I<double> Whole;
    const Whole bits = bits_as<Whole>(x), high = (bits >> 52) - 1023;
    V<double> m = bits_as<V<double>>((bits & 0x000fffffffffffffLL) | 0x3ff0000000000000LL);
    const Whole large = m > all<double>(1.4142135623730951);
    m = large ? m * 0.5 : m;
    const V<double> k = __builtin_convertvector(high - large, V<double>);  // `large` is -1 where it holds
    const V<double> f = m - 1.0, s = f / (2.0 + f), z = s * s;
    V<double> r = z * 0.1479819860511658591 + 0.1531383769920937332;
    r = r * z + 0.1818357216161805012;
    r = r * z + 0.2222219843214978396;
    r = r * z + 0.2857142874366239149;
    r = r * z + 0.3999999999940941908;
    r = (r * z + 0.6666666666666735130) * z;
    const V<double> square = f * f * 0.5;
    return k * 6.93147180369123816490e-01 - ((square - (s * (square + r) + k * 1.90821492927058770002e-10)) - f);
}

// The exponent of a positive normal number, and a power of two, by their bits.
template <class T> INLINE int64_t exponent_of(T x) {
    typename Lanes<T>::Whole bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<int64_t>(bits >> Lanes<T>::mantissa) - Lanes<T>::bias;
}
template <class T> INLINE T power_of_two(int64_t exponent) {
    typename Lanes<T>::Whole bits = static_cast<typename Lanes<T>::Whole>(exponent + Lanes<T>::bias)
                                    << Lanes<T>::mantissa;
    T x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Lanes of two vectors, as `from` chooses them for each part of 32 bytes: those of the second one count on from the end
// of a part.
template <class T, int BYTES, class... From> INLINE V<T, BYTES> chosen(V<T, BYTES> one, V<T, BYTES> other,
                                                                       From... from) {
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
                fours[k + 2 * half] =
                    chosen<float, BYTES>(pairs[k + half], pairs[k + half + 2], 0, 1, 8, 9, 4, 5, 12, 13);
                fours[k + 2 * half + 1] =
                    chosen<float, BYTES>(pairs[k + half], pairs[k + half + 2], 2, 3, 10, 11, 6, 7, 14, 15);
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
