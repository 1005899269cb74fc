/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests whose answer may have to come from the remote. No thread of libfuse
 * waits for one: a remote that hangs would soon hold them all, and with them
 * every other request, and the end of the daemon. Such a request is an errand:
 * done at once if the answer is here, else by one of a few threads that may
 * wait. However many wait for their turn, a request that waits costs nothing.
 *
 * Threads: any.
 */
#ifndef CKPT_FS_ERRAND_H
#define CKPT_FS_ERRAND_H

#include <sys/queue.h>

#include "fs/fs.h"

/* The arguments of the request, as far as it has them. */
struct errand {
	STAILQ_ENTRY(errand) next; /* not for callers */
	/*
	 * Answers the request. false: it did not, and has changed nothing, as
	 * it would have to wait, and patient is not set.
	 */
	bool (*run)(const struct errand *w, bool patient);
	fuse_req_t req;
	uint64_t ino, ino_out;
	size_t size;
	off_t off, off_out;
	int flags;
	mode_t mode;
	const char *name; /* copied; NULL: none */
	struct stat attr;
	struct fuse_file_info fi, fi_out;
};

/* Runs w, which is copied if it must wait; answers the request if it cannot. */
void errand_do(const struct errand *w);

MUST_CHECK int errands_new(struct errands **out);
/* Waits for all of them: whatever they wait for has an end by now. No request
 * comes any more. NULL is fine. */
void errands_free(struct errands *es);

#endif
