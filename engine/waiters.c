/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for a level to reach a sequence number: fsync (without a thread,
 * told by a callback), `ckptctl wait` and the end of a mount. The follower
 * and the publisher tell them; while D stands still each gets its error after
 * one more try.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/core.h"
#include "engine/thread.h"

#define MS INT64_C(1000000)
#define PATIENCE_NS (300 * MS) /* for one more try */

static uint64_t level_seq(struct engine *e, enum level level)
{
	switch (level) {
	case LEVEL_DRAM:
		return meta_accepted_seq(e->meta);
	case LEVEL_NVME:
		return meta_nvme_seq(e->meta);
	case LEVEL_REMOTE:
		return meta_remote_seq(e->meta);
	}
	return 0;
}

static bool is_told(const struct waiter *w, int err)
{
	return err == -ESHUTDOWN || (err && w->patient_ns <= now_mono_ns());
}

/* Takes out those who need not wait any longer. */
static void waiters_take_locked(struct engine *e, int err, struct waiter **out)
{
	struct waiter *w, *next;

	for (w = STAILQ_FIRST(&e->follow.waiters); w; w = next) {
		next = STAILQ_NEXT(w, next);
		if (level_seq(e, w->level) < w->seq && !is_told(w, err))
			continue;
		STAILQ_REMOVE(&e->follow.waiters, w, waiter, next);
		STAILQ_NEXT(w, next) = *out;
		*out = w;
	}
}

static void waiters_tell(struct engine *e, struct waiter *w, int err)
{
	struct waiter *next;

	for (; w; w = next) {
		next = STAILQ_NEXT(w, next);
		w->done(w->arg, level_seq(e, w->level) >= w->seq ? 0 : err);
		free(w);
	}
}

void follow_tell_reached(struct engine *e)
{
	struct waiter *list = NULL;

	mutex_lock(&e->follow.lock);
	waiters_take_locked(e, 0, &list);
	mutex_unlock(&e->follow.lock);
	waiters_tell(e, list, 0);
}

void follow_fail_waiters(struct engine *e, int err)
{
	struct waiter *list = NULL;

	mutex_lock(&e->follow.lock);
	waiters_take_locked(e, err, &list);
	mutex_unlock(&e->follow.lock);
	waiters_tell(e, list, err);
}

/*
 * Who has waited long enough. In a thread of its own: the follower may be in
 * the middle of an fsync of a disk that hangs, and a timeout is for that, too.
 */

/* When the next one will have, at the latest. */
static int64_t take_late_locked(struct engine *e, struct waiter **out)
{
	struct waiter *w, *next;
	int64_t now = now_mono_ns(), soonest = now + 10000 * MS;

	for (w = STAILQ_FIRST(&e->follow.waiters); w; w = next) {
		next = STAILQ_NEXT(w, next);
		if (w->until_ns > now) {
			soonest = w->until_ns < soonest ? w->until_ns : soonest;
			continue;
		}
		STAILQ_REMOVE(&e->follow.waiters, w, waiter, next);
		STAILQ_NEXT(w, next) = *out;
		*out = w;
	}
	return soonest;
}

void *timer_main(void *arg)
{
	struct engine *e = arg;
	struct waiter *late;
	int64_t soonest;
	bool stop;

	do {
		late = NULL;
		mutex_lock(&e->follow.lock);
		soonest = take_late_locked(e, &late);
		stop = e->follow.stop;
		if (!late && !stop)
			cond_wait_ns(&e->follow.timed, &e->follow.lock,
				     soonest - now_mono_ns());
		mutex_unlock(&e->follow.lock);
		waiters_tell(e, late, -ETIMEDOUT);
	} while (!stop);
	return NULL;
}

/* ---- what fs/ asks ---------------------------------------------------- */

enum level engine_fsync_level(const struct engine *e)
{
	return e->config.fsync;
}

/* timeout_ms < 0: none. */
static int add_waiter(struct engine *e, uint64_t seq, enum level level,
		      int timeout_ms, done_fn *done, void *arg)
{
	struct waiter *w;
	bool failed;

	if (level == LEVEL_REMOTE && !e->remote)
		return -EOPNOTSUPP;
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	*w = (struct waiter){
		.seq = seq,
		.level = level,
		.until_ns = timeout_ms < 0 ? INT64_MAX
					   : now_mono_ns() + timeout_ms * MS,
		.done = done,
		.arg = arg,
	};
	mutex_lock(&e->follow.lock);
	failed = e->follow.error != 0;
	if (failed)
		w->patient_ns = now_mono_ns() + PATIENCE_NS;
	STAILQ_INSERT_TAIL(&e->follow.waiters, w, next);
	e->follow.hurry = true;
	pthread_cond_broadcast(&e->follow.kick);
	pthread_cond_signal(&e->follow.timed);
	mutex_unlock(&e->follow.lock);
	if (failed)
		version_retry_failed(e);
	return 0;
}

