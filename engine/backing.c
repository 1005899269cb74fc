/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backing files: who holds each, what it costs the reserve, and which DRAM
 * copies may go when room is wanted. A file lives as long as somebody refers
 * to it; after that a DRAM file whose version has a synced copy elsewhere
 * stays as a cache, oldest first to go, and every other one is deleted: small
 * ones on DRAM many at a time, by the follower, as an unlink would wait for
 * that as long as for its commit.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "metadata/log_message.h"

/* Larger ones are deleted at once: their room is missed. */
#define TIDY_MAX (UINT64_C(1) << 20)

void backings_init(struct backings *bs)
{
	mutex_init(&bs->lock);
	TAILQ_INIT(&bs->lru);
	TAILQ_INIT(&bs->unwanted);
	for (unsigned i = 0; i < N_BUCKETS; i++) {
		LIST_INIT(&bs->by_id[i]);
		LIST_INIT(&bs->by_version[i]);
	}
}

void backings_fini(struct backings *bs)
{
	struct backing *b;

	for (unsigned i = 0; i < N_BUCKETS; i++)
		while ((b = LIST_FIRST(&bs->by_id[i]))) {
			LIST_REMOVE(b, by_id);
			free(b);
		}
	while ((b = TAILQ_FIRST(&bs->unwanted))) {
		TAILQ_REMOVE(&bs->unwanted, b, lru);
		free(b);
	}
	mutex_fini(&bs->lock);
}

struct tier *backing_tier(struct engine *e, enum backing_where where)
{
	return where == BACKING_DRAM ? e->dram : e->nvme;
}

static struct backing *find_id_locked(struct backings *bs, uint64_t id)
{
	struct backing *b;

	LIST_FOREACH(b, &bs->by_id[bucket_of(id)], by_id)
	if (b->id == id)
		return b;
	return NULL;
}

static struct backing *find_version_locked(struct backings *bs, uint64_t v)
{
	struct backing *b;

	LIST_FOREACH(b, &bs->by_version[bucket_of(v)], by_version)
	if (b->version == v)
		return b;
	return NULL;
}

static void set_version_locked(struct backings *bs, struct backing *b,
			       uint64_t v)
{
	if (b->version)
		LIST_REMOVE(b, by_version);
	b->version = v;
	if (v)
		LIST_INSERT_HEAD(&bs->by_version[bucket_of(v)], b, by_version);
}

static void lru_leave_locked(struct backings *bs, struct backing *b)
{
	if (b->in_lru)
		TAILQ_REMOVE(&bs->lru, b, lru);
	b->in_lru = false;
}

static void get_locked(struct backings *bs, struct backing *b)
{
	lru_leave_locked(bs, b);
	b->refs++;
}

static int new_file(struct engine *e, enum backing_where where, int flags,
		    uint64_t *id, int *fd)
{
	struct tier *t = backing_tier(e, where);

	if (where == BACKING_DRAM && ahead_take(e, flags, id, fd))
		return 0;
	*id = meta_new_version(e->meta);
	return t->ops->create(t, *id, flags, fd);
}

int backing_create(struct engine *e, enum backing_where where, uint64_t charge,
		   int flags, struct backing **out, int *fd)
{
	struct backings *bs = &e->backings;
	struct backing *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->where = where;
	b->charged = charge;
	b->refs = 1;
	r = new_file(e, where, flags, &b->id, fd);
	if (r < 0) {
		free(b);
		return r;
	}
	mutex_lock(&bs->lock);
	LIST_INSERT_HEAD(&bs->by_id[bucket_of(b->id)], b, by_id);
	mutex_unlock(&bs->lock);
	*out = b;
	return 0;
}

struct backing *backing_adopt(struct engine *e, uint64_t id,
			      enum backing_where where, uint64_t version,
			      uint64_t charge)
{
	struct backings *bs = &e->backings;
	struct backing *fresh = calloc(1, sizeof(*fresh));
	struct backing *b;

	mutex_lock(&bs->lock);
	b = find_id_locked(bs, id);
	if (!b && fresh) {
		b = MOVE(fresh);
		b->id = id;
		b->where = where;
		b->charged = charge;
		LIST_INSERT_HEAD(&bs->by_id[bucket_of(id)], b, by_id);
		set_version_locked(bs, b, version);
	}
	if (b)
		get_locked(bs, b);
	mutex_unlock(&bs->lock);
	free(fresh);
	return b;
}

struct backing *backing_of_version(struct engine *e, uint64_t version)
{
	struct backings *bs = &e->backings;
	struct backing *b;

	mutex_lock(&bs->lock);
	b = find_version_locked(bs, version);
	if (b)
		get_locked(bs, b);
	mutex_unlock(&bs->lock);
	return b;
}

void backing_get(struct engine *e, struct backing *b)
{
	mutex_lock(&e->backings.lock);
	get_locked(&e->backings, b);
	mutex_unlock(&e->backings.lock);
}

static void remove_locked(struct backings *bs, struct backing *b)
{
	lru_leave_locked(bs, b);
	set_version_locked(bs, b, 0);
	LIST_REMOVE(b, by_id);
}

/* b is out of the tables. The copy of a recorded version is not ours. */
static void destroy(struct engine *e, struct backing *b)
{
	struct tier *t = backing_tier(e, b->where);
	int r = 0;

	if (b->where == BACKING_DRAM || !b->recorded)
		r = t->ops->remove(t, b->id);
	if (r < 0)
		message_error("cannot remove backing file %016lx on %s: %s",
			      (unsigned long)b->id, t->ops->name, strerror(-r));
	reserve_forgo(e->reserve, b->promised);
	if (b->charged)
		reserve_give(e->reserve, b->charged);
	free(b);
}

