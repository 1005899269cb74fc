/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The namespace of a fresh node from what the remote lists (restore_scan.h).
 * Nothing else runs yet: copies first, then names in small transactions,
 * parents before children, so that an import that dies is simply run again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/restore.h"
#include "engine/restore_scan.h"
#include "engine/tier.h"
#include "metadata/bytes.h"
#include "metadata/fault.h"

#define NOTE_DONE "restore.done"
#define TXN_BATCH 7u /* names a transaction: it takes 8 at most */
#define UUID_DIGITS 32
#define LOG_BYTES ((size_t)16 << 20)

/* ---- into the namespace ----------------------------------------------- */

struct import {
	struct meta *m;
	const struct view *v;
	int64_t now_ns;
	uint64_t n_files;
};

static struct inode_rec rec_of(const struct import *im, const struct node *n,
			       uint64_t parent)
{
	const struct remote_attr *a = &n->attr;

	return (struct inode_rec){
		.ino = meta_new_ino(im->m),
		.mode = a->mode,
		.uid = a->uid,
		.gid = a->gid,
		.nlink = S_ISDIR(a->mode) ? 2 : 1,
		.size = S_ISLNK(a->mode) ? strlen(a->target)
					 : (S_ISREG(a->mode) ? a->size : 0),
		.blocks = S_ISREG(a->mode) ? (a->size + 511) / 512 : 0,
		.atime_ns = a->mtime_ns,
		.mtime_ns = a->mtime_ns,
		.ctime_ns = im->now_ns,
		.parent = S_ISDIR(a->mode) ? parent : 0,
	};
}

static int put_copy(struct import *im, const struct node *n)
{
	const struct remote_attr *a = &n->attr;
	const bool verified = remote_attr_verified(a);
	struct copy_rec c = {
		.version = n->rec.version,
		.tier = COPY_REMOTE,
		.kind = COPY_OBJECT,
		.size = a->size,
		.chunk_len = CHUNK_LEN,
		.n_chunks = verified ? a->n_chunks : 0,
		.crcs = a->crcs, /* borrowed for the call */
		.verified = verified,
	};

	remote_object_of(a, c.object);
	return meta_put_copy(im->m, &c, false);
}

static void put_node(struct txn *t, const struct node *dir,
		     const struct node *n)
{
	const struct inode_rec *rec = &n->rec;

	if (S_ISREG(rec->mode)) {
		struct version_rec v = {
			.id = rec->version,
			.ino = rec->ino,
			.size = rec->size,
			.blocks = rec->blocks,
		};

		txn_put_version(t, &v);
	}
	if (S_ISLNK(rec->mode))
		txn_put_symlink(t, rec->ino, n->attr.target);
	for (uint32_t i = 0; i < n->attr.n_xattrs; i++) {
		const struct remote_xattr *x = &n->attr.xattrs[i];

		txn_put_xattr(t, rec->ino, x->name, x->value, x->len);
	}
	txn_put_inode(t, rec);
	txn_put_dentry(t, dir->rec.ino, n->name, rec->ino, rec->mode);
}

/* One transaction: some new entries of dir, and dir's link count. */
static int put_some(struct import *im, struct node *dir, struct node **some,
		    size_t n)
{
	uint64_t seq;
	int err = 0;
	struct txn *t;

	for (size_t i = 0; i < n && !err; i++) {
		if (!S_ISREG(some[i]->rec.mode))
			continue;
		err = put_copy(im, some[i]);
		im->n_files++;
	}
	if (err || !n)
		return err;
	t = txn_begin(im->m);
	for (size_t i = 0; i < n; i++) {
		put_node(t, dir, some[i]);
		dir->rec.nlink += S_ISDIR(some[i]->rec.mode);
	}
	txn_put_inode(t, &dir->rec);
	return txn_commit(t, &seq);
}

/* What this mount published is no news: if it is not here, it was renamed or
 * deleted, and the remote has not heard of it yet. */
static bool is_ours(const struct import *im, const struct node *n)
{
	char ours[REMOTE_IDENTITY_LEN + 1];

	remote_identity(im->m, 0, ours);
	return !strncmp(n->attr.identity, ours, UUID_DIGITS);
}

/* Is it there already (an import that died, local state from before)? Then
 * it stays as it is. */
static int find_old(struct import *im, const struct node *dir, struct node *n)
{
	struct dentry_rec d;
	int err = view_lookup(im->v, dir->rec.ino, n->name, &d);

	return err ? err : view_inode(im->v, d.ino, &n->rec);
}

static int put_dir(struct import *im, struct node *dir)
{
	struct node *some[TXN_BATCH];
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; i < dir->n && !err; i++) {
		struct node *child = &dir->children[i];

		if (!child->attr.mode || is_ours(im, child))
			continue;
		err = find_old(im, dir, child);
		if (err != -ENOENT)
			continue;
		err = 0;
		child->rec = rec_of(im, child, dir->rec.ino);
		if (S_ISREG(child->rec.mode))
			child->rec.version = meta_new_version(im->m);
		some[n++] = child;
		if (n == TXN_BATCH) {
			err = put_some(im, dir, some, n);
			n = 0;
		}
	}
	return err ? err : put_some(im, dir, some, n);
}

