// Runs kernels in CUDA C on a CPU: a C++17 compiler takes the place of NVRTC, and a fiber that of each
// thread of a block. Blocks run one after the other.
//
// A fiber runs until it must wait for others: at a shuffle for the lanes of its warp, at a barrier for
// its block. Threads run in ascending or in descending order, so that a kernel whose result depends on
// the order (a barrier is missing) shows. Shared memory begins each block filled with not-a-numbers, and
// every argument stands between guards that are looked at afterwards.
//
// What a GPU punishes and a CPU forgives is looked for, and fails the kernel:
// - A read or write that is not aligned to its type: the compiler checks each (-fsanitize=alignment).
// - Two threads at one byte of shared memory, one of them writing, with no barrier between, no signal (mbarrier) that
//   one gave behind it and the other waited for, and no exchange of their warp where it is one warp: the compiler
//   announces each access (-fsanitize=thread), and a log by byte keeps who was there since the last barrier.
// - Lanes of a warp that come to different exchanges, or to one that others never come to, and products of
//   matrices by a warp that is not whole.
// - More static shared memory than 48 KB.
// - A kernel that is begun before the one before it has ended, and has a thread that never waits for that.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#define CPU_SHIM 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define SHARED(T, name, count) T* const name = (T*)shim::shared_array(__COUNTER__, sizeof(T) * (count))
#define DYNAMIC_SHARED(name) unsigned char* const name = shim::dynamic_shared()

struct Index3 { unsigned x = 0, y = 0, z = 0; };

