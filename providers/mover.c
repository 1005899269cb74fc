/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of the capture engine. Each takes the oldest capture that has
 * something for it:
 *
 *   device   starts copies, at most N_IN_FLIGHT at once
 *   arrivals sums and tells (or writes) what has arrived from devices; two of
 *            them, as one waits for a disk
 *   host     writes host memory into the file
 *   object   serialises, and writes that
 *   end      trailers, the rename; or takes back a capture that failed
 *
 * A capture's error stops all of them at the next chunk. It is ended when no
 * mover is at it (busy) and nothing is in flight: then its providers are
 * released and the file has its name, or is gone.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "providers/capture.h"

#define STAGE_LOOK_MS 50
#define KICK_EVERY 4u
#define FAR (UINT64_C(128) << 20)

/* ---- errors ------------------------------------------------------------ */

static void fail(struct ckpt_capture *cap, int err, const char *what)
{
	pthread_mutex_lock(&cap->ck->lock);
	capture_fail_locked(cap, err, what);
	pthread_mutex_unlock(&cap->ck->lock);
}

/* The name of the provider that failed, if it was one. */
static void fail_reading(struct ckpt_capture *cap, int err)
{
	const char *name = composite_culprit(cap->root);
	char what[96];

	snprintf(what, sizeof(what), "read a provider (%.40s) for",
		 name ? name : "?");
	fail(cap, err, what);
}

static bool has_failed(struct ckpt_capture *cap)
{
	bool failed;

	pthread_mutex_lock(&cap->ck->lock);
	failed = cap->error != 0;
	pthread_mutex_unlock(&cap->ck->lock);
	return failed;
}

/* ---- what is to be done ------------------------------------------------ */

/* Every byte that the state holds has been read. */
static bool is_read_locked(const struct ckpt_capture *cap)
{
	return cap->kind_done[CKPT_DEVICE] && cap->kind_done[CKPT_HOST] &&
	       cap->kind_done[CKPT_OBJECT] && !cap->in_flight;
}

static void set_captured_locked(struct ckpt_capture *cap)
{
	cap->captured = true;
	cap->stats.captured_ns = capture_now_ns();
	pthread_cond_broadcast(&cap->ck->changed);
	pthread_cond_broadcast(&cap->ck->work);
}

static void note_read_locked(struct ckpt_capture *cap)
{
	if (!cap->captured && !cap->error && !cap->has_check &&
	    is_read_locked(cap))
		set_captured_locked(cap);
}

static bool wants_kind(const struct ckpt_capture *cap, enum ckpt_kind kind)
{
	return cap->submitted && !cap->error && !cap->ended &&
	       !cap->kind_done[kind];
}

/* For the end: first the check, then the trailer and the name. */
static bool wants_end(const struct ckpt_capture *cap, bool may_be_named)
{
	if (cap->busy)
		return false;
	if (!cap->error && !cap->captured)
		return is_read_locked(cap);
	return !cap->in_flight && !cap->unwritten &&
	       (may_be_named || cap->error);
}

/*
 * Files get their names in the order of submission: a later one may be a newer
 * version of the same file, or tell that an earlier one is there.
 */
static struct ckpt_capture *find_end_locked(const struct ckpt *ck)
{
	bool may_be_named = true;
	struct ckpt_capture *cap;

	TAILQ_FOREACH(cap, &ck->captures, link)
	{
		if (!cap->submitted || cap->ended)
			continue;
		if (wants_end(cap, may_be_named))
			return cap;
		if (!cap->error)
			may_be_named = false;
	}
	return NULL;
}

static struct ckpt_capture *find_kind_locked(const struct ckpt *ck,
					     enum ckpt_kind kind)
{
	struct ckpt_capture *cap;

	TAILQ_FOREACH(cap, &ck->captures, link)
	if (wants_kind(cap, kind))
		return cap;
	return NULL;
}

/* The oldest capture with work for a mover, busy; NULL: stop. */
static struct ckpt_capture *take(struct ckpt *ck, enum ckpt_kind kind)
{
	struct ckpt_capture *cap;

	pthread_mutex_lock(&ck->lock);
	for (;;) {
		cap = kind == CKPT_TRAILER ? find_end_locked(ck)
					   : find_kind_locked(ck, kind);
		if (cap || ck->stopping)
			break;
		pthread_cond_wait(&ck->work, &ck->lock);
	}
	if (cap)
		cap->busy++;
	pthread_mutex_unlock(&ck->lock);
	return cap;
}

static void put(struct ckpt_capture *cap, enum ckpt_kind kind)
{
	struct ckpt *ck = cap->ck;

	pthread_mutex_lock(&ck->lock);
	cap->busy--;
	cap->kind_done[kind] = true;
	note_read_locked(cap);
	pthread_cond_broadcast(&ck->work);
	pthread_mutex_unlock(&ck->lock);
}

