// Attention and its gradients in tiles on tensor cores, for halves: P is as in attention.cuh. 128 threads make 64 or
// 128 rows, or 64 keys, each warp 16 or 32 of them (Dao, "FlashAttention-2", 2023). What is multiplied next is copied to shared
// memory meanwhile; scores stay in registers, where sums of one product are left fragments of the next.

// Elements of a head, in whole fragments, and where the next one begins: rows of a fragment fall into different banks.
template <i64 SIZE> struct Padded {
  static const int WIDTH = (int)((SIZE + 15) / 16 * 16), PITCH = WIDTH + 8, STEPS = WIDTH / 16, TILES = WIDTH / 8;
};

// Which tile of `side` lines a block makes, and of which head.
struct BlockTile {
  i64 first, h, b;
  DEVICE BlockTile(i64 heads, i64 lines, bool backwards, int side = 64) {
    const i64 tiles = (lines + side - 1) / side, block = blockIdx.x, tile = block % tiles;
    first = (backwards ? tiles - 1 - tile : tile) * side;
    h = block / tiles % heads;
    b = block / tiles / heads;
  }
};

// The keys from k0 on that a row meets: as many of a block of `block`.
template <class P> DEVICE int seen_of(const P& p, i64 row, i64 k0, int block) {
  const i64 seen = row < P::ROWS ? keys_seen(p, row) - k0 : 0;
  return seen < 0 ? 0 : seen < block ? (int)seen : block;
}

// sums += left * right: left fragments at `left`, right ones STEPS * 16 long beside one another.
template <int STEPS, int COUNT, int LEFT_PITCH, int PITCH, class H>
DEVICE void scores_of(float (&sums)[COUNT][4], const u16* left, const u16* right, H) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    u32 x[4];
    left_fragment<LEFT_PITCH>(x, left + i * 16);
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
      u32 y[4];
      right_fragments<PITCH>(y, right + j * 8 * PITCH + i * 16);
      mma<0>(sums[j], x, y, H());
      mma<2>(sums[j + 1], x, y, H());
    }
  }
}

// The same with the left fragments in registers.
template <int STEPS, int COUNT, int PITCH, class H>
DEVICE void scores_of(float (&sums)[COUNT][4], const u32 (&left)[STEPS][4], const u16* right, H) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
      u32 y[4];
      right_fragments<PITCH>(y, right + j * 8 * PITCH + i * 16);
      mma<0>(sums[j], left[i], y, H());
      mma<2>(sums[j + 1], left[i], y, H());
    }
}

// sums += weights * rows: weights as they came out of a product, rows of `right` one for each of their columns.
template <int COUNT, int TILES, int PITCH, class H>
DEVICE void weighted(float (&sums)[TILES][4], const float (&weights)[COUNT][4], const u16* right, H) {
#pragma unroll
  for (int i = 0; i < COUNT / 2; ++i) {
    u32 x[4];
    packed(x, weights[2 * i], weights[2 * i + 1], H());
#pragma unroll
    for (int j = 0; j < TILES; j += 2) {
      u32 y[4];
      right_fragments_turned<PITCH>(y, right + i * 16 * PITCH + j * 8);
      mma<0>(sums[j], x, y, H());
      mma<2>(sums[j + 1], x, y, H());
    }
  }
}

template <int COUNT> DEVICE void cleared(float (&sums)[COUNT][4]) {
#pragma unroll
  for (int i = 0; i < COUNT * 4; ++i) sums[i / 4][i % 4] = 0.0f;
}

// Writes a lane's part of a row of sums. PAIRS: two neighbours at once.
template <bool PAIRS, int TILES, class H>
DEVICE void write_row(H* to, const float (&sums)[TILES][4], int half, float scale, int size) {
  const int place = threadIdx.x & 3;
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    const int column = j * 8 + place * 2;
    const float first = sums[j][half * 2] * scale, second = sums[j][half * 2 + 1] * scale;
    if (PAIRS) {
      if (column < size) *(u32*)(to + column) = narrow_both(first, second, H());
    } else {
      if (column < size) put(to[column], first);
      if (column + 1 < size) put(to[column + 1], second);
    }
  }
}

