// HiSparse swap-in: make the selected tokens of each request resident in its small device buffer.
//
// One thread block serves one request. What is looked up, in which order slots are taken and what
// the recency order is afterwards is stated by keel.kernels.reference.hisparse.swap_in.
//
// Compile-time parameters (-D):
//   THREADS      threads of a block, a multiple of 32, at most 1024
//   SELECTED     selected tokens a request, after blocks are resolved
//   BLOCK        positions in a selected block; 0 when the selection holds positions
//   HOT          slots under LRU replacement, at least SELECTED, at most 16384
//   K_BYTES, V_BYTES  bytes of an item, multiples of 16; V_BYTES 0 for one buffer (MLA)
//   PADDED_PAGES 1 for DSV4's layout: pages of 64 values (K_BYTES each), then 64 scales of 8 bytes,
//                then padding to a multiple of K_BYTES; host and device alike
//   RECORD       1 to write the plan of misses for `hisparse_replay`
//   SKIP_COPY    1 to leave the bytes where they are (a timing probe; the data is then wrong)
//   LENGTH, INDEX  integer types of seq_lens and req_ids

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define PIECE 16
#define VALUES_PER_PAGE 64
#define SCALE_BYTES 8
#define PAGE_BYTES \
  (((K_BYTES + SCALE_BYTES) * VALUES_PER_PAGE + K_BYTES - 1) / K_BYTES * K_BYTES)

constexpr int WARPS = THREADS / 32;
constexpr int PER_THREAD = (SELECTED + THREADS - 1) / THREADS;   // selected tokens of a thread
constexpr int SLOTS_PER_THREAD = (HOT + THREADS - 1) / THREADS;  // buffer slots of a thread

__host__ __device__ constexpr int hash_size() {
  int n = 64;
  while (n < 2 * SELECTED) n *= 2;
  return n;
}
__host__ __device__ constexpr int hash_bits() {
  int bits = 0;
  while ((1 << bits) < hash_size()) ++bits;
  return bits;
}
constexpr int HASH = hash_size();
constexpr int HASH_BITS = hash_bits();
constexpr int EMPTY = -1;
// Where a selected token stands: index of its hash entry, or one of these.
constexpr int NO_TOKEN = -1;
constexpr int NEWEST = -2;

struct Pool {
  const char* host_k;
  const char* host_v;
  char* device_k;
  char* device_v;
};

// Shared memory. The hash table is dead once the slots are known; the copy's list then lies over it.
struct Shared {
  union {
    struct {
      int keys[HASH];
      // First the smallest index in the selection that names the token; then ~slot, negative.
      int values[HASH];
    } table;
    struct {
      i64 source[SELECTED];
      int target[SELECTED];
    } plan;
  };
  int missed[SELECTED];             // token of each miss, in order
  unsigned short taken[SELECTED];   // the first evictable slots, least recently used first
  unsigned char hit[HOT];           // by slot
  u32 warp_counts[WARPS + 1];
};
static_assert(sizeof(i64) * SELECTED + sizeof(int) * SELECTED <= 2 * sizeof(int) * HASH,
              "the plan must fit over the hash table");

// Multiplicative hashing by the golden ratio spreads runs of positions evenly.
__device__ __forceinline__ int hash_of(int token) {
  return (int)(((u32)token * 2654435769u) >> (32 - HASH_BITS));
}

__device__ __forceinline__ int find(const int* keys, int token) {
  for (int at = hash_of(token);; at = (at + 1) & (HASH - 1)) {
    int key = keys[at];
    if (key == token) return at;
    if (key == EMPTY) return NO_TOKEN;
  }
}

__device__ __forceinline__ int insert(int* keys, int token) {
  for (int at = hash_of(token);; at = (at + 1) & (HASH - 1)) {
    int key = atomicCAS(&keys[at], EMPTY, token);
    if (key == EMPTY || key == token) return at;
  }
}