/* ---- the file ---------------------------------------------------------- */

/* The first mover to need it makes it. */
static int open_target(struct ckpt_capture *cap)
{
	int r = 0;

	pthread_mutex_lock(&cap->opening);
	if (has_failed(cap)) {
		r = -ECANCELED; /* another mover has tried, or it is given up */
	} else if (!cap->opened) {
		/* A mapping costs little where no device stores through it. */
		r = target_open(&cap->target, cap->known_len, true);
		pthread_mutex_lock(&cap->ck->lock);
		cap->opened = r == 0;
		cap->stats.on_ckptfs = cap->target.on_ckptfs;
		pthread_mutex_unlock(&cap->ck->lock);
	}
	if (r < 0 && r != -ECANCELED)
		fail(cap, r, "create");
	pthread_mutex_unlock(&cap->opening);
	return r;
}

static void note_filled(struct ckpt_capture *cap, enum ckpt_kind kind,
			const struct placed_chunk *at)
{
	target_filled(&cap->target, at->off, at->chunk.len);
	pthread_mutex_lock(&cap->ck->lock);
	cap->stats.bytes[kind] += at->chunk.len;
	if (!cap->stats.first_filled_ns)
		cap->stats.first_filled_ns = capture_now_ns();
	pthread_mutex_unlock(&cap->ck->lock);
}

static void tell_provider(const struct placed_chunk *at, const void *bytes)
{
	struct ckpt_provider *p = at->chunk.from;

	if (p->ops->filled)
		p->ops->filled(p, &at->chunk, bytes);
}

/* ---- host, object and trailer chunks ----------------------------------- */

/*
 * Room is allocated from the front on. What lies far behind the device's part
 * waits for that: the device gates the fence, and would wait for all the room
 * between.
 */
static void wait_for_turn(struct ckpt_capture *cap, uint64_t off)
{
	struct ckpt *ck = cap->ck;

	pthread_mutex_lock(&ck->lock);
	while (!cap->error && !cap->kind_done[CKPT_DEVICE] &&
	       off > target_allocated(&cap->target) + FAR)
		pthread_cond_wait(&ck->work, &ck->lock);
	pthread_mutex_unlock(&ck->lock);
}

static int write_kind(struct ckpt_capture *cap, enum ckpt_kind kind)
{
	struct placed_chunk at;
	int r;

	while (!has_failed(cap)) {
		r = composite_next(cap->root, kind, cap->ck->options.chunk_len,
				   &at);
		if (r < 0)
			fail_reading(cap, r);
		if (r <= 0)
			return r;
		r = open_target(cap);
		if (r < 0)
			return r;
		if (kind == CKPT_HOST && cap->has_device)
			wait_for_turn(cap, at.off);
		r = target_write(&cap->target, at.chunk.src, at.chunk.len,
				 at.off);
		if (r < 0) {
			fail(cap, r, "write");
			return r;
		}
		if (kind != CKPT_TRAILER)
			tell_provider(&at, at.chunk.src);
		note_filled(cap, kind, &at);
	}
	return -ECANCELED; /* the capture knows why */
}

static void *host_main(void *arg)
{
	struct ckpt_capture *cap;

	while ((cap = take(arg, CKPT_HOST))) {
		(void)!write_kind(cap, CKPT_HOST);
		put(cap, CKPT_HOST);
	}
	return NULL;
}

static void *object_main(void *arg)
{
	struct ckpt_capture *cap;

	while ((cap = take(arg, CKPT_OBJECT))) {
		(void)!write_kind(cap, CKPT_OBJECT);
		put(cap, CKPT_OBJECT);
	}
	return NULL;
}

/* ---- device chunks ----------------------------------------------------- */

static void arrived(void *arg, int err)
{
	struct copy *c = arg;
	struct ckpt_capture *cap = c->cap;
	struct ckpt *ck = cap->ck;

	pthread_mutex_lock(&ck->lock);
	c->err = err;
	cap->in_flight--;
	cap->unwritten++;
	if (err)
		capture_fail_locked(cap, err, "copy device memory for");
	note_read_locked(cap);
	STAILQ_INSERT_TAIL(&ck->arrived, c, next);
	pthread_cond_broadcast(&ck->work);
	pthread_mutex_unlock(&ck->lock);
}

static int wait_for_slot(struct ckpt_capture *cap)
{
	struct ckpt *ck = cap->ck;
	int r;

	pthread_mutex_lock(&ck->lock);
	while (cap->in_flight >= N_IN_FLIGHT && !cap->error)
		pthread_cond_wait(&ck->work, &ck->lock);
	r = cap->error;
	pthread_mutex_unlock(&ck->lock);
	return r;
}

