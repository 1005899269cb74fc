/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables in memory (the last ones used), and versions known to be opaque: a
 * small table of their numbers, nothing on disk.
 *
 * A table whose pieces lie in other files (an index) was resolved with what
 * those held then; its pins say which versions. It is used as long as the
 * names still lead to them.
 */
#include <errno.h>
#include <string.h>

#include "engine/tensors_room.h"

#define CACHE_TABLES 64
#define CACHE_BYTES (UINT64_C(24) << 20)
#define FRESH_NS INT64_C(1000000000)

int tensor_room_new(struct tensor_room **out)
{
	struct tensor_room *room = calloc(1, sizeof(*room));

	if (!room)
		return -ENOMEM;
	mutex_init(&room->lock);
	condition_init(&room->work);
	condition_init(&room->stopped);
	condition_init(&room->scanned);
	TAILQ_INIT(&room->cache);
	*out = room;
	return 0;
}

/* ---- one table -------------------------------------------------------- */

void tensors_destroy(struct tensors *t)
{
	if (!t)
		return;
	tensor_table_free(t->table);
	for (size_t i = 0; i < t->n_pins; i++)
		free(t->pins[i].file);
	free(t->pins);
	free(t);
}

static uint64_t weight(const struct tensors *t)
{
	return 4096 + tensor_table_memory(t->table);
}

void tensors_put(struct tensors *t)
{
	bool last;

	if (!t)
		return;
	mutex_lock(&t->e->tensors->lock);
	last = --t->refs == 0;
	mutex_unlock(&t->e->tensors->lock);
	if (last)
		tensors_destroy(t);
}

uint64_t tensors_version(const struct tensors *t)
{
	return t->version;
}

const struct tensor_table *tensors_table(const struct tensors *t)
{
	return t->table;
}

bool tensors_file(const struct tensors *t, const char *file, uint64_t *ino)
{
	for (size_t i = 0; i < t->n_pins; i++) {
		const char *f = t->pins[i].file;

		if (f == file || (f && file && !strcmp(f, file))) {
			*ino = t->pins[i].ino;
			return true;
		}
	}
	return false;
}

bool tensors_file_at(const struct tensors *t, size_t i, uint64_t *ino)
{
	if (i + 1 >= t->n_pins) /* the first one is their own */
		return false;
	*ino = t->pins[i + 1].ino;
	return true;
}

int tensors_sources(const struct tensors *t, struct source_set **out)
{
	return source_set_new(t->e, t->ino, t->pins, t->n_pins, false, out);
}

/* ---- the cache -------------------------------------------------------- */

static void uncache_locked(struct tensor_room *room, struct tensors *t)
	MUST_HOLD(room->lock);
static void uncache_locked(struct tensor_room *room, struct tensors *t)
{
	TAILQ_REMOVE(&room->cache, t, lru);
	room->n_cached--;
	room->cached_bytes -= weight(t);
	t->cached = false;
}

/* One that is too many, or that nobody has used since `before`: to be put. The
 * one used last stays, however large: its other tensors are asked for next. */
static struct tensors *take_old(struct tensor_room *room, int64_t before)
{
	struct tensors *t;

	mutex_lock(&room->lock);
	t = TAILQ_FIRST(&room->cache);
	if (t && (room->n_cached > CACHE_TABLES ||
		  (room->cached_bytes > CACHE_BYTES && room->n_cached > 1) ||
		  t->used_ns < before))
		uncache_locked(room, t);
	else
		t = NULL;
	mutex_unlock(&room->lock);
	return t;
}

void tensors_trim(struct tensor_room *room, int64_t before)
{
	struct tensors *t;

	while ((t = take_old(room, before)))
		tensors_put(t);
}

void tensor_room_free(struct tensor_room *room)
{
	if (!room)
		return;
	tensors_trim(room, INT64_MAX);
	pthread_cond_destroy(&room->work);
	pthread_cond_destroy(&room->stopped);
	pthread_cond_destroy(&room->scanned);
	mutex_fini(&room->lock);
	free(room);
}

void tensors_keep(struct tensor_room *room, struct tensors *t)
{
	mutex_lock(&room->lock);
	t->refs++;
	t->cached = true;
	t->used_ns = t->checked_ns = now_mono_ns();
	TAILQ_INSERT_TAIL(&room->cache, t, lru);
	room->n_cached++;
	room->cached_bytes += weight(t);
	mutex_unlock(&room->lock);
	tensors_trim(room, 0);
}

static bool pins_hold(const struct tensors *t)
{
	for (size_t i = 0; i < t->n_pins; i++) {
		const struct pin *p = &t->pins[i];
		struct pin now;

		if (!p->file)
			continue;
		if (pin_look_up(t->e, t->ino, p->file, &now) ||
		    now.version != p->version)
			return false;
	}
	return true;
}

static struct tensors *find(struct tensor_room *room, uint64_t version,
			    bool *check)
{
	int64_t now = now_mono_ns();
	struct tensors *t;

	*check = false;
	mutex_lock(&room->lock);
	TAILQ_FOREACH_REVERSE(t, &room->cache, tensor_cache, lru)
	if (t->version == version)
		break;
	if (t) {
		t->refs++;
		t->used_ns = now;
		*check = t->n_pins > 1 && now - t->checked_ns > FRESH_NS;
		if (*check)
			t->checked_ns = now;
		TAILQ_REMOVE(&room->cache, t, lru);
		TAILQ_INSERT_TAIL(&room->cache, t, lru);
	}
	mutex_unlock(&room->lock);
	return t;
}

struct tensors *tensors_kept(struct tensor_room *room, uint64_t version)
{
	bool check, drop;
	struct tensors *t = find(room, version, &check);

	if (!t || !check || pins_hold(t))
		return t;
	mutex_lock(&room->lock);
	drop = t->cached;
	if (drop)
		uncache_locked(room, t);
	mutex_unlock(&room->lock);
	if (drop)
		tensors_put(t);
	tensors_put(t);
	return NULL;
}

/* ---- what is known to have none --------------------------------------- */

static uint64_t *opaque_slot(struct tensor_room *room, uint64_t version)
{
	return &room->opaque[bucket_of(version) % N_OPAQUE];
}

bool tensors_opaque(struct tensor_room *room, uint64_t version)
{
	bool yes;

	mutex_lock(&room->lock);
	yes = *opaque_slot(room, version) == version;
	mutex_unlock(&room->lock);
	return yes;
}

void tensors_set_opaque(struct tensor_room *room, uint64_t version)
{
	mutex_lock(&room->lock);
	*opaque_slot(room, version) = version;
	mutex_unlock(&room->lock);
}