__device__ __forceinline__ int selected_token(const int* selection, int i) {
#if BLOCK
  int block = selection[i / BLOCK];
  return block < 0 ? -1 : block * BLOCK + i % BLOCK;
#else
  return selection[i];
#endif
}

// Sum over the threads before this one, and over all. Two counts ride in the halves of a word.
__device__ __forceinline__ u32 scan(u32 mine, u32* warp_counts, u32* all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    u32 other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_counts[warp] = sum;
  __syncthreads();
  u32 before = 0, total = 0;
  u32 count = lane < WARPS ? warp_counts[lane] : 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    u32 c = __shfl_sync(0xffffffffu, count, w);
    if (w < warp) before += c;
    total += c;
  }
  *all = total;
  return before + sum - mine;
}

struct alignas(16) Bytes16 {
  u32 x, y, z, w;
};

// Host memory is read once: no L1, and nothing else is thrown out of L2 for it.
__device__ __forceinline__ Bytes16 read_host(const char* p) {
  Bytes16 b;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
               : "l"(p));
  return b;
}

struct Span {
  const char* from;
  char* to;
  bool half;
};

__device__ __forceinline__ Span span(const char* host, char* device, int bytes, i64 source,
                                     i64 target, int piece) {
#if PADDED_PAGES
  host += source / VALUES_PER_PAGE * PAGE_BYTES;
  device += target / VALUES_PER_PAGE * PAGE_BYTES;
  source %= VALUES_PER_PAGE;
  target %= VALUES_PER_PAGE;
  if (piece == K_BYTES / PIECE) {  // the scale, half a piece
    const int scales = VALUES_PER_PAGE * K_BYTES;
    return {host + scales + source * SCALE_BYTES, device + scales + target * SCALE_BYTES, true};
  }
#endif
  return {host + source * bytes + piece * PIECE, device + target * bytes + piece * PIECE, false};
}

// Threads `first`, `first + step`, ... of a team copy `rows` items of one buffer; several reads of
// each thread are under way at once, since a read over PCIe takes more than a microsecond.
template <int BYTES, typename Row>
__device__ __forceinline__ void copy_buffer(const char* host, char* device, int rows, int first,
                                            int step, Row row_of) {
  constexpr int PIECES = BYTES / PIECE + PADDED_PAGES;
  constexpr int AHEAD = 4;
  const int pieces = rows * PIECES;
  for (int p = first; p < pieces; p += step * AHEAD) {
    Bytes16 data[AHEAD];
    char* to[AHEAD];
    bool half[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      const int piece = p + a * step;
      to[a] = nullptr;
      if (piece < pieces) {
        i64 source, target;
        row_of(piece / PIECES, &source, &target);
        const Span s = span(host, device, BYTES, source, target, piece % PIECES);
        to[a] = s.to;
        half[a] = s.half;
        if (s.half)
          *(u64*)&data[a] = *(const volatile u64*)s.from;
        else
          data[a] = read_host(s.from);
      }
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      if (to[a] == nullptr) continue;
      if (half[a])
        *(u64*)to[a] = *(u64*)&data[a];
      else
        *(Bytes16*)to[a] = data[a];
    }
  }
}

// All keys before any value: the device's translations of host addresses reach about half a
// gigabyte, so blocks that stay in one buffer at a time miss them less.
template <typename Row>
__device__ __forceinline__ void copy_items(const Pool& pool, int rows, int first, int step,
                                           Row row_of) {
  copy_buffer<K_BYTES>(pool.host_k, pool.device_k, rows, first, step, row_of);
#if V_BYTES
  copy_buffer<V_BYTES>(pool.host_v, pool.device_v, rows, first, step, row_of);
#endif
}

