/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename(2), with NOREPLACE and EXCHANGE.
 *
 * What a remote shows of it is one event: `path became path2`, and what path2
 * named is gone. Something that no remote shows (a fifo) may be on one side:
 * the event then says what happened to the other.
 *
 * Both names may lie in one directory; its record is then the source's, so
 * that it is changed once.
 */
#include <errno.h>
#include <stdio.h>

#include "fs/event.h"
#include "fs/hidden.h"
#include "fs/node.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#define RENAME_EXCHANGE (1 << 1)
#endif

struct renaming {
	struct fs *fs;
	struct txn *t;
	struct node from, to;
	struct inode_rec *to_dir;
	int64_t now;
};

/* Is dir in the tree under ino, or that itself? */
static int is_below(struct fs *fs, uint64_t dir, uint64_t ino, bool *out)
{
	struct inode_rec rec;

	for (; dir != ino && dir != META_ROOT_INO; dir = rec.parent) {
		int err = view_inode(fs->view, dir, &rec);

		if (err)
			return err;
	}
	*out = dir == ino;
	return 0;
}

/* A directory never moves into itself. */
static int may_move(struct fs *fs, const struct node *node, uint64_t newparent)
{
	bool below;
	int err;

	if (!S_ISDIR(node->rec.mode) || node->parent == newparent)
		return 0;
	err = is_below(fs, newparent, node->rec.ino, &below);
	if (err)
		return err;
	return below ? -EINVAL : 0;
}

static int may_replace(struct fs *fs, const struct node *from,
		       const struct node *to)
{
	bool dir = S_ISDIR(from->rec.mode), empty;
	int err;

	if (dir != S_ISDIR(to->rec.mode))
		return dir ? -ENOTDIR : -EISDIR;
	if (!dir)
		return 0;
	err = view_dir_is_empty(fs->view, to->rec.ino, &empty);
	if (err)
		return err;
	return empty ? 0 : -ENOTEMPTY;
}

/*
 * Its place in listings is that of the name it replaces, else, in the same
 * directory, the one it had. At a new place, at the end, a listing that goes
 * on meanwhile would show it twice, and one whose reader rewrites each entry
 * by a rename would never end.
 */
static void put_name(struct renaming *r, const struct node *node,
		     const struct node *place)
{
	struct dentry_rec d = node->d;

	if (place->d.ino)
		d.cookie = place->d.cookie;
	if (place->d.ino || place->parent == node->parent)
		txn_put_dentry_at(r->t, place->parent, place->name, &d);
	else
		txn_put_dentry(r->t, place->parent, place->name, d.ino, d.type);
}

static void put_moved(struct renaming *r, struct node *node,
		      const struct node *place)
{
	put_name(r, node, place);
	if (S_ISDIR(node->rec.mode))
		node->rec.parent = place->parent;
	node->rec.ctime_ns = r->now;
	txn_put_inode(r->t, &node->rec);
}

static void put_dirs(struct renaming *r)
{
	dir_stamp(&r->from.dir, r->now);
	txn_put_inode(r->t, &r->from.dir);
	if (r->to_dir == &r->from.dir)
		return;
	dir_stamp(r->to_dir, r->now);
	txn_put_inode(r->t, r->to_dir);
}

static int event_of_rename(struct renaming *r)
{
	struct event_name n = { .kind = EVENT_RENAME,
				.parent = r->from.parent,
				.name = r->from.name,
				.parent2 = r->to.parent,
				.name2 = r->to.name };
	struct event_name gone = { .kind = EVENT_UNLINK,
				   .parent = r->to.parent,
				   .name = r->to.name };

	if (event_wanted(r->fs, r->from.rec.mode) || !r->to.d.ino)
		return event_of_name(r->fs, r->t, &n, &r->from.rec);
	return event_of_name(r->fs, r->t, &gone, &r->to.rec);
}

static int move(struct renaming *r, bool noreplace)
{
	struct node *from = &r->from, *to = &r->to;
	int err = may_move(r->fs, from, to->parent);

	if (!err && to->d.ino)
		err = noreplace ? -EEXIST : may_replace(r->fs, from, to);
	if (!err)
		err = event_of_rename(r);
	if (err)
		return err;

	if (to->d.ino) {
		if (S_ISDIR(to->rec.mode))
			r->to_dir->nlink--;
		engine_drop_link(r->fs->engine, r->t, &to->rec, r->now);
		txn_del_dentry(r->t, to->parent, to->name, &to->d);
	}
	if (S_ISDIR(from->rec.mode)) {
		from->dir.nlink--;
		r->to_dir->nlink++;
	}
	txn_del_dentry(r->t, from->parent, from->name, &from->d);
	put_moved(r, from, to);
	put_dirs(r);
	return 0;
}

