/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tensors the files of the mount hold: the second front header of the
 * engine, for fs/.
 *
 * A version that was flushed is scanned in the background and its record kept
 * (metadata's `tensor` family). That is only a head start: who asks for the
 * tensors of a version without a record scans it then, whichever tier it is
 * on. Saves never wait: the queue is bounded, what does not fit is dropped.
 *
 * Threads: any.
 */
#ifndef CKPT_ENGINE_TENSORS_H
#define CKPT_ENGINE_TENSORS_H

#include "engine/source_set.h"
#include "providers/reader_gather.h"
#include "providers/reader_table.h"

/* The tensors of one version; immutable. */
struct tensors;

/*
 * Of regular file ino; version 0: what it has now, as it was last sealed.
 * Blocks for a scan. A sharded checkpoint's index shows what its shards hold
 * now (looked at anew at most once a second).
 *
 *   -ENOMSG  opaque: there are none in it
 *   -ESTALE  that version is gone
 *   others   as source_open() and source_read()
 */
MUST_CHECK int tensors_open(struct engine *e, uint64_t ino, uint64_t version,
			    struct tensors **out);
/* NULL is fine. */
void tensors_put(struct tensors *t);

/* The version that regular file ino has now, what was closed included.
 * -ENOMSG: none, or an empty one; -ESTALE */
MUST_CHECK int tensors_current(struct engine *e, uint64_t ino,
			       uint64_t *version);
/* Are there any? Cheaper than tensors_open() where that is known. */
MUST_CHECK int tensors_any(struct engine *e, uint64_t ino, bool *out);

/* Of which version they are; the table, with places resolved. */
uint64_t tensors_version(const struct tensors *t);
const struct tensor_table *tensors_table(const struct tensors *t);

/* Which inode a piece's file is. false: none. */
bool tensors_file(const struct tensors *t, const char *file, uint64_t *ino);
/* The i-th other file that they lie in. false: no more. */
bool tensors_file_at(const struct tensors *t, size_t i, uint64_t *ino);
/* All files they lie in, for tensor_gather(); source_set_free() it. */
MUST_CHECK int tensors_sources(const struct tensors *t,
			       struct source_set **out);

/* ---- for the engine --------------------------------------------------- */

struct tensor_room;
MUST_CHECK int tensor_room_new(struct tensor_room **out);
/* No thread of it runs. NULL is fine. */
void tensor_room_free(struct tensor_room *room);
/* Shorter versions are scanned only when somebody asks: thousands of them would
 * cost more than they ever save. */
#define TENSORS_AHEAD (UINT64_C(1) << 20)
/* A version was recorded: to be scanned when there is time. Never waits. */
void tensors_offer(struct engine *e, uint64_t ino, uint64_t version);
void *tensors_main(void *engine);
/* tensors_main() ends soon. */
void tensors_stop(struct engine *e);

#endif