extern "C" __global__ __launch_bounds__(THREADS) void hisparse_swap_in(
    const int* __restrict__ selection, i64 selection_stride,
    int* __restrict__ tokens, i64 tokens_stride,
    short* __restrict__ lru, i64 lru_stride,
    const int* __restrict__ device_locs, i64 device_locs_stride,
    const i64* __restrict__ host_locs, i64 host_locs_stride,
    const INDEX* __restrict__ req_ids, const LENGTH* __restrict__ seq_lens,
    const int* __restrict__ num_real,
    int* __restrict__ out, i64 out_stride,
    const char* host_k, const char* host_v, char* device_k, char* device_v,
    i64* __restrict__ plan_source, int* __restrict__ plan_target, i64 plan_stride,
    int* __restrict__ miss_count) {
  extern __shared__ __align__(16) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int row = blockIdx.x, tid = threadIdx.x;
  out += row * out_stride;

  if (row >= *num_real) {
    for (int i = tid; i < SELECTED; i += THREADS) out[i] = -1;
    if (miss_count && tid == 0) miss_count[row] = 0;
    return;
  }
  const i64 rid = req_ids[row];
  const i64 length = seq_lens[row];
  selection += row * selection_stride;
  tokens += rid * tokens_stride;
  lru += rid * lru_stride;
  device_locs += rid * device_locs_stride;
  host_locs += rid * host_locs_stride;

  if (length <= HOT) {  // Resident in order: slot i holds position i.
    for (int i = tid; i < SELECTED; i += THREADS) {
      const int token = selected_token(selection, i);
      out[i] = token >= 0 && token < length ? device_locs[token] : -1;
    }
    if (miss_count && tid == 0) miss_count[row] = 0;
    return;
  }

  // All that the decisions need is asked for at once; only then is anything waited for.
  int held[SLOTS_PER_THREAD];  // token in slot j * THREADS + tid
#pragma unroll
  for (int j = 0; j < SLOTS_PER_THREAD; ++j) {
    const int slot = j * THREADS + tid;
    held[j] = slot < HOT ? tokens[slot] : -1;
  }
  int order[SLOTS_PER_THREAD];  // slot at place tid * SLOTS_PER_THREAD + j of the recency order
#pragma unroll
  for (int j = 0; j < SLOTS_PER_THREAD; ++j) {
    const int place = tid * SLOTS_PER_THREAD + j;
    order[j] = place < HOT ? lru[place] : -1;
  }
  int wanted[PER_THREAD];  // token at index tid * PER_THREAD + j of the selection
#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    const int i = tid * PER_THREAD + j;
    wanted[j] = i < SELECTED ? selected_token(selection, i) : -1;
  }
  for (int i = tid; i < HASH; i += THREADS) {
    s.table.keys[i] = EMPTY;
    s.table.values[i] = 0x7fffffff;
  }
  for (int i = tid; i < HOT; i += THREADS) s.hit[i] = 0;
  __syncthreads();

  int entry[PER_THREAD];
#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    const int token = wanted[j];
    if (token < 0 || token >= length) {
      entry[j] = NO_TOKEN;
    } else if (token == length - 1) {
      entry[j] = NEWEST;
    } else {
      entry[j] = insert(s.table.keys, token);
      atomicMin(&s.table.values[entry[j]], tid * PER_THREAD + j);
    }
  }
  __syncthreads();

#pragma unroll
  for (int j = 0; j < SLOTS_PER_THREAD; ++j) {
    const int slot = j * THREADS + tid;
    if (held[j] < 0) continue;
    const int at = find(s.table.keys, held[j]);
    if (at >= 0) {
      s.table.values[at] = ~slot;
      s.hit[slot] = 1;
    }
  }
  __syncthreads();

  // Count, in one scan, the hits in recency order and the misses in the selection's order. A miss
  // is counted where the token first appears.
  u32 mine = 0;
  bool is_hit[SLOTS_PER_THREAD];
#pragma unroll
  for (int j = 0; j < SLOTS_PER_THREAD; ++j) {
    is_hit[j] = order[j] >= 0 && s.hit[order[j]];
    mine += is_hit[j] ? 1u << 16 : 0u;
  }
  bool is_miss[PER_THREAD];