/* With no reference left: true if it is out of the tables now and the
 * caller's to destroy. */
static bool settle_unused_locked(struct backings *bs, struct backing *b)
{
	if (b->where == BACKING_DRAM && b->recorded && b->version) {
		if (!b->in_lru)
			TAILQ_INSERT_TAIL(&bs->lru, b, lru);
		b->in_lru = true;
		return false;
	}
	remove_locked(bs, b);
	if (b->where == BACKING_DRAM && b->charged <= TIDY_MAX) {
		TAILQ_INSERT_TAIL(&bs->unwanted, b, lru);
		return false;
	}
	return true;
}

bool backings_tidy(struct engine *e)
{
	struct backings *bs = &e->backings;
	struct backing *b;
	bool any = false;

	do {
		mutex_lock(&bs->lock);
		b = TAILQ_FIRST(&bs->unwanted);
		if (b)
			TAILQ_REMOVE(&bs->unwanted, b, lru);
		mutex_unlock(&bs->lock);
		if (b)
			destroy(e, b);
		any |= b != NULL;
	} while (b);
	return any;
}

void backing_put(struct engine *e, struct backing *b)
{
	struct backings *bs = &e->backings;
	bool gone = false;

	if (!b)
		return;
	mutex_lock(&bs->lock);
	if (--b->refs == 0)
		gone = settle_unused_locked(bs, b);
	mutex_unlock(&bs->lock);
	if (gone)
		destroy(e, b);
}

void backing_set_version(struct engine *e, struct backing *b, uint64_t v)
{
	mutex_lock(&e->backings.lock);
	if (b->version != v) {
		b->recorded = false;
		b->turns++;
	}
	set_version_locked(&e->backings, b, v);
	mutex_unlock(&e->backings.lock);
}

void backing_recorded(struct engine *e, uint64_t version, uint64_t file)
{
	struct backing *b;

	mutex_lock(&e->backings.lock);
	b = find_version_locked(&e->backings, version);
	if (b && (b->where == BACKING_DRAM || b->id == file))
		b->recorded = true;
	mutex_unlock(&e->backings.lock);
}

void backing_version_gone(struct engine *e, uint64_t version)
{
	struct backings *bs = &e->backings;
	struct backing *b;
	bool gone = false;

	mutex_lock(&bs->lock);
	b = find_version_locked(bs, version);
	if (b) {
		if (b->where == BACKING_DRAM)
			b->recorded = false;
		set_version_locked(bs, b, 0);
		if (b->refs == 0)
			gone = settle_unused_locked(bs, b);
	}
	mutex_unlock(&bs->lock);
	if (gone)
		destroy(e, b);
}

uint64_t backing_turns(struct engine *e, struct backing *b)
{
	uint64_t turns;

	mutex_lock(&e->backings.lock);
	turns = b->turns;
	mutex_unlock(&e->backings.lock);
	return turns;
}

void backing_set_charge(struct engine *e, struct backing *b, uint64_t bytes)
{
	mutex_lock(&e->backings.lock);
	b->charged = bytes;
	mutex_unlock(&e->backings.lock);
}

void backing_take_promised(struct engine *e, struct backing *b, uint64_t bytes)
{
	uint64_t len;

	mutex_lock(&e->backings.lock);
	len = bytes > b->charged ? bytes - b->charged : 0;
	if (len > b->promised)
		len = b->promised;
	b->promised -= len;
	b->charged += len;
	mutex_unlock(&e->backings.lock);
	if (len)
		reserve_take_promised(e->reserve, len);
}

void backing_drop_promise(struct engine *e, struct backing *b)
{
	uint64_t len;

	mutex_lock(&e->backings.lock);
	len = b->promised;
	b->promised = 0;
	mutex_unlock(&e->backings.lock);
	reserve_forgo(e->reserve, len);
}

int dram_evict(struct engine *e, uint64_t len)
{
	struct backings *bs = &e->backings;
	uint64_t freed = 0;

	while (freed < len) {
		struct backing *b;

		mutex_lock(&bs->lock);
		b = TAILQ_FIRST(&bs->lru);
		if (b) {
			remove_locked(bs, b);
			bs->n_evicted++;
		}
		mutex_unlock(&bs->lock);
		if (!b)
			return -ENOSPC;
		freed += b->charged;
		destroy(e, b);
	}
	return 0;
}

uint64_t dram_evict_version(struct engine *e, uint64_t version)
{
	struct backings *bs = &e->backings;
	struct backing *b;
	uint64_t freed = 0;

	mutex_lock(&bs->lock);
	b = find_version_locked(bs, version);
	if (b && b->in_lru) {
		freed = b->charged;
		remove_locked(bs, b);
		bs->n_evicted++;
	} else {
		b = NULL;
	}
	mutex_unlock(&bs->lock);
	if (b)
		destroy(e, b);
	return freed;
}

typedef int reserve_how(struct reserve *r, uint64_t len);

static int take_evicting(struct engine *e, uint64_t len, reserve_how *take)
{
	for (int tries = 0; tries < 8; tries++) {
		if (!take(e->reserve, len))
			return 0;
		if (!backings_tidy(e) && dram_evict(e, len))
			break;
	}
	return take(e->reserve, len);
}

int dram_take(struct engine *e, uint64_t len)
{
	return take_evicting(e, len, reserve_take);
}

int dram_promise(struct engine *e, uint64_t len)
{
	return take_evicting(e, len, reserve_promise);
}
