/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions that are sealed but not yet recorded in the durable database, in
 * the order of their numbers, and the backing files that hold them.
 *
 *   QUEUED → RUNNING → FLUSHED → (target reached: recorded, leaves the table)
 *      ↘ FAILED (retried with backoff; D stands still meanwhile)
 *
 * Invariants
 *  1. A version's bytes are readable until it is recorded or dropped: it holds
 *     a reference on its backing file, or `small`.
 *  2. A version that the follower's target needs (sealed at or before the
 *     target, pointless after it) is not dropped before the target is
 *     reached.
 *  3. A DRAM backing file is deleted only with its last reference, or
 *     (eviction) when nobody holds the inode and the durable database has a
 *     synced copy record.
 */
#ifndef CKPT_ENGINE_VERSION_H
#define CKPT_ENGINE_VERSION_H

#include <stdbool.h>
#include <stdint.h>

#include "metadata/metadata.h"

struct engine;

/*
 * Opens the bytes of a version, wherever the fastest copy is (DRAM, NVMe,
 * small: a memfd). One in DRAM may begin to be written while it is read: if
 * its checksums are wrong, ask again with slow, for the one on NVMe. *copy (may be NULL) gets its
 * NVMe copy record with checksums; copy_rec_fini() it.
 *
 *   -ENOENT  gone: replaced or unlinked meanwhile, or only on the remote
 */
MUST_CHECK int version_open_bytes(struct engine *e, uint64_t version, bool slow,
				  int *fd, struct copy_rec *copy);

#endif
