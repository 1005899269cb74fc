/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The follower: it advances the nvme watermark D, target by target
 * (DESIGN.md section 5), and frees what D has passed.
 *
 *   pick a target ≤ accepted → wait until every version it needs is flushed
 *   → names on stable storage → one synced batch → D = target
 *
 * Invariants
 *  1. Data before metadata: a version's bytes, and the name of its file, are
 *     on stable storage before the batch that records them.
 *  2. A version needed by the target (sealed at or before it, pointless after
 *     it or alive) is pinned by versions.target while the target stands.
 *  3. A recorded copy is deleted only when D has passed the event that made
 *     it pointless, and the publisher does not pin it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define MS INT64_C(1000000)
#define LINGER_NS (100 * MS)
#define REST_NS (2000 * MS)

void follow_kick(struct engine *e, bool hurry)
{
	mutex_lock(&e->follow.lock);
	if (hurry)
		e->follow.hurry = true;
	pthread_cond_broadcast(&e->follow.kick);
	mutex_unlock(&e->follow.lock);
}

void follow_dead(struct engine *e, uint64_t version, uint64_t seq)
{
	struct dead *d = malloc(sizeof(*d));

	if (!d)
		return; /* the sweep at the next start finds it */
	*d = (struct dead){ .version = version, .seq = seq };
	mutex_lock(&e->follow.lock);
	STAILQ_INSERT_TAIL(&e->follow.dead, d, next);
	mutex_unlock(&e->follow.lock);
}

/* D stands still (err), or moves again (0). */
static void set_error(struct engine *e, int err, const char *what)
{
	bool news;

	mutex_lock(&e->follow.lock);
	news = e->follow.error != err;
	e->follow.error = err;
	e->follow.error_text[0] = 0;
	if (err)
		snprintf(e->follow.error_text, sizeof(e->follow.error_text),
			 "%s: %s", what, strerror(-err));
	mutex_unlock(&e->follow.lock);
	if (news && err)
		message_error("nvme watermark stands still: %s: %s", what,
			      strerror(-err));
	else if (news)
		message_info("nvme watermark moves again");
	if (err)
		follow_fail_waiters(e, err);
}

int follow_error(struct engine *e)
{
	int r;

	mutex_lock(&e->follow.lock);
	r = e->follow.error;
	mutex_unlock(&e->follow.lock);
	return r;
}

/* ---- what D has passed ------------------------------------------------ */

static int delete_file(struct engine *e, uint64_t version)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	int r;

	r = meta_copy(e->meta, version, COPY_NVME, &c);
	if (!r && c.kind == COPY_FILE)
		r = e->nvme->ops->remove(e->nvme, c.file);
	return r == -ENOENT ? 0 : r;
}

static void delete_copies(struct engine *e, const uint64_t *versions, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = delete_file(e, versions[i]);
	if (r == 0)
		r = meta_del_copies(e->meta, versions, n);
	if (r < 0)
		message_error("cannot delete %zu old versions now, but at the "
			      "next mount: %s",
			      n, strerror(-r));
}

static bool may_delete(struct engine *e, const struct dead *d)
{
	return d->seq <= meta_nvme_seq(e->meta) &&
	       !(e->publisher &&
		 publish_pins(e->publisher, d->version, d->seq));
}

/* Those that may go, out of the list. */
static size_t take_dead(struct engine *e, uint64_t *versions, size_t max)
{
	struct dead *d, *next;
	size_t n = 0;

	mutex_lock(&e->follow.lock);
	for (d = STAILQ_FIRST(&e->follow.dead); d && n < max; d = next) {
		next = STAILQ_NEXT(d, next);
		if (!may_delete(e, d))
			continue;
		STAILQ_REMOVE(&e->follow.dead, d, dead, next);
		versions[n++] = d->version;
		free(d);
	}
	mutex_unlock(&e->follow.lock);
	return n;
}

static void bury_the_dead(struct engine *e)
{
	uint64_t versions[256];
	size_t n;

	backings_tidy(e);
	while ((n = take_dead(e, versions, 256)))
		delete_copies(e, versions, n);
}

/* ---- one target ------------------------------------------------------- */

