// Vectors of VECTOR_BYTES and the exponential on them, written with the compiler's vector extensions so that one source serves every
// instruction set.  Included once for each of them (see targets.h), and for each width (see body.h), hence no include guard.
//
// 32 bytes also where 64 are at hand: a row of labels is padded to whole vectors, and half the padding beats wider registers.  Products take
// two at once there (see product.h), and so does what is written for vectors X or B of any width.  Chains abreast (see abreast.h) fill 64.

template <class T> struct Lanes;

template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
    typedef int32_t Whole;
    static constexpr int count = VECTOR_BYTES / sizeof(float);
    static constexpr int mantissa = 23;
    static constexpr int bias = 127;
    static constexpr float low = -87.0f;         // exp(low) is still a normal number
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr float ln2_high = 0.693359375f;
    static constexpr float ln2_low = -2.12194440e-4f;
};

template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
    typedef int64_t Whole;
    static constexpr int count = VECTOR_BYTES / sizeof(double);
    static constexpr int mantissa = 52;
    static constexpr int bias = 1023;
    static constexpr double low = -708.0;
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double ln2_high = 6.93145751953125e-1;
    static constexpr double ln2_low = 1.42860682030941723212e-6;
};

template <class T> using V = typename Lanes<T>::V;
template <class T> using I = typename Lanes<T>::I;

typedef float Half __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));  // as many floats as a vector holds doubles

template <class T> INLINE V<T> load(const T* p) { return *reinterpret_cast<const V<T>*>(p); }
template <class T> INLINE void store(T* p, V<T> v) { *reinterpret_cast<V<T>*>(p) = v; }
// A number in every lane.  By a shuffle: written otherwise, clones of a function for wider vectors would insert it lane by lane.
template <class T> INLINE V<T> all(T x) { return __builtin_shuffle(V<T>{x}, I<T>{}); }

// For vectors X of any width: whole numbers as wide as theirs, a number in every lane, other types of the same bits, and reading and writing at any address.
template <class X> using Bits = decltype(X{} < X{});
template <class X, class T> INLINE X spread(T x) { return __builtin_shuffle(X{x}, Bits<X>{}); }
template <class Y, class X> INLINE Y bits_as(X x) { return (Y)x; }  // not converted
// The same as whole numbers without a sign, whose sums and shifts wrap around.
template <class X> INLINE auto unsigned_bits(X x) {
    typedef std::conditional_t<sizeof(x[0]) == 4, uint32_t, uint64_t> Word;
    typedef Word Words __attribute__((vector_size(sizeof(X)), may_alias));
    return (Words)x;
}
template <class X, class T> INLINE X vector_at(const T* p) {
    X v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class X, class T> INLINE void put(T* p, X v) { std::memcpy(p, &v, sizeof v); }

// A vector of T from scores of another width.
template <class T, class In> INLINE V<T> load_as(const In* p) {
    if constexpr (std::is_same_v<T, In>)
        return load<T>(p);
    else
        return __builtin_convertvector(*reinterpret_cast<const Half*>(p), V<double>);
}
template <class T, class In> INLINE void store_as(In* p, V<T> v) {
    if constexpr (std::is_same_v<T, In>)
        store<T>(p, v);
    else
        *reinterpret_cast<Half*>(p) = __builtin_convertvector(v, Half);
}

template <class T> INLINE V<T> larger(V<T> a, V<T> b) { return a > b ? a : b; }
template <class T> INLINE V<T> smaller(V<T> a, V<T> b) { return a < b ? a : b; }

#if VECTOR_BYTES == 32
// All lanes hold the largest one (or the sum) in the end: pairs, then pairs of pairs.
INLINE V<float> rotated(V<float> v, int by) {
    typedef int32_t M __attribute__((vector_size(32)));
    if (by == 4) return __builtin_shuffle(v, M{4, 5, 6, 7, 0, 1, 2, 3});
    if (by == 2) return __builtin_shuffle(v, M{2, 3, 0, 1, 6, 7, 4, 5});
    return __builtin_shuffle(v, M{1, 0, 3, 2, 5, 4, 7, 6});
}
INLINE V<double> rotated(V<double> v, int by) {
    typedef int64_t M __attribute__((vector_size(32)));
    if (by == 2) return __builtin_shuffle(v, M{2, 3, 0, 1});
    return __builtin_shuffle(v, M{1, 0, 3, 2});
}
template <class T> INLINE T horizontal_max(V<T> v) {
    if constexpr (Lanes<T>::count == 8) v = larger<T>(v, rotated(v, 4));
    v = larger<T>(v, rotated(v, 2));
    v = larger<T>(v, rotated(v, 1));
    return v[0];
}
template <class T> INLINE T horizontal_sum(V<T> v) {
    if constexpr (Lanes<T>::count == 8) v = v + rotated(v, 4);
    v = v + rotated(v, 2);
    v = v + rotated(v, 1);
    return v[0];
}
#endif

template <class T> INLINE bool any(I<T> mask) {
    typedef long long Words __attribute__((vector_size(VECTOR_BYTES), may_alias));
    const Words words = bits_as<Words>(mask);
#if VECTOR_BYTES == 64
    return _mm512_test_epi64_mask(words, words) != 0;
#elif defined(TARGET_HAS_TEST)
    return !__builtin_ia32_ptestz256(words, words);
#else
    return (words[0] | words[1] | words[2] | words[3]) != 0;
#endif
}

// Lanes below `live` are set.
template <class T> INLINE I<T> first_lanes(int64_t live) {
    I<T> index;
    for (int k = 0; k < Lanes<T>::count; ++k) index[k] = k;
    return index < (static_cast<typename Lanes<T>::Whole>(live) - I<T>{});
}

// exp on a polynomial after Cody-Waite reduction; relative error about 1e-7 (float) and 1e-15 (double); 0 below `low`.
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

#if defined(TARGET_HAS_FMA) || defined(CLONED_TARGETS)
#define SHUFFLES_ARE_FAST true
#else
#define SHUFFLES_ARE_FAST false
#endif

// Of numbers that are known to be neither below `low` nor large, for vectors of T of any width.
template <class T, class X> INLINE X small_exponential(X x) {
    typedef Lanes<T> L;
    if constexpr (SHUFFLES_ARE_FAST && std::is_same_v<T, float>) {
        // With powers of 2^(1/8) from a register: a third fewer multiplications, as the polynomial has to reach less far.
        constexpr float power[8] = {1.0f, 1.09050773f, 1.18920711f, 1.29683955f, 1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
        X powers;
        for (size_t k = 0; k < sizeof(X) / sizeof(float); ++k) powers[k] = power[k % 8];
        X shifted = x * 11.5415603271f + L::magic;
        X n = shifted - L::magic;
        X r = x - n * (L::ln2_high / 8) - n * (L::ln2_low / 8);
        X rest = (r * 0.16666667f + 0.50005864f) * r + 1.0f;  // of (exp(r) - 1) / r, within 4e-8
        // The low bits of `shifted` say which of the powers; those above are the exponent.
        const X chosen = __builtin_shuffle(powers, bits_as<Bits<X>>(shifted));
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
#undef SHUFFLES_ARE_FAST

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
