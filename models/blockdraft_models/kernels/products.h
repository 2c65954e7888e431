// Products of rows with a weight that stays as it is stored.

#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "threads.h"
#include "vectors.h"

namespace {

// A row of a weight as it is stored, in groups of `kGroup` elements; `at(k)` of a group are kWidth
// elements from the k-th on, `k` a multiple of kWidth. `kScales` vectors beside the elements are
// in registers.
template <class T>
struct Plain {
  static constexpr int kGroup = kLanes, kScales = 0;
  static int64_t row_bytes(int64_t width) { return width * sizeof(T); }
  struct Group {
    const T* elements;
    INLINE Vector at(int k) const { return widened(elements + k); }
  };
  const T* row;
  INLINE Group group(int64_t g) const { return {row + g * kGroup}; }
  INLINE float one(int64_t k) const { return widened(row[k]); }
};

// Formats of GGUF: 32 elements share a scale, some also an offset, each a half float. A half float
// times a small integer is exact in float32, so only adding an offset rounds.
template <int kBytes, int kNumbers>
struct Blocks {
  static constexpr int kGroup = 32, kScales = kNumbers;
  // Rows are whole blocks.
  static int64_t row_bytes(int64_t width) { return width / kGroup * kBytes; }
  const char* row;
  INLINE const char* block(int64_t g) const { return row + g * kBytes; }
  float one(int64_t) const { return 0; }
};

struct Q8_0 : Blocks<34, 1> {
  struct Group {
    const int8_t* elements;
    Vector scale;
    INLINE Vector at(int k) const { return widened(elements + k) * scale; }
  };
  INLINE Group group(int64_t g) const {
    return {(const int8_t*)block(g) + 2, half_floats(block(g)).first};
  }
};

// Two elements to a byte: the first sixteen in the lower halves, the others in the upper ones.
// `value` makes elements of numbers below sixteen.
template <class Value>
struct HalfBytes {
  const uint8_t* bytes;
#if defined(__AVX512F__)
  // A register holds all that an element can be: computed once a block, then looked up.
  Vector values;
  INLINE HalfBytes(const char* from, const Value& value)
      : bytes((const uint8_t*)from),
        values(value(Vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})) {}
  INLINE Vector at(int k) const {
    const Integers both = integers(bytes);
    return _mm512_permutexvar_ps((__m512i)(k < 16 ? both : both >> 4), values);
  }
#else
  Value value;
  INLINE HalfBytes(const char* from, const Value& value)
      : bytes((const uint8_t*)from), value(value) {}
  INLINE Vector at(int k) const {
    const Integers both = integers(bytes + k % 16);
    return value(__builtin_convertvector(k < 16 ? both & 15 : both >> 4, Vector));
  }
#endif
};

struct Q4_0 : Blocks<18, 1> {
  INLINE auto group(int64_t g) const {
    const Vector scale = half_floats(block(g)).first;
    return HalfBytes(block(g) + 2, [=](Vector numbers) INLINE_LAMBDA {
      return (numbers - all(8.0f)) * scale;
    });
  }
};

struct Q4_1 : Blocks<20, 2> {
  INLINE auto group(int64_t g) const {
    const HalfFloats scale = half_floats(block(g));
    return HalfBytes(block(g) + 4, [=](Vector numbers) INLINE_LAMBDA {
      return fma(numbers, scale.first, scale.second);
    });
  }
};

constexpr int64_t padded(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }

template <class Weight>
INLINE Plain<float> widened(const Weight& row, int64_t width, float* to) {
  constexpr int kGroup = Weight::kGroup;
  const int64_t whole = width / kGroup * kGroup;
  for (int64_t g = 0; g < width / kGroup; g++) {
    const auto group = row.group(g);
    UNROLL for (int k = 0; k < kGroup; k += kWidth) store(to + g * kGroup + k, group.at(k));
  }
  for (int64_t k = whole; k < width; k++) to[k] = row.one(k);
  return {to};
}

// Rows x [R, padded(width)] times C rows of a weight.
template <int R, int C, class Weight>
INLINE void multiply_tile(const float* x, int64_t stride, const Weight* weight, int64_t width,
                          float* y, int64_t y_stride) {
  Lanes sums[R][C];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++)
      UNROLL for (int part = 0; part < kParts; part++) sums[r][c].part[part] = Vector{};
  auto add = [&](int64_t k, auto weight_at) INLINE_LAMBDA {  // sixteen elements from k on
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
  constexpr int kGroup = Weight::kGroup;
  const int64_t whole = width / kGroup * kGroup;
  for (int64_t g = 0; g < width / kGroup; g++) {
    const auto groups = [&]<int... c>(std::integer_sequence<int, c...>) INLINE_LAMBDA {
      return std::array{weight[c].group(g)...};
    }(std::make_integer_sequence<int, C>());
    UNROLL for (int k = 0; k < kGroup; k += kLanes)
      add(g * kGroup + k,
          [&](int c, int offset) INLINE_LAMBDA { return groups[c].at(k + offset); });
  }
  if (whole < width) {
    float rest[C][kLanes] = {};
    for (int c = 0; c < C; c++)
      for (int64_t k = whole; k < width; k++) rest[c][k - whole] = weight[c].one(k);
    add(whole, [&](int c, int offset) INLINE_LAMBDA { return load<Vector>(rest[c] + offset); });
  }
  float results[R][C];
  totals<R * C>(sums[0], results[0]);
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) y[r * y_stride + c] = results[r][c];
}

