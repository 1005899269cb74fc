/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flush: one version's bytes, DRAM → NVMe, with a checksum per chunk
 * (DESIGN.md section 4.6). This file moves bytes; which version, when, and
 * what it means is version.h's.
 */
#ifndef CKPT_ENGINE_FLUSH_H
#define CKPT_ENGINE_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/tier.h"

struct throttle; /* flush_rate=: bytes per second, shared by all flushes */
/* bytes_per_s 0: *out is NULL, which throttles nothing. */
MUST_CHECK int throttle_new(uint64_t bytes_per_s, struct throttle **out);
void throttle_free(struct throttle *t); /* NULL allowed; nobody waits */
/* Waits until len more bytes may go. t NULL: returns at once. Any thread. */
void throttle_wait(struct throttle *t, uint64_t len);

/* What the destination holds already, chunk by chunk (stream.h). Owned. */
struct flush_have {
	uint32_t n;     /* chunks it speaks of */
	uint8_t *on;    /* 1: it is there ... */
	uint32_t *crcs; /* ... with this checksum */
};
void flush_have_fini(struct flush_have *have);

/* For a thread that flushes one part after the other: memory that is not
 * touched anew each time. All NULL at first, and again after fini. */
#define FLUSH_BUFFERS 4
struct flush_buffers {
	void *p[FLUSH_BUFFERS]; /* CHUNK_LEN bytes each */
};
void flush_buffers_fini(struct flush_buffers *b);

/*
 * Of a sync that failed the kernel tells once, then calls the pages clean: the
 * next one may work, and what was not written is gone with the page cache.
 */
struct flush_doubt {
	bool failed; /* a sync in place did: nothing on that disk counts */
	bool known;  /* crcs are of bytes that were all in the page cache, so
			of what was written; else it may be lost already */
};

struct flush_job {
	int src_fd;    /* read-only descriptor of the backing file */
	uint64_t size; /* bytes of the version */
	bool final;    /* nobody can write it any more: map it and write
			    from the mapping. Else bounce through a copy, and
			    a source shorter than size reads as zeros */
	struct tier *dst;
	uint64_t dst_id; /* file to make, or, if it exists (preallocated),
			    to fill from the start */
	bool in_place;   /* src is on dst already (spilled): checksum, sync.
			    Not again after doubt->failed */
	struct flush_doubt *doubt;  /* in place: written if it is on error */
	struct throttle *throttle;  /* NULL: as fast as it goes */
	_Atomic uint64_t *progress; /* bytes written so far, added to; NULL
				       allowed. After an error: as before */
	uint32_t *crcs;             /* room for N_CHUNKS(size - from) */
	struct flush_have *have;    /* NULL: nothing. A chunk that is there with
				    the right sum is not written; one that
				    is written is not there any more */
	bool part;     /* only [from, size), of a file that goes on: it is
			  neither cut to size nor synced */
	uint64_t from; /* whole chunks; 0 unless part */
	struct flush_buffers *buffers; /* the caller's; NULL: its own */
};

/*
 * Runs one job to the end in the calling thread: afterwards the data of
 * dst_id is on stable storage (its name is, once tier's sync_names() ran),
 * chunks without any data are holes. On error dst_id may be there half filled.
 *
 *   -ENOSPC, -EIO, …  what the tier said
 */
MUST_CHECK int flush_run(const struct flush_job *job);

/*
 * Checks the bytes of fd (a whole version) against crcs.
 *   -EBADMSG  *bad_chunk (may be NULL) says which
 *   -EINVAL   n_chunks is not N_CHUNKS(size)
 */
MUST_CHECK int checksum_verify(int fd, uint64_t size, const uint32_t *crcs,
			       uint32_t n_chunks, uint32_t *bad_chunk);

/*
 * Copies a whole version between descriptors: reflink if that works, else
 * in the kernel, else by hand; chunks without any data stay holes. dst ends
 * up with this size; what it held is replaced, what is allocated for it
 * behind size stays. Its times are the caller's to set. crcs may be NULL,
 * else checked on the way. Either may be open with O_DIRECT.
 *
 *   -EBADMSG  a checksum does not match, or src is shorter than size
 */
MUST_CHECK int copy_content(int src_fd, int dst_fd, uint64_t size,
			    const uint32_t *crcs);

#endif
