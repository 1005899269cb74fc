/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of -o: one table of all that are known. What is not ours is
 * handed on to the kernel or, where mount(8) or systemd have dealt with it,
 * ignored; anything else is an error that names the nearest one.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fs/options.h"
#include "fs/options_parts.h"

static int set_dram(struct parse *p, const char *value)
{
	int err = parse_size(p, "dram", value, memory_size(), &p->o->dram);

	p->o->dram_given = true;
	if (!err && p->o->dram < DRAM_MIN)
		return parse_fail(p, "dram=%s is too small: give 8M or more",
				  value);
	if (!err && p->o->dram > memory_size())
		return parse_fail(p,
				  "dram=%s is more than this machine has (%lu "
				  "MiB): give less, or a percentage",
				  value, (unsigned long)(memory_size() >> 20));
	return err;
}

static int set_nvme(struct parse *p, const char *value)
{
	return parse_path(p, "nvme", value, &p->o->nvme);
}

/* Needs nvme=, which may come later. */
static int set_nvme_size(struct parse *p, const char *value)
{
	return parse_string(p, value, &p->nvme_size);
}

static int set_remote(struct parse *p, const char *value)
{
	return parse_remote(p, "remote=", value);
}

static int set_fsync(struct parse *p, const char *value)
{
	if (!level_parse(value, &p->o->fsync))
		return 0;
	return parse_fail(p, "fsync=%s: give dram, nvme or remote", value);
}

static int set_io(struct parse *p, const char *value)
{
	static const char *const names[] = { "auto", "passthrough", "served" };

	for (unsigned i = 0; i < 3; i++)
		if (strcmp(value, names[i]) == 0) {
			p->o->io = (enum io_mode)i;
			return 0;
		}
	return parse_fail(p, "io=%s: give auto, passthrough or served", value);
}

static int set_reserve(struct parse *p, const char *value)
{
	bool yes = strcmp(value, "yes") == 0;

	if (!yes && strcmp(value, "no") != 0)
		return parse_fail(p, "reserve=%s: give yes or no", value);
	p->o->reserve = yes;
	p->reserve_given = true;
	return 0;
}

static int set_flush_rate(struct parse *p, const char *value)
{
	return parse_size(p, "flush_rate", value, 0, &p->o->flush_rate);
}

static int set_log(struct parse *p, const char *value)
{
	return parse_path(p, "log", value, &p->o->log);
}

static int set_faulty(struct parse *p, const char *value)
{
	return parse_string(p, value, &p->o->faulty);
}

static int set_allow_other(struct parse *p, const char *value)
{
	(void)value;
	p->o->allow_other = true;
	return 0;
}

static int set_remount(struct parse *p, const char *value)
{
	(void)value;
	return parse_fail(p, "ckptfs cannot be remounted: umount it, then "
			     "mount it with the new options");
}

/* The kernel takes it for FUSE and does nothing. */
static int set_sync(struct parse *p, const char *value)
{
	(void)value;
	return parse_fail(p, "a write or a change of a name cannot be made to "
			     "wait for the disk by 'sync' or 'dirsync': "
			     "use fsync(2), whose level is fsync=, or O_SYNC");
}

/* ---- the table -------------------------------------------------------- */

enum option_kind { OURS, KERNEL, IGNORED };

struct option {
	const char *name; /* ends in '=' if it takes a value */
	enum option_kind kind;
	int (*set)(struct parse *p, const char *value); /* OURS */
};