static int kick(struct ckpt_provider **waiting)
{
	struct ckpt_provider *p = *waiting;

	*waiting = NULL;
	return p && p->ops->kick ? p->ops->kick(p) : 0;
}

/* Where the bytes shall go: into the file, or into a buffer. What is queued
 * may hold the last buffers: it is kicked before they are waited for. */
static int find_dst(struct ckpt_capture *cap, struct copy *c,
		    struct ckpt_provider **waiting)
{
	int r;

	if (cap->target.map) {
		r = target_room(&cap->target, c->at.off + c->at.chunk.len);
		c->dst = cap->target.map + c->at.off;
		return r;
	}
	r = pool_take(cap->ck->pool, 0, &c->buffer);
	if (r == -EAGAIN) {
		r = kick(waiting);
		if (r < 0)
			return r;
	}
	while (!c->buffer && !has_failed(cap)) {
		r = pool_take(cap->ck->pool, STAGE_LOOK_MS, &c->buffer);
		if (r < 0 && r != -EAGAIN)
			return r;
	}
	if (!c->buffer)
		return -ECANCELED;
	c->dst = target_staged_at(c->buffer, c->at.off);
	return 0;
}

static int start_copy(struct ckpt_capture *cap, const struct placed_chunk *at,
		      struct ckpt_provider **waiting)
{
	struct ckpt_provider *p = at->chunk.from;
	struct copy *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->cap = cap;
	c->at = *at;
	r = find_dst(cap, c, waiting);
	if (r < 0) {
		free(c);
		return r;
	}
	pthread_mutex_lock(&cap->ck->lock);
	cap->in_flight++;
	cap->stats.mapped = !c->buffer;
	pthread_mutex_unlock(&cap->ck->lock);
	r = p->ops->copy(p, &c->at.chunk, c->dst, arrived, c);
	if (r == 0) {
		*waiting = p;
		return 0;
	}
	pthread_mutex_lock(&cap->ck->lock);
	cap->in_flight--;
	pthread_mutex_unlock(&cap->ck->lock);
	if (c->buffer)
		pool_put(cap->ck->pool, c->buffer);
	free(c);
	return r;
}

/*
 * Batches of KICK_EVERY: a provider is also kicked when the next chunk is
 * another's. Less than half of what may be in flight is ever unkicked, so
 * whoever waits for a slot gets one.
 */
static int copy_chunks(struct ckpt_capture *cap)
{
	struct ckpt_provider *waiting = NULL;
	struct placed_chunk at;
	unsigned n = 0;
	int r;

	while ((r = composite_next(cap->root, CKPT_DEVICE,
				   cap->ck->options.chunk_len, &at)) > 0) {
		if (waiting &&
		    (waiting != at.chunk.from || n % KICK_EVERY == 0))
			r = kick(&waiting);
		if (r >= 0)
			r = open_target(cap);
		if (r >= 0)
			r = wait_for_slot(cap);
		if (r >= 0)
			r = start_copy(cap, &at, &waiting);
		if (r < 0)
			break;
		n++;
	}
	if (r < 0) {
		(void)!kick(&waiting); /* what was queued must still arrive */
		return r;
	}
	return kick(&waiting);
}

static void *device_main(void *arg)
{
	struct ckpt_capture *cap;

	while ((cap = take(arg, CKPT_DEVICE))) {
		int r = copy_chunks(cap);

		if (r < 0)
			fail(cap, r, "capture");
		put(cap, CKPT_DEVICE);
	}
	return NULL;
}

/* ---- what has arrived -------------------------------------------------- */

static struct copy *take_arrived(struct ckpt *ck)
{
	struct copy *c;

	pthread_mutex_lock(&ck->lock);
	while (STAILQ_EMPTY(&ck->arrived) && !ck->stopping)
		pthread_cond_wait(&ck->work, &ck->lock);
	c = STAILQ_FIRST(&ck->arrived);
	if (c)
		STAILQ_REMOVE_HEAD(&ck->arrived, next);
	pthread_mutex_unlock(&ck->lock);
	return c;
}

static void store(struct copy *c)
{
	struct ckpt_capture *cap = c->cap;
	int r = 0;

	if (c->err || has_failed(cap))
		return;
	tell_provider(&c->at, c->dst);
	if (c->buffer)
		r = target_write_staged(&cap->target, c->dst, c->at.chunk.len,
					c->at.off);
	if (r < 0)
		fail(cap, r, "write");
	else
		note_filled(cap, CKPT_DEVICE, &c->at);
}

static void *arrivals_main(void *arg)
{
	struct ckpt *ck = arg;
	struct copy *c;

	while ((c = take_arrived(ck))) {
		struct ckpt_capture *cap = c->cap;

		store(c);
		if (c->buffer)
			pool_put(ck->pool, c->buffer);
		free(c);
		pthread_mutex_lock(&ck->lock);
		cap->unwritten--;
		pthread_cond_broadcast(&ck->work);
		pthread_mutex_unlock(&ck->lock);
	}
	return NULL;
}

