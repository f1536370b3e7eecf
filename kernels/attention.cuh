// Attention. A generated structure P says where the operands lie and what becomes of the scores:
//
//   struct P {
//     typedef ... S;                          elements in memory
//     typedef ... T;                          what is computed with: float or double
//     static const i64 BATCH, HEADS, GROUP, ROWS, KEYS, SIZE, VALUES;
//     static const i64 PARTS;                 blocks that share the keys of a row
//     static const bool CAUSAL; i64 offset() const;         row r meets keys 0..=r + offset()
//     static const bool ZEROS;                rows whose weights are not numbers give zeros
//     const S *query(i64 b, i64 h, i64 r) const, *key(i64 b, i64 h, i64 k) const, *value(...) const;
//     S* result(i64 b, i64 h, i64 r) const;
//     T score(i64 b, i64 h, i64 r, i64 k, T dot) const;     scaled and masked
//   };
//
// Neither form holds the matrix of scores: a row meets the keys block by block, with the largest score and
// the sum of its weights so far.

// The keys that rows up to this one meet.
template <class P> DEVICE i64 keys_seen(const P& p, i64 row) {
  const i64 all = P::KEYS, seen = row + p.offset() + 1;
  return P::CAUSAL ? (seen < 0 ? 0 : seen < all ? seen : all) : all;
}

template <class P> DEVICE typename P::T row_scale(typename P::T sum, bool& broken) {
  typedef typename P::T T;
  broken = !(sum > (T)0);
  return (T)1 / sum;
}

// A warp's line among `lines` of each head: a row of queries, or a key.
struct WarpLine {
  i64 number, line, h, b;
  bool inside;
  DEVICE WarpLine(i64 batch, i64 heads, i64 lines) {
    number = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    inside = number < batch * heads * lines;
    line = number % lines;
    h = number / lines % heads;
    b = number / lines / heads;
  }
};

// A warp takes a row, its lanes the keys of a block of 32, and then the elements of the result.
template <class P> DEVICE void attention_rows(const P& p) {
  typedef typename P::T T;
  const int EACH = (int)((P::VALUES + 31) / 32);
  const WarpLine at(P::BATCH, P::HEADS, P::ROWS);
  if (!at.inside) return;
  const int lane = threadIdx.x & 31;
  const i64 row = at.line, h = at.h, b = at.b;
  const typename P::S* q = p.query(b, h, row);
  T out[EACH], most = limits<T>::low(), sum = (T)0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) out[i] = (T)0;
  const i64 end = keys_seen(p, row);
  for (i64 k0 = 0; k0 < end; k0 += 32) {
    const int keys = end - k0 < 32 ? (int)(end - k0) : 32;
    T score = limits<T>::low();
    if (lane < keys) {
      const typename P::S* k = p.key(b, h, k0 + lane);
      T dot = (T)0;
#pragma unroll 8
      for (i64 i = 0; i < P::SIZE; ++i) dot = f_add(dot, f_mul(get(q[i]), get(k[i])));
      score = p.score(b, h, row, k0 + lane, dot);
    }
    const T next = f_max(most, warp_fold<fold_max>(score));
    if (next == limits<T>::low()) continue;
    const T weight = lane < keys ? f_exp(f_sub(score, next)) : (T)0, scale = f_exp(f_sub(most, next));
    sum = f_add(f_mul(sum, scale), warp_fold<fold_sum>(weight));
    most = next;
#pragma unroll
    for (int i = 0; i < EACH; ++i) out[i] = f_mul(out[i], scale);
    for (int j = 0; j < keys; ++j) {
      const T w = __shfl_sync(FULL_WARP, weight, j);
      const typename P::S* v = p.value(b, h, k0 + j);
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (lane + 32 * i < P::VALUES) out[i] = f_add(out[i], f_mul(w, get(v[lane + 32 * i])));
    }
  }
  bool broken;
  const T scale = row_scale<P>(sum, broken);
  typename P::S* to = p.result(b, h, row);
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (lane + 32 * i < P::VALUES)
      put(to[lane + 32 * i], broken ? (P::ZEROS ? (T)0 : (T)not_a_number_f()) : f_mul(out[i], scale));
}

// The same where rows lie at multiples of EACH elements, 16 bytes: some lanes share a key, each EACH elements of it, and
// groups of lanes take keys in turn. WARPS warps share a row, or one has it to itself and four rows are a block. What is
// loaded for the next keys does not wait for those before. In the end groups and warps put together what they have.
template <class T> struct RowState {
  T most, sum;
  // What sums of parts are multiplied with when one has the larger score; nothing came of a part without keys.
  DEVICE static T factor(T most, T next) { return most == limits<T>::low() ? (T)0 : f_exp(f_sub(most, next)); }
};

template <class P> struct power_of {
  DEVICE static typename P::T of(typename P::T x) {
    return sizeof(typename P::S) == 2 ? (typename P::T)near_exp((float)x) : f_exp(x);
  }
};

template <i64 SIZE, int EACH> struct Lanes {
  static const int USED = (int)(SIZE / EACH);
  static const int GROUP = USED <= 1 ? 1 : USED <= 2 ? 2 : USED <= 4 ? 4 : USED <= 8 ? 8 : USED <= 16 ? 16 : 32;
};

