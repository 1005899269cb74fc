/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the tensors of versions, from the cheapest place on: tables in
 * memory (the last ones used), versions known to be opaque (a small table of
 * their numbers, nothing on disk), records, and the bytes themselves. Scans are
 * few at a time, as a hostile file may make one dear.
 *
 * A table whose pieces lie in other files (an index) was resolved with what
 * those held then; its pins say which versions. It is used as long as the
 * names still lead to them.
 */
#include "engine/tensors.h"

#include <errno.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "engine/chunk_cache.h"
#include "engine/core.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define N_QUEUE 256
#define N_OPAQUE 8192
#define N_SCANS 2
#define CACHE_TABLES 64
#define CACHE_BYTES (UINT64_C(24) << 20)
#define TENSOR_BYTES 256 /* about, in a table */
#define IDLE_NS INT64_C(20000000000)
#define BUSY_LOOK_NS INT64_C(50000000)
#define FRESH_NS INT64_C(1000000000)
#define NICE_LOWEST 15

struct tensors {
	struct engine *e;
	uint64_t ino, version;
	struct tensor_table *table;
	struct pin *pins;
	size_t n_pins;
	/* guarded by the room's lock */
	unsigned refs;
	TAILQ_ENTRY(tensors) lru;
	bool cached;
	int64_t checked_ns, used_ns;
};

struct offer {
	uint64_t ino, version;
};

struct tensor_room {
	struct mutex lock;
	pthread_cond_t work, stopped, scanned;
	TAILQ_HEAD(tensor_cache, tensors) cache; /* least recently used first */
	unsigned n_cached;
	uint64_t cached_bytes;
	uint64_t opaque[N_OPAQUE]; /* versions, where their hash says */
	unsigned n_scans[2];       /* local, remote */
	struct offer queue[N_QUEUE];
	unsigned head, n_queued;
	bool stop;
};

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

static void tensors_free(struct tensors *t)
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
	return 4096 + tensor_table_count(t->table) * TENSOR_BYTES;
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
		tensors_free(t);
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

static void trim(struct tensor_room *room, int64_t before)
{
	struct tensors *t;

	while ((t = take_old(room, before)))
		tensors_put(t);
}

void tensor_room_free(struct tensor_room *room)
{
	if (!room)
		return;
	trim(room, INT64_MAX);
	pthread_cond_destroy(&room->work);
	pthread_cond_destroy(&room->stopped);
	pthread_cond_destroy(&room->scanned);
	mutex_fini(&room->lock);
	free(room);
}

