/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One event, done on the remote. Each can be met again after a crash (R is
 * behind it) and then does nothing: an object carries its version, a rename
 * whose source is gone and whose target is there was done.
 *
 * Sockets, fifos and devices stay local; a file without a sealed version has
 * no object yet.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/publish_core.h"

static bool has_object(const struct event *ev)
{
	return S_ISDIR(ev->rec.mode) || S_ISLNK(ev->rec.mode) ||
	       (S_ISREG(ev->rec.mode) && ev->rec.version);
}

bool event_is_drastic(const struct event *ev)
{
	return ev->kind == EVENT_UNLINK || ev->kind == EVENT_RENAME ||
	       ev->kind == EVENT_EXCHANGE || ev->kind == EVENT_LINK;
}

/* Attributes as the event says, xattrs as they are now. */
static int event_attr(struct publisher *p, const struct event *ev,
		      struct remote_attr *out)
{
	return attr_of(p, meta_accepted(p->m), &ev->rec, ev->rec.version, NULL,
		       out);
}

static int apply_seal(struct publisher *p, const struct event *ev)
{
	int r = 0;

	for (size_t i = 0; i < ev->n_paths && r == 0; i++) {
		CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };

		/* Staged already, as a rule: then this moves nothing. */
		r = stage_version(p, meta_accepted(p->m), &ev->rec, ev->version,
				  &attr);
		if (r == 0)
			r = remote_back(p, p->r->ops->place(p->r, ev->paths[i],
							    &attr));
		if (r == 0)
			r = note_remote_copy(p, ev->version, &attr);
	}
	return r == -ENOENT || r == -EISDIR || r == -ENOTDIR ? PUBLISH_STEP : r;
}

static int apply_new(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	int r;

	r = event_attr(p, ev, &attr);
	if (r < 0)
		return r == -ENOENT ? PUBLISH_STEP : r;
	if (ev->kind == EVENT_MKDIR)
		r = p->r->ops->mkdir(p->r, ev->paths[0], &attr);
	else
		r = p->r->ops->symlink(p->r, ev->paths[0], &attr);
	remote_back(p, 0);
	if (r == -EEXIST)
		return ev->kind == EVENT_MKDIR ? 0 : PUBLISH_STEP;
	return r == -ENOENT || r == -ENOTDIR ? PUBLISH_STEP : r;
}

static int apply_link(struct publisher *p, const struct event *ev)
{
	int r;

	if (!has_object(ev))
		return 0;
	r = remote_back(p, p->r->ops->link(p->r, ev->paths[0], ev->path2));
	return r == -ENOENT ? PUBLISH_STEP : r;
}

/* Is what the event renamed at its new name already? */
static int was_renamed(struct publisher *p, const struct event *ev)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	char identity[REMOTE_IDENTITY_LEN + 1];
	int r;

	r = remote_back(p, p->r->ops->get_attr(p->r, ev->path2, &attr));
	if (r < 0)
		return r == -ENOENT ? PUBLISH_STEP : r;
	if ((attr.mode & S_IFMT) != (ev->rec.mode & S_IFMT))
		return PUBLISH_STEP;
	remote_identity(p->m, ev->rec.version, identity);
	if (S_ISREG(ev->rec.mode) && strcmp(attr.identity, identity) != 0)
		return PUBLISH_STEP;
	return 0;
}

static int apply_rename(struct publisher *p, const struct event *ev)
{
	int r;

	if (!has_object(ev))
		/* It may have replaced something that was published. */
		return remote_back(p, p->r->ops->remove(p->r, ev->path2));
	r = remote_back(p, p->r->ops->rename(p->r, ev->paths[0], ev->path2));
	if (r == -ENOENT)
		return was_renamed(p, ev);
	return r == -ENOTEMPTY || r == -EEXIST || r == -ENOTDIR || r == -EISDIR
		       ? PUBLISH_STEP
		       : r;
}

static int apply_remove(struct publisher *p, const struct event *ev)
{
	int r = remote_back(p, p->r->ops->remove(p->r, ev->paths[0]));

	/* Others put something there: it stays, and so does the directory. */
	return r == -ENOTEMPTY || r == -EEXIST ? 0 : r;
}

static int apply_attr(struct publisher *p, const struct event *ev)
{
	int r = 0;

	if (!has_object(ev))
		return 0;
	for (size_t i = 0; i < ev->n_paths && r == 0; i++) {
		CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };

		r = event_attr(p, ev, &attr);
		if (r == -ENOENT)
			return 0; /* gone by now, and its event comes */
		if (r == 0)
			r = remote_back(p, p->r->ops->set_attr(
						   p->r, ev->paths[i], &attr));
		if (r == -ENOENT)
			r = 0;
	}
	return r;
}

int folder_times(struct publisher *p, const struct view *v, const char *path)
{
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	CLEANUP(free_p) char *folder = strdup(path);
	struct inode_rec rec;
	char *slash;
	int r;

	if (!folder)
		return -ENOMEM;
	slash = strrchr(folder, '/');
	folder[slash ? slash - folder : 0] = '\0';
	r = view_of_path(v, folder, &rec);
	if (r < 0 || !S_ISDIR(rec.mode))
		return r == -ENOENT ? 0 : r; /* gone since, or renamed */
	r = attr_of(p, v, &rec, 0, NULL, &attr);
	if (r == 0)
		r = remote_back(p, p->r->ops->set_attr(p->r, folder, &attr));
	return r == -ENOENT || r == -ENOTDIR ? 0 : r;
}

int event_apply(struct publisher *p, struct pub_event *pe)
{
	const struct event *ev = &pe->ev;

	if (!ev->n_paths)
		return 0;
	switch (ev->kind) {
	case EVENT_SEAL:
		return pe->staged == PUBLISH_STEP ? PUBLISH_STEP
						  : apply_seal(p, ev);
	case EVENT_MKDIR:
	case EVENT_SYMLINK:
		return apply_new(p, ev);
	case EVENT_LINK:
		return apply_link(p, ev);
	case EVENT_UNLINK:
		return apply_remove(p, ev);
	case EVENT_RENAME:
		return apply_rename(p, ev);
	case EVENT_EXCHANGE:
		return PUBLISH_STEP; /* done twice it would be undone */
	case EVENT_SETATTR:
	case EVENT_SETXATTR:
	case EVENT_REMOVEXATTR:
		return apply_attr(p, ev);
	case EVENT_NONE:
		break;
	}
	return 0;
}