namespace shim {

enum class State { Ready, Warp, Barrier, Signal, Done };

// A copy to shared memory that is still to be made: bytes of it, the rest up to `all` as zeros.
struct Copy { void* to; const void* from; unsigned bytes, all, batch; };

// Where lanes of a warp meet, and threads of a block.
enum class Meeting { None, Shuffle, Vote, Sync, Matrices, Product, Barrier, Signal };
inline const char* name(Meeting at) {
  static const char* const names[] = {"nothing", "a shuffle", "a vote", "__syncwarp", "ldmatrix", "mma", "a barrier", "a signal"};
  return names[(int)at];
}

struct Thread {
  Index3 index;
  unsigned number = 0;
  State state = State::Done;
  Meeting at = Meeting::None;
  unsigned round = 0;           // exchanges so far: two slots are used in turn
  uint64_t slots[2] = {0, 0};
  std::vector<Copy> copies;     // made when they are waited for, so that a wait that is missing shows
  unsigned batches = 0;
  ucontext_t start;
  jmp_buf place;
  bool started = false;
  bool waited = false;          // for the kernel before
  const void* signal = nullptr; // that it waits for
  unsigned parity = 0;          // of the phase of it
};

struct Array { int site; size_t bytes; unsigned char* memory; };

// What each warp of a block had done, by its own count, when something happened: what orders warps between barriers.
constexpr unsigned WARPS = 32;
struct Clock { unsigned of[WARPS] = {}; };

// An mbarrier: a phase ends when as many threads as it expects have come.
struct Signal {
  const void* at;
  unsigned expected, missing, phase;
  Clock coming, ended;           // what those had done who came to this phase, and to those before
};

// Who was at a byte of shared memory since the last barrier: threads' numbers from 1.
struct Visits {
  unsigned epoch = 0;
  unsigned short writer = 0, reader = 0;
  bool warps = false;            // readers of several warps
  bool lanes = false;            // several readers of one warp
  unsigned written = 0, read = 0;  // in which round of their warp, the last ones
  unsigned when = 0;             // the writer's warp wrote it, by its clock
};

constexpr size_t STATIC = 48 << 10, MOST = 227 << 10, POOL = STATIC + MOST;

struct Machine {
  std::vector<Thread> threads;
  Index3 block, block_size, grid_size;
  std::function<void()> body;
  std::vector<Array> arrays;
  size_t used = 0;               // bytes of the pool that arrays have
  size_t dynamic = 0;            // bytes behind them
  Thread* now = nullptr;
  jmp_buf scheduler, escape;
  char* stacks = nullptr;
  const char* kernel = "";
  unsigned epoch = 0;            // barriers so far, of all blocks
  std::vector<Signal> signals;
  Clock clocks[WARPS];
  bool is_guest = false;         // a fault is told, and does not end the program
  bool is_early = false;         // it may be begun before the kernel before it has ended
  std::string fault;
};

inline Machine machine;
constexpr size_t STACK = 128 << 10;
alignas(256) inline unsigned char pool[POOL];
inline Visits visits[POOL];
// Of each byte when each warp read it last, by its clock; where a block has signals.
inline Clock* reads = nullptr;

[[noreturn]] inline void fail(const char* what) {
  char text[400];
  snprintf(text, sizeof text, "kernel %s, block %u: %s", machine.kernel, machine.block.x, what);
  if (!machine.is_guest) {
    fprintf(stderr, "%s\n", text);
    exit(3);
  }
  machine.fault = text;
  for (Thread& thread : machine.threads) {
    thread.started = false;
    thread.copies.clear();
  }
  _longjmp(machine.escape, 1);
}

#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

UNSEEN inline void conflict(unsigned first, unsigned second, size_t byte) {
  char text[200];
  snprintf(text, sizeof text, "threads %u and %u meet at byte %zu of shared memory with no barrier between",
           first - 1, second - 1, byte);
  fail(text);
}

// Whether what a warp did at a time is ordered before what another does now, by a signal.
UNSEEN inline bool is_known(unsigned warp, unsigned when, unsigned own) { return machine.clocks[own].of[warp] > when; }

// Whether an access of a thread is not ordered behind one that another made in that round, at that time of its warp.
UNSEEN inline bool races(unsigned other, unsigned round, unsigned when, unsigned own, unsigned now) {
  const unsigned warp = (other - 1) / 32, own_warp = (own - 1) / 32;
  return other != own && (warp == own_warp ? round == now : !is_known(warp, when, own_warp));
}

// A write of a warp that is not ordered behind the readings of a byte by others: by which warp; none: WARPS.
UNSEEN inline unsigned racing_reader(size_t byte, unsigned own) {
  for (unsigned warp = 0; warp < WARPS; ++warp)
    if (warp != own && reads[byte].of[warp] != 0 && !is_known(warp, reads[byte].of[warp] - 1, own)) return warp;
  return WARPS;
}

UNSEEN inline void visit(const void* address, size_t bytes, bool writes) {
  const size_t first = (uintptr_t)address - (uintptr_t)pool;
  if (first >= POOL) return;
  if (machine.now == nullptr) return;
  const unsigned own = machine.now->number + 1, round = machine.now->round;
  for (size_t byte = first; byte < first + bytes && byte < POOL; ++byte) {
    Visits& seen = visits[byte];
    const bool signals = !machine.signals.empty();
    if (seen.epoch != machine.epoch) {
      seen = Visits();
      seen.epoch = machine.epoch;
      if (signals) reads[byte] = Clock();
    }
    const unsigned warp = (own - 1) / 32, when = machine.clocks[warp].of[warp];
    if (seen.writer != 0 && races(seen.writer, seen.written, seen.when, own, round)) conflict(seen.writer, own, byte);
    if (writes) {
      const bool lanes = seen.lanes && round == seen.read && (unsigned)(seen.reader - 1) / 32 == warp;
      if (signals) {
        const unsigned reader = racing_reader(byte, warp);
        if (reader < WARPS) conflict(reader * 32 + 1, own, byte);
      }
      const bool others = lanes || (seen.warps && !signals);
      const bool last = seen.reader != 0 && races(seen.reader, seen.read, when, own, round);
      const bool same_warp = (unsigned)(seen.reader - 1) / 32 == warp;
      if (seen.reader != 0 && (others || (last && (same_warp || !signals)))) conflict(seen.reader, own, byte);
      seen.writer = (unsigned short)own;
      seen.written = round;
      seen.when = when;
    } else {
      if (signals) reads[byte].of[warp] = when + 1;
      if (seen.reader != 0 && seen.reader != own) {
        if ((unsigned)(seen.reader - 1) / 32 != (own - 1) / 32) seen.warps = true;
        else seen.lanes = seen.read == round;
      } else if (seen.read != round) {
        // Other lanes read it in a round before.
        seen.lanes = false;
      }
      seen.reader = (unsigned short)own;
      seen.read = round;
    }
  }
}

inline void* shared_array(int site, size_t bytes) {
  for (Array& array : machine.arrays)
    if (array.site == site && array.bytes == bytes) return array.memory;
  const size_t from = (machine.used + 63) & ~(size_t)63;
  if (from + bytes > STATIC) fail("more than 48 KB of static shared memory");
  if (from + bytes + machine.dynamic > MOST) fail("more than 227 KB of shared memory");
  machine.used = from + bytes;
  machine.arrays.push_back({site, bytes, pool + from});
  return pool + from;
}

inline unsigned char* dynamic_shared() { return pool + STATIC; }

inline void waits_for_the_kernel_before() { machine.now->waited = true; }

// At a thread's end.
inline void waited_for(const Thread& thread) {
  if (machine.is_early && !thread.waited) fail("does not wait for the kernel before, and is begun before that has ended");
}

// Gives the processor back until the scheduler comes round again.
inline void wait(State state, Meeting at) {
  Thread* own = machine.now;
  own->state = state;
  own->at = at;
  if (_setjmp(own->place) == 0) _longjmp(machine.scheduler, 1);
}

inline Signal& signal_at(const void* at) {
  for (Signal& signal : machine.signals)
    if (signal.at == at) return signal;
  fail("a signal that has not begun");
}

inline void join(Clock& into, const Clock& from) {
  for (unsigned i = 0; i < WARPS; ++i)
    if (into.of[i] < from.of[i]) into.of[i] = from.of[i];
}

inline void signal_begin(const void* at, unsigned expected) {
  if (reads == nullptr) {
    void* memory = mmap(nullptr, POOL * sizeof(Clock), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for what warps read");
    reads = (Clock*)memory;
  }
  visit(at, 8, true);
  // Places of a block before are not those of this one.
  for (Signal& signal : machine.signals)
    if (signal.at == at) fail("a signal that begins twice");
  machine.signals.push_back({at, expected, expected, 0, Clock(), Clock()});
}

inline void signal_give(const void* at) {
  visit(at, 8, false);
  Signal& signal = signal_at(at);
  const unsigned warp = machine.now->number / 32;
  join(signal.coming, machine.clocks[warp]);
  // What comes after it is not ordered by it. Others see a warp's time when it is before theirs.
  ++machine.clocks[warp].of[warp];
  ++signal.coming.of[warp];
  if (--signal.missing == 0) {
    signal.missing = signal.expected;
    ++signal.phase;
    join(signal.ended, signal.coming);
  }
}

// Waits until a phase of that parity has ended: the one before the first counts as one that has.
inline void signal_wait(const void* at, unsigned parity) {
  visit(at, 8, false);
  Thread& own = *machine.now;
  while ((signal_at(at).phase & 1) == parity) {
    own.signal = at;
    own.parity = parity;
    wait(State::Signal, Meeting::Signal);
  }
  join(machine.clocks[own.number / 32], signal_at(at).ended);
}

// Lets go the threads whose signal has come; true where there were some.
inline bool release_signals(unsigned count) {
  bool any = false;
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = machine.threads[i];
    if (thread.state != State::Signal || (signal_at(thread.signal).phase & 1) == thread.parity) continue;
    thread.state = State::Ready;
    any = true;
  }
  return any;
}

// A fiber lives as long as the program and runs one block after the other.
inline void fiber() {
  for (;;) {
    machine.body();
    wait(State::Done, Meeting::None);
  }
}

inline void resume(Thread& thread) {
  machine.now = &thread;
  if (_setjmp(machine.scheduler) != 0) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = machine.stacks + STACK * thread.number;
  thread.start.uc_stack.ss_size = STACK;
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, fiber, 0);
  setcontext(&thread.start);
}

