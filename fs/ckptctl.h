/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptctl: asks a mount's daemon by the control ioctl and shows the answer.
 * Every command is one file and one row of the table in ckptctl.c. Errors are
 * printed where they happen, one line each; functions return an exit status.
 */
#ifndef CKPT_FS_CKPTCTL_H
#define CKPT_FS_CKPTCTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/control.h"
#include "metadata/compiler.h"

/* Documented in ckptctl(1). */
enum ctl_exit {
	CTL_OK = 0,
	CTL_ERROR = 1,
	CTL_USAGE = 2,
	CTL_TIMEOUT = 3,
};

enum ctl_level { CTL_DRAM, CTL_NVME, CTL_REMOTE, CTL_NO_LEVEL };
extern const char *const ctl_level_names[3];

struct ctl_args {
	const char *path, *path2; /* NULL: not given */
	enum ctl_level level;
	double timeout_s; /* < 0: none */
	bool json;
	const char *free_base;
	int depth; /* < 0: not given */
};

/* "ckptctl: …" on stderr; returns CTL_ERROR. */
int ctl_fail(const char *fmt, ...) PRINTF(1, 2);

/* ---- fs/ckptctl_mount.c: where to ask --------------------------------- */

/* Is path on any FUSE mount? */
bool ctl_on_fuse(const char *path);

struct ctl_mount {
	int fd; /* of path, or of the directory it lies in */
	char *root;
	char *path; /* resolved; what was asked about */
	uint64_t ino;
	bool is_root; /* path is the root itself */
};

/*
 * The mount that path lies on. NULL: the one of the working directory, or the
 * only one there is. 0, or an exit status after a message.
 */
MUST_CHECK int ctl_mount_open(const char *path, struct ctl_mount *out);
void ctl_mount_close(struct ctl_mount *m);
/*
 * One request. m->err is the daemon's answer; -errno: it could not be asked,
 * which was told.
 */
MUST_CHECK int ctl_call(const struct ctl_mount *mnt, struct control_msg *m);
/* A request answered with JSON. 0, an exit status after a message, or -ENOENT,
 * which is not told: ino is gone. */
MUST_CHECK int ctl_call_json(const struct ctl_mount *mnt, uint32_t op,
			     uint64_t ino, json_t **out);
/* What the daemon's err means to a person. */
const char *ctl_error_text(int err);

/* ---- fs/ckptctl_text.c: how it looks ---------------------------------- */

#define CTL_BYTES_LEN 16

/* "1.2 GiB" in buf of CTL_BYTES_LEN, which is returned. */
const char *ctl_bytes(uint64_t n, char *buf);
/* A bar on the terminal's last line; behind of most bytes are missing. */
void ctl_bar_draw(const char *what, uint64_t behind, uint64_t most,
		  double elapsed_s);
void ctl_bar_clear(void);
/* For JSON, which takes UTF-8 only: in a name that is none, the bytes beyond
 * ASCII become '?'. */
void ctl_make_utf8(char *name);
/* NULL: no memory. */
json_t *ctl_json_name(const char *name);
/* Prints a name on one line, whatever it holds. */
void ctl_print_name(const char *name);

/* ---- commands --------------------------------------------------------- */

/* Each runs one command and returns its exit status. */
int ctl_status(const struct ctl_args *args);
int ctl_wait(const struct ctl_args *args);
int ctl_drain(const struct ctl_args *args);
int ctl_evict(const struct ctl_args *args);
int ctl_leftovers(const struct ctl_args *args);
int ctl_tensors(const struct ctl_args *args);
int ctl_diff(const struct ctl_args *args);

#endif
