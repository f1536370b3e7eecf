// Convolutions of f32 straight from their images: a block makes eight neighbouring positions of each of some runs in ACROSS x TALL, and
// OUTER channels. What the windows of these show of CHANNELS channels is read once, with their weights; a thread then takes
// eight positions of four channels, along a row of which it keeps what several windows show in registers. P is as in patches.cuh,
// but that `store_beside` takes eight positions of a channel, or where channels are inside four channels of a position.
template <class P, int ACROSS, int TALL, int OUTER, int CHANNELS> struct Windows {
  static const int THREADS = 256, SLOTS = THREADS / (OUTER / 4), WIDE = ACROSS * 8;
  static const int ROWS = (TALL - 1) * P::STRIDE_ROWS + (P::WINDOW_ROWS - 1) * P::DILATION_ROWS + 1;
  static const int COLUMNS = (WIDE - 1) * P::STRIDE_COLUMNS + (P::WINDOW_COLUMNS - 1) * P::DILATION_COLUMNS + 1;
  // Whole accesses of four.
  static const int PITCH = (COLUMNS + 3) / 4 * 4, PLANE = ROWS * PITCH;
  static const int WINDOW = P::WINDOW_ROWS * P::WINDOW_COLUMNS, WEIGHTS = OUTER + 4;
  // Neighbouring windows show neighbouring elements: so many of a row are in registers.
  static const bool BESIDE = P::STRIDE_COLUMNS == 1 && P::DILATION_COLUMNS == 1;
  static const int KEPT = BESIDE ? (P::WINDOW_COLUMNS + 7 + 3) / 4 * 4 : 8;

  DEVICE static void read_images(const P& p, float* to, typename P::I image, int row0, int column0, int c0) {
    const int ALL = CHANNELS * ROWS * COLUMNS;
#pragma unroll 4
    for (int i = threadIdx.x; i < ALL; i += THREADS) {
      const int c = P::CHANNELS_INSIDE ? i % CHANNELS : i / (ROWS * COLUMNS);
      const int x = P::CHANNELS_INSIDE ? i / CHANNELS % COLUMNS : i % COLUMNS;
      const int y = P::CHANNELS_INSIDE ? i / (CHANNELS * COLUMNS) : i / COLUMNS % ROWS;
      const int row = row0 + y, column = column0 + x;
      const bool inside = row >= 0 && row < P::ROWS && column >= 0 && column < P::COLUMNS && c0 + c < P::CHANNELS;
      float value = 0.0f;
      if (inside) value = p.element(image, row, column, c0 + c);
      to[c * PLANE + y * PITCH + x] = value;
    }
  }

  // By channel and element of the window, OUTER beside one another.
  DEVICE static void read_weights(const P& p, float* to, int c0, int n0) {
    const int ALL = OUTER * CHANNELS * WINDOW;
#pragma unroll 4
    for (int i = threadIdx.x; i < ALL; i += THREADS) {
      const int n = P::CHANNELS_INSIDE ? i % OUTER : i / (CHANNELS * WINDOW);
      const int of = P::CHANNELS_INSIDE ? i / OUTER : i % (CHANNELS * WINDOW), c = of / WINDOW, at = of % WINDOW;
      const int inside = at * P::CHANNELS + c0 + c, outside = (c0 + c) * WINDOW + at;
      float value = 0.0f;
      if (c0 + c < P::CHANNELS && n0 + n < P::OUTER) value = p.weight(P::CHANNELS_INSIDE ? inside : outside, n0 + n);
      to[of * WEIGHTS + n] = value;
    }
  }

  // Adds what a row of the windows gives of a channel: `from` is the first window's element, `weights` those of the row.
  DEVICE static void add_row(float (&sum)[8][4], const float* from, const float* weights) {
    typedef vec<4, float> Four;
    float kept[KEPT];
    if (BESIDE) {
#pragma unroll
      for (int i = 0; i < KEPT; ++i) kept[i] = ((const Four*)from)[i / 4].v[i % 4];
    }
#pragma unroll
    for (int k = 0; k < P::WINDOW_COLUMNS; ++k) {
      const Four w = *(const Four*)(weights + k * WEIGHTS);
      if (!BESIDE) {
#pragma unroll
        for (int i = 0; i < 8; ++i) kept[i] = from[i * P::STRIDE_COLUMNS + k * P::DILATION_COLUMNS];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = f_add(sum[i][j], f_mul(kept[BESIDE ? i + k : i], w.v[j]));
    }
  }

  DEVICE static void store(const P& p, const float (&sum)[8][4], typename P::I image, int row, int column, int n) {
    typedef typename P::I I;
    const I m = (image * P::MADE_ROWS + row) * P::MADE_COLUMNS + column;
    if (row >= P::MADE_ROWS) return;
    if constexpr (P::BESIDE && P::CHANNELS_INSIDE) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + i < P::MADE_COLUMNS && n < P::OUTER) p.store_beside((I)0, m + i, (I)(n / 4), sum[i]);
    } else if constexpr (P::BESIDE) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float all[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) all[i] = sum[i][j];
        if (column < P::MADE_COLUMNS && n + j < P::OUTER) p.store_beside((I)0, (I)(n + j), m / 8, all);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (column + i / 4 >= P::MADE_COLUMNS || n + i % 4 >= P::OUTER) continue;
        if (P::CHANNELS_INSIDE) p.store((I)0, m + i / 4, (I)(n + i % 4), sum[i / 4][i % 4]);
        else p.store((I)0, (I)(n + i % 4), m + i / 4, sum[i / 4][i % 4]);
      }
    }
  }
};