[[noreturn]] inline void diverged(const Thread& one, const Thread& other) {
  char text[200];
  snprintf(text, sizeof text, "thread %u comes to %s and thread %u of its warp to %s", one.number, name(one.at),
           other.number, other.state == State::Done ? "its end" : name(other.at));
  fail(text);
}

// Lets go the lanes of each warp that all wait for one another; true where there were some.
inline bool release_warps(unsigned count) {
  bool any = false;
  for (unsigned first = 0; first < count; first += 32) {
    unsigned waiting = 0, lanes = count - first < 32 ? count - first : 32;
    for (unsigned i = 0; i < lanes; ++i) waiting += machine.threads[first + i].state == State::Warp;
    if (waiting != lanes) continue;
    const Meeting at = machine.threads[first].at;
    for (unsigned i = 1; i < lanes; ++i)
      if (machine.threads[first + i].at != at) diverged(machine.threads[first], machine.threads[first + i]);
    if (lanes < 32 && (at == Meeting::Vote || at == Meeting::Matrices || at == Meeting::Product)) {
      char text[100];
      snprintf(text, sizeof text, "a warp of %u threads comes to %s", lanes, name(at));
      fail(text);
    }
    for (unsigned i = 0; i < lanes; ++i) machine.threads[first + i].state = State::Ready;
    any = true;
  }
  return any;
}

