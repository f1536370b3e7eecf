// Attention in tiles by groups of 128 threads, for halves: P is as in attention.cuh. Each group makes 64 rows. While the products of
// one block of keys run, their threads weigh the scores of the next: scores of block i + 1 and the weighted sum of block i are asked
// for together, and the former alone is waited for (Shah et al., "FlashAttention-3", 2024, 3.2).

// Elements of a head in whole panels, whole steps of a product.
template <i64 SIZE> struct Paneled {
  static const int WIDTH = (int)((SIZE + 63) / 64 * 64), STEPS = (int)((SIZE + 15) / 16), TILES = WIDTH / 8;
};

// Products that are waited for from here on run until a number is there that is never below zero. A compiler knows of no reason for
// that order, and would wait first, when nothing is left to do meanwhile: it moves nothing over a branch, even one that is never
// taken.
DEVICE void never_below_zero(float number) {
#ifndef CPU_SHIM
  if (__any_sync(FULL_WARP, number < 0.0f)) asm volatile("trap;");
#endif
}
DEVICE void weighed_before(const RowSums& sums) { never_below_zero(sums.sum[0] < sums.sum[1] ? sums.sum[0] : sums.sum[1]); }

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

// BLOCK keys at a time, of which STAGES blocks are there or on their way: what is on its way is what the L2 has to do.
template <class P, int GROUPS, int BLOCK, int STAGES> DEVICE void attention_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int THREADS = GROUPS * 128, SIDE = GROUPS * 64;
  const int KEY_BYTES = BLOCK * K::WIDTH * 2, VALUE_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const queries = panels_from(memory);
  unsigned char* const keys = queries + SIDE * K::WIDTH * 2;
  unsigned char* const values = keys + STAGES * KEY_BYTES;
  // The last rows of a causal head meet the most keys: they begin first.
  const BlockTile at(P::HEADS, P::ROWS, true, SIDE);
  const i64 b = at.b, h = at.h;
  const int group = threadIdx.x / 128, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const i64 first = at.first + group * 64, row0 = first + warp * 16 + (lane >> 2);
  const i64 last = at.first + SIDE - 1 < P::ROWS ? at.first + SIDE - 1 : P::ROWS - 1, end = keys_seen(p, last);
  const int blocks = (int)((end + BLOCK - 1) / BLOCK);
  // What the group's first row sees, all of its rows do.
  const i64 seen_by_all = keys_seen(p, first);
  // Keys of a block and the values of the one before it, which are multiplied together.
  auto stage_block = [&](int block) {
    const i64 k0 = (i64)block * BLOCK;
    if (block < blocks)
      stage_panels<BLOCK, K::WIDTH, THREADS>(keys + block % STAGES * KEY_BYTES, end - k0, (int)P::SIZE,
                                             [&](int row) { return p.key(b, h, k0 + row); });
    if (block > 0 && block <= blocks)
      stage_panels<BLOCK, V::WIDTH, THREADS>(values + (block - 1) % STAGES * VALUE_BYTES, end - k0 + BLOCK, (int)P::VALUES,
                                             [&](int row) { return p.value(b, h, k0 - BLOCK + row); });
    copies_end();
  };
  float s[BLOCK / 8][4], out[V::TILES][4];
  u32 weights[BLOCK / 16][4];
  RowSums sums;
  // Asks for the scores of a block.
  auto score = [&](int block) {
    const Panels own(queries + group * 64 * 128, SIDE * 128), all(keys + block % STAGES * KEY_BYTES, BLOCK * 128);
    dots_of<K::STEPS, SIDE, BLOCK>(s, own, all, H());
    products_end();
  };
  // Asks for a block's values to be added up by their weights.
  auto weigh = [&](int block) {
    lines_weighted<BLOCK / 16>(out, weights, Panels(values + block % STAGES * VALUE_BYTES, BLOCK * 128), H());
    products_end();
  };
  // Scores become weights, and `scale` is what the sums so far are multiplied with.
  auto take = [&](int block, float (&scale)[2]) {
    const i64 k0 = (i64)block * BLOCK;
    const bool whole = k0 + BLOCK <= seen_by_all;
    // Where all scores have the same factor and nothing else, it goes into the exponent.
    if (P::PLAIN && whole) return sums.take(s, scale, P::SCALE);
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
    sums.take(s, scale, P::PLAIN ? P::SCALE : 1.0f);
  };
  cleared(out);
  if (blocks > 0) {
    stage_panels<SIDE, K::WIDTH, THREADS>(queries, P::ROWS - at.first, (int)P::SIZE,
                                          [&](int row) { return p.query(b, h, at.first + row); });
#pragma unroll
    for (int block = 0; block < STAGES - 1; ++block) stage_block(block);
    copies_arrive<STAGES - 2>();
    products_begin();
    score(0);
    stage_block(STAGES - 1);
    products_wait<0>();
    made(s);
    float scale[2];
    take(0, scale);
    packed_all(weights, s, H());
    for (int block = 1; block < blocks; ++block) {
      copies_arrive<STAGES - 2>();
      products_begin();
      score(block);
      weigh(block - 1);
      // Whoever read what lies there has been waited for before the barrier.
      stage_block(block + STAGES - 1);
      products_wait<1>();
      made(s);
      take(block, scale);
      weighed_before(sums);
      products_wait<0>();
      made(out);
#pragma unroll
      for (int j = 0; j < V::TILES * 4; ++j) out[j / 4][j % 4] *= scale[j / 2 % 2];
      packed_all(weights, s, H());
    }
    copies_arrive<STAGES - 2>();
    products_begin();
    weigh(blocks - 1);
    products_wait<0>();
    made(out);
  }
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