// Rows' largest scores and sums of weights so far, two rows a lane.
struct RowSums {
  float most[2], sum[2];
  DEVICE RowSums() {
    most[0] = most[1] = limits<float>::low();
    sum[0] = sum[1] = 0.0f;
  }
  // Scores, each a number times `factor`, become weights; true where earlier sums are to be multiplied with `scale`. What weights are
  // relative to need not be the largest score: sums are scaled where one is e^6 times as heavy, which is seldom after the first keys.
  template <int COUNT> DEVICE bool take(float (&s)[COUNT][4], float (&scale)[2], float factor = 1.0f) {
    // Two chains for each row.
    float next[2] = {most[0], most[1]}, other[2] = {s[0][1], s[0][3]};
#pragma unroll
    for (int j = 0; j < COUNT * 4; ++j) {
      float& larger = j % 2 == 0 ? next[j / 2 % 2] : other[j / 2 % 2];
      larger = f_max(larger, s[j / 4][j % 4]);
    }
    bool grows = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      next[r] = f_max(next[r], other[r]);
      next[r] = f_max(next[r], swapped(next[r], 1));
      next[r] = f_max(next[r], swapped(next[r], 2));
      // Also where it is not a number.
      grows = grows || !((next[r] - most[r]) * factor <= 6.0f);
    }
    // Lanes stay together.
    grows = __ballot_sync(FULL_WARP, grows) != 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // No key so far: nothing is to be scaled, and all weights are zeros.
      const bool nothing = (grows ? next[r] : most[r]) == limits<float>::low();
      if (grows) {
        scale[r] = near_exp(nothing ? 0.0f : (most[r] - next[r]) * factor);
        most[r] = next[r];
        sum[r] *= scale[r];
      }
      next[r] = nothing ? 0.0f : most[r];
    }
#pragma unroll
    for (int j = 0; j < COUNT * 4; ++j) {
      float& score = s[j / 4][j % 4];
      score = near_exp_of(score, next[j / 2 % 2], factor);
      sum[j / 2 % 2] += score;
    }
    return grows;
  }
  // What each lane has summed up becomes the row's sum, in all of them.
  DEVICE void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += swapped(sum[r], 1);
      sum[r] += swapped(sum[r], 2);
    }
  }
};

// Sums of rows so far times their scales.
template <int COUNT> DEVICE void scaled(float (&sums)[COUNT][4], const float (&scale)[2]) {
#pragma unroll
  for (int j = 0; j < COUNT * 4; ++j) sums[j / 4][j % 4] *= scale[j / 2 % 2];
}

// EACH fragments of 16 rows a warp, for which keys and values are read from shared memory once.
template <class P, bool WIDE, int EACH> DEVICE void attention_mma(const P& p) {
  typedef typename P::S H;
  typedef Padded<P::SIZE> K;
  typedef Padded<P::VALUES> V;
  const int BLOCK = 64, SIDE = 64 * EACH;
  SHARED(halves, key_memory, 64 * Padded<P::SIZE>::PITCH / 8);
  SHARED(halves, value_memory, 64 * Padded<P::VALUES>::PITCH / 8);
  u16 *keys = (u16*)key_memory, *values = (u16*)value_memory;
  // The last rows of a causal head meet the most keys: they begin first.
  const BlockTile at(P::HEADS, P::ROWS, true, SIDE);
  const i64 b = at.b, h = at.h;
  const int lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x >> 5;
  const i64 row0 = at.first + warp * 16 + (lane >> 2);
  u32 q[EACH][K::STEPS][4];
#pragma unroll
  for (int m = 0; m < EACH; ++m) {
    const i64 first = at.first + m * 64;
    stage<64, K::WIDTH, K::PITCH, 128, WIDE>(keys, P::ROWS - first, (int)P::SIZE,
                                             [&](int row) { return p.query(b, h, first + row); });
    copies_end();
    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < K::STEPS; ++i) left_fragment<K::PITCH>(q[m][i], keys + warp * 16 * K::PITCH + i * 16);
    __syncthreads();
  }
  float out[EACH][V::TILES][4];
