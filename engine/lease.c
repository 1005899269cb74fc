/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: room on both tiers, set aside ahead of a writer (DESIGN.md 4.3).
 * A passthrough write never comes to the daemon, so the leaser looks at the
 * sizes of files being written, every millisecond while one grows, and keeps
 * a lease of what it has plus as much again ahead of it. The charge of the
 * backing file is what it holds or is promised; the NVMe file that the flush
 * will fill is preallocated with it. At the final seal both are cut to the
 * content; before, while somebody can write the file, nothing is cut off it.
 *
 * The leaser charges; a thread of its own, the allocator, has the pages and
 * the blocks allocated: a fallocate waits for the write call that goes on in
 * its file, up to 2 GiB of it, and all other writers live on the headroom
 * meanwhile. For the same reason the leaser waits for no inode's lock, and
 * what is written without being charged it finds by looking at the tmpfs.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "engine/core.h"
#include "metadata/log_message.h"

#define MIB (UINT64_C(1) << 20)
#define LOOK_NS INT64_C(1000000)
#define LOOK_IDLE_NS INT64_C(20000000)
#define AHEAD_MIN (32 * MIB)
#define AHEAD_MAX (2048 * MIB)
#define AHEAD_PROMISED (128 * MIB)
#define N_LOOKED 256

static uint64_t round_up(uint64_t v, uint64_t to)
{
	return (v + to - 1) / to * to;
}

/* Charges DRAM for `upto` bytes of the file: a number, and as much less
 * ballast. */
static int charge_dram(struct engine *e, struct inode *in, uint64_t upto)
	MUST_HOLD(in->lock);
static int charge_dram(struct engine *e, struct inode *in, uint64_t upto)
{
	struct backing *b = in->backing;
	int r;

	if (upto <= b->charged)
		return 0;
	backing_take_promised(e, b, upto);
	r = upto > b->charged ? dram_take(e, upto - b->charged) : 0;
	if (r == 0)
		backing_set_charge(e, b, upto);
	return r;
}

/* Allocates what was charged, up to `upto`. */
static int allocate_dram(struct engine *e, struct inode *in, uint64_t upto)
	MUST_HOLD(in->lock);
static int allocate_dram(struct engine *e, struct inode *in, uint64_t upto)
{
	struct backing *b = in->backing;
	int fd, r;

	if (upto <= b->allocated)
		return 0;
	r = e->dram->ops->open(e->dram, b->id, O_RDWR, &fd);
	if (r < 0)
		return r;
	r = e->dram->ops->preallocate(e->dram, fd, b->allocated,
				      upto - b->allocated);
	close(fd);
	if (r == 0)
		b->allocated = upto;
	return r;
}

/* Sets aside the NVMe file that the flush will fill. */
static int extend_nvme(struct engine *e, struct inode *in, uint64_t upto)
	MUST_HOLD(in->lock);
static int extend_nvme(struct engine *e, struct inode *in, uint64_t upto)
{
	struct tier *t = e->nvme;
	bool spilled = in->backing->where == BACKING_NVME;
	uint64_t id = spilled ? in->backing->id : in->next_version;
	int fd, r;

	if (upto <= in->nvme_room || upto <= META_SMALL_MAX)
		return 0;
	/* Asked first: a fallocate that fails has filled the disk by then. */
	r = nvme_has_room(e, upto - in->nvme_room);
	if (r < 0)
		return r;
	r = t->ops->open(t, id, O_RDWR, &fd);
	if (r == -ENOENT)
		r = t->ops->create(t, id, O_RDWR, &fd);
	if (r == -EEXIST) /* the streamer was faster */
		r = t->ops->open(t, id, O_RDWR, &fd);
	if (r < 0)
		return r;
	r = t->ops->preallocate(t, fd, in->nvme_room, upto - in->nvme_room);
	close(fd);
	if (r == 0)
		in->nvme_room = upto;
	return r;
}

int lease_nvme_locked(struct engine *e, struct inode *in, uint64_t size)
{
	return in->backing ? extend_nvme(e, in, round_up(size, 4096)) : 0;
}

