// Convolutions whose images have few channels, on tensor cores. A block keeps the weights in shared memory and takes tiles of
// TALL x WIDE positions of the result, one after the other; the part of the image that a tile's windows show is read once,
// and fragments come straight out of it. A generated kernel gives the sizes, the elements and what is done with each sum:
//
//   struct P {
//     typedef ... I;                                          the type of indices
//     static const int IMAGES, ROWS, COLUMNS, CHANNELS;       of the images
//     static const int MADE_ROWS, MADE_COLUMNS, OUTER;        of the result, and its channels
//     static const int WINDOW_ROWS, WINDOW_COLUMNS, STRIDE_ROWS, ...; the window
//     static const bool CHANNELS_INSIDE;                      of images, results and weights
//     DEVICE float element(I image, I row, I column, I channel) const;  within the sizes
//     DEVICE float weight(I k, I n) const;
//     DEVICE void store(I b, I m, I n, float sum) const;      as of a product: positions and channels
//     static const bool BESIDE;                               whether there is the following
//     DEVICE void store_beside(I b, I m, I part, const float (&sums)[8]) const;  channels from 8 * part on
//   };

// What is summed over, in chunks of eight halves that lie beside one another in shared memory: of each element there are
// EACH channels, zeros behind the last one, and so a chunk is some neighbouring elements of a row of the window, or some
// channels of one. Chunks begin on a boundary of 16 bytes: EACH and the strides see to that.
template <class P, int EACH> struct Chunks {
  static const int ELEMENTS = EACH < 8 ? 8 / EACH : 1, PARTS = EACH < 8 ? 1 : EACH / 8;
  static const int ACROSS = (P::WINDOW_COLUMNS + ELEMENTS - 1) / ELEMENTS;
  static const int COUNT = P::WINDOW_ROWS * ACROSS * PARTS, STEPS = (COUNT + 1) / 2, ALL = STEPS * 16;

  // The first element of the window in it, by row and column, and the first channel.
  DEVICE static int row(int chunk) { return chunk / (ACROSS * PARTS); }
  DEVICE static int column(int chunk) { return chunk / PARTS % ACROSS * ELEMENTS; }
  DEVICE static int channel(int chunk) { return chunk % PARTS * 8; }

  // Halves of a chunk that are the window's: behind them are elements of the image that it does not show.
  DEVICE static int known(int chunk) {
    if (chunk >= COUNT) return 0;
    const int elements = P::WINDOW_COLUMNS - column(chunk);
    return elements < ELEMENTS ? elements * EACH : 8;
  }

  // The weight that stands at this place of all chunks; zero where there is none.
  DEVICE static float weight(const P& p, int at, int n) {
    const int chunk = at / 8, of = at % 8, each = EACH < 8 ? EACH : 8;
    const int y = row(chunk), x = column(chunk) + of / each, c = channel(chunk) + of % each;
    if (chunk >= COUNT || x >= P::WINDOW_COLUMNS || c >= P::CHANNELS || n >= P::OUTER) return 0.0f;
    const int inside = (y * P::WINDOW_COLUMNS + x) * P::CHANNELS + c;
    const int outside = (c * P::WINDOW_ROWS + y) * P::WINDOW_COLUMNS + x;
    return p.weight(P::CHANNELS_INSIDE ? inside : outside, n);
  }
};

// The part of an image that the windows of TALL x WIDE positions show, `EACH` channels an element.
template <class P, class H, int TALL, int WIDE, int EACH, int THREADS> struct Shown {
  typedef typename P::I I;
  typedef Chunks<P, EACH> Of;
  static const int ROWS = (TALL - 1) * P::STRIDE_ROWS + (P::WINDOW_ROWS - 1) * P::DILATION_ROWS + 1;
  static const int COLUMNS = (WIDE - 1) * P::STRIDE_COLUMNS + (P::WINDOW_COLUMNS - 1) * P::DILATION_COLUMNS + 1;
  // With what the last chunk of a row reaches beyond, up to a boundary of 16 bytes.
  static const int LAST = (WIDE - 1) * P::STRIDE_COLUMNS + Of::ACROSS * Of::ELEMENTS;
  static const int MOST = COLUMNS > LAST ? COLUMNS : LAST;
  static const int PITCH = (MOST * EACH + 7) / 8 * 8, COUNT = ROWS * PITCH;

  // The elements from this row and column of the image on; zeros around it.
  DEVICE static void read(const P& p, u16* to, I image, int row0, int column0) {
    const int ALL = ROWS * COLUMNS * P::CHANNELS, AHEAD = 8;
    for (int first = threadIdx.x; first < ALL; first += THREADS * AHEAD) {
      u16 held[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        int y, x, c;
        place(first + u * THREADS, y, x, c);
        const int row = row0 + y, column = column0 + x;
        const bool inside = first + u * THREADS < ALL && row >= 0 && row < P::ROWS && column >= 0 && column < P::COLUMNS;
        held[u] = 0;
        if (inside) held[u] = narrow(p.element(image, row, column, c), H());
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        int y, x, c;
        place(first + u * THREADS, y, x, c);
        if (first + u * THREADS < ALL) to[y * PITCH + x * EACH + c] = held[u];
      }
    }
  }

  // Neighbouring threads read neighbours in memory.
  DEVICE static void place(int i, int& y, int& x, int& c) {
    if (P::CHANNELS_INSIDE) {
      c = i % P::CHANNELS;
      x = i / P::CHANNELS % COLUMNS;
      y = i / (P::CHANNELS * COLUMNS);
    } else {
      x = i % COLUMNS;
      y = i / COLUMNS % ROWS;
      c = i / (COLUMNS * ROWS);
    }
  }

  // Where a chunk is from the first element of a window.
  DEVICE static int chunk_at(int chunk) {
    return Of::row(chunk) * P::DILATION_ROWS * PITCH + Of::column(chunk) * P::DILATION_COLUMNS * EACH + Of::channel(chunk);
  }
};

