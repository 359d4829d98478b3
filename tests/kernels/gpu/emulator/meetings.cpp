/* The kernels that wait for each other, to be run under a sanitizer: every rank calls and takes its result away, three
 * times, each on a stream of its own.
 *
 *     meetings WORLD SEED 1|2|s|g WINDOWS        one shot, two shots, reduce-scatter, allgather; each of so many in turn
 *
 * Says how many elements are wrong; a sanitizer says the rest. */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "emulator.h"

#define HK_EMULATOR <dialect.h>
#define HK_DTYPE int32
#define HK_OP sum
#define HK_STORAGE u32
#define HK_NUMBER u32
#define HK_COMBINE sum_u32
#define HK_PARTS 1
#include "kernels/gpu/meetings.cuh"
#include "kernels/gpu/bytes.cuh"

namespace {

enum { ROUNDS = 4, GRID = 2, BLOCK = 32, COUNT = 701 };

/* Not a byte more: AddressSanitizer watches the end. */
template <class T> T *array(size_t count) {
    void *at;
    if (posix_memalign(&at, 64, count * sizeof(T)) != 0)
        abort();
    return static_cast<T *>(at);
}

struct Ranks {
    int world;
    int turns;
    hk_pointers windows[2]{}, scratches{};
    hk_peers peers{};
    std::vector<u32 *> words;

    Ranks(int world, int turns) : world(world), turns(turns) {
        for (int r = 0; r < world; r++) {
            for (hk_pointers &each : windows)
                each.at[r] = array<u32>(COUNT + 4 * world);
            scratches.at[r] = array<u32>((COUNT + world - 1) / world + 4);
            peers.flags[r] = array<u32>(HK_PHASES * HK_FLAG_BLOCKS * HK_RANKS);
            memset(peers.flags[r], 0, HK_PHASES * HK_FLAG_BLOCKS * HK_RANKS * sizeof(u32));
            words.push_back(array<u32>(3));
            words[r][0] = words[r][1] = words[r][2] = 0;
        }
        peers.world = world;
        peers.limit_ns = ~0ull >> 1;
    }
};

template <class... A> void submit(const char *name, int stream, A... values) {
    void *params[] = {&values...};
    if (emu_submit(name, GRID, BLOCK, params, stream) != EMU_OK)
        abort();
}

void copy(const u32 *from, void *to, u64 count, int stream) {
    auto *table = new hk_segment{from, to, count * sizeof(u32), 0};
    submit("hk_copy", stream, (const hk_segment *)table, (u64)1, (table->bytes + HK_PIECE - 1) / HK_PIECE);
}

u32 element(int round, int rank, u64 i) {
    return (u32)(i * 7 + rank * 1000003 + round * 65537);
}

/* Where the result of this rank and round will be. */
u32 *submit_round(Ranks &ranks, int round, int rank, char how) {
    const u64 most = COUNT * (how == 'g' ? ranks.world : 1);
    u32 *x = array<u32>(COUNT), *given = array<u32>(COUNT), *out = array<u32>(most), *kept = array<u32>(most);
    for (u64 i = 0; i < COUNT; i++)
        x[i] = element(round, rank, i);
    copy(x, given, COUNT, rank);
    hk_peers peers = ranks.peers;
    peers.rank = rank;
    peers.epoch = round + 1;
    peers.status = ranks.words[rank];
    peers.host = ranks.words[rank] + 1;
    const hk_pointers in = ranks.windows[round % ranks.turns];
    const void *from = given;
    void *to = out;
    const u64 count = COUNT, block = COUNT / ranks.world, bytes = COUNT * sizeof(u32);
    if (how == '1')
        submit("hk_one_shot_sum_int32", rank, peers, in, from, to, count);
    else if (how == '2')
        submit("hk_two_shot_sum_int32", rank, peers, in, ranks.scratches, from, to, count);
    else if (how == 's')
        submit("hk_reduce_scatter_sum_int32", rank, peers, in, from, to, block);
    else
        submit("hk_allgather", rank, peers, in, from, to, bytes);
    copy(out, kept, how == 's' ? block : most, rank);
    return kept;
}

int count_wrong(const u32 *got, int world, int round, int rank, char how) {
    int wrong = 0;
    const u64 count = how == 's' ? COUNT / world : COUNT, first = how == 's' ? count * rank : 0;
    for (u64 i = 0; i < count; i++) {
        u32 sum = 0;
        for (int r = 0; r < world; r++) {
            sum += element(round, r, first + i);
            wrong += how == 'g' && got[COUNT * r + i] != element(round, r, i);
        }
        wrong += how != 'g' && got[i] != sum;
    }
    return wrong;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const char how = argv[3][0];
    Ranks ranks(atoi(argv[1]), atoi(argv[4]));
    std::vector<u32 *> results;
    for (int round = 0; round < ROUNDS; round++)
        for (int rank = 0; rank < ranks.world; rank++)
            results.push_back(submit_round(ranks, round, rank, how));
    if (emu_run(atoi(argv[2])) != EMU_OK)
        return puts("deadlock"), 3;
    int wrong = 0;
    for (int i = 0; i < (int)results.size(); i++)
        wrong += count_wrong(results[i], ranks.world, i / ranks.world, i % ranks.world, how);
    printf("%d wrong\n", wrong);
    fflush(stdout);
    _Exit(0); /* nothing was freed */
}
