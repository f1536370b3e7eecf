// Attention in tiles by groups of 128 threads, for halves: P is as in attention.cuh. Each group makes 64 rows. While the products of
// one block of keys run, their threads weigh the scores of the next: scores of block i + 1 and the weighted sum of block i are asked
// for together, and the former alone is waited for (Shah et al., "FlashAttention-3", 2024, 3.2).

// Elements of a head in whole panels, whole steps of a product.
template <i64 SIZE> struct Paneled {
  static const int WIDTH = (int)((SIZE + 63) / 64 * 64), STEPS = (int)((SIZE + 15) / 16), TILES = WIDTH / 8;
};

// Weights or slopes of scores, rounded for the products that they go into.
template <int COUNT, class H> DEVICE void packed_all(u32 (&to)[COUNT / 2][4], const float (&from)[COUNT][4], H) {
#pragma unroll
  for (int i = 0; i < COUNT / 2; ++i) packed(to[i], from[2 * i], from[2 * i + 1], H());
}

// sums = left * right over STEPS steps of 16 elements of panels; LEFT, RIGHT lines of them.
template <int STEPS, int LEFT, int RIGHT, int COUNT, class H>
DEVICE void dots_of(float (&sums)[COUNT][4], const Panels& left, const Panels& right, H) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
    product_of<false>(sums, left.moved(i / 4 * (LEFT * 128) + i % 4 * 32), right.moved(i / 4 * (RIGHT * 128) + i % 4 * 32), i > 0, H());
}

// sums += weights * lines.
template <int STEPS, int COUNT, class H>
DEVICE void lines_weighted(float (&sums)[COUNT][4], const u32 (&weights)[STEPS][4], const Panels& lines, H) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i) product_of<true>(sums, weights[i], lines.moved(i * 16 * 128), true, H());
}

// Scores of 64 rows become their weights: of a block of BLOCK keys from k0 on. `whole`: all rows see all of them.
template <int BLOCK, class P> struct Weighing {
  const P& p;
  const i64 b, h, row0;
  // True where sums so far are to be multiplied with `scale`.
  DEVICE bool take(RowSums& sums, float (&s)[BLOCK / 8][4], float (&scale)[2], i64 k0, bool whole) const {
    // Where all scores have the same factor and nothing else, it goes into the exponent.
    if (P::PLAIN && whole) return sums.take(s, scale, P::SCALE);
    const int place = threadIdx.x & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows that are not there have the mask of the last one.
      const i64 mine = row0 + r * 8, row = mine < P::ROWS ? mine : P::ROWS - 1;
      const int seen = whole ? BLOCK : seen_of(p, row, k0, BLOCK);
#pragma unroll
      for (int j = 0; j < BLOCK / 4; ++j) {
        const int key = j / 2 * 8 + place * 2 + j % 2;
        float& score = s[j / 2][r * 2 + j % 2];
        if (!P::PLAIN) score = p.score(b, h, row, k0 + (key < seen ? key : 0), score);
        if (key >= seen) score = limits<float>::low();
      }
    }
    return sums.take(s, scale, P::PLAIN ? P::SCALE : 1.0f);
  }
};

// The rows of a block: what a head's queries, keys and values are, and how far the last row sees.
template <class P, int SIDE, int BLOCK> struct Tile {
  BlockTile at;
  i64 end;
  int blocks;
  DEVICE Tile(const P& p) : at(P::HEADS, P::ROWS, true, SIDE) {
    // The last rows of a causal head meet the most keys: they begin first.
    const i64 last = at.first + SIDE - 1 < P::ROWS ? at.first + SIDE - 1 : P::ROWS - 1;
    end = keys_seen(p, last);
    blocks = (int)((end + BLOCK - 1) / BLOCK);
  }
};

