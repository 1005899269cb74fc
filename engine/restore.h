/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restore: the namespace of a fresh node from what a remote lists, and the
 * bytes of remote-only versions (DESIGN.md sections 4.7, 4.8).
 */
#ifndef CKPT_ENGINE_RESTORE_H
#define CKPT_ENGINE_RESTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/remote.h"
#include "engine/tier.h"
#include "metadata/metadata.h"

/*
 * Takes over everything the remote shows into a fresh (empty) namespace:
 * directories, symlinks, files as versions with a COPY_REMOTE record, modes,
 * owners, times, xattrs; no events. Files put there by others come as
 * unverified. Listing is not atomic: lists again until nothing has changed.
 * Attaches the remote first (remote_attach). Nothing else runs yet: it also
 * advances D and R to the last number itself, if nothing before it waits for a
 * flush, and only then notes that the import is done. An import that died
 * half-way is simply run again: what is there already is kept. What this mount
 * published itself is left alone, for what is known here counts.
 *
 *   -ENOTCONN, -ETIMEDOUT, -EIO …  the remote is down: why says how
 */
MUST_CHECK int restore_import(struct meta *m, struct remote *r,
			      uint64_t *n_files, char *why, size_t why_len);
/* false: a mount with a remote must (again) restore_import() before it
 * answers its first request. */
bool restore_is_done(const struct meta *m);
/*
 * At every start, before D moves: an import whose end was not durable yet is,
 * or is lost with the accepted state and to be made again.
 */
MUST_CHECK int restore_recall(struct meta *m, bool accepted_lost);

/*
 * A fetch fills a backing file with a remote-only version, several ranges in
 * parallel, from the start on and ahead of where readers are. One fetcher a
 * process; it holds the remote (remote_hold).
 */
struct fetcher;
MUST_CHECK int fetcher_new(struct meta *m, struct remote *r,
			   struct fetcher **out);
/* Whoever waits gets -ESHUTDOWN, now and from now on. Does not block. */
void fetcher_end(struct fetcher *fr);
/*
 * Stops all fetches: their waiters and their done() get -ESHUTDOWN. Bounded,
 * also when the remote hangs. Afterwards neither meta nor a tier is touched;
 * a struct fetch still held may be put later. NULL allowed.
 */
void fetcher_free(struct fetcher *fr);

struct fetch;
struct fetch_config {
	const char *path;     /* of the file, now; copied. If the object has
				 moved, the version's path is looked up */
	struct copy_rec copy; /* the COPY_REMOTE record; crcs are copied */
	struct tier *dst;
	uint64_t dst_id; /* file to make there */
	/*
	 * Called once, in a thread of the fetcher (or in fetcher_free()), when
	 * all is there, checked and synced (0), or failed: then dst_id has
	 * been removed. crcs: of the content (N_CHUNKS(size)), borrowed; NULL
	 * on failure. Returns what the whole fetch then counts as: err, or
	 * what went wrong in it.
	 */
	int (*done)(void *arg, int err, const uint32_t *crcs);
	void *arg;
};
/*
 * If a fetch of that version runs already it is joined: config's dst, dst_id,
 * done and arg are not used then; fetch_dst_id() != config->dst_id tells.
 */
MUST_CHECK int fetch_start(struct fetcher *fr,
			   const struct fetch_config *config,
			   struct fetch **out);
/* Descriptor to read from, valid until fetch_put(). */
int fetch_fd(const struct fetch *f);
uint64_t fetch_dst_id(const struct fetch *f);
/* Until [off, off + len) (clipped to the size) is there and its checksum
 * right; moves the fetch there. -EBADMSG, -EIO, -ETIMEDOUT …; -EINPROGRESS: it
 * is not, and patient is not set; -ESHUTDOWN: fetcher_end() */
MUST_CHECK int fetch_wait(struct fetch *f, uint64_t off, uint64_t len,
			  bool patient);
/* After done(): 0, or why not all is there. -EAGAIN: it still runs. */
MUST_CHECK int fetch_result(struct fetch *f);
/* Until then; patient, -EINPROGRESS, -ESHUTDOWN: as above. */
MUST_CHECK int fetch_wait_ended(struct fetch *f, bool patient);
/* One more hold; returns f. */
struct fetch *fetch_get(struct fetch *f);
/* Gives the caller's hold back; the fetch goes on to its end by itself. */
void fetch_put(struct fetch *f);

/*
 * For readers that want some ranges of a remote-only version and not all of
 * it: a fetch that no thread works on and that has no file. Blocks until the
 * object is found; errors as of a fetch. fetch_put() it. All that blocks here
 * ends at fetcher_end(), also if the remote hangs: -ESHUTDOWN.
 */
MUST_CHECK int ranges_open(struct fetcher *fr, const char *path,
			   const struct copy_rec *copy, struct fetch **out);
/* Chunk i into buf (CHUNK_LEN), checked where its checksum is known; *len: how
 * long it is. Any thread. -EBADMSG, -EIO … after some tries. */
MUST_CHECK int ranges_read_chunk(struct fetch *f, size_t i, void *buf,
				 size_t *len);
/* A few bytes, unchecked: to see whether it is worth more. The range lies
 * within the object. One try. */
MUST_CHECK int ranges_peek(struct fetch *f, void *buf, size_t len,
			   uint64_t off);

/* Bytes fetched ever, for rates. */
uint64_t fetcher_bytes(const struct fetcher *fr);

#endif