// What becomes of what a row's keys give: the row of the result, or, where P::PARTS blocks share the row's keys, numbers
// of this part that another kernel puts together: largest score, sum of exponentials, sums of values.
template <class P, bool IS_PART> struct RowEnd {
  typedef typename P::T T;
  i64 line, row, h, b;
  DEVICE void numbers(const P&, T, T) const {}
  DEVICE void element(const P& p, int i, T value, T sum) const {
    bool broken;
    const T scale = row_scale<P>(sum, broken);
    put(p.result(b, h, row)[i], broken ? (P::ZEROS ? (T)0 : (T)not_a_number_f()) : f_mul(value, scale));
  }
};
template <class P> struct RowEnd<P, true> {
  typedef typename P::T T;
  i64 line, row, h, b;
  DEVICE void numbers(const P& p, T most, T sum) const {
    p.mosts[line] = most;
    p.sums[line] = sum;
  }
  DEVICE void element(const P& p, int i, T value, T) const { p.outs[line * P::VALUES + i] = value; }
};

template <class P, int WARPS, int EACH> DEVICE void attention_shared_rows(const P& p) {
  typedef typename P::T T;
  typedef typename P::S S;
  typedef vec<EACH, S> Part;
  const int QUERY = Lanes<P::SIZE, EACH>::USED, VALUE = Lanes<P::VALUES, EACH>::USED, AHEAD = 4;
  const int GROUP = Lanes<P::SIZE, EACH>::GROUP > Lanes<P::VALUES, EACH>::GROUP ? Lanes<P::SIZE, EACH>::GROUP
                                                                               : Lanes<P::VALUES, EACH>::GROUP;
  const int GROUPS = 32 / GROUP, STEP = WARPS * GROUPS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, place = lane % GROUP, group = lane / GROUP;
  const i64 line = WARPS == 1 ? (i64)blockIdx.x * 4 + warp : (i64)blockIdx.x;
  if (line >= P::BATCH * P::HEADS * P::ROWS * P::PARTS) return;
  const i64 number = line / P::PARTS, part = line % P::PARTS;
  const i64 row = number % P::ROWS, h = number / P::ROWS % P::HEADS, b = number / P::ROWS / P::HEADS;
  const RowEnd<P, (P::PARTS > 1)> to = {line, row, h, b};
  T q[EACH], out[EACH], most = limits<T>::low(), sum = (T)0;
  const S* query = p.query(b, h, row) + place * EACH;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    q[i] = place < QUERY ? get(query[i]) : (T)0;
    out[i] = (T)0;
  }
  // Parts share what there is to see, in multiples of 16 keys.
  const i64 seen = keys_seen(p, row), length = P::PARTS == 1 ? seen : ((seen + P::PARTS - 1) / P::PARTS + 15) / 16 * 16;
  const i64 begin = part * length, end = begin + length < seen ? begin + length : seen;
  for (i64 base = begin + (WARPS == 1 ? 0 : warp * GROUPS); base < end; base += STEP * AHEAD) {
    Part keys[AHEAD], values[AHEAD];
    T score[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const i64 key = base + u * STEP + group;
      const bool inside = key < end;
      if (inside && place < QUERY) keys[u] = *(const Part*)(p.key(b, h, key) + place * EACH);
      if (inside && place < VALUE) values[u] = *(const Part*)(p.value(b, h, key) + place * EACH);
    }
    T next = most;
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const i64 key = base + u * STEP + group;
      const bool inside = key < end;
      T dot = (T)0;
      if (inside && place < QUERY) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) dot = f_add(dot, f_mul(q[i], get(keys[u].v[i])));
      }
#pragma unroll
      for (int lanes = GROUP / 2; lanes; lanes >>= 1) dot = f_add(dot, swapped(dot, lanes));
      score[u] = inside ? p.score(b, h, row, key, dot) : limits<T>::low();
      next = f_max(next, score[u]);
    }
    const bool nothing = next == limits<T>::low();
    const T off = nothing ? (T)0 : next, scale = power_of<P>::of(f_sub(most, off));
    sum = f_mul(sum, scale);
#pragma unroll
    for (int i = 0; i < EACH; ++i) out[i] = f_mul(out[i], scale);
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const bool inside = base + u * STEP + group < end;
      const T weight = power_of<P>::of(f_sub(score[u], off));
      sum = f_add(sum, weight);
      if (inside && place < VALUE) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) out[i] = f_add(out[i], f_mul(weight, get(values[u].v[i])));
      }
    }
    most = next;
  }
  // Groups of a warp.