#pragma unroll
  for (int m = 0; m < EACH; ++m) cleared(out[m]);
  RowSums sums[EACH];
  const i64 last = at.first + SIDE - 1 < P::ROWS ? at.first + SIDE - 1 : P::ROWS - 1, end = keys_seen(p, last);
  // What the first row sees, all do.
  const i64 seen_by_all = keys_seen(p, at.first);
  auto stage_keys = [&](i64 k0) {
    if (k0 < end)
      stage<BLOCK, K::WIDTH, K::PITCH, 128, WIDE>(keys, end - k0, (int)P::SIZE,
                                                  [&](int row) { return p.key(b, h, k0 + row); });
    copies_end();
  };
  stage_keys(0);
  for (i64 k0 = 0; k0 < end; k0 += BLOCK) {
    copies_wait<0>();
    __syncthreads();
    // Everyone is done with the values before.
    stage<BLOCK, V::WIDTH, V::PITCH, 128, WIDE>(values, end - k0, (int)P::VALUES,
                                                [&](int row) { return p.value(b, h, k0 + row); });
    copies_end();
    float s[EACH][BLOCK / 8][4];
#pragma unroll
    for (int m = 0; m < EACH; ++m) cleared(s[m]);
#pragma unroll
    for (int i = 0; i < K::STEPS; ++i)
#pragma unroll
      for (int j = 0; j < BLOCK / 8; j += 2) {
        u32 y[4];
        right_fragments<K::PITCH>(y, keys + j * 8 * K::PITCH + i * 16);
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
          mma<0>(s[m][j], q[m][i], y, H());
          mma<2>(s[m][j + 1], q[m][i], y, H());
        }
      }
    copies_wait<0>();
    __syncthreads();
    stage_keys(k0 + BLOCK);
    const bool whole = k0 + BLOCK <= seen_by_all;
#pragma unroll
    for (int m = 0; m < EACH; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Rows that are not there have the mask of the last one.
        const i64 mine = row0 + m * 64 + r * 8, row = mine < P::ROWS ? mine : P::ROWS - 1;
        if (whole) {
#pragma unroll
          for (int j = 0; j < BLOCK / 4; ++j) {
            float& score = s[m][j / 2][r * 2 + j % 2];
            score = p.score(b, h, row, k0 + j / 2 * 8 + place * 2 + j % 2, score);
          }
        } else {
          const int seen = seen_of(p, row, k0, BLOCK);
#pragma unroll
          for (int j = 0; j < BLOCK / 4; ++j) {
            const int key = j / 2 * 8 + place * 2 + j % 2;
            float& score = s[m][j / 2][r * 2 + j % 2];
            score = key < seen ? p.score(b, h, row, k0 + key, score) : limits<float>::low();
          }
        }
      }
      float scale[2];
      if (sums[m].take(s[m], scale)) scaled(out[m], scale);
    }
#pragma unroll
    for (int i = 0; i < BLOCK / 16; ++i) {
      u32 x[EACH][4];
#pragma unroll
      for (int m = 0; m < EACH; ++m) packed(x[m], s[m][2 * i], s[m][2 * i + 1], H());
#pragma unroll
      for (int j = 0; j < V::TILES; j += 2) {
        u32 y[4];
        right_fragments_turned<V::PITCH>(y, values + i * 16 * V::PITCH + j * 8);
#pragma unroll
        for (int m = 0; m < EACH; ++m) {
          mma<0>(out[m][j], x[m], y, H());
          mma<2>(out[m][j + 1], x[m], y, H());
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < EACH; ++m) {
    sums[m].finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 row = row0 + m * 64 + r * 8;
      if (row >= P::ROWS) continue;
      bool broken;
      const float scale = row_scale<P>(sums[m].sum[r], broken);
      if (broken) {
#pragma unroll
        for (int j = 0; j < V::TILES * 2; ++j) out[m][j / 2][r * 2 + j % 2] = P::ZEROS ? 0.0f : not_a_number_f();
      }
      write_row<WIDE>(p.result(b, h, row), out[m], r, broken ? 1.0f : scale, (int)P::VALUES);
    }
  }
}

