// Attention of the tokens of one row to the pages of their sequence.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

// Keys of a chunk, which begins at a multiple of it; and tokens whose queries read it together.
constexpr int64_t kChunk = 64, kTileTokens = 8;

struct Shape {
  int64_t heads, kv_heads, head_dim, page_size, window;  // a window of 0 is none
  int64_t canvas;  // positions that see each other
  int64_t value;  // place of a head's value after its key: 0 if the key is the value too
  float scale;
};

// The tokens of one row from `token` on, at positions from `position` on, and their key head; the
// positions where the row begins and ends, and whether all of it sees each other.
struct Tile {
  int64_t token, count, position, kv_head;
  const int32_t* pages;
  int64_t begin, end;
  bool joint;
};

// An online softmax (Milakov and Gimelshein 2018) over chunks of keys: each query by itself, in a
// lane of its own until its weights are known.
template <class T>
void attend(const Shape& shape, const Tile& tile, const T* q, const float* cache,
            const float* sinks, T* out) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t queries = tile.count * group;
  const int64_t lanes = (queries + kWidth - 1) / kWidth * kWidth;
  std::vector<float> columns(dim * lanes), weights(kChunk * lanes), mixed(queries * dim);
  std::vector<float> top(lanes, -std::numeric_limits<float>::infinity()), sum(lanes), shrink(lanes);
  std::vector<int64_t> first(lanes), last(lanes, -1);  // keys that a query sees
  for (int64_t i = 0; i < queries; i++) {
    const int64_t position = tile.position + i / group;
    const int64_t from = tile.joint ? tile.begin : position;
    first[i] = shape.window ? std::max<int64_t>(0, from - shape.window + 1) : 0;
    last[i] = tile.joint ? tile.end - 1 : (position / shape.canvas + 1) * shape.canvas - 1;
    const int64_t head = tile.kv_head * group + i % group;
    const T* row = q + ((tile.token + i / group) * shape.heads + head) * dim;
    for (int64_t d = 0; d < dim; d++) columns[d * lanes + i] = widened(row[d]) * shape.scale;
  }
  const int64_t end = last[queries - 1] + 1;
  auto key = [&](int64_t position) {
    const int64_t page = tile.pages[position / shape.page_size];
    const int64_t slot = page * shape.page_size + position % shape.page_size;
    return cache + (slot * shape.kv_heads + tile.kv_head) * (dim + shape.value);
  };
  for (int64_t chunk = first[0] / kChunk * kChunk; chunk < end; chunk += kChunk) {
    const int64_t count = std::min(kChunk, end - chunk);
    const float* keys[kChunk];
    for (int64_t j = 0; j < count; j++) keys[j] = key(chunk + j);
    for (int64_t lane = 0; lane < lanes; lane += kWidth) {
      const float* column = columns.data() + lane;
      int64_t j = 0;
      for (; j + 4 <= count; j += 4) {
        Vector score[4] = {};
        for (int64_t d = 0; d < dim; d++) {
          Vector query = load<Vector>(column + d * lanes);
          for (int i = 0; i < 4; i++) score[i] = fma(query, all(keys[j + i][d]), score[i]);
        }
        for (int i = 0; i < 4; i++) store(&weights[(j + i) * lanes + lane], score[i]);
      }
      for (; j < count; j++) {
        Vector score = {};
        for (int64_t d = 0; d < dim; d++)
          score = fma(load<Vector>(column + d * lanes), all(keys[j][d]), score);
        store(&weights[j * lanes + lane], score);
      }
      Integers from, to;
      for (int i = 0; i < kWidth; i++) {
        from[i] = first[lane + i] - chunk;
        to[i] = last[lane + i] - chunk;
      }
      const Vector lowest = all(-std::numeric_limits<float>::infinity());
      Vector before = load<Vector>(&top[lane]), highest = before;
      for (int64_t j = 0; j < count; j++) {
        Vector score = load<Vector>(&weights[j * lanes + lane]);
        Integers seen = (from <= int32_t(j)) & (to >= int32_t(j));
        score = seen ? score : lowest;
        store(&weights[j * lanes + lane], score);
        highest = score > highest ? score : highest;
      }
      // Of a query that has seen nothing yet the exponents stay finite.
      Vector finite = highest == lowest ? Vector{} : highest;
      Vector factor = exponential(before - finite);
      Vector added = load<Vector>(&sum[lane]) * factor;
      for (int64_t j = 0; j < count; j++) {
        Vector weight = exponential(load<Vector>(&weights[j * lanes + lane]) - finite);
        store(&weights[j * lanes + lane], weight);
        added = added + weight;
      }
      store(&top[lane], highest);
      store(&sum[lane], added);
      store(&shrink[lane], factor);
    }
    for (int64_t i = 0; i < queries; i++) {
      const int64_t from = std::max<int64_t>(0, first[i] - chunk);
      const int64_t to = std::min(count, last[i] - chunk + 1);
      if (from >= to) continue;
      float* row = &mixed[i * dim];
      int64_t d = 0;
      auto mix = [&]<int N>(std::integral_constant<int, N>) {
        for (; d + N * kWidth <= dim; d += N * kWidth) {
          Vector part[N];
          for (int n = 0; n < N; n++)
            part[n] = load<Vector>(row + d + n * kWidth) * all(shrink[i]);
          for (int64_t j = from; j < to; j++) {
            const Vector weight = all(weights[j * lanes + i]);
            const float* value = keys[j] + shape.value + d;
            for (int n = 0; n < N; n++)
              part[n] = fma(weight, load<Vector>(value + n * kWidth), part[n]);
          }
          for (int n = 0; n < N; n++) store(row + d + n * kWidth, part[n]);
        }
      };
      mix(std::integral_constant<int, 8>());
      mix(std::integral_constant<int, 4>());
      mix(std::integral_constant<int, 1>());
      for (; d < dim; d++) {
        float part = row[d] * shrink[i];
        for (int64_t j = from; j < to; j++)
          part = __builtin_fmaf(weights[j * lanes + i], keys[j][shape.value + d], part);
        row[d] = part;
      }
    }
  }
  for (int64_t i = 0; i < queries; i++) {
    const int64_t head = tile.kv_head * group + i % group;
    float whole = sum[i];
    if (sinks) {
      float exponents[kWidth] = {sinks[head] - top[i]};
      store(exponents, exponential(load<Vector>(exponents)));
      whole += exponents[0];
    }
    T* to = out + ((tile.token + i / group) * shape.heads + head) * dim;
    for (int64_t d = 0; d < dim; d++) narrow(mixed[i * dim + d] / whole, to + d);
  }
}

}  // namespace