static void cache_add(struct tensor_room *room, struct tensors *t)
{
	mutex_lock(&room->lock);
	t->refs++;
	t->cached = true;
	t->used_ns = t->checked_ns = now_mono_ns();
	TAILQ_INSERT_TAIL(&room->cache, t, lru);
	room->n_cached++;
	room->cached_bytes += weight(t);
	mutex_unlock(&room->lock);
	trim(room, 0);
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

static struct tensors *cached(struct tensor_room *room, uint64_t version)
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

static bool is_opaque(struct tensor_room *room, uint64_t version)
{
	bool yes;

	mutex_lock(&room->lock);
	yes = *opaque_slot(room, version) == version;
	mutex_unlock(&room->lock);
	return yes;
}

static void set_opaque(struct tensor_room *room, uint64_t version)
{
	mutex_lock(&room->lock);
	*opaque_slot(room, version) = version;
	mutex_unlock(&room->lock);
}

/* ---- scanning --------------------------------------------------------- */

static int take_name(void *arg, uint64_t parent, const char *name)
{
	(void)parent;
	memcpy(arg, name, strlen(name) + 1);
	return 1;
}

/* Cheap, for the many that are something else. */
static int sniff(const struct reader_source *s, const char *name)
{
	uint8_t head[READER_HEAD_LEN];
	size_t len = s->size < sizeof(head) ? (size_t)s->size : sizeof(head);
	int r = s->read(s->arg, head, len, 0);

	if (r < 0)
		return r;
	return reader_find(head, len, name) ? 0 : -ENOMSG;
}

static int scan_source(struct source *s, const char *name,
		       struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	struct reader_source reader;
	int r;

	source_scanner(s, &reader);
	r = sniff(&reader, name);
	if (r < 0)
		return r;
	r = tensor_table_scan(&reader, name, &table);
	if (r == -E2BIG || (!r && !tensor_table_count(table)))
		return -ENOMSG;
	if (!r)
		*out = MOVE(table);
	return r;
}

static void keep_record(struct engine *e, uint64_t version,
			const struct tensor_table *table)
{
	CLEANUP(free_p) uint8_t *record = NULL;
	size_t len;

	if (tensor_table_encode(table, &record, &len))
		return;
	(void)!meta_put_tensors(e->meta, version, record, len);
}

static int from_record(struct engine *e, uint64_t version,
		       struct tensor_table **out)
{
	CLEANUP(free_p) void *record = NULL;
	size_t len;
	int r = meta_tensors(e->meta, version, &record, &len);

	return r < 0 ? r : tensor_table_decode(record, len, out);
}

/* Those of a remote that hangs hold up no others. */
static void scan_begin(struct tensor_room *room, bool remote)
{
	mutex_lock(&room->lock);
	while (room->n_scans[remote] >= N_SCANS)
		pthread_cond_wait(&room->scanned, &room->lock.m);
	room->n_scans[remote]++;
	mutex_unlock(&room->lock);
}

static void scan_end(struct tensor_room *room, bool remote)
{
	mutex_lock(&room->lock);
	room->n_scans[remote]--;
	pthread_cond_broadcast(&room->scanned);
	mutex_unlock(&room->lock);
}

static int scan_in_turn(struct engine *e, uint64_t ino, uint64_t version,
			struct source *s, struct tensor_table **out)
{
	bool remote = source_is_remote(s);
	char name[META_NAME_MAX + 1] = "";
	int r;

	(void)!view_names(meta_accepted(e->meta), ino, take_name, name);
	scan_begin(e->tensors, remote);
	/* Somebody else's scan may be what we waited for. */
	if (is_opaque(e->tensors, version))
		r = -ENOMSG;
	else if (from_record(e, version, out))
		r = scan_source(s, name, out);
	else
		r = 1;
	scan_end(e->tensors, remote);
	return r;
}

/* remote: it may be asked. */
static int scan(struct engine *e, uint64_t ino, uint64_t version, bool remote,
		struct tensor_table **out)
{
	struct source *s;
	int r = source_open(e, ino, version, remote, &s);

	if (r < 0)
		return r;
	r = scan_in_turn(e, ino, version, s, out);
	source_close(s);
	if (r == -ENOMSG)
		set_opaque(e->tensors, version);
	if (!r)
		keep_record(e, version, *out);
	return r < 0 ? r : 0;
}

/* ---- sharded checkpoints ---------------------------------------------- */

static bool is_unresolved(const struct tensor *t)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].coding == TENSOR_NESTED ||
		    t->pieces[i].coding == TENSOR_BY_NAME)
			return true;
	return false;
}

static bool wants_resolving(const struct tensor_table *table)
{
	for (size_t i = 0; i < tensor_table_count(table); i++)
		if (is_unresolved(tensor_table_at(table, i)))
			return true;
	return false;
}

/* What nobody resolved has files as well. */
static int pin_the_rest(struct source_set *set,
			const struct tensor_table *table)
{
	struct reader_source ignored;

	for (size_t i = 0; i < tensor_table_count(table); i++) {
		const struct tensor *t = tensor_table_at(table, i);

		for (unsigned p = 0; p < t->n_pieces; p++) {
			int r = source_set_open(set, t->pieces[p].file,
						&ignored);

			if (r < 0 && r != -ENOENT)
				return r;
		}
	}
	return 0;
}

static int take_pins(struct tensors *t, const struct source_set *set)
{
	const struct pin *pins = source_set_pins(set, &t->n_pins);

	t->pins = calloc(t->n_pins + 1, sizeof(*t->pins));
	for (size_t i = 0; t->pins && i < t->n_pins; i++) {
		t->pins[i] = pins[i];
		if (!pins[i].file)
			continue;
		t->pins[i].file = strdup(pins[i].file);
		if (!t->pins[i].file)
			return -ENOMEM;
	}
	if (t->pins)
		return 0;
	t->n_pins = 0;
	return -ENOMEM;
}

/* Takes table. */
static int complete(struct tensors *t, struct tensor_table *table)
{
	struct pin self = { .ino = t->ino, .version = t->version };
	struct source_set *set;
	int r = source_set_new(t->e, t->ino, &self, 1, true, &set);

	t->table = table;
	if (r < 0)
		return r;
	if (wants_resolving(table)) {
		r = tensor_table_resolve(table, source_set_open, set,
					 &t->table);
		if (!r)
			tensor_table_free(table);
	}
	if (!r)
		r = pin_the_rest(set, t->table);
	if (!r)
		r = take_pins(t, set);
	source_set_free(set);
	return r;
}

/* ---- asking ----------------------------------------------------------- */

static int make(struct engine *e, uint64_t ino, uint64_t version,
		struct tensors **out)
{
	struct tensors *t = calloc(1, sizeof(*t));
	struct tensor_table *table;
	int r;