// -- gradients --------------------------------------------------------------------------------------

// 64 rows: the gradients of their queries, and their numbers. 32 keys at a time, of which the next are copied
// meanwhile. A row's sums are scaled when a larger score comes, as forward, so that keys are met once.
template <class P, bool WIDE> DEVICE void attention_gradient_rows_mma(const P& p) {
  typedef typename P::S H;
  typedef Padded<P::SIZE> K;
  typedef Padded<P::VALUES> V;
  const int BLOCK = 32;
  SHARED(halves, key_memory, 64 * Padded<P::SIZE>::PITCH / 8);
  SHARED(halves, value_memory, 64 * Padded<P::VALUES>::PITCH / 8);
  u16 *keys = (u16*)key_memory, *values = (u16*)value_memory;
  const BlockTile at(P::HEADS, P::ROWS, true);
  const i64 b = at.b, h = at.h;
  const int lane = threadIdx.x & 31, place = lane & 3, own = (threadIdx.x >> 5) * 16;
  const i64 row0 = at.first + own + (lane >> 2);
  u32 q[K::STEPS][4], upstream[V::STEPS][4];
  stage<64, K::WIDTH, K::PITCH, 128, WIDE>(keys, P::ROWS - at.first, (int)P::SIZE,
                                           [&](int row) { return p.query(b, h, at.first + row); });
  stage<64, V::WIDTH, V::PITCH, 128, WIDE>(values, P::ROWS - at.first, (int)P::VALUES,
                                           [&](int row) { return p.upstream(b, h, at.first + row); });
  copies_end();
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < K::STEPS; ++i) left_fragment<K::PITCH>(q[i], keys + own * K::PITCH + i * 16);
#pragma unroll
  for (int i = 0; i < V::STEPS; ++i) left_fragment<V::PITCH>(upstream[i], values + own * V::PITCH + i * 16);
  float d[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 row = row0 + r * 8;
    d[r] = 0.0f;
    if (row < P::ROWS) {
      const H* result = p.result(b, h, row);
      const u16* own_upstream = values + (own + (lane >> 2) + r * 8) * V::PITCH;
      for (int i = place; i < (int)P::VALUES; i += 4) {
        H other;
        other.bits = own_upstream[i];
        d[r] += widen(result[i]) * widen(other);
      }
    }
    d[r] += swapped(d[r], 1);
    d[r] += swapped(d[r], 2);
  }
  __syncthreads();
  float out[K::TILES][4];
  cleared(out);
  RowSums sums;
  const i64 last = at.first + 63 < P::ROWS ? at.first + 63 : P::ROWS - 1, end = keys_seen(p, last);
  auto stage_block = [&](i64 k0) {
    const int half = (int)(k0 / BLOCK % 2) * BLOCK;
    if (k0 < end) {
      stage<BLOCK, K::WIDTH, K::PITCH, 128, WIDE>(keys + half * K::PITCH, end - k0, (int)P::SIZE,
                                                  [&](int row) { return p.key(b, h, k0 + row); });
      stage<BLOCK, V::WIDTH, V::PITCH, 128, WIDE>(values + half * V::PITCH, end - k0, (int)P::VALUES,
                                                  [&](int row) { return p.value(b, h, k0 + row); });
    }
    copies_end();
  };
  stage_block(0);
  for (i64 k0 = 0; k0 < end; k0 += BLOCK) {
    copies_wait<0>();
    __syncthreads();
    // Everyone is done with the other half.
    stage_block(k0 + BLOCK);
    const int half = (int)(k0 / BLOCK % 2) * BLOCK;
    float s[BLOCK / 8][4], above[BLOCK / 8][4], scale[2];
    cleared(s);
    cleared(above);
    scores_of<K::STEPS, BLOCK / 8, K::PITCH>(s, q, keys + half * K::PITCH, H());
    scores_of<V::STEPS, BLOCK / 8, V::PITCH>(above, upstream, values + half * V::PITCH, H());
    int seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 row = row0 + r * 8;
      seen[r] = seen_of(p, row, k0, BLOCK);
#pragma unroll
      for (int j = 0; j < BLOCK / 4; ++j) {
        const int key = j / 2 * 8 + place * 2 + j % 2;
        float& score = s[j / 2][r * 2 + j % 2];
        score = key < seen[r] ? p.score(b, h, row, k0 + key, score) : limits<float>::low();
      }
    }
    if (sums.take(s, scale)) scaled(out, scale);