#pragma unroll
  for (int lanes = GROUP; lanes < 32; lanes <<= 1) {
    const T other = swapped(most, lanes), next = f_max(most, other);
    const T own = RowState<T>::factor(most, next), its = RowState<T>::factor(other, next);
    sum = f_add(f_mul(sum, own), f_mul(swapped(sum, lanes), its));
#pragma unroll
    for (int i = 0; i < EACH; ++i) out[i] = f_add(f_mul(out[i], own), f_mul(swapped(out[i], lanes), its));
    most = next;
  }
  if (WARPS == 1) {
    if (group == 0 && place < VALUE) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) to.element(p, place * EACH + i, out[i], sum);
    }
    return;
  }
  // Warps of a block.
  SHARED(T, mosts, WARPS);
  SHARED(T, sums, WARPS);
  SHARED(T, outs, WARPS * GROUP * EACH);
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) outs[(warp * EACH + i) * GROUP + place] = out[i];
    if (place == 0) {
      mosts[warp] = most;
      sums[warp] = sum;
    }
  }
  __syncthreads();
  T largest = limits<T>::low(), all = (T)0;
  for (int w = 0; w < WARPS; ++w) largest = f_max(largest, mosts[w]);
  for (int w = 0; w < WARPS; ++w) all = f_add(all, f_mul(sums[w], RowState<T>::factor(mosts[w], largest)));
  if (threadIdx.x == 0) to.numbers(p, largest, all);
  for (int i = threadIdx.x; i < GROUP * EACH; i += WARPS * 32) {
    T value = (T)0;
    for (int w = 0; w < WARPS; ++w)
      value = f_add(value, f_mul(outs[w * EACH * GROUP + i], RowState<T>::factor(mosts[w], largest)));
    const int element = i % GROUP * EACH + i / GROUP;
    if (element < P::VALUES) to.element(p, element, value, all);
  }
}

// The same in tiles for many rows: 16 RIGHT threads take 16 DOWN rows of queries, and meet RIGHT ACROSS keys at a time. A thread
// has DOWN rows and ACROSS keys of the scores, and of the sums of values its rows and four of each 4 RIGHT elements. Queries and keys
// are in shared memory element by element, so that a thread reads those of neighbouring rows, and its own keys, at once;
// weights key by key. RIGHT lanes make the weights of their rows and are all that read them. WIDE: four elements of a row are
// loaded and stored at once.
template <int N, class T> DEVICE void read_some(T (&to)[N], const T* from) {
  const int EACH = N % 4 == 0 ? 4 : 2;
#pragma unroll
  for (int i = 0; i < N; i += EACH) {
    const vec<EACH, T> some = *(const vec<EACH, T>*)(from + i);
#pragma unroll
    for (int j = 0; j < EACH; ++j) to[i + j] = some.v[j];
  }
}

// An element of a row that may be outside, where it is 0.
template <class S> DEVICE void read_element(float (&to)[1], const S* row, int at, bool inside) {
  to[0] = inside ? get(row[at]) : 0.0f;
}
template <class S> DEVICE void read_element(float (&to)[4], const S* row, int at, bool inside) {
  vec<4, S> some;
  if (inside) some = *(const vec<4, S>*)(row + at);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = inside ? get(some.v[i]) : 0.0f;
}

// The largest, and the sum, of what LANES neighbouring lanes have.
template <class F, int LANES, class T> DEVICE T lanes_fold(T x) {
#pragma unroll
  for (int lanes = LANES / 2; lanes; lanes >>= 1) {
    const T y = swapped(x, lanes);
    x = threadIdx.x & lanes ? F::join(y, x) : F::join(x, y);
  }
  return x;
}