struct batch {
	struct version **versions; /* held */
	size_t n;
	struct copy_rec *copies;
	struct small_content *smalls;
	size_t n_smalls;
	uint32_t *small_crcs; /* one each */
	uint64_t target;
};

static void batch_fini(struct engine *e, struct batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		if (b->versions[i])
			version_unhold(e, b->versions[i]);
	for (size_t i = 0; i < b->n_smalls; i++)
		free((void *)b->smalls[i].data);
	free(b->versions);
	free(b->copies);
	free(b->smalls);
	free(b->small_crcs);
}

enum need { NEED_NOTHING, NEED_FLUSH, NEED_FAILED, NEED_GIVE_UP };

/* What only this target needs any more must not hold up what is there. */
static enum need failing(const struct version *v, int *err)
{
	*err = v->error;
	return v->dead_seq ? NEED_GIVE_UP : NEED_FAILED;
}

static enum need what_is_needed_locked(struct versions *vs, uint64_t target,
				       int *err)
{
	enum need need = NEED_NOTHING;
	struct version *v;

	TAILQ_FOREACH(v, &vs->queue, in_order)
	{
		if (v->seq > target)
			break;
		if (v->state == VERSION_FLUSHED)
			continue;
		if (v->state == VERSION_FAILED)
			return failing(v, err);
		/* Failed before, now being tried again: still an error. */
		if (v->error)
			need = failing(v, err);
		else if (need == NEED_NOTHING)
			need = NEED_FLUSH;
	}
	return need;
}

/*
 * Waits until all that the target needs is flushed. -ECANCELED: stop;
 * -EAGAIN: give it up.
 */
static int wait_needed(struct engine *e, uint64_t target)
{
	struct versions *vs = &e->versions;
	enum need need;
	bool stop;
	int err = 0;

	for (;;) {
		/* R moves, and room that is due comes, whatever D waits for. */
		follow_tell_reached(e);
		bury_the_dead(e);
		mutex_lock(&vs->lock);
		need = what_is_needed_locked(vs, target, &err);
		if (need == NEED_FLUSH && !vs->stop)
			cond_wait_ns(&vs->changed, &vs->lock, 200 * MS);
		stop = vs->stop;
		mutex_unlock(&vs->lock);
		if (need == NEED_NOTHING)
			return 0;
		if (stop)
			return -ECANCELED;
		if (need == NEED_GIVE_UP)
			return -EAGAIN;
		if (need == NEED_FAILED) {
			set_error(e, err, "cannot flush");
			mutex_lock(&vs->lock);
			cond_wait_ns(&vs->changed, &vs->lock, 50 * MS);
			mutex_unlock(&vs->lock);
		}
	}
}

static int batch_alloc(struct batch *b, size_t n)
{
	b->versions = calloc(n + 1, sizeof(*b->versions));
	b->copies = calloc(n + 1, sizeof(*b->copies));
	b->smalls = calloc(n + 1, sizeof(*b->smalls));
	b->small_crcs = calloc(n + 1, sizeof(*b->small_crcs));
	return b->versions && b->copies && b->smalls && b->small_crcs ? 0
								      : -ENOMEM;
}

/* Holds every flushed version up to the target. */
static int batch_gather(struct engine *e, struct batch *b)
{
	struct versions *vs = &e->versions;
	struct version *v;
	size_t n = 0;
	int r;

	mutex_lock(&vs->lock);
	TAILQ_FOREACH(v, &vs->queue, in_order)
	{
		if (v->seq > b->target)
			break;
		n++;
	}
	r = batch_alloc(b, n);
	TAILQ_FOREACH(v, &vs->queue, in_order)
	{
		if (r < 0 || v->seq > b->target)
			break;
		version_hold_locked(v);
		b->versions[b->n++] = v;
	}
	mutex_unlock(&vs->lock);
	return r;
}

static int batch_add_small(struct engine *e, struct batch *b, struct version *v,
			   struct copy_rec *c)
{
	void *data;
	int r;

	r = version_load_small(e, v, &data);
	if (r < 0)
		return r;
	b->smalls[b->n_smalls] = (struct small_content){ .version = v->id,
							 .data = data,
							 .len = v->size };
	b->small_crcs[b->n_smalls] = crc32c(0, data, v->size);
	c->kind = COPY_SMALL;
	c->crcs = &b->small_crcs[b->n_smalls];
	b->n_smalls++;
	e->flushed_bytes += v->size;
	return 0;
}