int lease_exact_locked(struct engine *e, struct inode *in, uint64_t size)
{
	uint64_t upto = round_up(size, 4096);
	int r;

	if (!in->backing)
		return 0;
	r = extend_nvme(e, in, upto);
	if (r == 0 && in->backing->where == BACKING_DRAM)
		r = charge_dram(e, in, upto);
	if (r == 0 && in->backing->where == BACKING_DRAM)
		r = allocate_dram(e, in, upto);
	return r;
}

void lease_drop_nvme_locked(struct engine *e, struct inode *in)
{
	if ((in->nvme_room || in->streamed) && in->backing &&
	    in->backing->where == BACKING_DRAM)
		stream_drop(e, in->next_version);
	in->nvme_room = 0;
	in->streamed = false;
}

/* Holes of the content hold no lease. */
static void punch_holes(int fd, uint64_t size)
{
	off_t at = 0;

	while ((uint64_t)at < size) {
		off_t hole = lseek(fd, at, SEEK_HOLE), data;

		if (hole < 0 || (uint64_t)hole >= size)
			return;
		data = lseek(fd, hole, SEEK_DATA);
		if (data < 0)
			data = (off_t)size;
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      hole, data - hole))
			return;
		at = data;
	}
}

static void cut_to_content(struct engine *e, struct inode *in,
			   const struct stat *st) MUST_HOLD(in->lock);
static void cut_to_content(struct engine *e, struct inode *in,
			   const struct stat *st)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, st->st_mtim };
	int fd;

	if (e->dram->ops->open(e->dram, in->backing->id, O_RDWR, &fd))
		return;
	(void)!e->dram->ops->trim(e->dram, fd, (uint64_t)st->st_size);
	if (round_up((uint64_t)st->st_size, 4096) !=
	    (uint64_t)st->st_blocks * 512)
		punch_holes(fd, (uint64_t)st->st_size);
	futimens(fd, times);
	close(fd);
}

/* The charge becomes what it holds. */
static void charge_what_is_held(struct engine *e, struct backing *b,
				const struct stat *st)
{
	uint64_t held = (uint64_t)st->st_blocks * 512;

	if (held > b->charged)
		reserve_charge(e->reserve, held - b->charged);
	else
		reserve_give(e->reserve, b->charged - held);
	backing_set_charge(e, b, held);
}

static void trim_spilled(struct engine *e, const struct backing *b)
{
	int fd;

	if (e->nvme->ops->open(e->nvme, b->id, O_RDWR, &fd))
		return;
	(void)!e->nvme->ops->trim(e->nvme, fd, 0);
	close(fd);
}

void lease_trim_locked(struct engine *e, struct inode *in)
{
	struct backing *b = in->backing;
	struct stat st;
	bool ahead;

	if (!b || fstat(in->ro_fd, &st))
		return;
	ahead = (uint64_t)st.st_blocks * 512 >
		round_up((uint64_t)st.st_size, 4096);
	if (b->where == BACKING_NVME) {
		if (ahead)
			trim_spilled(e, b);
		return;
	}
	if (ahead) {
		cut_to_content(e, in, &st);
		if (fstat(in->ro_fd, &st))
			return;
	}
	charge_what_is_held(e, b, &st);
	if (b->allocated > b->charged)
		b->allocated = b->charged;
}

/*
 * Numbers only. Nothing can be cut off a file that has a writer: by the time
 * the punch gets the file's lock, a write has put there what was room.
 */
static uint64_t reclaim_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
static uint64_t reclaim_locked(struct engine *e, struct inode *in)
{
	struct backing *b = in->backing;
	struct stat st;
	uint64_t before;

	if (!b || b->where != BACKING_DRAM || b->expected ||
	    fstat(in->ro_fd, &st) || (uint64_t)st.st_size != in->lease_size)
		return 0;
	before = b->charged;
	charge_what_is_held(e, b, &st);
	return b->charged < before ? before - b->charged : 0;
}