// Stores the sums of a position, of OUTER channels from n0 on, of which four lanes have two in eight each.
template <bool LOWER, int WIDE, int OUTER, class P, class I>
DEVICE void store_position(const P& p, const float (*sum)[4], I image, int row0, int column0, int position, int n0) {
  const int row = row0 + position / WIDE, column = column0 + position % WIDE, neighbour = threadIdx.x & 3;
  const bool inside = row < P::MADE_ROWS && column < P::MADE_COLUMNS;
  const I m = (image * P::MADE_ROWS + row) * P::MADE_COLUMNS + column;
  if constexpr (P::BESIDE && OUTER % 32 == 0) {
#pragma unroll
    for (int j = 0; j < OUTER / 8; j += 4) {
      float all[8];
      row_neighbours<LOWER>(all, sum + j);
      const int n = n0 + (j + neighbour) * 8;
      if (inside && n < P::OUTER) p.store_beside((I)0, m, (I)(n / 8), all);
    }
  } else {
#pragma unroll
    for (int j = 0; j < OUTER / 4; ++j) {
      const I n = (I)(n0 + j / 2 * 8 + neighbour * 2 + j % 2);
      const float one = sum[j / 2][(LOWER ? 2 : 0) + j % 2];
      if (!inside || n >= (I)P::OUTER) continue;
      if (P::CHANNELS_INSIDE) p.store((I)0, m, n, one);
      else p.store((I)0, n, m, one);
    }
  }
}

// Of 256 threads a warp has 32 positions and OUTER channels.
template <class P, class H, int TALL, int WIDE, int OUTER, int EACH> DEVICE void convolution_patches(const P& p) {
  typedef typename P::I I;
  typedef Chunks<P, EACH> Of;
  typedef Shown<P, H, TALL, WIDE, EACH, 256> Part;
  const int PITCH = Of::ALL + 8;
  DYNAMIC_SHARED(memory);
  u16 *shown = (u16*)memory, *weights = shown + Part::COUNT;
  const int lane = threadIdx.x & 31, group = lane >> 2, neighbour = lane & 3, warp = threadIdx.x >> 5;
  const int outer = (P::OUTER + OUTER - 1) / OUTER, n0 = (int)blockIdx.x % outer * OUTER;
  const int down = (P::MADE_ROWS + TALL - 1) / TALL, across = (P::MADE_COLUMNS + WIDE - 1) / WIDE;
  const I tiles = (I)P::IMAGES * down * across, blocks = (I)gridDim.x / outer;
  // Channels that there are not, and what is beyond the columns that are read.
  for (int i = threadIdx.x; i < Part::COUNT; i += 256) shown[i] = 0;
  for (int i = threadIdx.x; i < OUTER * Of::ALL; i += 256) {
    const int n = P::CHANNELS_INSIDE ? i % OUTER : i / Of::ALL, at = P::CHANNELS_INSIDE ? i / OUTER : i % Of::ALL;
    weights[n * PITCH + at] = narrow(Of::weight(p, at, n0 + n), H());
  }
  // Of the lane's rows of both left fragments, the first element of the window, and for half of the lanes the chunk behind it.
  int windows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int position = warp * 32 + i * 16 + (lane & 15);
    windows[i] = position / WIDE * P::STRIDE_ROWS * Part::PITCH + position % WIDE * P::STRIDE_COLUMNS * EACH + lane / 16 * 8;
  }
  for (I tile = (I)blockIdx.x / outer; tile < tiles; tile += blocks) {
    const int row0 = (int)(tile / across % down) * TALL, column0 = (int)(tile % across) * WIDE;
    const I image = tile / across / down;
    __syncthreads();
    Part::read(p, shown, image, row0 * P::STRIDE_ROWS - P::PAD_ROWS, column0 * P::STRIDE_COLUMNS - P::PAD_COLUMNS);
    __syncthreads();
    float sum[2][OUTER / 8][4];
#pragma unroll
    for (int i = 0; i < OUTER; ++i) sum[i / (OUTER / 2)][i / 4 % (OUTER / 8)][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < Of::STEPS; ++step) {
      // The first matrices of a fragment are the one chunk, the others the other one.
      const int first = 2 * step, second = 2 * step + 1 < Of::COUNT ? 2 * step + 1 : first;
      const int farther = Part::chunk_at(second) - Part::chunk_at(first) - 8;
      const int at = Part::chunk_at(first) + (farther == 0 || lane < 16 ? 0 : farther);
      u32 x[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        matrices<false>(x[i], shown + windows[i] + at);
        // Products with zeros are no zeros of all numbers.
        if (Of::known(first) < 8 && 2 * neighbour >= Of::known(first)) x[i][0] = x[i][1] = 0;
        if (Of::known(2 * step + 1) < 8 && 2 * neighbour >= Of::known(2 * step + 1)) x[i][2] = x[i][3] = 0;
      }
#pragma unroll
      for (int j = 0; j < OUTER / 8; j += 2) {
        u32 y[4];
        right_fragments<PITCH>(y, weights + j * 8 * PITCH + step * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma<0>(sum[i][j], x[i], y, H());
          mma<2>(sum[i][j + 1], x[i], y, H());
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_position<false, WIDE, OUTER>(p, sum[i], image, row0, column0, warp * 32 + i * 16 + group, n0);
      store_position<true, WIDE, OUTER>(p, sum[i], image, row0, column0, warp * 32 + i * 16 + group + 8, n0);
    }
  }
}