static int batch_fill(struct engine *e, struct batch *b, bool *files)
{
	int r;

	*files = false;
	for (size_t i = 0; i < b->n; i++) {
		struct version *v = b->versions[i];
		struct copy_rec *c = &b->copies[i];

		*c = (struct copy_rec){
			.version = v->id,
			.tier = COPY_NVME,
			.size = v->size,
			.chunk_len = CHUNK_LEN,
			.n_chunks = (uint32_t)N_CHUNKS(v->size),
			.verified = true,
		};
		if (v->size <= META_SMALL_MAX) {
			r = batch_add_small(e, b, v, c);
			if (r < 0)
				return r;
			continue;
		}
		c->kind = COPY_FILE;
		c->file = v->file;
		c->crcs = v->crcs;
		*files = true;
	}
	return 0;
}

static void record_all(struct engine *e, struct batch *b)
{
	for (size_t i = 0; i < b->n; i++) {
		version_recorded(e, b->versions[i]);
		b->versions[i] = NULL;
	}
}

static int write_batch(struct engine *e, struct batch *b)
{
	bool files;
	int r;

	r = batch_gather(e, b);
	if (r == 0)
		r = batch_fill(e, b, &files);
	if (r == 0 && files)
		r = e->nvme->ops->sync_names(e->nvme);
	if (r == 0)
		r = meta_advance(e->meta, b->target, b->copies, b->n, b->smalls,
				 b->n_smalls);
	if (r == 0)
		record_all(e, b);
	return r;
}

/* ---- the thread ------------------------------------------------------- */

static int advance_once(struct engine *e)
{
	struct batch b = { 0 };
	int r = 0;

	b.target = version_next_target(e);
	if (b.target > meta_nvme_seq(e->meta)) {
		while ((r = wait_needed(e, b.target)) == -EAGAIN)
			b.target = version_give_up(e);
		if (r == 0)
			r = write_batch(e, &b);
	}
	batch_fini(e, &b);
	if (r == -ECANCELED)
		return r;
	if (r < 0) {
		set_error(e, r, "cannot write the durable database");
		return r;
	}
	set_error(e, 0, "");
	follow_tell_reached(e);
	bury_the_dead(e);
	if (e->publisher)
		publish_kick(e->publisher);
	return 0;
}

/* Waits for something to do; false: stop. */
static bool wait_for_work(struct engine *e, int64_t linger)
{
	int64_t until = now_mono_ns() + linger;
	bool stop;

	mutex_lock(&e->follow.lock);
	for (;;) {
		bool behind = meta_accepted_seq(e->meta) >
			      meta_nvme_seq(e->meta);
		int64_t left = until - now_mono_ns();

		if (e->follow.stop || (behind && e->follow.hurry))
			break;
		if (behind && left <= 0)
			break;
		cond_wait_ns(&e->follow.kick, &e->follow.lock,
			     behind ? left : LINGER_NS);
		if (!behind)
			break;
	}
	e->follow.hurry = false;
	stop = e->follow.stop;
	mutex_unlock(&e->follow.lock);
	return !stop;
}

static void remote_waiters_hurry(struct engine *e)
{
	follow_tell_reached(e);
	if (e->publisher)
		publish_kick(e->publisher);
}

void *follower_main(void *arg)
{
	struct engine *e = arg;
	int64_t backoff = 0, advanced_at = 0;

	while (wait_for_work(e, backoff ? backoff : LINGER_NS)) {
		int r = 0;

		if (meta_accepted_seq(e->meta) > meta_nvme_seq(e->meta)) {
			r = advance_once(e);
			advanced_at = now_mono_ns();
		} else {
			bury_the_dead(e);
			if (now_mono_ns() - advanced_at > REST_NS)
				meta_rest(e->meta);
		}
		remote_waiters_hurry(e);
		if (r == -ECANCELED)
			break;
		if (r < 0)
			backoff = backoff ? backoff * 2 : 50 * MS;
		else
			backoff = 0;
		if (backoff > 2000 * MS)
			backoff = 2000 * MS;
	}
	return NULL;
}