/* Is the way to this level blocked? */
static int level_error(struct engine *e, enum level level)
{
	if (level == LEVEL_DRAM)
		return 0;
	if (level == LEVEL_REMOTE && !e->remote)
		return -EOPNOTSUPP;
	return follow_error(e);
}

/* The file's own part of an fsync: seal what it holds, tell its error. */
static int seal_for_fsync(struct engine *e, uint64_t ino, enum level level)
{
	struct inode *in = inode_find(e, ino);
	int r;

	if (!in)
		return 0;
	mutex_lock(&in->lock);
	r = level == LEVEL_DRAM ? 0 : seal_snapshot_locked(e, in);
	if (r == 0) {
		r = in->error;
		in->error = 0;
	}
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}

void engine_fsync(struct engine *e, uint64_t ino, enum level level,
		  done_fn *done, void *arg)
{
	uint64_t seq;
	int r = settle_all(e);

	if (r == 0 || level == LEVEL_DRAM)
		r = seal_for_fsync(e, ino, level);
	seq = meta_accepted_seq(e->meta);
	if (r < 0 || level_seq(e, level) >= seq) {
		done(arg, r);
		return;
	}
	r = add_waiter(e, seq, level, -1, done, arg);
	if (r < 0)
		done(arg, r);
}

int engine_reached(struct engine *e, uint64_t seq, enum level level, bool *out)
{
	*out = level_seq(e, level) >= seq;
	return *out ? 0 : level_error(e, level);
}

/* On the stack of whoever waits: told, or taken out of the list again. */
struct sync_wait {
	struct mutex lock;
	pthread_cond_t done;
	bool told;
	int err;
};

static void sync_wait_done(void *arg, int err)
{
	struct sync_wait *w = arg;

	mutex_lock(&w->lock);
	w->told = true;
	w->err = err;
	pthread_cond_signal(&w->done);
	mutex_unlock(&w->lock);
}

/* -ETIMEDOUT: not told yet. timeout_ms < 0: until it is. */
static int sync_wait_for(struct sync_wait *w, int timeout_ms)
{
	int64_t until = now_mono_ns() + timeout_ms * MS;
	int r;

	mutex_lock(&w->lock);
	while (!w->told && (timeout_ms < 0 || now_mono_ns() < until))
		cond_wait_ns(&w->done, &w->lock,
			     timeout_ms < 0 ? 1000 * MS
					    : until - now_mono_ns());
	r = w->told ? w->err : -ETIMEDOUT;
	mutex_unlock(&w->lock);
	return r;
}

/* The one with that arg; false: it is being told just now. */
static bool take_waiter_out(struct engine *e, const void *arg)
{
	struct waiter *w;

	mutex_lock(&e->follow.lock);
	STAILQ_FOREACH(w, &e->follow.waiters, next)
	{
		if (w->arg == arg)
			break;
	}
	if (w)
		STAILQ_REMOVE(&e->follow.waiters, w, waiter, next);
	mutex_unlock(&e->follow.lock);
	free(w);
	return w != NULL;
}

/* What was never given out is never reached. */
static bool is_given_out(struct engine *e, uint64_t seq)
{
	return seq <= meta_accepted_seq(e->meta);
}

void engine_when_reached(struct engine *e, uint64_t seq, enum level level,
			 int timeout_ms, done_fn *done, void *arg)
{
	int r;

	if (level_seq(e, level) >= seq)
		r = 0;
	else if (!is_given_out(e, seq))
		r = -EINVAL;
	else if (!(r = add_waiter(e, seq, level, timeout_ms, done, arg)))
		return;
	done(arg, r);
}

int engine_wait(struct engine *e, uint64_t seq, enum level level,
		int timeout_ms)
{
	struct sync_wait w = { .told = false };
	int r;

	if (level_seq(e, level) >= seq)
		return 0;
	if (!is_given_out(e, seq))
		return -EINVAL;
	mutex_init(&w.lock);
	condition_init(&w.done);
	r = add_waiter(e, seq, level, -1, sync_wait_done, &w);
	if (r == 0) {
		r = sync_wait_for(&w, timeout_ms);
		if (r == -ETIMEDOUT && !take_waiter_out(e, &w))
			r = sync_wait_for(&w, -1);
	}
	pthread_cond_destroy(&w.done);
	mutex_fini(&w.lock);
	return r;
}

int engine_drain(struct engine *e, enum level level, int timeout_ms)
{
	uint64_t seq;
	int r = engine_seal_all(e, &seq);

	return r < 0 ? r : engine_wait(e, seq, level, timeout_ms);
}
