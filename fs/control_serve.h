/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the control ioctl (control.h).
 */
#ifndef CKPT_FS_CONTROL_SERVE_H
#define CKPT_FS_CONTROL_SERVE_H

#include "fs/fs.h"

/* Requests that may take long run in threads of their own, a few at a time. */
MUST_CHECK int control_start(struct fs *fs, struct control **out);
/* Waits for those that still run. NULL is allowed. */
void control_stop(struct control *c);
/*
 * run(arg) in a thread of its own, which calls control_job_end() last.
 *
 *   -EAGAIN  too many run already
 */
MUST_CHECK int control_job_start(struct control *c, void *(*run)(void *arg),
				 void *arg);
void control_job_end(struct control *c);

/* JSON texts, malloc'ed. fs/control_json.c */
MUST_CHECK int status_json(struct fs *fs, char **out);
MUST_CHECK int path_json(struct fs *fs, uint64_t ino, char **out);

#endif