template <class P, int RIGHT, int DOWN, int ACROSS, int GROUPS, bool WIDE> struct AttentionTile {
  typedef typename P::T T;
  typedef typename P::S S;
  static const int THREADS = 16 * RIGHT, ROWS = 16 * DOWN, KEYS = RIGHT * ACROSS, WIDTH = 64 * GROUPS, EACH = WIDE ? 4 : 1;
  // Keys, and elements of values, that a thread reads at once, and how often.
  static const int BESIDE = ACROSS % 4 == 0 ? 4 : 2, PARTS = WIDTH / (4 * RIGHT);
  static const int SIZE = (int)P::SIZE, VALUES = (int)P::VALUES, ROW_PITCH = ROWS + 4, KEY_PITCH = KEYS + 4;
  const P& p;
  T *queries, *keys, *values, *weights;
  i64 b, h, first;
  int right, down;
  T out[DOWN][4 * PARTS], most[DOWN], sum[DOWN];

  DEVICE AttentionTile(const P& p, unsigned char* memory) : p(p) {
    const i64 tiles = (P::ROWS + ROWS - 1) / ROWS, head = (i64)blockIdx.x / tiles;
    queries = (T*)memory;
    keys = queries + SIZE * ROW_PITCH;
    values = keys + SIZE * KEY_PITCH;
    weights = values + KEYS * WIDTH;
    b = head / P::HEADS;
    h = head % P::HEADS;
    first = (i64)blockIdx.x % tiles * ROWS;
    right = threadIdx.x % RIGHT;
    down = threadIdx.x / RIGHT;
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
      most[i] = limits<T>::low();
      sum[i] = (T)0;
#pragma unroll
      for (int j = 0; j < 4 * PARTS; ++j) out[i][j] = (T)0;
    }
  }

  DEVICE void load_queries() const {
    for (int i = threadIdx.x; i < ROWS * SIZE / EACH; i += THREADS) {
      const int row = i % ROWS, at = i / ROWS * EACH;
      const bool inside = first + row < P::ROWS;
      T some[EACH];
      read_element(some, p.query(b, h, inside ? first + row : 0), at, inside);
#pragma unroll
      for (int j = 0; j < EACH; ++j) queries[(at + j) * ROW_PITCH + row] = some[j];
    }
  }

  // A thread's keys are RIGHT apart, and beside one another in shared memory.
  DEVICE static int place(int key) { return key / RIGHT / BESIDE * BESIDE * RIGHT + key % RIGHT * BESIDE + key / RIGHT % BESIDE; }

  DEVICE void load_keys(i64 from) const {
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * SIZE / EACH; i += THREADS) {
      const int key = i % KEYS, at = i / KEYS * EACH;
      const bool inside = from + key < P::KEYS;
      T some[EACH];
      read_element(some, p.key(b, h, inside ? from + key : 0), at, inside);
#pragma unroll
      for (int j = 0; j < EACH; ++j) keys[(at + j) * KEY_PITCH + place(key)] = some[j];
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < KEYS * WIDTH / EACH; i += THREADS) {
      const int key = i / (WIDTH / EACH), at = i % (WIDTH / EACH) * EACH;
      const bool inside = from + key < P::KEYS && at < VALUES;
      T some[EACH];
      read_element(some, p.value(b, h, from + key < P::KEYS ? from + key : 0), at, inside);
#pragma unroll
      for (int j = 0; j < EACH; ++j) values[key * WIDTH + at + j] = some[j];
    }
  }

  DEVICE void multiply(T (&dots)[DOWN][ACROSS]) const {
#pragma unroll
    for (int i = 0; i < DOWN * ACROSS; ++i) dots[i / ACROSS][i % ACROSS] = (T)0;
#pragma unroll 4
    for (int at = 0; at < SIZE; ++at) {
      T x[DOWN], y[ACROSS];
      read_some(x, queries + at * ROW_PITCH + down * DOWN);
#pragma unroll
      for (int part = 0; part < ACROSS; part += BESIDE)
        read_some((T(&)[BESIDE])y[part], keys + at * KEY_PITCH + part * RIGHT + right * BESIDE);
#pragma unroll
      for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) dots[i][j] = f_add(dots[i][j], f_mul(x[i], y[j]));
    }
  }

  // Scores become weights, of which sums and largest scores are kept.
  DEVICE void weigh(T (&dots)[DOWN][ACROSS], i64 from) {
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
      const i64 row = first + down * DOWN + i, end = row < P::ROWS ? keys_seen(p, row) : 0;
      T next = most[i], part = (T)0;
#pragma unroll
      for (int j = 0; j < ACROSS; ++j) {
        const i64 key = from + j * RIGHT + right;
        dots[i][j] = key < end ? p.score(b, h, row, key, dots[i][j]) : limits<T>::low();
        next = f_max(next, dots[i][j]);
      }
      next = lanes_fold<fold_max, RIGHT>(next);
      const T off = next == limits<T>::low() ? (T)0 : next, scale = f_exp(f_sub(most[i], off));
#pragma unroll
      for (int j = 0; j < ACROSS; ++j) {
        dots[i][j] = f_exp(f_sub(dots[i][j], off));
        part = f_add(part, dots[i][j]);
      }
      sum[i] = f_add(f_mul(sum[i], scale), lanes_fold<fold_sum, RIGHT>(part));
      most[i] = next;
#pragma unroll
      for (int j = 0; j < 4 * PARTS; ++j) out[i][j] = f_mul(out[i][j], scale);
    }
#pragma unroll
    for (int j = 0; j < ACROSS; ++j)
#pragma unroll
      for (int i = 0; i < DOWN; i += 4) {
        vec<4, T> some;
#pragma unroll
        for (int k = 0; k < 4; ++k) some.v[k] = dots[i + k][j];
        *(vec<4, T>*)(weights + (j * RIGHT + right) * ROW_PITCH + down * DOWN + i) = some;
      }
  }

  DEVICE void add_values() {
#pragma unroll 4
    for (int key = 0; key < KEYS; ++key) {
      T x[DOWN];
      read_some(x, weights + key * ROW_PITCH + down * DOWN);
#pragma unroll
      for (int g = 0; g < PARTS; ++g) {
        T y[4];
        read_some(y, values + key * WIDTH + g * 4 * RIGHT + right * 4);
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) out[i][g * 4 + j] = f_add(out[i][g * 4 + j], f_mul(x[i], y[j]));
      }
    }
  }

  DEVICE void store() const {
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
      const i64 row = first + down * DOWN + i;
      if (row >= P::ROWS) break;
      bool broken;
      const T scale = row_scale<P>(sum[i], broken);
      S* to = p.result(b, h, row);
#pragma unroll
      for (int g = 0; g < PARTS; ++g) {
        vec<4, S> some;
        const int at = g * 4 * RIGHT + right * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          put(some.v[j], broken ? (P::ZEROS ? (T)0 : (T)not_a_number_f()) : f_mul(out[i][g * 4 + j], scale));
        if (WIDE) {
          if (at < VALUES) *(vec<4, S>*)(to + at) = some;
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (at + j < VALUES) to[at + j] = some.v[j];
        }
      }
    }
  }
};

template <class P, int RIGHT, int DOWN, int ACROSS, int GROUPS, bool WIDE> DEVICE void attention_tiles(const P& p) {
  typedef AttentionTile<P, RIGHT, DOWN, ACROSS, GROUPS, WIDE> Tile;
  DYNAMIC_SHARED(memory);
  Tile tile(p, memory);
  tile.load_queries();
  const i64 behind = tile.first + Tile::ROWS, last = behind < P::ROWS ? behind - 1 : P::ROWS - 1;
  const i64 end = keys_seen(p, last);
  for (i64 from = 0; from < end; from += Tile::KEYS) {
    __syncthreads();
    tile.load_keys(from);
    __syncthreads();
    typename P::T dots[DOWN][ACROSS];
    tile.multiply(dots);
    tile.weigh(dots, from);
    __syncwarp();
    tile.add_values();
  }
  tile.store();
}

