/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming before the seal (DESIGN.md section 4.6): a writer that says which
 * bytes of a file are filled (libckpt does, by ioctl) has them written to NVMe
 * while it fills the rest. They go into the very file that the flush of the
 * next version will fill, with a checksum each. At the seal the flush sums the
 * sealed content again and writes only the chunks whose sums differ or that are
 * not there: a writer that broke its word costs time, never a wrong byte.
 *
 * Invariants
 *  1. A stream writes into the NVMe file of one version id, which nobody else
 *     writes until stream_end() of that id has returned.
 *  2. That file is removed by stream_drop() only, which nobody waits for: if
 *     it is being written, the streamer removes it when it is done.
 *  3. Sources are read by pread into a bounce buffer: an unsealed file may be
 *     cut under a mapping.
 */
#ifndef CKPT_ENGINE_STREAM_H
#define CKPT_ENGINE_STREAM_H

#include <stdint.h>
#include <sys/queue.h>

#include "engine/flush.h"

struct engine;
struct backing;
struct stream;

struct streams {
	struct mutex lock;
	pthread_cond_t work;   /* a chunk is ready, or stop */
	pthread_cond_t rested; /* none of some stream is being written */
	TAILQ_HEAD(, stream) list;
	bool stop;
};

/* All of an engine's; the thread has ended before fini. */
void streams_init(struct streams *s);
void streams_fini(struct engine *e);

/*
 * [off, off + len) of b, which the next version `id` will consist of, is
 * filled. Only full chunks are taken; best effort.
 */
void stream_filled(struct engine *e, uint64_t id, struct backing *b,
		   uint64_t off, uint64_t len);

/*
 * No more is written for id. *have is what its NVMe file holds (nothing, if it
 * was not streamed); flush_have_fini() it. Waits for what is in flight.
 */
void stream_end(struct engine *e, uint64_t id, struct flush_have *have);

/* No version will be in the NVMe file `id`: it goes, if it is there. */
void stream_drop(struct engine *e, uint64_t id);

/* The thread; arg: the engine. */
void *streamer_main(void *arg);

#endif
