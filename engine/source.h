/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of one version, to be read in ranges, wherever they are: DRAM or
 * NVMe by pread; remote-only: the chunks that are needed, through the chunk
 * cache, and nothing is kept of them on a tier. What a source shows never
 * changes: where its file is written again, the version is looked for
 * elsewhere.
 *
 * A source that is open holds the DRAM or NVMe copy it reads, as an open file
 * does. Threads: any, also one source in many at a time.
 */
#ifndef CKPT_ENGINE_SOURCE_H
#define CKPT_ENGINE_SOURCE_H

#include "metadata/metadata.h"
#include "providers/reader.h"

struct engine;
struct source;

/*
 * version: of ino, now or once. Blocks while a remote is asked, if it may be.
 *
 *   -ESTALE  it is gone
 *   -EAGAIN  it is not to be had now: its file is being written, and its own
 *            copy is not made yet; or the remote must not be asked
 *   -EIO …   as a fetch
 */
MUST_CHECK int source_open(struct engine *e, uint64_t ino, uint64_t version,
			   bool remote, struct source **out);
/* Was it found on the remote only? */
bool source_is_remote(struct source *s);
/* NULL is fine. */
void source_close(struct source *s);

/*
 * All of [off, off + len), which lies within its size. Errors as above.
 */
MUST_CHECK int source_read(struct source *s, void *buf, size_t len,
			   uint64_t off);
/*
 * The same for a scan, valid until source_close(). Of a remote-only version,
 * what is peeked at (the first bytes of a file that may have no tensors; in a
 * zip a header before each of its files, all over it) is fetched alone and
 * unchecked. All else is checked, and so is every byte of a tensor.
 */
void source_scanner(struct source *s, struct reader_source *out);

#endif
