// Vectors of 32 bytes and the exponential on them, written with the compiler's vector extensions so that one source serves
// every instruction set that the dispatcher picks (see DISPATCH below).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define DISPATCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCH
#endif
#define INLINE inline __attribute__((always_inline))

namespace energyml {

template <class T> struct Lanes;

template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(32), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(32)));
    static constexpr int count = 8;
    static constexpr int mantissa = 23;
    static constexpr int bias = 127;
    static constexpr float low = -87.0f;       // exp(low) is still a normal number
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr float ln2_high = 0.693359375f;
    static constexpr float ln2_low = -2.12194440e-4f;
};

template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(32), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(32)));
    static constexpr int count = 4;
    static constexpr int mantissa = 52;
    static constexpr int bias = 1023;
    static constexpr double low = -708.0;
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double ln2_high = 6.93145751953125e-1;
    static constexpr double ln2_low = 1.42860682030941723212e-6;
};

template <class T> using V = typename Lanes<T>::V;
template <class T> using I = typename Lanes<T>::I;

template <class T> INLINE V<T> load(const T* p) { return *reinterpret_cast<const V<T>*>(p); }
template <class T> INLINE void store(T* p, V<T> v) { *reinterpret_cast<V<T>*>(p) = v; }
template <class T> INLINE V<T> all(T x) { return x - V<T>{}; }

// exp on a polynomial after Cody-Waite reduction; relative error about 1e-7 (float) and 1e-15 (double); 0 below `low`.
template <class T> INLINE V<T> polynomial(V<T> r);

template <> INLINE V<float> polynomial<float>(V<float> r) {
    V<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}

template <> INLINE V<double> polynomial<double>(V<double> r) {
    V<double> p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
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

template <class T> INLINE V<T> exponential(V<T> x) {
    typedef Lanes<T> L;
    const V<T> low = all<T>(L::low);
    V<T> safe = x < low ? low : x;
    V<T> shifted = safe * static_cast<T>(1.44269504088896340736) + L::magic;
    V<T> n = shifted - L::magic;
    V<T> r = safe - n * L::ln2_high - n * L::ln2_low;
    V<T> p = polynomial<T>(r);
    I<T> bits = (__builtin_convertvector(n, I<T>) + L::bias) << L::mantissa;
    V<T> scale = reinterpret_cast<V<T>&>(bits);
    return x < low ? V<T>{} : p * scale;
}

INLINE int round_up(int64_t n, int lanes) { return static_cast<int>((n + lanes - 1) / lanes * lanes); }

template <class T> INLINE T horizontal_max(V<T> v) {
    T best = v[0];
    for (int i = 1; i < Lanes<T>::count; ++i) best = v[i] > best ? v[i] : best;
    return best;
}

template <class T> INLINE T horizontal_sum(V<T> v) {
    T total = 0;
    for (int i = 0; i < Lanes<T>::count; ++i) total += v[i];
    return total;
}

}  // namespace energyml