inline void run_block(unsigned count, bool reversed) {
  for (Array& array : machine.arrays) memset(array.memory, 0xff, array.bytes);
  memset(dynamic_shared(), 0xff, machine.dynamic);
  ++machine.epoch;
  machine.signals.clear();
  for (Clock& clock : machine.clocks) clock = Clock();
  for (unsigned i = 0; i < count; ++i) {
    machine.threads[i].state = State::Ready;
    machine.threads[i].batches = 0;
    machine.threads[i].waited = false;
  }
  for (;;) {
    bool ran = false;
    for (unsigned i = 0; i < count; ++i) {
      Thread& thread = machine.threads[reversed ? count - 1 - i : i];
      if (thread.state == State::Ready) {
        resume(thread);
        ran = true;
      }
    }
    if (release_warps(count) || release_signals(count) || ran) continue;
    unsigned at_barrier = 0, done = 0;
    for (unsigned i = 0; i < count; ++i) {
      at_barrier += machine.threads[i].state == State::Barrier;
      done += machine.threads[i].state == State::Done;
    }
    if (done == count) {
      for (unsigned i = 0; i < count; ++i) {
        waited_for(machine.threads[i]);
        if (!machine.threads[i].copies.empty()) fail("copies that nobody waits for");
      }
      return;
    }
    if (at_barrier != count) {
      for (unsigned i = 0; i < count; ++i) {
        const Thread& one = machine.threads[i];
        if (one.state != State::Warp) continue;
        for (unsigned k = i & ~31u; k < count && k < (i | 31u) + 1; ++k)
          if (machine.threads[k].state != State::Warp) diverged(one, machine.threads[k]);
      }
      fail("not all threads come to a barrier, a shuffle or a signal");
    }
    ++machine.epoch;
    for (unsigned i = 0; i < count; ++i) machine.threads[i].state = State::Ready;
  }
}

