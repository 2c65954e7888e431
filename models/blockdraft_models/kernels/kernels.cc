// What a decoder computes on a CPU, called by XLA: products with weights, norms, sums of rows and
// attention over pages.
//
// The order of every sum is written here and depends on nothing else: not on the number of rows, a
// row's place, threads or the width of the processor's vectors. A sum over a row has sixteen lanes:
// element k is added to lane k % 16, in the order of k, by fused multiply-adds; then the lanes are
// added by halves. Nothing else may be contracted (-ffp-contract=off), so the same source gives the
// same bits on every processor that has fused multiply-adds.

#include <cmath>

#include "attention.h"
#include "products.h"
#include "threads.h"
#include "vectors.h"

namespace {

template <class Function>
ffi::Error with_float_type(ffi::DataType type, const Function& function) {
  switch (type) {
    case ffi::F32:
      return function(float());
    case ffi::BF16:
      return function(bfloat16());
    default:
      return ffi::Error::InvalidArgument("neither float32 nor bfloat16");
  }
}

template <class T>
const T* data(const ffi::AnyBuffer& buffer) {
  return static_cast<const T*>(buffer.untyped_data());
}

template <class Function>
ffi::Error with_weight_type(ffi::DataType type, std::string_view format, const Function& function) {
  if (format == "Q8_0") return function(Q8_0());
  if (format == "Q4_0") return function(Q4_0());
  if (format == "Q4_1") return function(Q4_1());
  if (type == ffi::S8) return function(Plain<int8_t>());
  return with_float_type(type, [&](auto held) { return function(Plain<decltype(held)>()); });
}

// x [rows, width] @ weight [outputs, width].T, the weight in a format of GGUF or of its own type
ffi::Error product_call(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight,
                        ffi::Result<ffi::AnyBuffer> y, std::string_view format) {
  const int64_t rows = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t outputs = weight.dimensions()[0];
  return with_float_type(x.element_type(), [&](auto in) {
    typedef decltype(in) In;
    return with_float_type(y->element_type(), [&](auto out) {
      auto* to = static_cast<decltype(out)*>(y->untyped_data());
      return with_weight_type(weight.element_type(), format, [&](auto held) {
        product<decltype(held)>(pool, data<In>(x), rows, width, data<char>(weight), outputs, to);
        return ffi::Error::Success();
      });
    });
  });
}

// Adds up `width` float32 numbers, or their squares.
template <bool kSquares>
float row_sum(const float* x, int64_t width) {
  Lanes sums = {};
  auto add = [&](const float* lanes) {
    for (int part = 0; part < kParts; part++) {
      Vector value = load<Vector>(lanes + part * kWidth);
      sums.part[part] = kSquares ? fma(value, value, sums.part[part]) : sums.part[part] + value;
    }
  };
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) add(x + k);
  if (k < width) {
    float rest[kLanes] = {};
    std::memcpy(rest, x + k, (width - k) * sizeof(float));
    add(rest);
  }
  return total(sums);
}

// So many rows are shared out at a time: about as long as it takes to wake a thread.
constexpr int64_t kRowElements = 16384;

template <class Work>
void parallel_rows(ffi::ThreadPool& pool, int64_t rows, int64_t width, const Work& work) {
  const int64_t together = std::max<int64_t>(1, kRowElements / std::max<int64_t>(1, width));
  parallel(pool, (rows + together - 1) / together, rows * width, [&] {
    return [&](int64_t index) {
      for (int64_t r = index * together; r < std::min(rows, (index + 1) * together); r++) work(r);
    };
  });
}

ffi::Error row_sums_call(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x,
                         ffi::ResultBuffer<ffi::F32> sums) {
  const int64_t rows = x.dimensions()[0], width = x.dimensions()[1];
  parallel_rows(pool, rows, width, [&](int64_t r) {
    sums->typed_data()[r] = row_sum<false>(x.typed_data() + r * width, width);
  });
  return ffi::Error::Success();
}