// -- gradients --------------------------------------------------------------------------------------
//
// The structure has more then:
//
//     const S *result(i64 b, i64 h, i64 r) const, *upstream(...) const;    the result, and its gradient
//     S *of_query(i64 b, i64 h, i64 r) const, *of_key(i64 b, i64 h, i64 k) const, *of_value(...) const;
//     T *logs, *d;                       for each row: see row_numbers
//     bool passes(i64 b, i64 h, i64 r, i64 k) const;    whether the score depends on query and key
//
// where of_key and of_value go by the heads of keys. No sum is of atomic additions: rows add up their own
// keys, keys their own rows (Dao, "FlashAttention-2", 2023, section 3.1, in two passes).

template <class P> DEVICE typename P::T dot_of(const typename P::S* x, const typename P::S* y, i64 size) {
  typename P::T dot = (typename P::T)0;
#pragma unroll 8
  for (i64 i = 0; i < size; ++i) dot = f_add(dot, f_mul(get(x[i]), get(y[i])));
  return dot;
}

// What a score's weight is, and dS, for a lane that has a pair of row and key.
template <class P> DEVICE void pair_ds(const P& p, i64 b, i64 h, i64 row, i64 key, typename P::T log,
                                          typename P::T d, typename P::T& weight, typename P::T& ds) {
  typedef typename P::T T;
  const T dot = dot_of<P>(p.query(b, h, row), p.key(b, h, key), P::SIZE);
  // No key is left to the row: its result is perhaps not a number.
  const bool nothing = log == (T)infinity_f();
  weight = nothing ? (T)0 : f_exp(f_sub(p.score(b, h, row, key, dot), log));
  // dS = P (dP - D), of the row's dP = dO V^T.
  const T rest = f_sub(dot_of<P>(p.upstream(b, h, row), p.value(b, h, key), P::VALUES), d);
  ds = !nothing && p.passes(b, h, row, key) ? f_mul(f_mul(weight, rest), p.scale()) : (T)0;
}

// A warp takes a row: the logarithm of the sum of its exponentials (infinite where no key is left to it),
// its result times the gradient of that, and the gradient of its query.
template <class P> DEVICE void attention_gradient_rows(const P& p) {
  typedef typename P::T T;
  const int EACH = (int)((P::SIZE + 31) / 32);
  const WarpLine at(P::BATCH, P::HEADS, P::ROWS);
  if (!at.inside) return;
  const int lane = threadIdx.x & 31;
  const i64 row = at.line, h = at.h, b = at.b;
  const i64 end = keys_seen(p, row);
  T most = limits<T>::low(), sum = (T)0, d = (T)0;
  for (i64 key = lane; key < end; key += 32) {
    const T dot = dot_of<P>(p.query(b, h, row), p.key(b, h, key), P::SIZE);
    const T score = p.score(b, h, row, key, dot), next = f_max(most, score);
    if (next == limits<T>::low()) continue;
    sum = f_add(f_mul(sum, f_exp(f_sub(most, next))), f_exp(f_sub(score, next)));
    most = next;
  }
  const T all = warp_fold<fold_max>(most);
  sum = warp_fold<fold_sum>(most == limits<T>::low() ? (T)0 : f_mul(sum, f_exp(f_sub(most, all))));
  for (i64 i = lane; i < P::VALUES; i += 32)
    d = f_add(d, f_mul(get(p.result(b, h, row)[i]), get(p.upstream(b, h, row)[i])));
  d = warp_fold<fold_sum>(d);
  const bool broken = sum == (T)0 || (P::ZEROS && !(sum > (T)0));
  const T log = broken ? (T)infinity_f() : f_add(all, f_log(sum));
  if (lane == 0) {
    p.logs[at.number] = log;
    p.d[at.number] = d;
  }
  T out[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) out[i] = (T)0;
  for (i64 k0 = 0; k0 < end; k0 += 32) {
    const int keys = end - k0 < 32 ? (int)(end - k0) : 32;
    T weight = (T)0, ds = (T)0;
    if (lane < keys) pair_ds(p, b, h, row, k0 + lane, log, d, weight, ds);
    for (int j = 0; j < keys; ++j) {
      const T w = __shfl_sync(FULL_WARP, ds, j);
      const typename P::S* k = p.key(b, h, k0 + j);
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (lane + 32 * i < P::SIZE) out[i] = f_add(out[i], f_mul(w, get(k[lane + 32 * i])));
    }
  }
  typename P::S* to = p.of_query(b, h, row);
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (lane + 32 * i < P::SIZE) put(to[lane + 32 * i], out[i]);
}