#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    is_miss[j] = entry[j] >= 0 && s.table.values[entry[j]] == tid * PER_THREAD + j;
    mine += is_miss[j];
  }
  u32 all;
  const u32 before = scan(mine, s.warp_counts, &all);
  const int hits = all >> 16, misses = all & 0xffff;
  const int evictable = HOT - hits;

  // The new recency order, oldest first: slots neither hit nor taken, taken, hit.
  int hit_rank = before >> 16;
#pragma unroll
  for (int j = 0; j < SLOTS_PER_THREAD; ++j) {
    const int place = tid * SLOTS_PER_THREAD + j;
    if (order[j] < 0) continue;
    if (is_hit[j]) {
      lru[evictable + hit_rank] = (short)order[j];
      ++hit_rank;
    } else {
      const int rank = place - hit_rank;  // among the evictable
      if (rank < misses) s.taken[rank] = (unsigned short)order[j];
      lru[rank < misses ? evictable - misses + rank : rank - misses] = (short)order[j];
    }
  }
  __syncthreads();

  int rank = before & 0xffff;
#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    if (!is_miss[j]) continue;
    const int slot = s.taken[rank];
    s.table.values[entry[j]] = ~slot;
    s.missed[rank] = wanted[j];
    tokens[slot] = wanted[j];
    ++rank;
  }
  __syncthreads();

#pragma unroll
  for (int j = 0; j < PER_THREAD; ++j) {
    const int i = tid * PER_THREAD + j;
    if (i >= SELECTED) continue;
    const int slot = entry[j] == NEWEST ? HOT : entry[j] >= 0 ? ~s.table.values[entry[j]] : -1;
    out[i] = slot >= 0 ? device_locs[slot] : -1;
  }
  if (miss_count && tid == 0) miss_count[row] = misses;
  if (misses == 0) return;
  __syncthreads();

  for (int i = tid; i < misses; i += THREADS) {
    const i64 source = host_locs[s.missed[i]];
    const int target = device_locs[s.taken[i]];
    s.plan.source[i] = source;
    s.plan.target[i] = target;
#if RECORD
    plan_source[row * plan_stride + i] = source;
    plan_target[row * plan_stride + i] = target;
#endif
  }
#if !SKIP_COPY
  __syncthreads();
  const Pool pool = {host_k, host_v, device_k, device_v};
  copy_items(pool, misses, tid, THREADS, [&](int i, i64* source, i64* target) {
    *source = s.plan.source[i];
    *target = s.plan.target[i];
  });
#endif
}

// Carry out a recorded plan on the buffers of another layer that shares the index. The grid is any;
// all of its threads share all misses of all requests. At most REPLAY_ROWS requests.
#define REPLAY_ROWS 4096
extern "C" __global__ __launch_bounds__(THREADS) void hisparse_replay(
    const i64* __restrict__ plan_source, const int* __restrict__ plan_target, i64 plan_stride,
    const int* __restrict__ miss_count, const int* __restrict__ num_real, int rows,
    const char* host_k, const char* host_v, char* device_k, char* device_v) {
  __shared__ int ends[REPLAY_ROWS];  // misses up to and with each request
  __shared__ u32 warp_counts[WARPS + 1];
  const int tid = threadIdx.x;
  const int real = *num_real < rows ? *num_real : rows;
  int total = 0;
  for (int base = 0; base < real; base += THREADS) {
    const int row = base + tid;
    const u32 mine = row < real ? miss_count[row] : 0;
    u32 all;
    const u32 before = scan(mine, warp_counts, &all);
    if (row < real) ends[row] = total + before + mine;
    total += all;
    __syncthreads();
  }
#if !SKIP_COPY
  const Pool pool = {host_k, host_v, device_k, device_v};
  copy_items(pool, total, blockIdx.x * THREADS + tid, gridDim.x * THREADS,
             [&](int i, i64* source, i64* target) {
               int low = 0, high = real - 1;
               while (low < high) {
                 const int middle = (low + high) / 2;
                 if (ends[middle] > i) high = middle; else low = middle + 1;
               }
               const i64 at = low * plan_stride + i - (low ? ends[low - 1] : 0);
               *source = plan_source[at];
               *target = plan_target[at];
             });
#endif
}
