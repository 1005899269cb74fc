/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unrecorded versions: the queue between the seal and the durable database.
 * States and invariants: version.h. Their bytes: version_bytes.c; how they get
 * to NVMe: flusher.c.
 *
 * Small versions need no file: they count as FLUSHED at once, and the
 * follower reads their content when it writes the batch that records them.
 */
#include "engine/version.h"

#include <stdlib.h>

#include "engine/core.h"
#include "engine/tensors.h"
#include "engine/thread.h"

#define WAIT_LOOK_NS INT64_C(100000000)
/* What one target may be. */
#define LOG_MAX (16u << 20)
#define SMALLS_MAX (16u << 20)
#define N_MAX 8192

void versions_init(struct versions *vs)
{
	mutex_init(&vs->lock);
	condition_init(&vs->work);
	condition_init(&vs->changed);
	TAILQ_INIT(&vs->queue);
	STAILQ_INIT(&vs->bounds);
	for (unsigned i = 0; i < N_BUCKETS; i++)
		LIST_INIT(&vs->by_id[i]);
}

struct version *version_new(uint64_t id, uint64_t ino, uint64_t size)
{
	struct version *v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->id = id;
	v->ino = ino;
	v->size = size;
	v->sealed_ns = now_mono_ns();
	v->state = size <= META_SMALL_MAX ? VERSION_FLUSHED : VERSION_QUEUED;
	return v;
}

/* Out of the table; what it held goes with it. */
static void version_free(struct engine *e, struct version *v)
{
	if (!v->recorded && !v->logging && v->size > META_SMALL_MAX) {
		if (!v->gave_file)
			stream_drop(e, v->id);
		if (v->took_file)
			(void)!e->nvme->ops->remove(e->nvme, v->file);
	}
	if (v->base)
		version_unhold(e, v->base);
	backing_put(e, v->backing);
	free(v->small);
	free(v->crcs);
	free(v);
}

/* With those that only their successors hold. */
static void fini_chain(struct version *v)
{
	while (v) {
		struct version *base = v->base && v->base->gone ? v->base
								: NULL;

		free(v->small);
		free(v->crcs);
		free(v);
		v = base;
	}
}

void versions_fini(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;
	struct bound *b;

	while ((b = STAILQ_FIRST(&vs->bounds))) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	while ((v = TAILQ_FIRST(&vs->queue))) {
		TAILQ_REMOVE(&vs->queue, v, in_order);
		LIST_REMOVE(v, by_id);
		fini_chain(v);
	}
	mutex_fini(&vs->lock);
}

struct version *version_find_locked(struct versions *vs, uint64_t id)
{
	struct version *v;

	LIST_FOREACH(v, &vs->by_id[bucket_of(id)], by_id)
	if (v->id == id)
		return v;
	return NULL;
}

void version_insert(struct engine *e, struct version *v)
{
	struct versions *vs = &e->versions;
	struct version *after;

	mutex_lock(&vs->lock);
	after = TAILQ_LAST(&vs->queue, version_queue);
	while (after && after->seq > v->seq)
		after = TAILQ_PREV(after, version_queue, in_order);
	if (after)
		TAILQ_INSERT_AFTER(&vs->queue, after, v, in_order);
	else
		TAILQ_INSERT_HEAD(&vs->queue, v, in_order);
	LIST_INSERT_HEAD(&vs->by_id[bucket_of(v->id)], v, by_id);
	vs->n++;
	vs->bytes += v->size;
	e->sealed_bytes += v->size;
	vs->n_since++;
	if (v->size <= META_SMALL_MAX)
		vs->smalls_len += v->size;
	if (v->state == VERSION_QUEUED && !v->logging)
		pthread_cond_signal(&vs->work);
	mutex_unlock(&vs->lock);
}

void version_logged(struct engine *e, uint64_t id)
{
	struct versions *vs = &e->versions;
	struct version *v;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v)
		v->logging = false;
	if (v && v->state == VERSION_QUEUED)
		pthread_cond_signal(&vs->work);
	mutex_unlock(&vs->lock);
}

/* ---- targets ---------------------------------------------------------- */

void version_bound(struct engine *e, size_t len)
{
	struct versions *vs = &e->versions;
	struct bound *b;

	mutex_lock(&vs->lock);
	vs->log_len += len;
	if (vs->log_len > LOG_MAX || vs->smalls_len > SMALLS_MAX ||
	    vs->n_since > N_MAX) {
		b = malloc(sizeof(*b)); /* none: the target grows */
		if (b) {
			b->seq = meta_accepted_seq(e->meta);
			STAILQ_INSERT_TAIL(&vs->bounds, b, next);
			vs->log_len = vs->smalls_len = vs->n_since = 0;
		}
	}
	mutex_unlock(&vs->lock);
}

/*
 * The newest number is read under the lock that version_dead() takes: who
 * dies after it is pinned, who died before is not needed. An older number
 * would do only if it had been chosen when it was the newest.
 */
uint64_t version_next_target(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct bound *b;
	uint64_t target;

	mutex_lock(&vs->lock);
	while ((b = STAILQ_FIRST(&vs->bounds)) &&
	       b->seq <= meta_nvme_seq(e->meta)) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	if (b) {
		target = b->seq;
	} else {
		target = meta_accepted_seq(e->meta);
		vs->log_len = vs->smalls_len = vs->n_since = 0;
	}
	vs->target = target;
	mutex_unlock(&vs->lock);
	return target;
}

void version_retry_failed(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;

	mutex_lock(&vs->lock);
	TAILQ_FOREACH(v, &vs->queue, in_order)
	if (v->state == VERSION_FAILED)
		v->retry_ns = 0;
	pthread_cond_broadcast(&vs->work);
	mutex_unlock(&vs->lock);
}