/* ---- the end ----------------------------------------------------------- */

static int finish(struct ckpt_capture *cap)
{
	uint64_t len;
	int r;

	r = write_kind(cap, CKPT_TRAILER);
	if (r < 0)
		return r;
	r = open_target(cap); /* an empty file is a file, too */
	if (r < 0)
		return r;
	len = composite_len(cap->root);
	pthread_mutex_lock(&cap->ck->lock);
	cap->stats.file_len = len;
	r = cap->error;
	cap->naming = !r;
	pthread_mutex_unlock(&cap->ck->lock);
	if (r < 0)
		return r;
	r = target_commit(&cap->target, len);
	if (r < 0)
		fail(cap, r, "complete");
	return r;
}

static void release_providers(struct ckpt_capture *cap)
{
	struct ckpt_provider *root = cap->root;

	cap->root = NULL;
	root->ops->release(root);
}

static bool is_idle_locked(const struct ckpt *ck)
{
	struct ckpt_capture *cap;

	TAILQ_FOREACH(cap, &ck->captures, link)
	if (cap->submitted && !cap->ended)
		return false;
	return true;
}

/* true: nobody has it any more. */
static bool note_ended_locked(struct ckpt_capture *cap, bool complete)
{
	struct ckpt *ck = cap->ck;
	bool gone;

	cap->busy--;
	cap->kind_done[CKPT_TRAILER] = true;
	cap->complete = complete;
	if (complete)
		cap->stats.complete_ns = capture_now_ns();
	if (cap->has_device && !cap->stats.mapped)
		cap->stats.staged_max = pool_peak(ck->pool);
	cap->ended = true;
	gone = !cap->held && !(cap->error && !cap->told);
	if (gone)
		TAILQ_REMOVE(&ck->captures, cap, link);
	pthread_cond_broadcast(&ck->changed);
	pthread_cond_broadcast(&ck->work);
	return gone;
}

static void end(struct ckpt_capture *cap)
{
	struct ckpt *ck = cap->ck;
	bool complete = false, orphan, idle;

	if (!has_failed(cap))
		complete = finish(cap) == 0;
	if (!complete)
		target_abort(&cap->target);
	release_providers(cap);
	pthread_mutex_lock(&ck->lock);
	orphan = note_ended_locked(cap, complete);
	idle = is_idle_locked(ck);
	pthread_mutex_unlock(&ck->lock);
	if (orphan)
		capture_destroy(cap);
	if (idle)
		pool_rest(ck->pool);
}

static void check(struct ckpt_capture *cap)
{
	struct ckpt *ck = cap->ck;
	int r = composite_check(cap->root);

	if (r < 0)
		fail_reading(cap, r);
	pthread_mutex_lock(&ck->lock);
	cap->busy--;
	if (!cap->error)
		set_captured_locked(cap);
	pthread_cond_broadcast(&ck->work);
	pthread_mutex_unlock(&ck->lock);
}

static bool is_over(struct ckpt_capture *cap)
{
	bool over;

	pthread_mutex_lock(&cap->ck->lock);
	over = cap->error || cap->captured;
	pthread_mutex_unlock(&cap->ck->lock);
	return over;
}

static void *end_main(void *arg)
{
	struct ckpt_capture *cap;

	while ((cap = take(arg, CKPT_TRAILER))) {
		if (is_over(cap))
			end(cap);
		else
			check(cap);
	}
	return NULL;
}

/* ---- start and stop ---------------------------------------------------- */

static void *(*const mains[N_MOVERS])(void *) = {
	device_main, arrivals_main, arrivals_main,
	host_main,   object_main,   end_main,
};

static const char *const names[N_MOVERS] = {
	"ckpt-device", "ckpt-arrivals", "ckpt-arrivals",
	"ckpt-host",   "ckpt-object",   "ckpt-end",
};

int movers_start(struct ckpt *ck)
{
	sigset_t all, before;
	int r = 0;

	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (r == 0 && ck->n_movers < N_MOVERS) {
		unsigned i = ck->n_movers;

		r = -pthread_create(&ck->movers[i], NULL, mains[i], ck);
		if (r == 0) {
			pthread_setname_np(ck->movers[i], names[i]);
			ck->n_movers++;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r < 0)
		movers_stop(ck);
	return r;
}

void movers_stop(struct ckpt *ck)
{
	pthread_mutex_lock(&ck->lock);
	ck->stopping = true;
	pthread_cond_broadcast(&ck->work);
	pthread_mutex_unlock(&ck->lock);
	for (unsigned i = 0; i < ck->n_movers; i++)
		pthread_join(ck->movers[i], NULL);
	ck->n_movers = 0;
}