#pragma unroll
    for (int j = 0; j < BLOCK / 2; ++j) {
      const int r = j / 2 % 2, key = j / 4 * 8 + place * 2 + j % 2;
      const bool passes = key < seen[r] && p.passes(b, h, row0 + r * 8, k0 + key);
      float& weight = s[j / 4][j % 4];
      weight = passes ? weight * (above[j / 4][j % 4] - d[r]) : 0.0f;
    }
    weighted<BLOCK / 8, K::TILES, K::PITCH>(out, s, keys + half * K::PITCH, H());
  }
  sums.finish();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 row = row0 + r * 8;
    if (row >= P::ROWS) continue;
    const float sum = sums.sum[r];
    const bool broken = sum == 0.0f || (P::ZEROS && !(sum > 0.0f));
    if (place == 0) {
      const i64 number = (b * P::HEADS + h) * P::ROWS + row;
      p.logs[number] = broken ? infinity_f() : sums.most[r] + f_log(sum);
      p.d[number] = d[r];
    }
    if (broken) {
#pragma unroll
      for (int j = 0; j < K::TILES * 2; ++j) out[j / 2][r * 2 + j % 2] = 0.0f;
    }
    write_row<WIDE>(p.of_query(b, h, row), out, r, broken ? 1.0f : p.scale() / sum, (int)P::SIZE);
  }
}

