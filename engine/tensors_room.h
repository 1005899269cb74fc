/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engine/tensors*.c know of each other: tables in memory and what is
 * known of versions (tensors_cache.c), scans and the thread that makes them
 * ahead of time (tensors_scan.c), asking and sharded checkpoints (tensors.c).
 *
 * Threads: any.
 */
#ifndef CKPT_ENGINE_TENSORS_ROOM_H
#define CKPT_ENGINE_TENSORS_ROOM_H

#include <sys/queue.h>

#include "engine/core.h"
#include "engine/tensors.h"
#include "engine/thread.h"

#define N_QUEUE 256
#define N_OPAQUE 8192

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

/* ---- tensors_cache.c -------------------------------------------------- */

/* A table that is used by nobody. NULL is fine. */
void tensors_destroy(struct tensors *t);
/* Keeps t for who asks next; the room has a reference of its own. */
void tensors_keep(struct tensor_room *room, struct tensors *t);
/* What is kept of a version, held; NULL: nothing, or what it says of shards is
 * not true any more. */
struct tensors *tensors_kept(struct tensor_room *room, uint64_t version);
/* Drops what was last used before a time of CLOCK_MONOTONIC, in ns, and what is
 * too much. */
void tensors_trim(struct tensor_room *room, int64_t before);
/* Is it known that a version has none? It may be forgotten. */
bool tensors_opaque(struct tensor_room *room, uint64_t version);
void tensors_set_opaque(struct tensor_room *room, uint64_t version);

/* ---- tensors_scan.c --------------------------------------------------- */

/* -ENOENT: it has none; others: it is of no use. */
MUST_CHECK int tensors_from_record(struct engine *e, uint64_t version,
				   struct tensor_table **out);
/*
 * From the bytes; makes the record. remote: it may be asked. Few at a time: may
 * wait for others.
 *
 *   -ENOMSG  opaque
 *   others   as source_open() and source_read()
 */
MUST_CHECK int tensors_scan(struct engine *e, uint64_t ino, uint64_t version,
			    bool remote, struct tensor_table **out);

#endif