/* Parents first. A stack of directories, for a tree may be deep. */
static int put_tree(struct import *im, struct node *root)
{
	struct node **stack = malloc(sizeof(*stack));
	size_t n = 1, cap = 1;
	int err = stack ? 0 : -ENOMEM;

	if (stack)
		stack[0] = root;
	while (!err && n) {
		struct node *dir = stack[--n];

		err = put_dir(im, dir);
		if (!err && n + dir->n > cap) {
			struct node **more;

			cap = 2 * (n + dir->n);
			more = realloc(stack, cap * sizeof(struct node *));
			err = more ? 0 : -ENOMEM;
			stack = more ? more : stack;
		}
		for (size_t i = 0; i < dir->n && !err; i++)
			if (S_ISDIR(dir->children[i].rec.mode) &&
			    S_ISDIR(dir->children[i].attr.mode))
				stack[n++] = &dir->children[i];
	}
	free(stack);
	return err;
}

static int put_root(struct import *im, struct node *root, bool fresh)
{
	const struct remote_attr *a = &root->attr;
	int err = view_inode(im->v, META_ROOT_INO, &root->rec);
	struct txn *t;
	uint64_t seq;

	if (err || !fresh)
		return err;
	root->rec.mode = S_IFDIR | (a->mode & 07777);
	root->rec.uid = a->uid;
	root->rec.gid = a->gid;
	root->rec.mtime_ns = a->mtime_ns;
	root->rec.ctime_ns = im->now_ns;
	t = txn_begin(im->m);
	txn_put_inode(t, &root->rec);
	for (uint32_t i = 0; i < a->n_xattrs; i++)
		txn_put_xattr(t, META_ROOT_INO, a->xattrs[i].name,
			      a->xattrs[i].value, a->xattrs[i].len);
	return txn_commit(t, &seq);
}

/* ---- the end ---------------------------------------------------------- */

/* No follower runs yet, and nothing in the log waits for a flush. */
static int advance_all(struct meta *m)
{
	const uint64_t want = meta_accepted_seq(m);
	int err = 0;

	while (!err && meta_nvme_seq(m) < want) {
		uint64_t n;

		err = meta_log_bound(m, want, LOG_BYTES, &n);
		if (!err)
			err = meta_advance(m, n, NULL, 0, NULL, 0);
	}
	return err;
}

/*
 * The note: 1, or 2 and the last number of the import while that is in the
 * accepted state alone, because what is before it in the log must be flushed
 * first: the follower will.
 */
#define NOTE_LEN 9

static int note_until(struct meta *m, uint64_t seq)
{
	uint8_t note[NOTE_LEN] = { 2 };

	put_le(note + 1, seq, 8);
	return meta_set_note(m, NOTE_DONE, note, sizeof(note));
}

static int note_done(struct meta *m)
{
	return meta_set_note(m, NOTE_DONE, "\1", 1);
}

/* fresh: the remote shows all there is here. */
static int settle(struct meta *m, bool fresh)
{
	int err = advance_all(m);

	if (!err && fresh)
		err = meta_set_remote_seq(m, meta_nvme_seq(m), true);
	return err ? err : note_done(m);
}

bool restore_is_done(const struct meta *m)
{
	uint8_t note[NOTE_LEN];
	size_t len = sizeof(note);

	return !meta_note(m, NOTE_DONE, note, &len) && len;
}

int restore_recall(struct meta *m, bool accepted_lost)
{
	uint8_t note[NOTE_LEN] = { 0 };
	size_t len = sizeof(note);
	int err = meta_note(m, NOTE_DONE, note, &len);

	if (err || len != sizeof(note) || note[0] != 2)
		return err == -ENOENT ? 0 : err;
	if (meta_nvme_seq(m) >= get_le(note + 1, 8))
		return note_done(m);
	return accepted_lost ? meta_set_note(m, NOTE_DONE, "", 0) : 0;
}

int restore_import(struct meta *m, struct remote *r, uint64_t *n_files,
		   char *why, size_t why_len)
{
	CLEANUP(scan_putp) struct scan *s = NULL;
	struct import im = { .m = m, .v = meta_accepted(m) };
	const uint64_t begin = meta_accepted_seq(m);
	const bool all_durable = meta_nvme_seq(m) == begin;
	const bool fresh = all_durable && meta_remote_seq(m) == begin;
	struct timespec now;
	int err = remote_attach(m, r, why, why_len);

	if (!err)
		err = scan_till_stable(r, &s, why, why_len);
	if (err)
		return err;
	clock_gettime(CLOCK_REALTIME, &now);
	im.now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	err = put_root(&im, scan_root(s), fresh);
	if (!err)
		err = put_tree(&im, scan_root(s));
	if (!err)
		err = FAULT("import.settle", -EIO);
	if (!err)
		err = all_durable ? settle(m, fresh)
				  : note_until(m, meta_accepted_seq(m));
	if (err) {
		snprintf(why, why_len, "cannot take over what %s holds: %s",
			 r->name, strerror(-err));
		return err;
	}
	*n_files = im.n_files;
	return 0;
}
