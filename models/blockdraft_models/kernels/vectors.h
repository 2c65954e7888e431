// Vectors as wide as the processor's, and sums in sixteen lanes whatever that width is.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kRegisters = 32;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kRegisters = 32;
#else
#error "needs fused multiply-adds: AVX2 or NEON"
#endif
constexpr int kLanes = 16, kParts = kLanes / kWidth;

typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
// What is indexed in a loop that is not unrolled cannot stay in registers.
#define UNROLL _Pragma("GCC unroll 16")

template <class T>
INLINE T load(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

INLINE void store(float* address, Vector value) { std::memcpy(address, &value, sizeof value); }

// Keeps the compiler from loading it again wherever it is used.
INLINE Vector in_register(Vector value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#endif
  return value;
}

INLINE Vector all(float value) { return value - Vector{}; }

INLINE Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return vfmaq_f32(c, a, b);
#endif
}

// Sixteen floats in a line of the cache, which no vector of them crosses.
struct alignas(64) Line {
  float value[16];
};

class Floats {
 public:
  explicit Floats(int64_t count) : lines_((count + 15) / 16) {}
  float* data() { return lines_.data()->value; }

 private:
  std::vector<Line> lines_;
};

// Sixteen sums that become one.
struct Lanes {
  Vector part[kParts];
};

INLINE float total(const Lanes& lanes) {
  typedef float Quarter __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(lanes.part[0]), 1);
  const __m256 half = _mm512_castps512_ps256(lanes.part[0]) + _mm256_castpd_ps(upper);
  const Quarter sum = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#elif defined(__AVX2__)
  const __m256 half = lanes.part[0] + lanes.part[1];
  const Quarter sum = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#else
  const Quarter sum = (lanes.part[0] + lanes.part[2]) + (lanes.part[1] + lanes.part[3]);
#endif
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// N times sixteen sums that become one, of eight at once where registers are wide enough. Each is
// added by halves all the same.
template <int N>
INLINE void totals(const Lanes* sums, float* to) {
  constexpr int kTogether = kWidth == kLanes ? N / 8 * 8 : 0;
#if defined(__AVX512F__)
  UNROLL for (int first = 0; first < kTogether; first += 8) {
    __m512 halves[4], quarters[2];  // of two sums and of four
    UNROLL for (int i = 0; i < 4; i++) {
      const __m512 a = sums[first + i].part[0], b = sums[first + i + 4].part[0];
      halves[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    }
    UNROLL for (int i = 0; i < 2; i++)
      quarters[i] = _mm512_shuffle_f32x4(halves[i], halves[i + 2], 0x88) +
                    _mm512_shuffle_f32x4(halves[i], halves[i + 2], 0xdd);
    const __m512d a = _mm512_castps_pd(quarters[0]), b = _mm512_castps_pd(quarters[1]);
    const __m512 pairs = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) +
                         _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    float values[16];
    _mm512_storeu_ps(values, pairs + _mm512_movehdup_ps(pairs));
    constexpr int place[8] = {0, 2, 8, 10, 4, 6, 12, 14};
    UNROLL for (int i = 0; i < 8; i++) to[first + i] = values[place[i]];
  }
#endif
  UNROLL for (int i = kTogether; i < N; i++) to[i] = total(sums[i]);
}

// A power of two and a remainder, then a polynomial (Cephes expf); 0 below -87, e^88 above 88.
INLINE Vector exponential(Vector x) {
  x = x > all(88.0f) ? all(88.0f) : x;
  const Vector magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Vector rounded = fma(x, all(1.44269504088896341f), magic);
  Integers exponent = ((Integers)rounded - (Integers)magic + 127) << 23;
  Vector n = rounded - magic;
  Vector r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Vector p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r) + all(1.0f);
  Integers tiny = x < all(-87.0f);
  return (Vector)(~tiny & (Integers)(p * (Vector)exponent));
}

typedef struct {
  uint16_t bits;
} bfloat16;

INLINE float widened(float value) { return value; }
INLINE float widened(int8_t value) { return value; }
INLINE float widened(bfloat16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  return load<float>(&bits);
}

INLINE void narrow(float value, float* result) { *result = value; }
INLINE void narrow(float value, bfloat16* result) {
  uint32_t bits = load<uint32_t>(&value);
  // To nearest, ties to even; NaNs stay NaNs.
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  result->bits = value != value ? bits >> 16 | 0x40 : rounded;
}

INLINE Vector widened(const float* address) { return load<Vector>(address); }
INLINE Vector widened(const bfloat16* address) {
#if defined(__AVX512F__)
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(address)), 16);
#elif defined(__AVX2__)
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(address)), 16);
#else
  return (Vector)vshlq_n_u32(vmovl_u16(vld1_u16((const uint16_t*)address)), 16);
#endif
}

INLINE Integers integers(const uint8_t* address) {
#if defined(__AVX512F__)
  return (Integers)_mm512_cvtepu8_epi32(load<__m128i>(address));
#elif defined(__AVX2__)
  return (Integers)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)address));
#else
  typedef uint8_t Bytes __attribute__((vector_size(kWidth)));
  return __builtin_convertvector(load<Bytes>(address), Integers);
#endif
}

INLINE Vector widened(const int8_t* address) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(address)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)address)));
#else
  typedef int8_t Bytes __attribute__((vector_size(kWidth)));
  return __builtin_convertvector(load<Bytes>(address), Vector);
#endif
}

INLINE float half_float(const char* address) {
#if defined(__x86_64__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load<uint16_t>(address))));
#else
  return load<__fp16>(address);
#endif
}

struct HalfFloats {
  Vector first, second;
};

// The two half floats at an address, of which eight bytes can be read, each in every lane.
INLINE HalfFloats half_floats(const char* address) {
#if defined(__AVX512F__)
  // By memory: a load fills all lanes and takes no turn of a multiply-add.
  float values[4];
  _mm_storeu_ps(values, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)address)));
  asm("" : "+m"(values));
  return {_mm512_set1_ps(values[0]), _mm512_set1_ps(values[1])};
#else
  return {all(half_float(address)), all(half_float(address + 2))};
#endif
}

}  // namespace