// One group of 128 threads copies, GROUPS groups of them have 64 rows each. BLOCK keys at a time, of which STAGES blocks are there or
// on their way. Groups wait for copies and for nobody else: while one weighs, the products of others run. (Shah et al., 3.1, has them
// take turns; on an H100 some sizes gained by that and as many lost.)
template <class P, int GROUPS, int BLOCK, int STAGES, int COPYING, int MULTIPLYING> DEVICE void attention_groups(const P& p) {
  static_assert(COPYING + GROUPS * MULTIPLYING <= 512, "a multiprocessor has 65536 registers");
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int SIDE = GROUPS * 64, KEY_BYTES = BLOCK * K::WIDTH * 2, VALUE_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const queries = panels_from(memory);
  unsigned char* const keys = queries + SIDE * K::WIDTH * 2;
  unsigned char* const values = keys + STAGES * KEY_BYTES;
  signal* const signals = (signal*)(values + STAGES * VALUE_BYTES);
  const Places<STAGES> key_places(signals), value_places(signals + 2 * STAGES);
  signal* const queries_filled = signals + 4 * STAGES;
  const Tile<P, SIDE, BLOCK> tile(p);
  const i64 b = tile.at.b, h = tile.at.h;
  if (threadIdx.x == 0) {
    key_places.begin(128, GROUPS);
    value_places.begin(128, GROUPS);
    signal_begin(queries_filled, 128);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_left<COPYING>();
    if (tile.blocks > 0) {
      stage_panels<SIDE, K::WIDTH, 128>(queries, P::ROWS - tile.at.first, (int)P::SIZE,
                                        [&](int row) { return p.query(b, h, tile.at.first + row); });
      signal_give_after_copies(queries_filled);
    }
    // Keys of a block and the values of the one before it, which are multiplied together.
#pragma unroll 1
    for (int block = 0; tile.blocks > 0 && block <= tile.blocks; ++block) {
      const i64 k0 = (i64)block * BLOCK;
      if (block < tile.blocks) {
        key_places.wait_emptied(block);
        stage_panels<BLOCK, K::WIDTH, 128>(keys + block % STAGES * KEY_BYTES, tile.end - k0, (int)P::SIZE,
                                           [&](int row) { return p.key(b, h, k0 + row); });
        key_places.fill(block);
      }
      if (block > 0) {
        value_places.wait_emptied(block - 1);
        stage_panels<BLOCK, V::WIDTH, 128>(values + (block - 1) % STAGES * VALUE_BYTES, tile.end - k0 + BLOCK, (int)P::VALUES,
                                           [&](int row) { return p.value(b, h, k0 - BLOCK + row); });
        value_places.fill(block - 1);
      }
    }
    // What is copied to a block's memory arrives before the block ends.
    copies_end();
    copies_wait<0>();
  } else {
    registers_taken<MULTIPLYING>();
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    const i64 first = tile.at.first + group * 64, row0 = first + warp * 16 + (lane >> 2);
    // What the group's first row sees, all of its rows do.
    const i64 seen_by_all = keys_seen(p, first);
    const Weighing<BLOCK, P> weighing{p, b, h, row0};
    float s[BLOCK / 8][4], out[V::TILES][4], scale[2];
    u32 weights[BLOCK / 16][4];
    RowSums sums;
    // Asks for the scores of a block, and for a block's values to be added up by their weights.
    auto score = [&](int block) {
      const Panels own(queries + group * 64 * 128, SIDE * 128), all(keys + block % STAGES * KEY_BYTES, BLOCK * 128);
      products_begin();
      dots_of<K::STEPS, SIDE, BLOCK>(s, own, all, H());
      products_end();
    };
    auto weigh = [&](int block) {
      value_places.wait_filled(block);
      products_begin();
      lines_weighted<BLOCK / 16>(out, weights, Panels(values + block % STAGES * VALUE_BYTES, BLOCK * 128), H());
      products_end();
    };
    auto take = [&](int block) {
      const i64 k0 = (i64)block * BLOCK;
      return weighing.take(sums, s, scale, k0, k0 + BLOCK <= seen_by_all);
    };
    cleared(out);
    if (tile.blocks > 0) {
      signal_wait(queries_filled, 0);
      key_places.wait_filled(0);
      score(0);
      products_wait<0>();
      made(s);
      key_places.empty(0);
      take(0);
      packed_all(weights, s, H());
#pragma unroll 1
      for (int block = 1; block < tile.blocks; ++block) {
        key_places.wait_filled(block);
        score(block);
        weigh(block - 1);
        products_wait<1>();
        made(s);
        key_places.empty(block);
        const bool grows = take(block);
        products_wait<0>();
        made(out);
        value_places.empty(block - 1);
        if (grows) scaled(out, scale);
        packed_all(weights, s, H());
      }
      weigh(tile.blocks - 1);
      products_wait<0>();
      made(out);
    }
    sums.finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 row = row0 + r * 8;
      if (row >= P::ROWS) continue;
      bool broken;
      const float scale = row_scale<P>(sums.sum[r], broken);
      if (broken) {
#pragma unroll
        for (int j = 0; j < V::TILES * 2; ++j) out[j / 2][r * 2 + j % 2] = P::ZEROS ? 0.0f : not_a_number_f();
      }
      write_row<true>(p.result(b, h, row), out, r, broken ? 1.0f : scale, (int)P::VALUES);
    }
  }
}