// A warp takes a key, and meets the rows of all heads that share it.
template <class P> DEVICE void attention_gradient_keys(const P& p) {
  typedef typename P::T T;
  const int EACH_KEY = (int)((P::SIZE + 31) / 32), EACH_VALUE = (int)((P::VALUES + 31) / 32);
  const WarpLine at(P::BATCH, P::HEADS / P::GROUP, P::KEYS);
  if (!at.inside) return;
  const int lane = threadIdx.x & 31;
  const i64 key = at.line, g = at.h, b = at.b;
  T of_key[EACH_KEY], of_value[EACH_VALUE];
#pragma unroll
  for (int i = 0; i < EACH_KEY; ++i) of_key[i] = (T)0;
#pragma unroll
  for (int i = 0; i < EACH_VALUE; ++i) of_value[i] = (T)0;
  const i64 seen = P::CAUSAL ? key - p.offset() : 0, first = seen < 0 ? 0 : seen;
  for (i64 h = g * P::GROUP; h < (g + 1) * P::GROUP; ++h)
    for (i64 r0 = first; r0 < P::ROWS; r0 += 32) {
      const int rows = P::ROWS - r0 < 32 ? (int)(P::ROWS - r0) : 32;
      T weight = (T)0, ds = (T)0;
      if (lane < rows) {
        const i64 number = (b * P::HEADS + h) * P::ROWS + r0 + lane;
        pair_ds(p, b, h, r0 + lane, key, p.logs[number], p.d[number], weight, ds);
      }
      for (int j = 0; j < rows; ++j) {
        const T s = __shfl_sync(FULL_WARP, ds, j), w = __shfl_sync(FULL_WARP, weight, j);
        const typename P::S *q = p.query(b, h, r0 + j), *dy = p.upstream(b, h, r0 + j);
#pragma unroll
        for (int i = 0; i < EACH_KEY; ++i)
          if (lane + 32 * i < P::SIZE) of_key[i] = f_add(of_key[i], f_mul(s, get(q[lane + 32 * i])));
#pragma unroll
        for (int i = 0; i < EACH_VALUE; ++i)
          if (lane + 32 * i < P::VALUES) of_value[i] = f_add(of_value[i], f_mul(w, get(dy[lane + 32 * i])));
      }
    }
  typename P::S *k = p.of_key(b, g, key), *v = p.of_value(b, g, key);
#pragma unroll
  for (int i = 0; i < EACH_KEY; ++i)
    if (lane + 32 * i < P::SIZE) put(k[lane + 32 * i], of_key[i]);
#pragma unroll
  for (int i = 0; i < EACH_VALUE; ++i)
    if (lane + 32 * i < P::VALUES) put(v[lane + 32 * i], of_value[i]);
}

// Both in tiles, for many rows and keys of f32: 256 threads, 16 of them beside one another, take 16 DOWN lines, which are rows
// of queries or keys, and meet 64 of the others at a time. A thread has DOWN lines and four others of the scores and of what
// the values give, and of the gradients its lines and four elements. Lines are in shared memory element by element, others as well
// and row by row; weights other by other, made by the 16 lanes that read them, where the others element by element were once all
// have multiplied these. WIDE: four elements are loaded and stored at once.
template <class P, int DOWN, bool WIDE> struct GradientTile {
  typedef typename P::T T;
  typedef typename P::S S;
  // Only weights are stored by lanes whose rows differ, which must be in different banks.
  static const int LINES = 16 * DOWN, OTHERS = 64, PITCH = LINES + 4, WIDTH = 64;
  static const int EACH = WIDE ? 4 : 1, THREADS = 256;

  // Where the others of a thread are, which are 16 apart: beside one another.
  DEVICE static int place(int other) { return other % 16 * 4 + other / 16; }

  // COUNT rows element by element, zeros where there are none. `row(i)`: the elements of one, `size` of them.
  template <int COUNT, class F> DEVICE static void load_turned(T* to, i64 left, int size, bool placed, F row) {
#pragma unroll 4
    for (int i = threadIdx.x; i < COUNT * size / EACH; i += THREADS) {
      const int line = i % COUNT, at = i / COUNT * EACH;
      const bool inside = line < left;
      T some[EACH];
      read_element(some, row(inside ? line : 0), at, inside);
#pragma unroll
      for (int j = 0; j < EACH; ++j) to[(at + j) * COUNT + (placed ? place(line) : line)] = some[j];
    }
  }

  // The others row by row.
  template <class F> DEVICE static void load_rows(T* to, i64 left, int size, F row) {
#pragma unroll 4
    for (int i = threadIdx.x; i < OTHERS * WIDTH / EACH; i += THREADS) {
      const int line = i / (WIDTH / EACH), at = i % (WIDTH / EACH) * EACH;
      const bool inside = line < left && at < size;
      T some[EACH];
      read_element(some, row(line < left ? line : 0), at, inside);
#pragma unroll
      for (int j = 0; j < EACH; ++j) to[line * WIDTH + at + j] = some[j];
    }
  }

  DEVICE static void multiply(T (&dots)[DOWN][4], const T* lines, const T* others, int size) {
    const int right = threadIdx.x % 16, down = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < DOWN * 4; ++i) dots[i / 4][i % 4] = (T)0;
#pragma unroll 4
    for (int at = 0; at < size; ++at) {
      T x[DOWN], y[4];
      read_some(x, lines + at * LINES + down * DOWN);
      read_some(y, others + at * OTHERS + right * 4);
#pragma unroll
      for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) dots[i][j] = f_add(dots[i][j], f_mul(x[i], y[j]));
    }
  }

  // Weights where all that add rows up with them find them.
  DEVICE static void share(T* weights, const T (&own)[DOWN][4]) {
    const int right = threadIdx.x % 16, down = threadIdx.x / 16;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < DOWN; i += 4) {
        vec<4, T> some;
#pragma unroll
        for (int k = 0; k < 4; ++k) some.v[k] = own[i + k][j];
        *(vec<4, T>*)(weights + (j * 16 + right) * PITCH + down * DOWN + i) = some;
      }
    __syncwarp();
  }

  DEVICE static void add_rows(T (&sums)[DOWN][4], const T* weights, const T* rows) {
    const int right = threadIdx.x % 16, down = threadIdx.x / 16;
#pragma unroll 4
    for (int other = 0; other < OTHERS; ++other) {
      T x[DOWN], y[4];
      read_some(x, weights + other * PITCH + down * DOWN);
      read_some(y, rows + other * WIDTH + right * 4);
#pragma unroll
      for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = f_add(sums[i][j], f_mul(x[i], y[j]));
    }
  }

  DEVICE static void write(S* to, const T (&sums)[4], T factor, int size) {
    const int at = threadIdx.x % 16 * 4;
    vec<4, S> some;
#pragma unroll
    for (int j = 0; j < 4; ++j) put(some.v[j], f_mul(sums[j], factor));
    if (WIDE) {
      if (at < size) *(vec<4, S>*)(to + at) = some;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (at + j < size) to[at + j] = some.v[j];
    }
  }
};