// `alone`: no thread waits for another one, and none needs a fiber.
inline void launch(const char* kernel, unsigned grid, Index3 block, unsigned shared, bool reversed, bool alone,
                   std::function<void()> body) {
  const unsigned count = block.x * block.y;
  if (machine.stacks == nullptr) {
    void* stacks = mmap(nullptr, STACK * 1024, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    machine.stacks = (char*)stacks;
    machine.threads.resize(1024);
  }
  machine.kernel = kernel;
  machine.fault.clear();
  if (machine.is_guest && _setjmp(machine.escape) != 0) return;
  if (count > 1024) fail("more than 1024 threads");
  machine.block_size = {block.x, block.y, 1};
  machine.grid_size = {grid, 1, 1};
  machine.body = std::move(body);
  machine.arrays.clear();
  machine.used = 0;
  machine.dynamic = shared;
  machine.now = nullptr;
  memset(pool, 0xff, STATIC);
  if (shared > MOST) fail("more than 227 KB of shared memory");
  for (unsigned i = 0; i < count; ++i) {
    machine.threads[i].number = i;
    machine.threads[i].index = {i % block.x, i / block.x, 0};
  }
  for (unsigned i = 0; i < grid; ++i) {
    machine.block = {reversed ? grid - 1 - i : i, 0, 0};
    if (!alone) {
      run_block(count, reversed);
      continue;
    }
    for (unsigned t = 0; t < count; ++t) {
      machine.now = &machine.threads[reversed ? count - 1 - t : t];
      machine.now->waited = false;
      machine.body();
      waited_for(*machine.now);
    }
  }
}

template <class T> T exchanged(T value, unsigned from, Meeting at) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
  Thread* own = machine.now;
  const unsigned slot = own->round++ & 1, first = own->number & ~31u;
  memcpy(&own->slots[slot], &value, sizeof(T));
  wait(State::Warp, at);
  if (first + from >= machine.block_size.x * machine.block_size.y) fail("a shuffle reads a lane that is not there");
  T result;
  memcpy(&result, &machine.threads[first + from].slots[slot], sizeof(T));
  return result;
}

// The values of all lanes of a whole warp.
template <class T> void exchanged_by_all(T value, T (&all)[32], Meeting at) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
  Thread* own = machine.now;
  const unsigned slot = own->round++ & 1, first = own->number & ~31u;
  memcpy(&own->slots[slot], &value, sizeof(T));
  wait(State::Warp, at);
  for (unsigned i = 0; i < 32; ++i) memcpy(&all[i], &machine.threads[first + i].slots[slot], sizeof(T));
}

inline void copy_later(void* to, const void* from, unsigned bytes, unsigned all) {
  if ((uintptr_t)to % all != 0 || (uintptr_t)from % all != 0) fail("a copy is not aligned");
  machine.now->copies.push_back({to, from, bytes, all, machine.now->batches});
}
inline void copies_end() { ++machine.now->batches; }
inline void make(const Copy& copy) {
  visit(copy.to, copy.all, true);
  memcpy(copy.to, copy.from, copy.bytes);
  memset((char*)copy.to + copy.bytes, 0, copy.all - copy.bytes);
}
inline void copies_wait(unsigned left) {
  std::vector<Copy> rest;
  for (const Copy& copy : machine.now->copies) {
    if (copy.batch + left >= machine.now->batches) rest.push_back(copy);
    else make(copy);
  }
  machine.now->copies = std::move(rest);
}

// A thread's copies so far are made when the signal comes: also those that no batch has yet.
inline void signal_give_after_copies(const void* at) {
  for (const Copy& copy : machine.now->copies) make(copy);
  machine.now->copies.clear();
  signal_give(at);
}

}  // namespace shim

#define threadIdx (shim::machine.now->index)
#define blockIdx (shim::machine.block)
#define blockDim (shim::machine.block_size)
#define gridDim (shim::machine.grid_size)