// -- gradients --------------------------------------------------------------------------------------
//
// Blocks of 64 lines are met one after the other, which one group copies and GROUPS of them multiply, as forward. Of a block the
// scores and what the weights' gradients are made of are asked for together with the sums of the block before, whose lines are still
// there. STAGES blocks are there or on their way.

// 64 rows a group: the gradients of their queries, and their numbers. A row's sums are scaled when a much larger score comes, as forward.
template <class P, int GROUPS, int STAGES, int COPYING, int MULTIPLYING>
DEVICE void attention_gradient_rows_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int BLOCK = 64, SIDE = GROUPS * 64;
  const int KEY_BYTES = BLOCK * K::WIDTH * 2, VALUE_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const queries = panels_from(memory);
  unsigned char* const upstreams = queries + SIDE * K::WIDTH * 2;
  unsigned char* const keys = upstreams + SIDE * V::WIDTH * 2;
  unsigned char* const values = keys + STAGES * KEY_BYTES;
  signal* const signals = (signal*)(values + STAGES * VALUE_BYTES);
  const Places<STAGES> places(signals);
  signal* const own_filled = signals + 2 * STAGES;
  const Tile<P, SIDE, BLOCK> tile(p);
  const i64 b = tile.at.b, h = tile.at.h, end = tile.end;
  const int blocks = tile.blocks;
  if (threadIdx.x == 0) {
    places.begin(128, GROUPS);
    signal_begin(own_filled, 128);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_left<COPYING>();
    stage_panels<SIDE, K::WIDTH, 128>(queries, P::ROWS - tile.at.first, (int)P::SIZE,
                                      [&](int row) { return p.query(b, h, tile.at.first + row); });
    stage_panels<SIDE, V::WIDTH, 128>(upstreams, P::ROWS - tile.at.first, (int)P::VALUES,
                                      [&](int row) { return p.upstream(b, h, tile.at.first + row); });
    signal_give_after_copies(own_filled);
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const i64 k0 = (i64)block * BLOCK;
      places.wait_emptied(block);
      stage_panels<BLOCK, K::WIDTH, 128>(keys + block % STAGES * KEY_BYTES, end - k0, (int)P::SIZE,
                                         [&](int row) { return p.key(b, h, k0 + row); });
      stage_panels<BLOCK, V::WIDTH, 128>(values + block % STAGES * VALUE_BYTES, end - k0, (int)P::VALUES,
                                         [&](int row) { return p.value(b, h, k0 + row); });
      places.fill(block);
    }
    copies_end();
    copies_wait<0>();
    return;
  }
  registers_taken<MULTIPLYING>();
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const int own = group * 64 + warp * 16 + (lane >> 2);
  const i64 row0 = tile.at.first + own;
  signal_wait(own_filled, 0);
  written_for_products();
  float d[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 row = row0 + r * 8;
    const H* result = p.result(b, h, row < P::ROWS ? row : P::ROWS - 1);
    d[r] = 0.0f;
#pragma unroll 2
    for (int unit = place; unit < (int)P::VALUES / 8; unit += 4) {
      const vec<8, H> x = *(const vec<8, H>*)(result + unit * 8), y = *(const vec<8, H>*)(upstreams + unit_at<SIDE>(own + r * 8, unit));
#pragma unroll
      for (int i = 0; i < 8; ++i) d[r] += widen(x.v[i]) * widen(y.v[i]);
    }
    d[r] += swapped(d[r], 1);
    d[r] += swapped(d[r], 2);
  }
  float s[BLOCK / 8][4], above[BLOCK / 8][4], out[K::TILES][4];
  u32 slopes[BLOCK / 16][4];
  RowSums sums;
  cleared(out);
  auto ask = [&](int block) {
    const int slot = block % STAGES;
    dots_of<K::STEPS, SIDE, BLOCK>(s, Panels(queries + group * 64 * 128, SIDE * 128), Panels(keys + slot * KEY_BYTES, BLOCK * 128), H());
    dots_of<V::STEPS, SIDE, BLOCK>(above, Panels(upstreams + group * 64 * 128, SIDE * 128), Panels(values + slot * VALUE_BYTES, BLOCK * 128), H());
    products_end();
  };
  auto weigh = [&](int block) {
    lines_weighted<BLOCK / 16>(out, slopes, Panels(keys + block % STAGES * KEY_BYTES, BLOCK * 128), H());
    products_end();
  };
  const i64 seen_by_all = keys_seen(p, tile.at.first + group * 64);
  auto take = [&](int block, float (&scale)[2]) {
    const i64 k0 = (i64)block * BLOCK;
    if (P::PLAIN && k0 + BLOCK <= seen_by_all) {
      const bool grows = sums.take(s, scale, P::SCALE);
#pragma unroll
      for (int j = 0; j < BLOCK / 2; ++j) s[j / 4][j % 4] *= above[j / 4][j % 4] - d[j / 2 % 2];
      return grows;
    }
    int seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 row = row0 + r * 8;
      seen[r] = seen_of(p, row, k0, BLOCK);
#pragma unroll
      for (int j = 0; j < BLOCK / 4; ++j) {
        const int key = j / 2 * 8 + place * 2 + j % 2;
        float& score = s[j / 2][r * 2 + j % 2];
        if (key >= seen[r]) score = limits<float>::low();
        else if (!P::PLAIN) score = p.score(b, h, row, k0 + key, score);
      }
    }
    const bool grows = sums.take(s, scale, P::PLAIN ? P::SCALE : 1.0f);
