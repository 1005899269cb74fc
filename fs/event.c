/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds events. An event carries full paths because the publisher replays it
 * when the namespace has moved on.
 */
#include <errno.h>
#include <string.h>

#include "fs/event.h"

struct names {
	const struct view *view;
	char **paths;
	size_t n;
};

static void names_fini(struct names *names)
{
	for (size_t i = 0; i < names->n; i++)
		free(names->paths[i]);
	free(names->paths);
}

static int add_path(struct names *names, const char *path)
{
	char **more =
		realloc(names->paths, (names->n + 1) * sizeof(*names->paths));

	if (!more)
		return -ENOMEM;
	names->paths = more;
	more[names->n] = strdup(path);
	if (!more[names->n])
		return -ENOMEM;
	names->n++;
	return 0;
}

/* A name too long for a remote is none: it never got there. */
static int add_name(void *arg, uint64_t parent, const char *name)
{
	struct names *names = arg;
	char path[META_PATH_MAX];
	int err = view_child_path(names->view, parent, name, path);

	if (err == -ENAMETOOLONG)
		return 0;
	return err ? err : add_path(names, path);
}

static int collect(struct names *names, const struct inode_rec *rec)
{
	char path[META_PATH_MAX];
	int err;

	if (!S_ISDIR(rec->mode))
		return view_names(names->view, rec->ino, add_name, names);
	err = view_path(names->view, rec->ino, path);
	if (err == -ENOENT || err == -ENAMETOOLONG)
		return 0;
	return err ? err : add_path(names, path);
}

bool event_wanted(const struct fs *fs, uint32_t mode)
{
	return meta_keeps_events(fs->meta) &&
	       (S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode));
}

int event_of_inode(struct fs *fs, struct txn *t, struct event *ev,
		   const struct inode_rec *rec)
{
	CLEANUP(names_fini) struct names names = { .view = fs->view };
	int err;

	if (!event_wanted(fs, rec->mode))
		return 0;
	err = collect(&names, rec);
	if (err)
		return err;
	ev->rec = *rec;
	ev->paths = (const char *const *)names.paths;
	ev->n_paths = names.n;
	txn_event(t, ev);
	return 0;
}

int event_of_name(struct fs *fs, struct txn *t, const struct event_name *n,
		  const struct inode_rec *rec)
{
	char path[META_PATH_MAX], path2[META_PATH_MAX];
	const char *paths[] = { path };
	struct event ev = {
		.kind = n->kind,
		.version = rec->version,
		.rec = *rec,
		.paths = paths,
		.n_paths = 1,
		.value = n->target,
		.value_len = n->target ? strlen(n->target) : 0,
	};
	int err;

	if (!event_wanted(fs, rec->mode))
		return 0;
	err = view_child_path(fs->view, n->parent, n->name, path);
	if (!err && n->name2) {
		err = view_child_path(fs->view, n->parent2, n->name2, path2);
		ev.path2 = path2;
	}
	/* What never had a path a remote can hold is not there to be removed. */
	if (err == -ENAMETOOLONG && n->kind == EVENT_UNLINK)
		return 0;
	if (!err)
		txn_event(t, &ev);
	return err;
}

int event_of_link(struct fs *fs, struct txn *t, uint64_t parent,
		  const char *name, const struct inode_rec *rec)
{
	char path[META_PATH_MAX], path2[META_PATH_MAX];
	const char *paths[] = { path };
	struct event ev = {
		.kind = EVENT_LINK,
		.version = rec->version,
		.rec = *rec,
		.paths = paths,
		.n_paths = 1,
		.path2 = path2,
	};
	int err;

	if (!event_wanted(fs, rec->mode))
		return 0;
	err = view_path(fs->view, rec->ino, path);
	if (!err)
		err = view_child_path(fs->view, parent, name, path2);
	if (!err)
		txn_event(t, &ev);
	return err;
}
