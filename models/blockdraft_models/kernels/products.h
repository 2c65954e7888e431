// Products of rows with a weight that stays as it is stored.

#pragma once

#include <type_traits>

#include "threads.h"
#include "vectors.h"

namespace {

// A row of a weight as it is stored; `at(k)` are elements k to k + kWidth, `k` a multiple of that.
template <class T>
struct Plain {
  static int64_t row_bytes(int64_t width) { return width * sizeof(T); }
  const T* row;
  INLINE Vector at(int64_t k) const { return widened(row + k); }
  INLINE float one(int64_t k) const { return widened(row[k]); }
};

struct Int8 {
  static int64_t row_bytes(int64_t width) { return width; }
  const int8_t* row;
  INLINE Vector at(int64_t k) const {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(row + k)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(row + k))));
#else
    return __builtin_convertvector(load<Bytes>(row + k), Vector);
#endif
  }
  INLINE float one(int64_t k) const { return row[k]; }
};

constexpr int64_t padded(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }

// Rows x [R, padded(width)] times C rows of a weight.
template <int R, int C, class Weight>
INLINE void multiply_tile(const float* x, int64_t stride, const Weight* weight, int64_t width,
                          float* y, int64_t y_stride) {
  Lanes sums[R][C];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++)
      UNROLL for (int part = 0; part < kParts; part++) sums[r][c].part[part] = Vector{};
  auto add = [&](int64_t k, auto weight_at) INLINE_LAMBDA {
    UNROLL for (int part = 0; part < kParts; part++) {
      Vector w[C];
      UNROLL for (int c = 0; c < C; c++) w[c] = in_register(weight_at(c, part * kWidth));
      UNROLL for (int r = 0; r < R; r++) {
        const Vector row = in_register(load<Vector>(x + r * stride + k + part * kWidth));
        UNROLL for (int c = 0; c < C; c++)
          sums[r][c].part[part] = fma(row, w[c], sums[r][c].part[part]);
      }
    }
  };
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t k = 0; k < whole; k += kLanes)
    add(k, [&](int c, int offset) INLINE_LAMBDA { return weight[c].at(k + offset); });
  if (whole < width) {
    float rest[C][kLanes] = {};
    for (int c = 0; c < C; c++)
      for (int64_t k = whole; k < width; k++) rest[c][k - whole] = weight[c].one(k);
    add(whole, [&](int c, int offset) INLINE_LAMBDA { return load<Vector>(rest[c] + offset); });
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) y[r * y_stride + c] = total(sums[r][c]);
}

// The rows of a tile, and with so many of them its outputs: what the registers hold.
constexpr bool kManyRegisters = kRegisters * kWidth > 128;
constexpr int kTileRows = kManyRegisters ? 8 : 3;
template <int R>
constexpr int kTileOutputs = kManyRegisters ? (R == 8 ? 3 : R == 4 ? 4 : 8) : (R == 1 ? 4 : 2);
// Rows that a weight is read once for: three tiles, which the nearest cache holds.
constexpr int64_t kChunkRows = kManyRegisters ? 8 : 9;

// Up to `kChunkRows` rows with C rows of a weight, in tiles of at most R rows.
template <int R, int C, class Weight>
INLINE void multiply_rows(const float* x, int64_t rows, int64_t stride, const Weight* weight,
                          int64_t width, float* y, int64_t y_stride) {
  for (; rows >= R; rows -= R, x += R * stride, y += R * y_stride)
    multiply_tile<R, C>(x, stride, weight, width, y, y_stride);
  if constexpr (R > 1)
    multiply_rows<R == 3 ? 2 : R / 2, C>(x, rows, stride, weight, width, y, y_stride);
}

// So many times C rows of a weight are on their way from memory while others are multiplied.
constexpr int64_t kAhead = 2;

INLINE void prefetch(const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

// Up to `kChunkRows` rows with some rows of a weight, C of them at a time. For more rows than a
// tile has, these are widened once: the numbers are the same.
template <int R, class Weight>
void multiply_chunk(const float* x, int64_t rows, int64_t width, const char* weight,
                    int64_t outputs, float* y, int64_t y_stride, float* wide) {
  constexpr int C = kTileOutputs<R>;
  const int64_t stride = padded(width), bytes = Weight::row_bytes(width);
  auto rows_at = [&](int64_t o) { return (decltype(Weight::row))(weight + o * bytes); };
  int64_t o = 0;
  for (; o + C <= outputs; o += C) {
    Weight row[C];
    for (int c = 0; c < C; c++) row[c].row = rows_at(o + c);
    prefetch(weight + (o + kAhead * C) * bytes, C * bytes);
    if (rows <= R) {
      multiply_rows<R, C>(x, rows, stride, row, width, y + o, y_stride);
      continue;
    }
    Plain<float> widened_row[C];
    for (int c = 0; c < C; c++) {
      float* to = wide + c * stride;
      int64_t k = 0;
      for (; k + kWidth <= width; k += kWidth) store(to + k, row[c].at(k));
      for (; k < width; k++) to[k] = row[c].one(k);
      widened_row[c].row = to;
    }
    multiply_rows<R, C>(x, rows, stride, widened_row, width, y + o, y_stride);
  }
  for (; o < outputs; o++) {
    Weight row{rows_at(o)};
    multiply_rows<R, 1>(x, rows, stride, &row, width, y + o, y_stride);
  }
}

// Rows as float32, filled up with zeros to whole lanes.
template <class T>
Floats widened_rows(const T* x, int64_t rows, int64_t width) {
  Floats wide(rows * padded(width));
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < width; k++)
      wide.data()[r * padded(width) + k] = widened(x[r * width + k]);
  return wide;
}

// Outputs that a thread takes at a time.
constexpr int64_t kBlock = 48;

template <class Weight, class Out>
void product(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t width,
             const char* weight, int64_t outputs, Out* y) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock, stride = padded(width);
  parallel(pool, blocks, rows * width * outputs, [&](int64_t block) {
    const int64_t first = block * kBlock, count = std::min(kBlock, outputs - first);
    const char* mine = weight + first * Weight::row_bytes(width);
    float sums[kChunkRows * kBlock];
    Floats wide(rows > kTileRows ? kTileOutputs<kTileRows> * stride : 0);
    for (int64_t start = 0; start < rows; start += kChunkRows) {
      const int64_t together = std::min(kChunkRows, rows - start);
      auto multiply = [&]<int R>(std::integral_constant<int, R>) {
        multiply_chunk<R, Weight>(x + start * stride, together, width, mine, count, sums, count,
                                  wide.data());
      };
      if (together == 1)
        multiply(std::integral_constant<int, 1>());
      else if (together == 2)
        multiply(std::integral_constant<int, 2>());
      else
        multiply(std::integral_constant<int, kTileRows>());
      for (int64_t r = 0; r < together; r++)
        for (int64_t o = 0; o < count; o++)
          narrow(sums[r * count + o], y + (start + r) * outputs + first + o);
    }
  });
}

}  // namespace
