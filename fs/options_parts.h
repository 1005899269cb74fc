/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the option parser: what options.c (the table), options_line.c
 * (the command line) and options_value.c (values) share.
 */
#ifndef CKPT_FS_OPTIONS_PARTS_H
#define CKPT_FS_OPTIONS_PARTS_H

#include "fs/options.h"

#define DRAM_MIN (UINT64_C(8) << 20)
#define NVME_MIN (UINT64_C(64) << 20)

struct parse {
	struct options *o;
	char *why;
	size_t why_len;
	char *nvme_size; /* to be read when nvme= is known */
	bool reserve_given;
};

/* Writes the line and returns -EINVAL. */
int parse_fail(struct parse *p, const char *fmt, ...) PRINTF(2, 3);
/* One item of -o. */
MUST_CHECK int parse_option(struct parse *p, const char *item);

/* ---- values: what the table's functions are made of ---- */

MUST_CHECK int parse_string(struct parse *p, const char *value, char **out);
/* Made absolute; need not exist. */
MUST_CHECK int parse_path(struct parse *p, const char *name, const char *value,
			  char **out);
MUST_CHECK int parse_size(struct parse *p, const char *name, const char *value,
			  uint64_t whole, uint64_t *out);
/* A remote, given as SOURCE or as remote=; `none` is none. */
MUST_CHECK int parse_remote(struct parse *p, const char *where,
			    const char *value);
MUST_CHECK int parse_for_kernel(struct parse *p, const char *item);
/* path, if relative, from the working directory; malloc'ed. */
MUST_CHECK int path_absolute(const char *path, char **out);
/* Symlinks, "." and the like taken out as far as it exists; malloc'ed. */
char *path_resolve(const char *path);

#endif
