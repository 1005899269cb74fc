/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a version's bytes to its record. Few at a time, as a hostile file may
 * make one dear; and one thread that does it ahead of who asks, when nothing
 * else is to be done.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "engine/chunk_cache.h"
#include "engine/tensors_room.h"

#define N_SCANS 2
#define IDLE_NS INT64_C(20000000000)
#define BUSY_LOOK_NS INT64_C(50000000)
#define NICE_LOWEST 15

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
	int r = s->peek(s->arg, head, len, 0);

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

int tensors_from_record(struct engine *e, uint64_t version,
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
	if (tensors_opaque(e->tensors, version))
		r = -ENOMSG;
	else if (tensors_from_record(e, version, out))
		r = scan_source(s, name, out);
	else
		r = 1;
	scan_end(e->tensors, remote);
	return r;
}

int tensors_scan(struct engine *e, uint64_t ino, uint64_t version, bool remote,
		 struct tensor_table **out)
{
	struct source *s;
	int r = source_open(e, ino, version, remote, &s);

	if (r < 0)
		return r;
	r = scan_in_turn(e, ino, version, s, out);
	source_close(s);
	if (r == -ENOMSG)
		tensors_set_opaque(e->tensors, version);
	if (!r)
		keep_record(e, version, *out);
	return r < 0 ? r : 0;
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

	if (tensors_opaque(e->tensors, o->version))
		return;
	if (!tensors_scan(e, o->ino, o->version, false, &table))
		tensor_table_free(table);
}

void *tensors_main(void *arg)
{
	struct engine *e = arg;
	struct offer o;

	/* Below the flushers. */
	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE_LOWEST);
	while (take_offer(e, &o)) {
		if (o.version)
			scan_ahead(e, &o);
		tensors_trim(e->tensors, now_mono_ns() - IDLE_NS);
		chunk_cache_trim(e->chunks, IDLE_NS);
	}
	return NULL;
}