static bool is_between(uint64_t seq, uint64_t target, uint64_t dead)
{
	return seq <= target && dead > target;
}

static bool is_pinned_locked(struct versions *vs, uint64_t seq, uint64_t dead)
{
	struct bound *b;

	if (is_between(seq, vs->target, dead))
		return true;
	STAILQ_FOREACH(b, &vs->bounds, next)
	if (is_between(seq, b->seq, dead))
		return true;
	return false;
}

/* ---- in and out ------------------------------------------------------- */

static void unlink_locked(struct versions *vs, struct version *v)
{
	TAILQ_REMOVE(&vs->queue, v, in_order);
	LIST_REMOVE(v, by_id);
	vs->n--;
	vs->bytes -= v->size;
	v->gone = true;
	pthread_cond_broadcast(&vs->changed);
}

void version_discard(struct engine *e, uint64_t id)
{
	struct versions *vs = &e->versions;
	struct version *v;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (v) {
		unlink_locked(vs, v);
		if (v->held)
			v = NULL; /* freed by version_unhold() */
	}
	mutex_unlock(&vs->lock);
	if (v)
		version_free(e, v);
}

void version_hold_locked(struct version *v)
{
	v->held++;
}

void version_unhold(struct engine *e, struct version *v)
{
	bool last;

	mutex_lock(&e->versions.lock);
	last = --v->held == 0 && v->gone;
	mutex_unlock(&e->versions.lock);
	if (last)
		version_free(e, v);
}

void version_begin_from(struct engine *e, struct version *v, uint64_t base)
{
	struct versions *vs = &e->versions;
	struct version *b;

	mutex_lock(&vs->lock);
	b = version_find_locked(vs, base);
	if (b && !b->final && b->size > META_SMALL_MAX) {
		version_hold_locked(b);
		v->base = b;
	}
	mutex_unlock(&vs->lock);
}

void version_dead(struct engine *e, uint64_t id, uint64_t seq)
{
	struct versions *vs = &e->versions;
	struct version *v, *drop = NULL;
	bool recorded = false, pinned = false;

	mutex_lock(&vs->lock);
	v = version_find_locked(vs, id);
	if (!v) {
		recorded = true;
	} else {
		v->dead_seq = seq;
		pinned = is_pinned_locked(vs, v->seq, seq);
		if (!pinned) {
			unlink_locked(vs, v);
			drop = v->held ? NULL : v;
		}
	}
	mutex_unlock(&vs->lock);
	if (drop)
		version_free(e, drop);
	if (recorded)
		follow_dead(e, id, seq);
	if (!pinned)
		backing_version_gone(e, id);
}

void version_recorded(struct engine *e, struct version *v)
{
	uint64_t id = v->id, dead_seq;

	backing_recorded(e, id, v->file);
	mutex_lock(&e->versions.lock);
	if (!v->gone)
		unlink_locked(&e->versions, v);
	v->recorded = true;
	dead_seq = v->dead_seq;
	e->versions.n_recording++;
	mutex_unlock(&e->versions.lock);
	if (!dead_seq && v->size >= TENSORS_AHEAD)
		tensors_offer(e, v->ino, id);
	version_unhold(e, v);
	mutex_lock(&e->versions.lock);
	e->versions.n_recording--;
	e->versions.n_recorded++;
	pthread_cond_broadcast(&e->versions.changed);
	mutex_unlock(&e->versions.lock);
	/* One that died while the batch was written has a record too. */
	if (dead_seq) {
		follow_dead(e, id, dead_seq);
		backing_version_gone(e, id);
	}
}

bool version_wait_recorded(struct engine *e)
{
	struct versions *vs = &e->versions;
	uint64_t before;
	bool more = true;

	follow_kick(e, true);
	mutex_lock(&vs->lock);
	before = vs->n_recorded;
	while (more && vs->n_recorded == before) {
		more = (vs->n || vs->n_recording) && !vs->stop;
		if (more)
			cond_wait_ns(&vs->changed, &vs->lock, WAIT_LOOK_NS);
		mutex_unlock(&vs->lock);
		if (follow_error(e))
			more = false;
		mutex_lock(&vs->lock);
	}
	mutex_unlock(&vs->lock);
	return more;
}

void version_confirm(struct engine *e, uint64_t id)
{
	struct version *v;

	mutex_lock(&e->versions.lock);
	v = version_find_locked(&e->versions, id);
	if (v && v->state == VERSION_QUEUED)
		v->final = true;
	mutex_unlock(&e->versions.lock);
}

/* One that only a target that was given up needed. NULL: there is none. */
static struct version *next_unpinned_locked(struct versions *vs)
{
	struct version *v;

	TAILQ_FOREACH(v, &vs->queue, in_order)
	if (v->dead_seq && !is_pinned_locked(vs, v->seq, v->dead_seq))
		break;
	return v;
}

uint64_t version_give_up(struct engine *e)
{
	struct versions *vs = &e->versions;
	struct version *v;
	struct bound *b;
	uint64_t target;

	mutex_lock(&vs->lock);
	while ((b = STAILQ_FIRST(&vs->bounds))) {
		STAILQ_REMOVE_HEAD(&vs->bounds, next);
		free(b);
	}
	mutex_unlock(&vs->lock);
	target = version_next_target(e);
	for (;;) {
		uint64_t id = 0;

		mutex_lock(&vs->lock);
		v = next_unpinned_locked(vs);
		if (v) {
			id = v->id;
			unlink_locked(vs, v);
			if (v->held)
				v = NULL; /* freed by version_unhold() */
		}
		mutex_unlock(&vs->lock);
		if (!id)
			break;
		if (v)
			version_free(e, v);
		backing_version_gone(e, id);
	}
	return target;
}