#pragma unroll
    for (int j = 0; j < BLOCK / 2; ++j) {
      const int r = j / 2 % 2, key = j / 4 * 8 + place * 2 + j % 2;
      const bool passes = key < seen[r] && p.passes(b, h, row0 + r * 8, k0 + key);
      float& weight = s[j / 4][j % 4];
      weight = passes ? weight * (above[j / 4][j % 4] - d[r]) : 0.0f;
    }
    return grows;
  };
  if (blocks > 0) {
    float scale[2];
    places.wait_filled(0);
    products_begin();
    ask(0);
    products_wait<0>();
    made(s);
    made(above);
    take(0, scale);
    packed_all(slopes, s, H());
    for (int block = 1; block < blocks; ++block) {
      places.wait_filled(block);
      products_begin();
      ask(block);
      weigh(block - 1);
      products_wait<1>();
      made(s);
      made(above);
      const bool grows = take(block, scale);
      products_wait<0>();
      made(out);
      places.empty(block - 1);
      if (grows) scaled(out, scale);
      packed_all(slopes, s, H());
    }
    products_begin();
    weigh(blocks - 1);
    products_wait<0>();
    made(out);
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
      p.logs[number] = broken ? infinity_f() : sums.most[r] * (P::PLAIN ? P::SCALE : 1.0f) + f_log(sum);
      p.d[number] = d[r];
    }
    if (broken) {
#pragma unroll
      for (int j = 0; j < K::TILES * 2; ++j) out[j / 2][r * 2 + j % 2] = 0.0f;
    }
    write_row<true>(p.of_query(b, h, row), out, r, broken ? 1.0f : p.scale() / sum, (int)P::SIZE);
  }
}

