/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between restore_fetch.c (fetches and who holds them), restore_task.c (the
 * threads that work on them), restore_ranges.c (fetches without a file) and
 * restore_chunk.c (one chunk from the remote).
 */
#ifndef CKPT_ENGINE_RESTORE_FETCH_H
#define CKPT_ENGINE_RESTORE_FETCH_H

#include <pthread.h>
#include <sys/queue.h>

#include "engine/restore.h"
#include "engine/thread.h"

#define FETCH_PATIENCE_S 5 /* for threads that hang in the remote */

enum { TODO, RUNNING, THERE, BAD };

struct chunk {
	uint8_t state;
	bool wanted; /* somebody waits for it */
};

struct fetch {
	LIST_ENTRY(fetch) next;
	struct fetcher *fr; /* held */
	char *path;         /* immutable, like these: */
	uint64_t version, size, dst_id;
	char object_name[64]; /* as its record knew it */
	bool verified;
	struct tier *dst;
	int fd;
	int (*done)(void *arg, int err, const uint32_t *crcs);
	void *arg;
	size_t n_chunks;
	/* guarded by fr->lock */
	unsigned refs;      /* holders, threads, and 1 while it is active */
	unsigned n_running; /* threads at work on it */
	bool opening, finishing;
	bool ended; /* done() has been called */
	int err;    /* it failed as a whole */
	struct remote_object *object;
	struct chunk *chunks;
	size_t cursor, n_left, n_wanted, n_bad;
	/* an entry: its thread's, until its chunk is there */
	uint32_t *crcs;
};

struct fetcher {
	struct meta *m; /* not after `abandoned` */
	struct remote *r;
	struct mutex lock;
	pthread_cond_t work, changed;
	LIST_HEAD(, fetch) active;          /* guarded by lock */
	bool stop, abandoned;               /* guarded by lock */
	unsigned n_threads, n_remote, refs; /* guarded by lock */
	_Atomic uint64_t bytes;
};

/* ---- restore_chunk.c -------------------------------------------------- */

size_t fetch_chunk_len(const struct fetch *f, size_t i);
/*
 * Opens f's object, wherever it is now, after some tries; any thread.
 *
 *   -EIO        it is nowhere, or the remote stays down
 *   -ESHUTDOWN  the fetcher stops, or meta and tier must not be touched
 */
MUST_CHECK int fetch_find(struct fetch *f, struct remote_object **out);
/* Chunk i into buf (CHUNK_LEN), through f->object or, if that fails, one
 * opened anew; checked, or its checksum noted. -EBADMSG: wrong twice. */
MUST_CHECK int fetch_read_chunk(struct fetch *f, size_t i, void *buf);
/* Any range, unchecked, one try. -EBADMSG: it is shorter. */
MUST_CHECK int fetch_read_range(struct fetch *f, struct remote_object *o,
				void *buf, size_t len, uint64_t off);

/* ---- restore_task.c --------------------------------------------------- */

/* -EAGAIN: no thread can be had; those that were started run. */
MUST_CHECK int fetch_threads(struct fetcher *fr);
/* Ends an active fetch that nobody else works on any more. */
void fetch_finish(struct fetch *f, int err);

/* ---- restore_ranges.c ------------------------------------------------- */

/* In a thread of its own: a remote that hangs may hang in this, too. */
void object_close(struct remote *r, struct remote_object *o);

/* ---- restore_fetch.c -------------------------------------------------- */

/* As for fetch_start(), but nobody works on it; two refs. */
MUST_CHECK int fetch_new(struct fetcher *fr, const struct fetch_config *config,
			 struct fetch **out);

/* Gives one of refs back: the last one frees. Any thread. */
void fetcher_put(struct fetcher *fr);

#endif
