/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon tells its operator: one line a fact, to stderr until the
 * mount is up, then to syslog or to the file of the option log=. Any thread.
 * (The ordered log of events is metadata.h; this is the other kind.)
 */
#ifndef CKPT_METADATA_LOG_MESSAGE_H
#define CKPT_METADATA_LOG_MESSAGE_H

#include "metadata/compiler.h"

enum message_level {
	MESSAGE_ERROR,
	MESSAGE_WARNING,
	MESSAGE_INFO,
	MESSAGE_DEBUG
};

/* Writes one line; bytes below space become '?'. Keeps errno. */
void message(enum message_level level, const char *fmt, ...) PRINTF(2, 3);
#define message_error(...) message(MESSAGE_ERROR, __VA_ARGS__)
#define message_warning(...) message(MESSAGE_WARNING, __VA_ARGS__)
#define message_info(...) message(MESSAGE_INFO, __VA_ARGS__)
#define message_debug(...) message(MESSAGE_DEBUG, __VA_ARGS__)

/* A file for them, made if it is not there; *fd is the caller's. */
MUST_CHECK int message_open_file(const char *path, int *fd);
/* Where lines go from now on; fd must stay open for good. */
void message_to_fd(int fd);
void message_to_syslog(const char *ident);
void message_set_level(enum message_level most_verbose);

#endif