template <class P, int ACROSS, int TALL, int OUTER, int CHANNELS> DEVICE void convolution_windows(const P& p) {
  typedef typename P::I I;
  typedef Windows<P, ACROSS, TALL, OUTER, CHANNELS> W;
  DYNAMIC_SHARED(memory);
  float *shown = (float*)memory, *weights = shown + CHANNELS * W::PLANE;
  const int outer = (P::OUTER + OUTER - 1) / OUTER;
  const int down = (P::MADE_ROWS + TALL - 1) / TALL, across = (P::MADE_COLUMNS + W::WIDE - 1) / W::WIDE;
  const int n0 = (int)blockIdx.x % outer * OUTER;
  I tile = (I)blockIdx.x / outer;
  const int column0 = (int)(tile % across) * W::WIDE;
  tile /= across;
  const int row0 = (int)(tile % down) * TALL;
  const I image = tile / down;
  const int four = threadIdx.x % (OUTER / 4) * 4, slot = threadIdx.x / (OUTER / 4);
  // Threads beyond the runs do what others do, and store nothing.
  const bool mine = slot < ACROSS * TALL;
  const int run = mine ? slot : 0, row = run / ACROSS, column = run % ACROSS * 8;
  const float* const from = shown + row * P::STRIDE_ROWS * W::PITCH + column * P::STRIDE_COLUMNS;
  float sum[8][4], total[8][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i / 4][i % 4] = total[i / 4][i % 4] = 0.0f;
  for (int c0 = 0; c0 < P::CHANNELS; c0 += CHANNELS) {
    W::read_images(p, shown, image, row0 * P::STRIDE_ROWS - P::PAD_ROWS, column0 * P::STRIDE_COLUMNS - P::PAD_COLUMNS, c0);
    W::read_weights(p, weights, c0, n0);
    __syncthreads();
#pragma unroll 1
    for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll(P::WINDOW_ROWS <= 5 ? P::WINDOW_ROWS : 1)
      for (int y = 0; y < P::WINDOW_ROWS; ++y) {
        const float* const own = weights + (c * W::WINDOW + y * P::WINDOW_COLUMNS) * W::WEIGHTS + four;
        W::add_row(sum, from + c * W::PLANE + y * P::DILATION_ROWS * W::PITCH, own);
      }
    }
    // Roundings are of sums of few terms.
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      total[i / 4][i % 4] += sum[i / 4][i % 4];
      sum[i / 4][i % 4] = 0.0f;
    }
    __syncthreads();
  }
  if (mine) W::store(p, total, image, row0 + row, column0 + column, n0 + four);
}