// The rows of a tile, and with so many of them its outputs: what the registers hold.
constexpr bool kManyRegisters = kRegisters * kWidth > 128;
constexpr int kTileRows = kManyRegisters ? 8 : 3;
template <int R, class Weight>
constexpr int kTileOutputs = kManyRegisters        ? (R == 1 || R == 8 ? 2 : 4)
                             : Weight::kScales > 0 ? (R < 3 ? 2 : 1)
                                                   : (R == 1 ? 4 : 2);
// Rows that a weight is read once for: three tiles, which the nearest cache holds.
constexpr int64_t kChunkRows = kManyRegisters ? 8 : 9;

// Up to `kChunkRows` rows with C rows of a weight, in tiles of at most R rows.
template <int R, int C, class Weight>
INLINE void multiply_rows(const float* x, int64_t rows, int64_t stride, const Weight* weight,
                          int64_t width, float* y, int64_t y_stride) {
  // Four rows take less time as two and two than as three and one.
  for (; rows >= R && !(R == 3 && rows == 4); rows -= R, x += R * stride, y += R * y_stride)
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
// tile has, these are widened once (`kWidened`): the numbers are the same.
template <int R, bool kWidened, class Weight>
void multiply_chunk(const float* x, int64_t rows, int64_t width, const char* weight,
                    int64_t outputs, float* y, int64_t y_stride, float* wide) {
  constexpr int C = kTileOutputs<R, std::conditional_t<kWidened, Plain<float>, Weight>>;
  const int64_t stride = padded(width), bytes = Weight::row_bytes(width);
  auto row_at = [&](int64_t o) { return Weight{(decltype(Weight::row))(weight + o * bytes)}; };
  int64_t o = 0;
  for (; o + C <= outputs; o += C) {
    Weight row[C];
    for (int c = 0; c < C; c++) row[c] = row_at(o + c);
    prefetch(weight + (o + kAhead * C) * bytes, C * bytes);
    if constexpr (kWidened) {
      Plain<float> widened_row[C];
      for (int c = 0; c < C; c++) widened_row[c] = widened(row[c], width, wide + c * stride);
      multiply_rows<R, C>(x, rows, stride, widened_row, width, y + o, y_stride);
    } else {
      multiply_rows<R, C>(x, rows, stride, row, width, y + o, y_stride);
    }
  }
  for (; o < outputs; o++) {
    const Weight row = row_at(o);
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

template <class Weight, class In, class Out>
void product(ffi::ThreadPool& pool, const In* x, int64_t rows, int64_t width, const char* weight,
             int64_t outputs, Out* y) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock, stride = padded(width);
  const bool ready = std::is_same_v<In, float> && stride == width;
  parallel(pool, blocks, rows * width * outputs, [&] {
    // Each thread widens the rows itself: to fetch them from another's cache takes longer.
    Floats wide_rows = widened_rows(x, ready ? 0 : rows, width);
    const float* from = ready ? (const float*)x : wide_rows.data();
    return [=, wide_rows = std::move(wide_rows)](int64_t block) {
      const int64_t first = block * kBlock, count = std::min(kBlock, outputs - first);
      const char* mine = weight + first * Weight::row_bytes(width);
      float sums[kChunkRows * kBlock];
      Floats wide(rows > kTileRows ? kTileOutputs<kTileRows, Plain<float>> * stride : 0);
      for (int64_t start = 0; start < rows; start += kChunkRows) {
        const int64_t together = std::min(kChunkRows, rows - start);
        auto multiply = [&]<int R, bool kWidened>(std::integral_constant<int, R>,
                                                  std::bool_constant<kWidened>) {
          multiply_chunk<R, kWidened, Weight>(from + start * stride, together, width, mine, count,
                                              sums, count, wide.data());
        };
        constexpr std::integral_constant<int, kTileRows> tile;
        if (together == 1)
          multiply(std::integral_constant<int, 1>(), std::false_type());
        else if (together == 2)
          multiply(std::integral_constant<int, 2>(), std::false_type());
        else if (together <= kTileRows || std::is_same_v<Weight, Plain<float>>)
          multiply(tile, std::false_type());
        else
          multiply(tile, std::true_type());
        for (int64_t r = 0; r < together; r++)
          for (int64_t o = 0; o < count; o++)
            narrow(sums[r * count + o], y + (start + r) * outputs + first + o);
      }
    };
  });
}

}  // namespace