	if (!t)
		return -ENOMEM;
	*t = (struct tensors){
		.e = e, .ino = ino, .version = version, .refs = 1
	};
	r = from_record(e, version, &table);
	if (r < 0) /* whatever is wrong with it */
		r = scan(e, ino, version, true, &table);
	if (!r)
		r = complete(t, table);
	if (r < 0) {
		tensors_free(t);
		return r;
	}
	cache_add(e->tensors, t);
	*out = t;
	return 0;
}

int tensors_current(struct engine *e, uint64_t ino, uint64_t *version)
{
	struct inode_rec rec;
	int r;

	(void)settle(e); /* what was closed is a version */
	r = view_inode(meta_accepted(e->meta), ino, &rec);

	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	*version = rec.version;
	return S_ISREG(rec.mode) && rec.version && rec.size ? 0 : -ENOMSG;
}

int tensors_open(struct engine *e, uint64_t ino, uint64_t version,
		 struct tensors **out)
{
	int r = version ? 0 : tensors_current(e, ino, &version);
	struct tensors *t;

	if (r < 0)
		return r;
	if (is_opaque(e->tensors, version))
		return -ENOMSG;
	t = cached(e->tensors, version);
	if (!t)
		r = make(e, ino, version, &t);
	if (!r)
		*out = t;
	return r;
}

int tensors_any(struct engine *e, uint64_t ino, bool *out)
{
	struct tensors *t = NULL;
	uint64_t version;
	int r = tensors_current(e, ino, &version);

	if (!r && !meta_tensors(e->meta, version, NULL, NULL)) {
		*out = true;
		return 0;
	}
	if (!r)
		r = tensors_open(e, ino, version, &t);
	tensors_put(t);
	*out = !r;
	return r == -ENOMSG ? 0 : r;
}

/* ---- ahead of that ---------------------------------------------------- */

void tensors_offer(struct engine *e, uint64_t ino, uint64_t version)
{
	struct tensor_room *room = e->tensors;

	mutex_lock(&room->lock);
	if (room->n_queued < N_QUEUE) {
		unsigned at = (room->head + room->n_queued++) % N_QUEUE;

		room->queue[at] = (struct offer){ ino, version };
		pthread_cond_signal(&room->work);
	}
	mutex_unlock(&room->lock);
}

void tensors_stop(struct engine *e)
{
	mutex_lock(&e->tensors->lock);
	e->tensors->stop = true;
	pthread_cond_broadcast(&e->tensors->work);
	pthread_cond_broadcast(&e->tensors->stopped);
	mutex_unlock(&e->tensors->lock);
}

/* Is something on its way to NVMe? A thread that is put off while it holds a
 * lock would hold up a save: scans wait until there is none. */
static bool is_busy(struct engine *e)
{
	bool busy;

	mutex_lock(&e->versions.lock);
	busy = e->versions.n != 0;
	mutex_unlock(&e->versions.lock);
	return busy;
}

/* false: stop. offer->version 0: nothing came for a while. */
static bool take_offer(struct engine *e, struct offer *out)
{
	struct tensor_room *room = e->tensors;
	bool stop;

	*out = (struct offer){ 0 };
	mutex_lock(&room->lock);
	if (!room->n_queued && !room->stop)
		cond_wait_ns(&room->work, &room->lock, IDLE_NS);
	while (room->n_queued && !room->stop) {
		bool busy;

		mutex_unlock(&room->lock);
		busy = is_busy(e);
		mutex_lock(&room->lock);
		if (!busy)
			break;
		cond_wait_ns(&room->stopped, &room->lock, BUSY_LOOK_NS);
	}
	stop = room->stop;
	if (room->n_queued && !stop) {
		*out = room->queue[room->head];
		room->head = (room->head + 1) % N_QUEUE;
		room->n_queued--;
	}
	mutex_unlock(&room->lock);
	return !stop;
}

static void scan_ahead(struct engine *e, const struct offer *o)
{
	struct tensor_table *table = NULL;

	if (is_opaque(e->tensors, o->version))
		return;
	if (!scan(e, o->ino, o->version, false, &table))
		tensor_table_free(table);
}

void *tensors_main(void *arg)
{
	struct engine *e = arg;
	struct offer o;

	/* Below the flushers. */
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE_LOWEST);
	while (take_offer(e, &o)) {
		if (o.version) {
			scan_ahead(e, &o);
			continue;
		}
		trim(e->tensors, now_mono_ns() - IDLE_NS);
		chunk_cache_trim(e->chunks, IDLE_NS);
	}
	return NULL;
}
