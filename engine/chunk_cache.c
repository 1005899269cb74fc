/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handful of slots, the least recently read of which makes room. A slot
 * that is being loaded or copied from is held, and stays; whoever finds all
 * of them held waits.
 */
#include "engine/chunk_cache.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/thread.h"

struct slot {
	uint64_t version, index; /* version 0: empty */
	uint8_t *data;           /* CHUNK_LEN, or NULL */
	size_t len;
	int64_t read_ns;
	unsigned holds;
	bool loading;
};

struct chunk_cache {
	struct mutex lock;
	pthread_cond_t changed;
	struct slot slots[CHUNKS_KEPT]; /* guarded by lock; data of a held one
					   by its loader, then nobody's to
					   change */
};

int chunk_cache_new(struct chunk_cache **out)
{
	struct chunk_cache *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	condition_init(&c->changed);
	*out = c;
	return 0;
}

void chunk_cache_free(struct chunk_cache *c)
{
	if (!c)
		return;
	for (unsigned i = 0; i < CHUNKS_KEPT; i++)
		free(c->slots[i].data);
	pthread_cond_destroy(&c->changed);
	mutex_fini(&c->lock);
	free(c);
}

static struct slot *find_locked(struct chunk_cache *c, uint64_t version,
				uint64_t index) MUST_HOLD(c->lock);
static struct slot *find_locked(struct chunk_cache *c, uint64_t version,
				uint64_t index)
{
	for (unsigned i = 0; i < CHUNKS_KEPT; i++)
		if (c->slots[i].version == version &&
		    c->slots[i].index == index)
			return &c->slots[i];
	return NULL;
}

static struct slot *oldest_locked(struct chunk_cache *c) MUST_HOLD(c->lock);
static struct slot *oldest_locked(struct chunk_cache *c)
{
	struct slot *found = NULL;

	for (unsigned i = 0; i < CHUNKS_KEPT; i++) {
		struct slot *s = &c->slots[i];

		if (!s->holds && (!found || s->read_ns < found->read_ns))
			found = s;
	}
	return found;
}

/* Held; *load: the caller's to fill. */
static struct slot *take(struct chunk_cache *c, uint64_t version,
			 uint64_t index, bool *load)
{
	struct slot *s;

	mutex_lock(&c->lock);
	for (;;) {
		s = find_locked(c, version, index);
		*load = !s;
		if (!s)
			s = oldest_locked(c);
		if (s && !s->loading)
			break;
		pthread_cond_wait(&c->changed, &c->lock.m);
	}
	if (*load) {
		s->version = version;
		s->index = index;
		s->loading = true;
	}
	s->holds++;
	s->read_ns = now_mono_ns();
	mutex_unlock(&c->lock);
	return s;
}

/* err: it was not loaded, and is not there. */
static void give(struct chunk_cache *c, struct slot *s, bool loaded, int err)
{
	mutex_lock(&c->lock);
	s->holds--;
	if (loaded)
		s->loading = false;
	if (err) {
		s->version = 0;
		s->read_ns = 0;
	}
	pthread_cond_broadcast(&c->changed);
	mutex_unlock(&c->lock);
}

/* From here on others may read it too. */
static void loaded(struct chunk_cache *c, struct slot *s)
{
	mutex_lock(&c->lock);
	s->loading = false;
	pthread_cond_broadcast(&c->changed);
	mutex_unlock(&c->lock);
}

static int fill(struct slot *s, chunk_load *load, void *arg)
{
	if (!s->data)
		s->data = malloc(CHUNK_LEN);
	return s->data ? load(arg, s->index, s->data, &s->len) : -ENOMEM;
}

int chunk_cache_read(struct chunk_cache *c, uint64_t version, uint64_t index,
		     void *dst, size_t len, size_t off, chunk_load *load,
		     void *arg)
{
	bool mine;
	struct slot *s = take(c, version, index, &mine);
	int err = mine ? fill(s, load, arg) : 0;

	if (err) {
		give(c, s, true, err);
		return err;
	}
	if (mine)
		loaded(c, s);
	if (off > s->len || len > s->len - off)
		err = -EBADMSG;
	else
		memcpy(dst, s->data + off, len);
	give(c, s, false, 0);
	return err;
}

void chunk_cache_trim(struct chunk_cache *c, int64_t ns)
{
	int64_t before = now_mono_ns() - ns;

	mutex_lock(&c->lock);
	for (unsigned i = 0; i < CHUNKS_KEPT; i++) {
		struct slot *s = &c->slots[i];

		if (s->holds || s->read_ns > before)
			continue;
		free(s->data);
		*s = (struct slot){ 0 };
	}
	mutex_unlock(&c->lock);
}
