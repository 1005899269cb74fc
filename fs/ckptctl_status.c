/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `status`: of a mount, or of what lies at a path. The daemon answers in
 * JSON; here it becomes a table.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fs/ckptctl.h"

static uint64_t get_int(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

static const char *get_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static int print_json(json_t *o)
{
	if (json_dumpf(o, stdout, JSON_INDENT(2)) || putchar('\n') == EOF)
		return ctl_fail("cannot write");
	return CTL_OK;
}

/* ---- of the mount ----------------------------------------------------- */

static void print_tier(const json_t *t)
{
	double behind_s =
		json_number_value(json_object_get(t, "behind_seconds"));
	char used[CTL_BYTES_LEN], size[CTL_BYTES_LEN], rate[CTL_BYTES_LEN];
	char behind[CTL_BYTES_LEN];

	printf("%-8s%10s /%10s%10s/s%12s%9.1f s  %s\n", get_text(t, "name"),
	       ctl_bytes(get_int(t, "used"), used),
	       ctl_bytes(get_int(t, "size"), size),
	       ctl_bytes(get_int(t, "rate"), rate),
	       ctl_bytes(get_int(t, "behind_bytes"), behind), behind_s,
	       get_text(t, "note"));
	if (*get_text(t, "error"))
		printf("        ERROR: %s\n", get_text(t, "error"));
}

static void print_counts(const json_t *st)
{
	const json_t *c = json_object_get(st, "counts");
	char bytes[CTL_BYTES_LEN], memory[CTL_BYTES_LEN];

	printf("files   %" PRIu64 " open, %" PRIu64 " being written; %" PRIu64
	       " versions (%s) not on NVMe yet\n",
	       get_int(c, "open"), get_int(c, "unsealed"),
	       get_int(c, "unflushed"),
	       ctl_bytes(get_int(c, "unflushed_bytes"), bytes));
	printf("moved   %" PRIu64 " spilled, %" PRIu64 " evicted, %" PRIu64
	       " fetched\n",
	       get_int(c, "spilled"), get_int(c, "evicted"),
	       get_int(c, "fetched"));
	c = json_object_get(st, "metadata");
	printf("inodes  about %" PRIu64 "; databases take %s of DRAM\n",
	       get_int(c, "inodes"),
	       ctl_bytes(get_int(c, "accepted") + get_int(c, "memory"),
			 memory));
}

static void print_mount(const json_t *st)
{
	size_t i;
	json_t *t;

	printf("ckptfs %s on %s (pid %" PRIu64 ")\n", get_text(st, "version"),
	       get_text(st, "mountpoint"), get_int(st, "pid"));
	printf("io      %s\n", get_text(st, "io_note"));
	printf("fsync   promises %s\n", get_text(st, "fsync"));
	printf("start   %s\n", get_text(st, "start"));
	printf("state   %s; DRAM %s; remote %s\n\n", get_text(st, "nvme_dir"),
	       get_text(st, "dram_dir"),
	       *get_text(st, "remote") ? get_text(st, "remote") : "none");
	printf("tier          used /      size        rate      behind"
	       "        by\n");
	json_array_foreach(json_object_get(st, "tiers"), i, t) print_tier(t);
	putchar('\n');
	print_counts(st);
}

/* ---- of a path -------------------------------------------------------- */

/* The slowest level that all of it has reached. writing: a truth value of a
 * file, a number of files of a tree. */
static const char *level_of(const json_t *o)
{
	const json_t *writing = json_object_get(o, "writing");

	return json_is_true(writing) || json_integer_value(writing)
		       ? "writing"
		       : get_text(o, "level");
}

/* Files that have reached a level, or gone beyond. */
static uint64_t files_at(const json_t *o, int from)
{
	const json_t *levels = json_object_get(o, "levels");
	uint64_t n = 0;

	for (int l = from; levels && l < 3; l++)
		n += get_int(json_object_get(levels, ctl_level_names[l]),
			     "files");
	return n;
}

static void print_row(const json_t *o, const char *name)
{
	bool tree = strcmp(get_text(o, "type"), "tree") == 0;
	char bytes[CTL_BYTES_LEN];

	printf("%-8s %10s ", level_of(o),
	       ctl_bytes(get_int(o, tree ? "bytes" : "size"), bytes));
	if (tree)
		printf("%8" PRIu64 " %8" PRIu64 " %8" PRIu64 "  ",
		       get_int(o, "files"), files_at(o, 1), files_at(o, 2));
	else
		printf("%26s  ", "");
	ctl_print_name(name);
	putchar('\n');
}

/* Of what lies in a directory the daemon tells whoever has opened that. */
static int ask_child(const struct ctl_mount *mnt, const struct dirent *d,
		     json_t **out)
{
	struct ctl_mount child = *mnt;
	int status;

	if (d->d_type != DT_DIR)
		return ctl_call_json(mnt, CONTROL_PATH_STATE, d->d_ino, out);
	child.fd = openat(mnt->fd, d->d_name,
			  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (child.fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (child.fd < 0)
		return ctl_fail("'%s/%s': %s", mnt->path, d->d_name,
				strerror(errno));
	status = ctl_call_json(&child, CONTROL_PATH_STATE, 0, out);
	close_p(&child.fd);
	return status;
}

static int print_child(const struct ctl_mount *mnt, const struct dirent *d)
{
	json_t *o = NULL;
	int status;

	if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
	    (d->d_type != DT_REG && d->d_type != DT_DIR))
		return 0;
	status = ask_child(mnt, d, &o);
	if (status)
		return status == -ENOENT ? 0 : status; /* gone since */
	print_row(o, d->d_name);
	json_decref(o);
	return 0;
}

static int print_children(const struct ctl_mount *mnt)
{
	struct dirent **list;
	int n = scandir(mnt->path, &list, NULL, versionsort);
	int status = 0;

	if (n < 0)
		return ctl_fail("cannot list '%s'", mnt->path);
	for (int i = 0; i < n; i++) {
		/* One that may not be looked into does not hide the others. */
		if (print_child(mnt, list[i]))
			status = CTL_ERROR;
		free(list[i]);
	}
	free(list);
	return status;
}

static int print_path(const struct ctl_mount *mnt, const json_t *o)
{
	printf("%-8s %10s %8s %8s %8s  %s\n", "level", "size", "files",
	       "on nvme", "remote", "name");
	print_row(o, mnt->path);
	if (strcmp(get_text(o, "type"), "tree") != 0)
		return 0;
	return print_children(mnt);
}

int ctl_status(const struct ctl_args *args)
{
	struct ctl_mount mnt;
	json_t *o = NULL;
	int status = ctl_mount_open(args->path, &mnt);

	if (status)
		return status;
	status = ctl_call_json(
		&mnt, mnt.is_root ? CONTROL_STATUS : CONTROL_PATH_STATE,
		mnt.is_root ? 0 : mnt.ino, &o);
	if (status == -ENOENT)
		status = ctl_fail("'%s': %s", mnt.path, strerror(ENOENT));
	if (!status && args->json)
		status = print_json(o);
	else if (!status && mnt.is_root)
		print_mount(o);
	else if (!status)
		status = print_path(&mnt, o);
	json_decref(o);
	ctl_mount_close(&mnt);
	return status;
}