static const struct option options[] = {
	{ "dram=", OURS, set_dram },
	{ "nvme=", OURS, set_nvme },
	{ "nvme_size=", OURS, set_nvme_size },
	{ "remote=", OURS, set_remote },
	{ "fsync=", OURS, set_fsync },
	{ "io=", OURS, set_io },
	{ "reserve=", OURS, set_reserve },
	{ "flush_rate=", OURS, set_flush_rate },
	{ "log=", OURS, set_log },
	{ "faulty=", OURS, set_faulty },
	{ "allow_other", OURS, set_allow_other },
	{ "remount", OURS, set_remount },
	{ "sync", OURS, set_sync },
	{ "dirsync", OURS, set_sync },
	{ "allow_root", KERNEL, NULL },
	{ "ro", KERNEL, NULL },
	{ "rw", KERNEL, NULL },
	{ "suid", KERNEL, NULL },
	{ "nosuid", KERNEL, NULL },
	{ "dev", KERNEL, NULL },
	{ "nodev", KERNEL, NULL },
	{ "exec", KERNEL, NULL },
	{ "noexec", KERNEL, NULL },
	{ "async", KERNEL, NULL },
	{ "noatime", KERNEL, NULL },
	{ "nodiratime", KERNEL, NULL },
	{ "context=", KERNEL, NULL },
	{ "fscontext=", KERNEL, NULL },
	{ "defcontext=", KERNEL, NULL },
	{ "rootcontext=", KERNEL, NULL },
	{ "default_permissions", IGNORED, NULL }, /* always on */
	{ "defaults", IGNORED, NULL },
	{ "auto", IGNORED, NULL },
	{ "noauto", IGNORED, NULL },
	{ "nofail", IGNORED, NULL },
	{ "_netdev", IGNORED, NULL },
	{ "user", IGNORED, NULL },
	{ "user=", IGNORED, NULL },
	{ "nouser", IGNORED, NULL },
	{ "users", IGNORED, NULL },
	{ "owner", IGNORED, NULL },
	{ "group", IGNORED, NULL },
	{ "relatime", IGNORED, NULL },
	{ "norelatime", IGNORED, NULL },
	{ "strictatime", IGNORED, NULL },
	{ "nostrictatime", IGNORED, NULL },
	{ "lazytime", IGNORED, NULL },
	{ "nolazytime", IGNORED, NULL },
	{ "diratime", IGNORED, NULL },
	{ "atime", IGNORED, NULL },
	{ "comment=", IGNORED, NULL },
	{ "nonempty", IGNORED, NULL },
};

#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static const struct option *find(const char *item)
{
	const char *eq = strchr(item, '=');
	size_t len = eq ? (size_t)(eq - item) + 1 : strlen(item);

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (strlen(options[i].name) == len &&
		    strncmp(options[i].name, item, len) == 0)
			return &options[i];
	return NULL;
}

/* Steps from one name to the other: letters put in, left out, replaced. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned row[64];

	if (n >= 63 || m >= 63)
		return 63;
	for (size_t j = 0; j <= m; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= n; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= m; j++) {
			unsigned best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[m];
}

const char *option_nearest(const char *name, size_t len)
{
	const char *nearest = NULL;
	unsigned least = 4; /* further away is no likeness */

	for (size_t i = 0; i < N_OPTIONS; i++) {
		const char *other = options[i].name;
		unsigned d = distance(name, len, other, strcspn(other, "="));

		if (d < least && d < len) {
			least = d;
			nearest = other;
		}
	}
	return nearest;
}

static int unknown(struct parse *p, const char *item)
{
	int len = (int)strcspn(item, "=");
	const char *nearest = option_nearest(item, (size_t)len);

	if (nearest && strncmp(nearest, item, (size_t)len) == 0 &&
	    (int)strcspn(nearest, "=") == len)
		return parse_fail(p, "option '%.*s' %s value", len, item,
				  item[len] ? "takes no" : "wants a");
	if (nearest)
		return parse_fail(p,
				  "unknown option '%.*s': did you mean '%s'? "
				  "(ckptfs --help)",
				  len, item, nearest);
	return parse_fail(p, "unknown option '%.*s' (see ckptfs --help)", len,
			  item);
}

int parse_option(struct parse *p, const char *item)
{
	const struct option *o;

	if (strncmp(item, "x-", 2) == 0 || strncmp(item, "X-", 2) == 0)
		return 0;
	o = find(item);
	if (!o)
		return unknown(p, item);
	switch (o->kind) {
	case OURS:
		return o->set(p, item + strcspn(item, "=") +
					 (strchr(item, '=') != NULL));
	case KERNEL:
		return parse_for_kernel(p, item);
	case IGNORED:
		break;
	}
	return 0;
}