static int event_of_exchange(struct renaming *r)
{
	const struct node *from = &r->from, *to = &r->to;
	bool both = event_wanted(r->fs, from->rec.mode) &&
		    event_wanted(r->fs, to->rec.mode);
	struct event_name n = { .kind = both ? EVENT_EXCHANGE : EVENT_RENAME };

	if (!event_wanted(r->fs, from->rec.mode)) {
		from = &r->to;
		to = &r->from;
	}
	n.parent = from->parent;
	n.name = from->name;
	n.parent2 = to->parent;
	n.name2 = to->name;
	return event_of_name(r->fs, r->t, &n, &from->rec);
}

static int exchange(struct renaming *r)
{
	struct node *from = &r->from, *to = &r->to;
	int err = to->d.ino ? 0 : -ENOENT;

	if (!err)
		err = may_move(r->fs, from, to->parent);
	if (!err)
		err = may_move(r->fs, to, from->parent);
	if (!err)
		err = event_of_exchange(r);
	if (err)
		return err;

	if (S_ISDIR(from->rec.mode)) {
		from->dir.nlink--;
		r->to_dir->nlink++;
	}
	if (S_ISDIR(to->rec.mode)) {
		from->dir.nlink++;
		r->to_dir->nlink--;
	}
	txn_del_dentry(r->t, from->parent, from->name, &from->d);
	txn_del_dentry(r->t, to->parent, to->name, &to->d);
	put_moved(r, from, to);
	put_moved(r, to, from);
	put_dirs(r);
	return 0;
}

/* Door held. 1: both names are one file already, nothing to do. */
static int change(struct renaming *r, unsigned flags)
{
	bool one_dir = r->from.parent == r->to.parent;
	int err = node_find(r->fs, r->from.parent, r->from.name, &r->from);

	if (!err && one_dir)
		err = node_find_in_dir(r->fs, &r->to);
	else if (!err)
		err = node_find_maybe(r->fs, r->to.parent, r->to.name, &r->to);
	if (err)
		return err;
	if (r->from.rec.ino == r->to.rec.ino && !(flags & RENAME_NOREPLACE))
		return 1;
	r->to_dir = one_dir ? &r->from.dir : &r->to.dir;
	if (flags & RENAME_EXCHANGE)
		return exchange(r);
	return move(r, flags & RENAME_NOREPLACE);
}

/* Whoever is being written gets a version now, or its new name had none. */
static int seal_one(struct fs *fs, uint64_t parent, const char *name)
{
	struct dentry_rec d;
	int err;

	if (!engine_any_written(fs->engine))
		return 0;
	err = view_lookup(fs->view, parent, name, &d);
	if (err || !S_ISREG(d.type))
		return err;
	return file_seal_written(fs->engine, d.ino);
}

static int rename_names(struct renaming *r, unsigned flags)
{
	struct fs *fs = r->fs;
	uint64_t seq;
	int err = seal_one(fs, r->from.parent, r->from.name);

	if (!err && flags & RENAME_EXCHANGE)
		err = seal_one(fs, r->to.parent, r->to.name);
	if (err)
		return err;
	r->t = engine_txn_begin(fs->engine);
	r->now = fs_now_ns();
	err = change(r, flags);
	if (err) {
		engine_txn_abort(fs->engine, r->t);
		return err < 0 ? err : 0;
	}
	return engine_txn_commit(fs->engine, r->t, &seq);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
	       fuse_ino_t newparent, const char *newname, unsigned int flags)
{
	struct renaming r = {
		.fs = fs_of(req),
		.from = { .parent = parent, .name = name },
		.to = { .parent = newparent, .name = newname },
	};
	int err = name_may_change(parent, name);

	if (!err)
		err = name_may_change(newparent, newname);
	if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		err = -EINVAL;
	if (!err)
		err = rename_names(&r, flags);
	reply_result(req, err);
}
