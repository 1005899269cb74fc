/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command line and /etc/fstab say. All paths are absolute and all
 * sizes bytes once options_parse() is through.
 */
#ifndef CKPT_FS_OPTIONS_H
#define CKPT_FS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "metadata/compiler.h"

enum io_mode { IO_AUTO, IO_PASSTHROUGH, IO_SERVED };

enum run_mode {
	RUN_MOUNT,
	RUN_FAKE, /* mount -f: everything but the mount */
	RUN_HELP,
	RUN_VERSION,
};

/* Strings are owned; options_fini() frees them. NULL: not given. */
struct options {
	enum run_mode mode;
	bool helper; /* called by mount(8) as mount.fuse.ckptfs */
	bool foreground, debug;
	char *shown_source; /* for /proc/mounts: no secrets */
	char *mountpoint;
	char *nvme; /* always set: the default is one a mount point */
	bool nvme_is_default;
	char *remote; /* NULL: none */
	char *log, *faulty;
	char *kernel; /* options for libfuse and the kernel, ','-separated */
	uint64_t dram, nvme_size, flush_rate;
	bool dram_given, reserve, allow_other;
	enum level fsync;
	enum io_mode io;
};

/*
 * Reads a command line, as the user's or as mount(8)'s. *out must be given to
 * options_fini() whatever the result.
 *
 *   -EINVAL  why is one line that names what is wrong and the remedy
 *   -ENOMEM  also with a line
 */
MUST_CHECK int options_parse(int argc, char **argv, struct options *out,
			     char *why, size_t why_len);
void options_fini(struct options *o);

/* ---- pieces, also for tests ------------------------------------------- */

/*
 * "64G", "1.5T", "512MiB", "100": bytes, in powers of 1024; "25%": that part
 * of `whole`. -EINVAL: none of them. -ERANGE: does not fit.
 */
MUST_CHECK int size_parse(const char *s, uint64_t whole, uint64_t *out);
/* Bytes of memory this process may use: the machine's or its cgroup's. */
uint64_t memory_size(void);
/* The directory of local state for this mount point; malloc'ed, NULL: no
 * memory, or no $HOME. */
char *default_nvme_dir(const char *mountpoint);
/* The one of the known option names nearest to name, or NULL. */
const char *option_nearest(const char *name, size_t len);
/* spec without what may be secret (user:password@, ?query); malloc'ed. */
char *without_secrets(const char *spec);

#endif