// 64 keys a group: their gradients and those of their values, over the rows that meet them of all heads that share them.
template <class P, int GROUPS, int STAGES, int COPYING, int MULTIPLYING>
DEVICE void attention_gradient_keys_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int BLOCK = 64, SIDE = GROUPS * 64;
  const int QUERY_BYTES = BLOCK * K::WIDTH * 2, UPSTREAM_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const keys = panels_from(memory);
  unsigned char* const values = keys + SIDE * K::WIDTH * 2;
  unsigned char* const queries = values + SIDE * V::WIDTH * 2;
  unsigned char* const upstreams = queries + STAGES * QUERY_BYTES;
  // Of a block's rows the logarithms of their sums and their own numbers.
  float* const numbers = (float*)(upstreams + STAGES * UPSTREAM_BYTES);
  signal* const signals = (signal*)(numbers + STAGES * 2 * BLOCK);
  const Places<STAGES> places(signals);
  signal* const own_filled = signals + 2 * STAGES;
  // The first keys of a causal head meet the most rows: they begin first.
  const BlockTile at(P::HEADS / P::GROUP, P::KEYS, false, SIDE);
  const i64 b = at.b, g = at.h, shared = g * P::GROUP;
  const i64 above_all = P::CAUSAL ? at.first - p.offset() : 0, first = above_all < 0 ? 0 : above_all;
  const i64 blocks = first < P::ROWS ? (P::ROWS - first + BLOCK - 1) / BLOCK : 0;
  const int count = (int)(blocks * P::GROUP);
  auto head_of = [&](int step) { return shared + step / blocks; };
  auto row_of = [&](int step) { return first + step % blocks * BLOCK; };
  if (threadIdx.x == 0) {
    places.begin(128, GROUPS);
    signal_begin(own_filled, 128);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_left<COPYING>();
    stage_panels<SIDE, K::WIDTH, 128>(keys, P::KEYS - at.first, (int)P::SIZE,
                                      [&](int key) { return p.key(b, shared, at.first + key); });
    stage_panels<SIDE, V::WIDTH, 128>(values, P::KEYS - at.first, (int)P::VALUES,
                                      [&](int key) { return p.value(b, shared, at.first + key); });
    signal_give_after_copies(own_filled);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const i64 h = head_of(step), r0 = row_of(step);
      places.wait_emptied(step);
      stage_panels<BLOCK, K::WIDTH, 128>(queries + step % STAGES * QUERY_BYTES, P::ROWS - r0, (int)P::SIZE,
                                         [&](int row) { return p.query(b, h, r0 + row); });
      stage_panels<BLOCK, V::WIDTH, 128>(upstreams + step % STAGES * UPSTREAM_BYTES, P::ROWS - r0, (int)P::VALUES,
                                         [&](int row) { return p.upstream(b, h, r0 + row); });
      // Rows that are not there have zeros for queries and upstream gradients, and add nothing whatever their numbers.
      const int row = threadIdx.x % BLOCK;
      const float* const from = threadIdx.x < BLOCK ? p.logs : p.d;
      const i64 number = (b * P::HEADS + h) * P::ROWS;
      const bool inside = r0 + row < P::ROWS;
      number_later(numbers + step % STAGES * 2 * BLOCK + threadIdx.x, from + number + (inside ? r0 + row : 0), inside);
      places.fill(step);
    }
    copies_end();
    copies_wait<0>();
    return;
  }
  registers_taken<MULTIPLYING>();
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const i64 key0 = at.first + group * 64 + warp * 16 + (lane >> 2);
  float s[BLOCK / 8][4], ds[BLOCK / 8][4], of_key[K::TILES][4], of_value[V::TILES][4];
  u32 weights[BLOCK / 16][4], slopes[BLOCK / 16][4];
  cleared(of_key);
  cleared(of_value);
  auto ask = [&](int step) {
    const int slot = step % STAGES;
    dots_of<K::STEPS, SIDE, BLOCK>(s, Panels(keys + group * 64 * 128, SIDE * 128), Panels(queries + slot * QUERY_BYTES, BLOCK * 128), H());
    dots_of<V::STEPS, SIDE, BLOCK>(ds, Panels(values + group * 64 * 128, SIDE * 128), Panels(upstreams + slot * UPSTREAM_BYTES, BLOCK * 128), H());
    products_end();
  };
  auto weigh = [&](int step) {
    const int slot = step % STAGES;
    lines_weighted<BLOCK / 16>(of_value, weights, Panels(upstreams + slot * UPSTREAM_BYTES, BLOCK * 128), H());
    lines_weighted<BLOCK / 16>(of_key, slopes, Panels(queries + slot * QUERY_BYTES, BLOCK * 128), H());
    products_end();
  };
  // Weights of the keys, and the slopes of their scores.
  auto take = [&](int step) {
    const i64 h = head_of(step), r0 = row_of(step);
    const float *const logs = numbers + step % STAGES * 2 * BLOCK, *const ds_of = logs + BLOCK;
    const int rows = P::ROWS - r0 < BLOCK ? (int)(P::ROWS - r0) : BLOCK;
    const bool whole = at.first + SIDE <= P::KEYS && (!P::CAUSAL || at.first + SIDE - 1 - p.offset() <= r0);
    if (P::PLAIN && whole) {
#pragma unroll
      for (int j = 0; j < BLOCK / 8; ++j) {
        const vec<2, float> log = *(const vec<2, float>*)(logs + j * 8 + place * 2);
        const vec<2, float> d = *(const vec<2, float>*)(ds_of + j * 8 + place * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // No key is left to the row: its result is perhaps not a number.
          const bool nothing = log.v[i % 2] == infinity_f();
          const float weight = near_power(fmaf(s[j][i], P::SCALE * 1.44269504f, log.v[i % 2] * -1.44269504f));
          s[j][i] = nothing ? 0.0f : weight;
          ds[j][i] = nothing ? 0.0f : weight * (ds[j][i] - d.v[i % 2]);
        }
      }
      return;
    }
    int from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 key = key0 + r * 8, row = P::CAUSAL ? key - p.offset() - r0 : 0;
      from[r] = key >= P::KEYS || row > BLOCK ? BLOCK : row < 0 ? 0 : (int)row;
    }