// 64 keys: their gradients and those of their values. 32 rows at a time, of which the next are copied meanwhile; the
// block's shared memory holds 64 keys and values, and twice 32 rows of queries and of the result's gradient.
template <class P, bool WIDE> DEVICE void attention_gradient_keys_mma(const P& p) {
  typedef typename P::S H;
  typedef Padded<P::SIZE> K;
  typedef Padded<P::VALUES> V;
  const int BLOCK = 32;
  DYNAMIC_SHARED(memory);
  u16 *keys = (u16*)memory, *values = keys + 64 * K::PITCH;
  u16 *queries = values + 64 * V::PITCH, *upstreams = queries + 2 * BLOCK * K::PITCH;
  // The first keys of a causal head meet the most rows: they begin first.
  const BlockTile at(P::HEADS / P::GROUP, P::KEYS, false);
  const i64 b = at.b, g = at.h;
  const int lane = threadIdx.x & 31, place = lane & 3, own = (threadIdx.x >> 5) * 16;
  const i64 key0 = at.first + own + (lane >> 2);
  // The rows that meet the first of the keys, of all heads that share them, one head after the other.
  const i64 above_all = P::CAUSAL ? at.first - p.offset() : 0, first = above_all < 0 ? 0 : above_all;
  const i64 blocks = first < P::ROWS ? (P::ROWS - first + BLOCK - 1) / BLOCK : 0, count = blocks * P::GROUP;
  auto stage_block = [&](i64 step) {
    const int half = (int)(step % 2) * BLOCK;
    if (step < count) {
      const i64 h = g * P::GROUP + step / blocks, r0 = first + step % blocks * BLOCK;
      stage<BLOCK, K::WIDTH, K::PITCH, 128, WIDE>(queries + half * K::PITCH, P::ROWS - r0, (int)P::SIZE,
                                                  [&](int row) { return p.query(b, h, r0 + row); });
      stage<BLOCK, V::WIDTH, V::PITCH, 128, WIDE>(upstreams + half * V::PITCH, P::ROWS - r0, (int)P::VALUES,
                                                  [&](int row) { return p.upstream(b, h, r0 + row); });
    }
    copies_end();
  };
  // By the heads of queries, of which any of the group will do.
  const i64 shared = g * P::GROUP;
  stage<64, K::WIDTH, K::PITCH, 128, WIDE>(keys, P::KEYS - at.first, (int)P::SIZE,
                                           [&](int key) { return p.key(b, shared, at.first + key); });
  stage<64, V::WIDTH, V::PITCH, 128, WIDE>(values, P::KEYS - at.first, (int)P::VALUES,
                                           [&](int key) { return p.value(b, shared, at.first + key); });
  stage_block(0);
  float of_key[K::TILES][4], of_value[V::TILES][4];
  cleared(of_key);
  cleared(of_value);
  for (i64 step = 0; step < count; ++step) {
    copies_wait<0>();
    __syncthreads();
    // Everyone is done with the other half.
    stage_block(step + 1);
    const int half = (int)(step % 2) * BLOCK;
    const i64 h = g * P::GROUP + step / blocks, r0 = first + step % blocks * BLOCK;
    float s[BLOCK / 8][4], ds[BLOCK / 8][4];
    cleared(s);
    cleared(ds);
    scores_of<K::STEPS, BLOCK / 8, K::PITCH, K::PITCH>(s, keys + own * K::PITCH, queries + half * K::PITCH, H());
    scores_of<V::STEPS, BLOCK / 8, V::PITCH, V::PITCH>(ds, values + own * V::PITCH, upstreams + half * V::PITCH, H());
    const int rows = P::ROWS - r0 < BLOCK ? (int)(P::ROWS - r0) : BLOCK;
    int from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 key = key0 + r * 8, row = P::CAUSAL ? key - p.offset() - r0 : 0;
      from[r] = key >= P::KEYS || row > BLOCK ? BLOCK : row < 0 ? 0 : (int)row;
    }
    const i64 number = (b * P::HEADS + h) * P::ROWS + r0;
#pragma unroll
    for (int j = 0; j < BLOCK / 4; ++j) {
      const int row = j / 2 * 8 + place * 2 + j % 2;
      const bool known = row < rows;
      const float log = known ? p.logs[number + row] : infinity_f(), d = known ? p.d[number + row] : 0.0f;
      // No key is left to the row: its result is perhaps not a number.
      const bool nothing = log == infinity_f();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 key = key0 + r * 8;
        float &weight = s[j / 2][r * 2 + j % 2], &above = ds[j / 2][r * 2 + j % 2];
        const bool meets = !nothing && row >= from[r];
        weight = meets ? near_exp(p.score(b, h, r0 + row, key, weight) - log) : 0.0f;
        above = meets && p.passes(b, h, r0 + row, key) ? weight * (above - d) : 0.0f;
      }
    }
    weighted<BLOCK / 8, V::TILES, V::PITCH>(of_value, s, upstreams + half * V::PITCH, H());
    weighted<BLOCK / 8, K::TILES, K::PITCH>(of_key, ds, queries + half * K::PITCH, H());
  }
  copies_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 key = key0 + r * 8;
    if (key >= P::KEYS) continue;
    write_row<WIDE>(p.of_key(b, g, key), of_key, r, p.scale(), (int)P::SIZE);
    write_row<WIDE>(p.of_value(b, g, key), of_value, r, 1.0f, (int)P::VALUES);
  }
}
