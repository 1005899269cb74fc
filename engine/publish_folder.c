/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of directories. Every name that is placed or removed moves its
 * folder's mtime on the remote to the moment of publishing; on the mount it
 * was another. So the folders are noted, under the names they have on the
 * remote, and when the remote has come up with a state that can be read (the
 * log is empty, a step is done) they get the times they have there.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_parts.h"

#define FEW 4 /* as a rule the last things were done in the same few places */

void folder_forget_all(struct publisher *p)
{
	struct folders *f = &p->folders;

	while (f->n)
		free(f->path[--f->n]);
	free(f->path);
	*f = (struct folders){ 0 };
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void drop_doubles(struct folders *f)
{
	size_t n = 0;

	if (f->n)
		qsort(f->path, f->n, sizeof(*f->path), by_name);
	for (size_t i = 0; i < f->n; i++) {
		if (n && !strcmp(f->path[n - 1], f->path[i]))
			free(f->path[i]);
		else
			f->path[n++] = f->path[i];
	}
	f->n = n;
}

static int make_room(struct folders *f)
{
	size_t cap = f->cap ? 2 * f->cap : 64;
	char **all;

	if (f->n < f->cap)
		return 0;
	drop_doubles(f);
	if (f->n < f->cap / 2)
		return 0;
	all = realloc(f->path, cap * sizeof(*all));
	if (!all)
		return -ENOMEM;
	f->path = all;
	f->cap = cap;
	return 0;
}

int folder_touch(struct publisher *p, const char *path)
{
	struct folders *f = &p->folders;
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	for (size_t i = f->n > FEW ? f->n - FEW : 0; i < f->n; i++)
		if (strlen(f->path[i]) == len &&
		    !strncmp(f->path[i], path, len))
			return 0;
	if (make_room(f))
		return -ENOMEM;
	f->path[f->n] = strndup(path, len);
	if (!f->path[f->n])
		return -ENOMEM;
	f->n++;
	return 0;
}

static bool is_at_or_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	return !strncmp(path, top, len) && (!path[len] || path[len] == '/');
}

static int move_one(char **path, const char *from, const char *to)
{
	char *moved;

	if (asprintf(&moved, "%s%s", to, *path + strlen(from)) < 0)
		return -ENOMEM;
	free(*path);
	*path = moved;
	return 0;
}

int folder_moved(struct publisher *p, const char *from, const char *to,
		 bool exchange)
{
	struct folders *f = &p->folders;
	int err = 0;

	for (size_t i = 0; i < f->n && !err; i++) {
		if (is_at_or_below(f->path[i], from))
			err = move_one(&f->path[i], from, to);
		else if (exchange && is_at_or_below(f->path[i], to))
			err = move_one(&f->path[i], to, from);
	}
	return err;
}

/* One that has gone is left alone. */
static int set_time(struct publisher *p, const struct view *v, const char *path)
{
	CLEANUP(remote_attr_fini) struct remote_attr a = { 0 };
	struct inode_rec rec;
	int err = view_path_inode(v, path, &rec);

	if (err || !S_ISDIR(rec.mode))
		return err == -ENOENT ? 0 : err;
	err = ON_REMOTE(p, path, p->r->ops->get_attr(p->r, path, &a));
	if (!err && S_ISDIR(a.mode) && a.mtime_ns != rec.mtime_ns) {
		a.mtime_ns = rec.mtime_ns;
		err = ON_REMOTE(p, path, p->r->ops->set_attr(p->r, path, &a));
	}
	return is_unlike(err) || is_impossible(err) ? 0 : err;
}

int folder_times(struct publisher *p, const struct view *v)
{
	struct folders *f = &p->folders;
	int err = 0;

	drop_doubles(f);
	/* A folder of ours must not move the time of the one it is in. */
	for (size_t i = f->n; i-- > 0 && !err;)
		err = set_time(p, v, f->path[i]);
	if (!err)
		folder_forget_all(p);
	return err;
}
