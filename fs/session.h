/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mount from start to end: the engine, the FUSE session, the agreement
 * with the kernel, the loop, signals, and taking it all down again.
 */
#ifndef CKPT_FS_SESSION_H
#define CKPT_FS_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/fs.h"
#include "fs/mountpoint.h"
#include "fs/options.h"
#include "fs/startup.h"

struct session {
	struct fs fs;
	const struct options *options;
	struct startup *startup;
	struct fuse_session *fuse;
	int dev_fd; /* libfuse's /dev/fuse; for the passthrough hooks */
	int log_fd; /* of log=, for good; -1: none */
	bool is_mounted;
	struct mounted own; /* the mount, to tell it from a later one */
	pthread_t loop_thread, signal_thread;
	atomic_bool loop_over;
};

/*
 * Mounts, serves until it is unmounted or told to end, and takes everything
 * down. Signals of session_block_signals() are blocked.
 *
 *   -errno  why it did not start; that was told on stderr
 */
MUST_CHECK int session_run(const struct options *o, struct startup *startup);

/* SIGTERM and SIGINT reach the signal thread only; SIGPIPE and SIGIO do
 * nothing. Before any thread is made. */
void session_block_signals(void);

/* fs/signals.c: ends the loop of s in an orderly way when told to. */
MUST_CHECK int signals_start(struct session *s);
/* The loop has ended. */
void signals_stop(struct session *s);

/* fs/libfuse.c: libfuse's messages become ours. The last one, without its
 * newline, is kept for the error line of a failed mount. */
void libfuse_messages(void);
const char *libfuse_last_message(void);
/* Session and mount. On failure why holds a line and nothing is left. */
MUST_CHECK int libfuse_mount(struct session *s, char *why, size_t why_len);
/* Answers the kernel's INIT, in this thread. */
MUST_CHECK int libfuse_handshake(struct session *s);
/* Serves until the session has ended. */
MUST_CHECK int libfuse_loop(struct session *s);

#endif