// x [rows, width] over the root of its mean square, times scale [width]. With an offset the product
// is rounded once; without one also before it is scaled, as published models were trained.
ffi::Error normalize_call(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer scale,
                          ffi::Result<ffi::AnyBuffer> y, float eps, float offset) {
  const int64_t rows = x.dimensions()[0], width = x.dimensions()[1];
  return with_float_type(x.element_type(), [&](auto in) {
    typedef decltype(in) In;
    return with_float_type(scale.element_type(), [&](auto held) {
      const auto* factor = data<decltype(held)>(scale);
      parallel_rows(pool, rows, width, [&](int64_t r) {
        const In* row = data<In>(x) + r * width;
        In* result = static_cast<In*>(y->untyped_data()) + r * width;
        std::vector<float> wide(width);
        for (int64_t k = 0; k < width; k++) wide[k] = widened(row[k]);
        const float mean = row_sum<true>(wide.data(), width) / float(width);
        const float inverse = 1.0f / std::sqrt(mean + eps);
        for (int64_t k = 0; k < width; k++) {
          float value = wide[k] * inverse;
          if (offset == 0.0f) {
            In rounded;
            narrow(value, &rounded);
            narrow(widened(rounded) * widened(factor[k]), result + k);
          } else {
            narrow(value * (offset + widened(factor[k])), result + k);
          }
        }
      });
      return ffi::Error::Success();
    });
  });
}

// Causal attention of rows of tokens, each to the pages of its own sequence; those of a canvas,
// or of a joint row, see each other. What of `q` belongs to no row becomes zero.
ffi::Error attention_call(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::Buffer<ffi::F32> cache,
                          ffi::Buffer<ffi::S32> row_starts, ffi::Buffer<ffi::S32> context_lengths,
                          ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> window,
                          ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::S32> joint, ffi::Result<ffi::AnyBuffer> out, int64_t canvas) {
  const auto dims = q.dimensions();
  const int64_t slots = cache.dimensions()[2];
  const Shape shape{dims[1],
                    std::max<int64_t>(1, slots / 2),
                    dims[2],
                    cache.dimensions()[1],
                    window.typed_data()[0],
                    canvas,
                    slots == 1 ? 0 : dims[2],
                    float(1.0 / std::sqrt(double(dims[2])))};
  std::vector<Tile> tiles;
  int64_t operations = 0;
  const int64_t rows = context_lengths.dimensions()[0], most_pages = page_table.dimensions()[1];
  for (int64_t row = 0; row < rows; row++) {
    const int64_t start = row_starts.typed_data()[row], stop = row_starts.typed_data()[row + 1];
    const int64_t before = context_lengths.typed_data()[row] - (stop - start);
    const int32_t* pages = page_table.typed_data() + row * most_pages;
    const bool whole = joint.element_count() && joint.typed_data()[row];
    for (int64_t token = start; token < stop; token += kTileTokens) {
      const int64_t count = std::min(kTileTokens, stop - token), position = before + token - start;
      for (int64_t head = 0; head < shape.kv_heads; head++)
        tiles.push_back({token, count, position, head, pages, before, before + stop - start, whole});
      operations += 2 * count * shape.heads * shape.head_dim * (position + count);
    }
  }
  return with_float_type(q.element_type(), [&](auto in) {
    typedef decltype(in) T;
    T* to = static_cast<T*>(out->untyped_data());
    const int64_t live = row_starts.typed_data()[rows] * dims[1] * dims[2];
    std::memset((void*)(to + live), 0, (q.element_count() - live) * sizeof(T));
    const float* scores = sinks.element_count() ? sinks.typed_data() : nullptr;
    parallel(pool, tiles.size(), operations, [&] {
      return [&](int64_t index) {
        attend<T>(shape, tiles[index], data<T>(q), cache.typed_data(), scores, to);
      };
    });
    return ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(blockdraft_product, product_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("format"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(blockdraft_row_sums, row_sums_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(blockdraft_normalize, normalize_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<float>("eps")
                                  .Attr<float>("offset"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(blockdraft_attention, attention_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("canvas"));
