/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last few chunks that were fetched for readers who want only ranges of
 * remote-only versions: so that slices in a row, and several readers at once,
 * fetch each chunk once. At most CHUNKS_KEPT of them in memory.
 *
 * Threads: any.
 */
#ifndef CKPT_ENGINE_CHUNK_CACHE_H
#define CKPT_ENGINE_CHUNK_CACHE_H

#include "metadata/compiler.h"

#define CHUNKS_KEPT 6

struct chunk_cache;
MUST_CHECK int chunk_cache_new(struct chunk_cache **out);
/* Nobody reads. NULL is fine. */
void chunk_cache_free(struct chunk_cache *c);

/* Fills buf (CHUNK_LEN) with a chunk; *len: how long it is. -errno */
typedef int chunk_load(void *arg, uint64_t index, void *buf, size_t *len);

/*
 * Copy [off, off + len) of a chunk of a version to dst, loading the chunk if
 * it is not there. Blocks while somebody else loads it.
 *
 *   -EBADMSG  the chunk is shorter than that
 *   -ENOMEM, and what load() returned
 */
MUST_CHECK int chunk_cache_read(struct chunk_cache *c, uint64_t version,
				uint64_t index, void *dst, size_t len,
				size_t off, chunk_load *load, void *arg);

/* Gives back the memory of what nobody has read for `ns`. */
void chunk_cache_trim(struct chunk_cache *c, int64_t ns);

#endif