template <class P, int DOWN, bool WIDE> DEVICE void attention_gradient_rows_tiles(const P& p) {
  typedef typename P::T T;
  typedef GradientTile<P, DOWN, WIDE> Tile;
  const int SIZE = (int)P::SIZE, VALUES = (int)P::VALUES, OTHERS = Tile::OTHERS;
  DYNAMIC_SHARED(memory);
  T *queries = (T*)memory, *upstreams = queries + SIZE * Tile::LINES, *rows = upstreams + VALUES * Tile::LINES;
  T *keys = rows + OTHERS * Tile::WIDTH, *values = keys + SIZE * OTHERS, *weights = keys;
  const i64 tiles = (P::ROWS + Tile::LINES - 1) / Tile::LINES, head = (i64)blockIdx.x / tiles;
  // The last rows of a causal head meet the most keys: they begin first.
  const i64 b = head / P::HEADS, h = head % P::HEADS, first = (tiles - 1 - (i64)blockIdx.x % tiles) * Tile::LINES;
  const int right = threadIdx.x % 16, down = threadIdx.x / 16;
  Tile::template load_turned<Tile::LINES>(queries, P::ROWS - first, SIZE, false,
                                                       [&](int row) { return p.query(b, h, first + row); });
  Tile::template load_turned<Tile::LINES>(upstreams, P::ROWS - first, VALUES, false,
                                                       [&](int row) { return p.upstream(b, h, first + row); });
  __syncthreads();
  T out[DOWN][4], most[DOWN], sum[DOWN], d[DOWN];
#pragma unroll
  for (int i = 0; i < DOWN; ++i) {
    const i64 row = first + down * DOWN + i;
    most[i] = limits<T>::low();
    sum[i] = d[i] = (T)0;
    for (int at = right; at < VALUES; at += 16)
      if (row < P::ROWS)
        d[i] = f_add(d[i], f_mul(get(p.result(b, h, row)[at]), upstreams[at * Tile::LINES + down * DOWN + i]));
    d[i] = lanes_fold<fold_sum, 16>(d[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[i][j] = (T)0;
  }
  const i64 behind = first + Tile::LINES, last = behind < P::ROWS ? behind - 1 : P::ROWS - 1;
  const i64 end = keys_seen(p, last);
  for (i64 from = 0; from < end; from += OTHERS) {
    __syncthreads();
    Tile::template load_turned<OTHERS>(keys, P::KEYS - from, SIZE, true,
                                                          [&](int key) { return p.key(b, h, from + key); });
    Tile::template load_turned<OTHERS>(values, P::KEYS - from, VALUES, true,
                                                          [&](int key) { return p.value(b, h, from + key); });
    Tile::load_rows(rows, P::KEYS - from, SIZE, [&](int key) { return p.key(b, h, from + key); });
    __syncthreads();
    T s[DOWN][4], above[DOWN][4];
    Tile::multiply(s, queries, keys, SIZE);
    Tile::multiply(above, upstreams, values, VALUES);
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
      const i64 row = first + down * DOWN + i, seen = row < P::ROWS ? keys_seen(p, row) : 0;
      T next = most[i], part = (T)0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const i64 key = from + j * 16 + right;
        s[i][j] = key < seen ? p.score(b, h, row, key, s[i][j]) : limits<T>::low();
        next = f_max(next, s[i][j]);
      }
      next = lanes_fold<fold_max, 16>(next);
      const bool nothing = next == limits<T>::low();
      const T off = nothing ? (T)0 : next, scale = nothing ? (T)1 : f_exp(f_sub(most[i], off));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const i64 key = from + j * 16 + right;
        const T weight = f_exp(f_sub(s[i][j], off));
        part = f_add(part, weight);
        s[i][j] = key < seen && p.passes(b, h, row, key) ? f_mul(weight, f_sub(above[i][j], d[i])) : (T)0;
      }
      sum[i] = f_add(f_mul(sum[i], scale), lanes_fold<fold_sum, 16>(part));
      most[i] = next;
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = f_mul(out[i][j], scale);
    }
    __syncthreads();
    Tile::share(weights, s);
    Tile::add_rows(out, weights, rows);
  }
