/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going into the background: the caller's process stays until the mount
 * works or has failed, and ends with that answer.
 */
#ifndef CKPT_FS_STARTUP_H
#define CKPT_FS_STARTUP_H

#include <stdbool.h>

#include "metadata/compiler.h"

struct startup {
	int answer_fd; /* -1: in the foreground */
	bool foreground;
};

/*
 * 0, 1 and 2 are open from now on, to nothing where the caller had closed them:
 * no file of ours may be taken for one of them. Before anything is opened.
 */
MUST_CHECK int startup_descriptors(void);
/*
 * Returns in the process that goes on: a child in a session of its own and
 * without the caller's other descriptors, or in the foreground the caller
 * itself. Errors go to stderr until startup_done(). No threads may run and
 * nothing but 0, 1 and 2 may be open yet.
 */
MUST_CHECK int startup_begin(bool foreground, struct startup *out);
/* Nobody waits for the mount any more: the caller has gone, or one of the
 * signals that end a mount is pending. startup: a struct startup. */
bool startup_unwanted(const void *startup);
/* The mount works: lets go of terminal, stderr and working directory, and
 * ends the caller with success. If it is never called, the caller fails when
 * this process ends; if the caller has gone, this process is told to end. */
void startup_done(struct startup *s);

#endif