bool leases_reclaim(struct engine *e)
{
	struct inode *batch[N_LOOKED];
	unsigned n = watch_take(e, batch, N_LOOKED);
	uint64_t freed = 0;

	for (unsigned i = 0; i < n; i++) {
		mutex_lock(&batch[i]->lock);
		freed += reclaim_locked(e, batch[i]);
		mutex_unlock(&batch[i]->lock);
		inode_put(e, batch[i]);
	}
	return freed > 0;
}

/* Of a file whose length is known no more than it was promised; its writer
 * waits for the same lock. */
static uint64_t ahead_of(struct engine *e, const struct backing *b,
			 uint64_t size)
{
	uint64_t ahead = size < AHEAD_MIN ? AHEAD_MIN : size;

	if (b->expected)
		return b->promised < AHEAD_PROMISED ? b->promised
						    : AHEAD_PROMISED;
	if (ahead > AHEAD_MAX)
		ahead = AHEAD_MAX;
	return ahead < e->config.dram / 8 ? ahead : e->config.dram / 8;
}

/* How far the lease goes, once half of what it went ahead is used up; 0: it is
 * not. */
static uint64_t lease_end(struct engine *e, const struct inode *in,
			  uint64_t have)
{
	const struct backing *b = in->backing;
	uint64_t size = in->lease_size, ahead = ahead_of(e, b, size);

	if (size + ahead / 2 <= have)
		return 0;
	return round_up(size + ahead, b->expected ? 4096 : 2 * MIB);
}

static void charge_ahead_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
static void charge_ahead_locked(struct engine *e, struct inode *in)
{
	if (charge_dram(e, in, lease_end(e, in, in->backing->charged)) < 0)
		(void)!charge_dram(e, in, round_up(in->lease_size, 4096));
}

/* On NVMe there is room for what is charged. */
static uint64_t nvme_wanted(struct engine *e, const struct inode *in)
{
	if (in->backing->where == BACKING_DRAM)
		return in->backing->charged;
	return lease_end(e, in, in->nvme_room);
}

/*
 * Pages go ahead no further than the file has come: a charge that turns out
 * too high can be had back at once, they only when the last writer is gone.
 */
static uint64_t pages_wanted(struct engine *e, const struct inode *in)
{
	const struct backing *b = in->backing;
	uint64_t size = in->lease_size, ahead = e->config.dram / 8, end;

	if (ahead > AHEAD_MAX)
		ahead = AHEAD_MAX;
	if (ahead > size)
		ahead = size;
	if (b->where != BACKING_DRAM || size + ahead / 2 <= b->allocated)
		return 0;
	end = round_up(size + ahead, 2 * MIB);
	return end < b->charged ? end : b->charged;
}

static bool lags(struct engine *e, const struct inode *in)
{
	return nvme_wanted(e, in) > in->nvme_room ||
	       pages_wanted(e, in) > in->backing->allocated;
}

static void allocate_ahead_locked(struct engine *e, struct inode *in)
	MUST_HOLD(in->lock);
static void allocate_ahead_locked(struct engine *e, struct inode *in)
{
	if (extend_nvme(e, in, nvme_wanted(e, in)) < 0)
		(void)!extend_nvme(e, in, round_up(in->lease_size, 4096));
	(void)!allocate_dram(e, in, pages_wanted(e, in));
}

/* Closed, and unchanged since: an allocation would move ctime, and the settler
 * would take it for still being written. */
static bool is_closed_locked(const struct inode *in, const struct stat *st)
	MUST_HOLD(in->lock);
static bool is_closed_locked(const struct inode *in, const struct stat *st)
{
	struct look now = { true, (uint64_t)st->st_size, st->st_ctim };

	return look_same(&in->mark, &now);
}

/* One look at one writer; true if it is growing. */
static bool look_locked(struct engine *e, struct inode *in) MUST_HOLD(in->lock);
static bool look_locked(struct engine *e, struct inode *in)
{
	uint64_t before = in->lease_size;
	struct stat st;

	if (!in->written || !in->backing || fstat(in->ro_fd, &st) ||
	    is_closed_locked(in, &st))
		return false;
	in->lease_size = (uint64_t)st.st_size;
	if (in->lease_size == before || in->lease_size < LEASE_FROM)
		return in->lease_size > before;
	if (in->backing->where == BACKING_DRAM)
		charge_ahead_locked(e, in);
	in->lease_lags = lags(e, in);
	return true;
}