#pragma unroll
  for (int i = 0; i < DOWN; ++i) {
    const i64 row = first + down * DOWN + i, number = (b * P::HEADS + h) * P::ROWS + row;
    if (row >= P::ROWS) break;
    const bool broken = sum[i] == (T)0 || (P::ZEROS && !(sum[i] > (T)0));
    if (right == 0) {
      p.logs[number] = broken ? (T)infinity_f() : f_add(most[i], f_log(sum[i]));
      p.d[number] = d[i];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) out[i][j] = broken ? (T)0 : out[i][j];
    Tile::write(p.of_query(b, h, row), out[i], broken ? (T)1 : p.scale() / sum[i], SIZE);
  }
}

template <class P, int DOWN, bool WIDE> DEVICE void attention_gradient_keys_tiles(const P& p) {
  typedef typename P::T T;
  typedef GradientTile<P, DOWN, WIDE> Tile;
  const int SIZE = (int)P::SIZE, VALUES = (int)P::VALUES, OTHERS = Tile::OTHERS;
  DYNAMIC_SHARED(memory);
  T *keys = (T*)memory, *values = keys + SIZE * Tile::LINES, *query_rows = values + VALUES * Tile::LINES;
  T *upstream_rows = query_rows + OTHERS * Tile::WIDTH, *queries = upstream_rows + OTHERS * Tile::WIDTH;
  T *upstreams = queries + SIZE * OTHERS, *weights = queries;
  const i64 tiles = (P::KEYS + Tile::LINES - 1) / Tile::LINES, head = (i64)blockIdx.x / tiles;
  const i64 heads = P::HEADS / P::GROUP, b = head / heads, g = head % heads, shared = g * P::GROUP;
  // The first keys of a causal head meet the most rows: they begin first.
  const i64 first = (i64)blockIdx.x % tiles * Tile::LINES, above_all = P::CAUSAL ? first - p.offset() : 0;
  const int right = threadIdx.x % 16, down = threadIdx.x / 16;
  Tile::template load_turned<Tile::LINES>(keys, P::KEYS - first, SIZE, false,
                                                       [&](int key) { return p.key(b, shared, first + key); });
  Tile::template load_turned<Tile::LINES>(values, P::KEYS - first, VALUES, false,
                                                       [&](int key) { return p.value(b, shared, first + key); });
  T of_key[DOWN][4], of_value[DOWN][4];
#pragma unroll
  for (int i = 0; i < DOWN * 4; ++i) of_key[i / 4][i % 4] = of_value[i / 4][i % 4] = (T)0;
  for (i64 h = shared; h < shared + P::GROUP; ++h)
    for (i64 r0 = above_all < 0 ? 0 : above_all; r0 < P::ROWS; r0 += OTHERS) {
      __syncthreads();
      Tile::template load_turned<OTHERS>(queries, P::ROWS - r0, SIZE, true,
                                                            [&](int row) { return p.query(b, h, r0 + row); });
      Tile::template load_turned<OTHERS>(upstreams, P::ROWS - r0, VALUES, true,
                                                            [&](int row) { return p.upstream(b, h, r0 + row); });
      Tile::load_rows(query_rows, P::ROWS - r0, SIZE, [&](int row) { return p.query(b, h, r0 + row); });
      Tile::load_rows(upstream_rows, P::ROWS - r0, VALUES, [&](int row) { return p.upstream(b, h, r0 + row); });
      __syncthreads();
      T s[DOWN][4], ds[DOWN][4];
      Tile::multiply(s, keys, queries, SIZE);
      Tile::multiply(ds, values, upstreams, VALUES);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const i64 row = r0 + j * 16 + right, number = (b * P::HEADS + h) * P::ROWS + row;
        const bool known = row < P::ROWS;
        const T log = known ? p.logs[number] : (T)infinity_f(), d = known ? p.d[number] : (T)0;
        const i64 seen = known && log != (T)infinity_f() ? keys_seen(p, row) : 0;
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
          const i64 key = first + down * DOWN + i;
          const bool meets = key < seen;
          s[i][j] = meets ? f_exp(f_sub(p.score(b, h, row, key, s[i][j]), log)) : (T)0;
          ds[i][j] = meets && p.passes(b, h, row, key) ? f_mul(f_mul(s[i][j], f_sub(ds[i][j], d)), p.scale()) : (T)0;
        }
      }
      __syncthreads();
      Tile::share(weights, s);
      Tile::add_rows(of_value, weights, upstream_rows);
      Tile::share(weights, ds);
      Tile::add_rows(of_key, weights, query_rows);
    }
#pragma unroll
  for (int i = 0; i < DOWN; ++i) {
    const i64 key = first + down * DOWN + i;
    if (key >= P::KEYS) break;
    Tile::write(p.of_key(b, g, key), of_key[i], (T)1, SIZE);
    Tile::write(p.of_value(b, g, key), of_value[i], (T)1, VALUES);
  }
}