// -- gradients --------------------------------------------------------------------------------------
//
// Blocks of 64 lines are met one after the other, of which the next is copied meanwhile. Of a block the scores and what the weights'
// gradients are made of are asked for together with the sums of the block before, whose lines are still there.

// Blocks that are there at once: one that is summed up, one that is asked for, two that are copied.
const int AHEAD_OF_GRADIENTS = 4;

// 64 rows a group: the gradients of their queries, and their numbers. A row's sums are scaled when a larger score comes, as forward.
template <class P, int GROUPS> DEVICE void attention_gradient_rows_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int BLOCK = 64, THREADS = GROUPS * 128, SIDE = GROUPS * 64;
  const int KEY_BYTES = BLOCK * K::WIDTH * 2, VALUE_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const queries = panels_from(memory);
  unsigned char* const upstreams = queries + SIDE * K::WIDTH * 2;
  unsigned char* const keys = upstreams + SIDE * V::WIDTH * 2;
  unsigned char* const values = keys + AHEAD_OF_GRADIENTS * KEY_BYTES;
  const BlockTile at(P::HEADS, P::ROWS, true, SIDE);
  const i64 b = at.b, h = at.h;
  const int group = threadIdx.x / 128, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const int own = group * 64 + warp * 16 + (lane >> 2);
  const i64 row0 = at.first + own;
  const i64 last = at.first + SIDE - 1 < P::ROWS ? at.first + SIDE - 1 : P::ROWS - 1, end = keys_seen(p, last);
  const int blocks = (int)((end + BLOCK - 1) / BLOCK);
  auto stage_block = [&](int block) {
    const i64 k0 = (i64)block * BLOCK;
    if (block < blocks) {
      stage_panels<BLOCK, K::WIDTH, THREADS>(keys + block % AHEAD_OF_GRADIENTS * KEY_BYTES, end - k0, (int)P::SIZE,
                                             [&](int row) { return p.key(b, h, k0 + row); });
      stage_panels<BLOCK, V::WIDTH, THREADS>(values + block % AHEAD_OF_GRADIENTS * VALUE_BYTES, end - k0, (int)P::VALUES,
                                             [&](int row) { return p.value(b, h, k0 + row); });
    }
    copies_end();
  };
  stage_panels<SIDE, K::WIDTH, THREADS>(queries, P::ROWS - at.first, (int)P::SIZE,
                                        [&](int row) { return p.query(b, h, at.first + row); });
  stage_panels<SIDE, V::WIDTH, THREADS>(upstreams, P::ROWS - at.first, (int)P::VALUES,
                                        [&](int row) { return p.upstream(b, h, at.first + row); });
  stage_block(0);
  stage_block(1);
  copies_arrive<1>();
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
    const int slot = block % AHEAD_OF_GRADIENTS;
    dots_of<K::STEPS, SIDE, BLOCK>(s, Panels(queries + group * 64 * 128, SIDE * 128), Panels(keys + slot * KEY_BYTES, BLOCK * 128), H());
    dots_of<V::STEPS, SIDE, BLOCK>(above, Panels(upstreams + group * 64 * 128, SIDE * 128), Panels(values + slot * VALUE_BYTES, BLOCK * 128), H());
    products_end();
  };
  auto weigh = [&](int block) {
    lines_weighted<BLOCK / 16>(out, slopes, Panels(keys + block % AHEAD_OF_GRADIENTS * KEY_BYTES, BLOCK * 128), H());
    products_end();
  };
  const i64 seen_by_all = keys_seen(p, at.first + group * 64);
  auto take = [&](int block, float (&scale)[2]) {
    const i64 k0 = (i64)block * BLOCK;
    if (P::PLAIN && k0 + BLOCK <= seen_by_all) {
      sums.take(s, scale, P::SCALE);
#pragma unroll
      for (int j = 0; j < BLOCK / 2; ++j) s[j / 4][j % 4] *= above[j / 4][j % 4] - d[j / 2 % 2];
      return;
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
    sums.take(s, scale, P::PLAIN ? P::SCALE : 1.0f);
#pragma unroll
    for (int j = 0; j < BLOCK / 2; ++j) {
      const int r = j / 2 % 2, key = j / 4 * 8 + place * 2 + j % 2;
      const bool passes = key < seen[r] && p.passes(b, h, row0 + r * 8, k0 + key);
      float& weight = s[j / 4][j % 4];
      weight = passes ? weight * (above[j / 4][j % 4] - d[r]) : 0.0f;
    }
  };
  if (blocks > 0) {
    float scale[2];
    products_begin();
    ask(0);
    stage_block(2);
    products_wait<0>();
    made(s);
    made(above);
    take(0, scale);
    packed_all(slopes, s, H());
    for (int block = 1; block < blocks; ++block) {
      copies_arrive<1>();
      products_begin();
      ask(block);
      weigh(block - 1);
      stage_block(block + 2);
      products_wait<1>();
      made(s);
      made(above);
      take(block, scale);
      weighed_before(sums);
      products_wait<0>();
      made(out);
#pragma unroll
      for (int j = 0; j < K::TILES * 4; ++j) out[j / 4][j % 4] *= scale[j / 2 % 2];
      packed_all(slopes, s, H());
    }
    products_begin();
    weigh(blocks - 1);
    products_wait<0>();
    made(out);
  }
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
template <class P, int GROUPS> DEVICE void attention_gradient_keys_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int BLOCK = 64, THREADS = GROUPS * 128, SIDE = GROUPS * 64;
  const int QUERY_BYTES = BLOCK * K::WIDTH * 2, UPSTREAM_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const keys = panels_from(memory);
  unsigned char* const values = keys + SIDE * K::WIDTH * 2;
  unsigned char* const queries = values + SIDE * V::WIDTH * 2;
  unsigned char* const upstreams = queries + AHEAD_OF_GRADIENTS * QUERY_BYTES;
  // The first keys of a causal head meet the most rows: they begin first.
  const BlockTile at(P::HEADS / P::GROUP, P::KEYS, false, SIDE);
  const i64 b = at.b, g = at.h, shared = g * P::GROUP;
  const int group = threadIdx.x / 128, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const i64 key0 = at.first + group * 64 + warp * 16 + (lane >> 2);
  const i64 above_all = P::CAUSAL ? at.first - p.offset() : 0, first = above_all < 0 ? 0 : above_all;
  const i64 blocks = first < P::ROWS ? (P::ROWS - first + BLOCK - 1) / BLOCK : 0;
  const int count = (int)(blocks * P::GROUP);
  auto head_of = [&](int step) { return shared + step / blocks; };
  auto row_of = [&](int step) { return first + step % blocks * BLOCK; };
  auto stage_block = [&](int step) {
    if (step < count) {
      const i64 h = head_of(step), r0 = row_of(step);
      stage_panels<BLOCK, K::WIDTH, THREADS>(queries + step % AHEAD_OF_GRADIENTS * QUERY_BYTES, P::ROWS - r0, (int)P::SIZE,
                                             [&](int row) { return p.query(b, h, r0 + row); });
      stage_panels<BLOCK, V::WIDTH, THREADS>(upstreams + step % AHEAD_OF_GRADIENTS * UPSTREAM_BYTES, P::ROWS - r0, (int)P::VALUES,
                                             [&](int row) { return p.upstream(b, h, r0 + row); });
    }
    copies_end();
  };
  stage_panels<SIDE, K::WIDTH, THREADS>(keys, P::KEYS - at.first, (int)P::SIZE,
                                        [&](int key) { return p.key(b, shared, at.first + key); });
  stage_panels<SIDE, V::WIDTH, THREADS>(values, P::KEYS - at.first, (int)P::VALUES,
                                        [&](int key) { return p.value(b, shared, at.first + key); });
  stage_block(0);
  stage_block(1);
  float s[BLOCK / 8][4], ds[BLOCK / 8][4], of_key[K::TILES][4], of_value[V::TILES][4];
  u32 weights[BLOCK / 16][4], slopes[BLOCK / 16][4];
  cleared(of_key);
  cleared(of_value);
  auto ask = [&](int step) {
    const int slot = step % AHEAD_OF_GRADIENTS;
    dots_of<K::STEPS, SIDE, BLOCK>(s, Panels(keys + group * 64 * 128, SIDE * 128), Panels(queries + slot * QUERY_BYTES, BLOCK * 128), H());
    dots_of<V::STEPS, SIDE, BLOCK>(ds, Panels(values + group * 64 * 128, SIDE * 128), Panels(upstreams + slot * UPSTREAM_BYTES, BLOCK * 128), H());
    products_end();
  };
  auto weigh = [&](int step) {
    const int slot = step % AHEAD_OF_GRADIENTS;
    lines_weighted<BLOCK / 16>(of_value, weights, Panels(upstreams + slot * UPSTREAM_BYTES, BLOCK * 128), H());
    lines_weighted<BLOCK / 16>(of_key, slopes, Panels(queries + slot * QUERY_BYTES, BLOCK * 128), H());
    products_end();
  };
  // Weights of the keys, and the slopes of their scores; a weight, which is never below zero, of each tile.
  auto take = [&](int step) {
    const i64 h = head_of(step), r0 = row_of(step), number = (b * P::HEADS + h) * P::ROWS + r0;
    const int rows = P::ROWS - r0 < BLOCK ? (int)(P::ROWS - r0) : BLOCK;
    const bool whole = rows == BLOCK && r0 % 2 == 0 && at.first + SIDE <= P::KEYS && (!P::CAUSAL || at.first + SIDE - 1 - p.offset() <= r0);
    float most = 0.0f;
    if (P::PLAIN && P::ROWS % 2 == 0 && whole) {
#pragma unroll
      for (int j = 0; j < BLOCK / 8; ++j) {
        const vec<2, float> log = *(const vec<2, float>*)(p.logs + number + j * 8 + place * 2);
        const vec<2, float> d = *(const vec<2, float>*)(p.d + number + j * 8 + place * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // No key is left to the row: its result is perhaps not a number.
          const bool nothing = log.v[i % 2] == infinity_f();
          const float weight = near_power(fmaf(s[j][i], P::SCALE * 1.44269504f, log.v[i % 2] * -1.44269504f));
          s[j][i] = nothing ? 0.0f : weight;
          ds[j][i] = nothing ? 0.0f : weight * (ds[j][i] - d.v[i % 2]);
        }
        most = most > s[j][3] ? most : s[j][3];
      }
      return most;
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
      const float log = row < rows ? p.logs[number + known] : infinity_f(), d = p.d[number + known];
      const bool nothing = log == infinity_f();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 key = key0 + r * 8;
        float &weight = s[j / 2][r * 2 + j % 2], &above = ds[j / 2][r * 2 + j % 2];
        const bool meets = !nothing && row >= from[r];
        const float score = meets ? p.score(b, h, r0 + row, key, weight) - log : limits<float>::low();
        weight = near_exp(score);
        above = meets && p.passes(b, h, r0 + known, key < P::KEYS ? key : 0) ? weight * (above - d) : 0.0f;
        most = most > weight ? most : weight;
      }
    }
    return most;
  };
  // Also where no row meets a key: what was asked for is waited for.
  copies_arrive<1>();
  if (count > 0) {
    products_begin();
    ask(0);
    stage_block(2);
    products_wait<0>();
    made(s);
    made(ds);
    take(0);
    packed_all(weights, s, H());
    packed_all(slopes, ds, H());
    for (int step = 1; step < count; ++step) {
      copies_arrive<1>();
      products_begin();
      ask(step);
      weigh(step - 1);
      stage_block(step + 2);
      products_wait<1>();
      made(s);
      made(ds);
      never_below_zero(take(step));
      products_wait<0>();
      made(of_value);
      made(of_key);
      packed_all(weights, s, H());
      packed_all(slopes, ds, H());
    }
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