#pragma unroll
    for (int j = 0; j < BLOCK / 4; ++j) {
      const int row = j / 2 * 8 + place * 2 + j % 2, known = row < rows ? row : 0;
      const float log = row < rows ? logs[row] : infinity_f(), d = ds_of[row];
      const bool nothing = log == infinity_f();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 key = key0 + r * 8;
        float &weight = s[j / 2][r * 2 + j % 2], &above = ds[j / 2][r * 2 + j % 2];
        const bool meets = !nothing && row >= from[r];
        const float score = meets ? p.score(b, h, r0 + row, key, weight) - log : limits<float>::low();
        weight = near_exp(score);
        above = meets && p.passes(b, h, r0 + known, key < P::KEYS ? key : 0) ? weight * (above - d) : 0.0f;
      }
    }
  };
  if (count > 0) {
    signal_wait(own_filled, 0);
    places.wait_filled(0);
    products_begin();
    ask(0);
    products_wait<0>();
    made(s);
    made(ds);
    // What is asked for together is waited for together: registers hold no more, and meanwhile the other group weighs. Of long
    // lines they hold either weights or scores.
    const bool TOGETHER = K::TILES + V::TILES <= 16;
#pragma unroll 1
    for (int step = 0; step + 1 < count; ++step) {
      take(step);
      packed_all(weights, s, H());
      packed_all(slopes, ds, H());
      places.wait_filled(step + 1);
      products_begin();
      weigh(step);
      if (!TOGETHER) {
        products_wait<0>();
        made(of_value);
        made(of_key);
        products_begin();
      }
      ask(step + 1);
      products_wait<0>();
      made(s);
      made(ds);
      made(of_value);
      made(of_key);
      places.empty(step);
    }
    take(count - 1);
    packed_all(weights, s, H());
    packed_all(slopes, ds, H());
    products_begin();
    weigh(count - 1);
    products_wait<0>();
    made(of_value);
    made(of_key);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 key = key0 + r * 8;
    if (key >= P::KEYS) continue;
    write_row<true>(p.of_key(b, g, key), of_key, r, p.scale(), (int)P::SIZE);
    write_row<true>(p.of_value(b, g, key), of_value, r, 1.0f, (int)P::VALUES);
  }
}