/* true: it lags. */
TSA(no_thread_safety_analysis)
static bool look_at_one(struct engine *e, struct inode *in, bool *growing)
{
	bool behind;

	/* Perhaps its pages are being allocated, for as long as a write
	 * call takes; the others must not wait for that. */
	if (!mutex_trylock(&in->lock)) {
		*growing = true;
		return false;
	}
	*growing |= look_locked(e, in);
	behind = in->lease_lags;
	mutex_unlock(&in->lock);
	return behind;
}

static bool look_at_all(struct engine *e)
{
	struct inode *batch[N_LOOKED];
	unsigned n = watch_take(e, batch, N_LOOKED);
	bool growing = false, lag = false;
	uint64_t over;

	for (unsigned i = 0; i < n; i++) {
		lag |= look_at_one(e, batch[i], &growing);
		inode_put(e, batch[i]);
	}
	if (lag) {
		mutex_lock(&e->watch.lock);
		e->watch.lag = true;
		pthread_cond_signal(&e->watch.lags);
		mutex_unlock(&e->watch.lock);
	}
	over = reserve_look(e->reserve);
	if (over)
		(void)!dram_evict(e, over);
	return growing;
}

/* ---- allocating ------------------------------------------------------- */

static bool wait_for_lag(struct engine *e)
{
	bool stop;

	mutex_lock(&e->watch.lock);
	while (!e->watch.lag && !e->watch.stop)
		pthread_cond_wait(&e->watch.lags, &e->watch.lock.m);
	e->watch.lag = false;
	stop = e->watch.stop;
	mutex_unlock(&e->watch.lock);
	return !stop;
}

void *allocator_main(void *arg)
{
	struct engine *e = arg;
	struct inode *batch[N_LOOKED];

	while (wait_for_lag(e)) {
		unsigned n = watch_take(e, batch, N_LOOKED);

		for (unsigned i = 0; i < n; i++) {
			struct inode *in = batch[i];
			struct stat st;

			mutex_lock(&in->lock);
			if (in->lease_lags && in->written && in->backing &&
			    !fstat(in->ro_fd, &st) &&
			    !is_closed_locked(in, &st))
				allocate_ahead_locked(e, in);
			in->lease_lags = false;
			mutex_unlock(&in->lock);
			inode_put(e, in);
		}
	}
	return NULL;
}

/* ---- the leaser ------------------------------------------------------- */

/*
 * Waits until it is time to look again. Asleep only if nobody has written for
 * a while: to be woken for each new file costs more than to look. true: woken
 * by a new writer.
 */
static bool wait_to_look(struct engine *e, int64_t wait, bool *stop)
{
	bool woken = false;

	mutex_lock(&e->watch.lock);
	if (wait == LOOK_IDLE_NS) {
		e->watch.asleep = true;
		if (TAILQ_EMPTY(&e->watch.list))
			wait = 50 * LOOK_IDLE_NS;
	}
	if (!e->watch.stop) {
		cond_wait_ns(&e->watch.added, &e->watch.lock, wait);
		woken = wait >= LOOK_IDLE_NS && !e->watch.asleep;
	}
	e->watch.asleep = false;
	*stop = e->watch.stop;
	mutex_unlock(&e->watch.lock);
	return woken;
}

void *leaser_main(void *arg)
{
	struct engine *e = arg;
	int64_t busy_until = 0;
	bool stop = false;

	while (!stop) {
		int64_t now = now_mono_ns();

		if (look_at_all(e))
			busy_until = now + 2 * LOOK_IDLE_NS;
		if (wait_to_look(e, now < busy_until ? LOOK_NS : LOOK_IDLE_NS,
				 &stop)) {
			/* It is looked at in a millisecond, not before it
			 * wrote anything. */
			busy_until = now_mono_ns() + LOOK_IDLE_NS;
			(void)wait_to_look(e, LOOK_NS, &stop);
		}
	}
	return NULL;
}