inline void __syncthreads() { shim::wait(shim::State::Barrier, shim::Meeting::Barrier); }
inline void __syncwarp(unsigned mask = ~0u) {
  if (mask != ~0u) shim::fail("__syncwarp for a part of a warp");
  shim::exchanged(0, 0, shim::Meeting::Sync);
}
template <class T> T __shfl_sync(unsigned, T value, int lane, int = 32) { return shim::exchanged(value, lane & 31, shim::Meeting::Shuffle); }
inline unsigned __ballot_sync(unsigned, bool holds) {
  bool lanes[32];
  shim::exchanged_by_all(holds, lanes, shim::Meeting::Vote);
  unsigned all = 0;
  for (unsigned i = 0; i < 32; ++i) all |= (unsigned)lanes[i] << i;
  return all;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> T __shfl_xor_sync(unsigned, T value, int lanes, int = 32) {
  return shim::exchanged(value, (shim::machine.now->number & 31) ^ lanes, shim::Meeting::Shuffle);
}

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

// -- what the compiler's checks call --------------------------------------------------------------------

extern "C" {
UNSEEN inline __attribute__((used)) void __ubsan_handle_type_mismatch_v1_abort(void*, void* address) {
  char text[100];
  snprintf(text, sizeof text, "a misaligned access, at %p", address);
  shim::fail(text);
}
#define ANNOUNCED(size)                                                                                          \
  UNSEEN inline __attribute__((used)) void __tsan_read##size(void* at) { shim::visit(at, size, false); }           \
  UNSEEN inline __attribute__((used)) void __tsan_write##size(void* at) { shim::visit(at, size, true); }           \
  UNSEEN inline __attribute__((used)) void __tsan_unaligned_read##size(void* at) { shim::visit(at, size, false); } \
  UNSEEN inline __attribute__((used)) void __tsan_unaligned_write##size(void* at) { shim::visit(at, size, true); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
UNSEEN inline __attribute__((used)) void __tsan_read_range(void* at, size_t bytes) { shim::visit(at, bytes, false); }
UNSEEN inline __attribute__((used)) void __tsan_write_range(void* at, size_t bytes) { shim::visit(at, bytes, true); }
UNSEEN inline __attribute__((used)) void __tsan_vptr_update(void*, void*) {}
UNSEEN inline __attribute__((used)) void __tsan_vptr_read(void*) {}
UNSEEN inline __attribute__((used)) void __tsan_func_entry(void*) {}
UNSEEN inline __attribute__((used)) void __tsan_func_exit() {}
UNSEEN inline __attribute__((used)) void __tsan_init() {}
}

// -- the program around kernels: reads launches from a file, writes what their arguments became --------

namespace shim {

struct Entry { const char* name; void (*call)(void** args); };

constexpr size_t GUARD = 256;

inline void read_all(FILE* file, void* to, size_t bytes) {
  if (bytes != 0 && fread(to, 1, bytes, file) != bytes) fail("the request ends early");
}

inline int serve(const Entry* entries, const char* request, const char* response) {
  FILE *in = fopen(request, "rb"), *out = fopen(response, "wb");
  if (in == nullptr || out == nullptr) fail("a file cannot be opened");
  uint32_t launches;
  read_all(in, &launches, 4);
  for (uint32_t i = 0; i < launches; ++i) {
    uint32_t head[7];
    read_all(in, head, sizeof head);
    const uint32_t count = head[6];
    std::vector<std::vector<unsigned char>> memory(count);
    std::vector<uint64_t> sizes(count);
    std::vector<void*> args(count);
    for (uint32_t a = 0; a < count; ++a) {
      read_all(in, &sizes[a], 8);
      memory[a].assign(sizes[a] + 3 * GUARD, 0xa5);
      args[a] = (void*)(((uintptr_t)memory[a].data() + 2 * GUARD - 1) & ~(uintptr_t)(GUARD - 1));
      read_all(in, args[a], sizes[a]);
    }
    const Entry& entry = entries[head[0]];
    Index3 block{head[2], head[3], 1};
    launch(entry.name, head[1], block, head[4], head[5] & 1, head[5] & 2, [&] { entry.call(args.data()); });
    for (uint32_t a = 0; a < count; ++a) {
      auto* begin = (unsigned char*)args[a];
      for (size_t k = 0; k < GUARD / 2; ++k)
        if (begin[sizes[a] + k] != 0xa5 || *(begin - 1 - k) != 0xa5) fail("writes outside an argument");
      fwrite(begin, 1, sizes[a], out);
    }
  }
  fclose(in);
  return fclose(out) == 0 ? 0 : 1;
}

template <class... A, size_t... I> void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel((A)args[I]...);
}
template <class... A> void call(void (*kernel)(A...), void** args) {
  call(kernel, args, std::index_sequence_for<A...>{});
}

}  // namespace shim
