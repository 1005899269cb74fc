/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespace transactions that concern open files: what was closed before is
 * sealed first, versions that nobody names any more are told, and an inode in
 * use outlives its last name.
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "engine/core.h"

struct txn *engine_txn_begin(struct engine *e)
{
	int r = settle(e);
	struct txn *t = txn_begin(e->meta);

	txn_refuse(t, r);
	return t;
}

struct txn *engine_txn_begin_create(struct engine *e)
{
	int r = settle_if_needed(e);
	struct txn *t = txn_begin(e->meta);

	txn_refuse(t, r);
	return t;
}

void drop_version(struct engine *e, struct txn *t, uint64_t version)
{
	if (!version)
		return;
	txn_del_version(t, version);
	if (e->n_drops == e->cap_drops) {
		size_t cap = e->cap_drops ? e->cap_drops * 2 : 16;
		void *grown = realloc(e->drops, cap * sizeof(*e->drops));

		if (!grown)
			return; /* the sweep at the next start finds it */
		e->drops = grown;
		e->cap_drops = cap;
	}
	e->drops[e->n_drops++] = (struct dropped){ .version = version };
}

/* The commit failed. Since then somebody else may have unlinked it: behind the
 * door the record says which. */
static void not_orphaned(struct engine *e, uint64_t ino)
{
	struct txn *t = txn_begin(e->meta);
	struct inode_rec rec;

	if (!view_inode(meta_accepted(e->meta), ino, &rec) && rec.nlink)
		(void)inode_set_orphan(e, ino, false);
	txn_abort(t);
}

int commit_and_drop(struct engine *e, struct txn *t, uint64_t *seq)
{
	/* The list is the door's: take it before the door is given back. */
	CLEANUP(free_p) struct dropped *drops = MOVE(e->drops);
	size_t n = e->n_drops, len = txn_len(t);
	uint64_t orphaned;
	int r;

	e->n_drops = e->cap_drops = 0;
	orphaned = e->orphaned;
	e->orphaned = 0;
	r = txn_commit(t, seq);
	if (r < 0) {
		if (orphaned)
			not_orphaned(e, orphaned);
		return r;
	}
	version_bound(e, len);
	for (size_t i = 0; i < n; i++)
		version_dead(e, drops[i].version, *seq);
	return 0;
}

int engine_txn_commit(struct engine *e, struct txn *t, uint64_t *seq)
{
	return commit_and_drop(e, t, seq);
}

void engine_txn_abort(struct engine *e, struct txn *t)
{
	uint64_t orphaned = e->orphaned;

	e->n_drops = 0;
	e->orphaned = 0;
	if (orphaned)
		(void)inode_set_orphan(e, orphaned, false);
	txn_abort(t);
}

void engine_drop_link(struct engine *e, struct txn *t, struct inode_rec *rec,
		      int64_t now_ns)
{
	rec->ctime_ns = now_ns;
	rec->nlink = S_ISDIR(rec->mode) ? 0 : rec->nlink - 1;
	if (rec->nlink) {
		txn_put_inode(t, rec);
	} else if (inode_set_orphan(e, rec->ino, true)) {
		e->orphaned = rec->ino;
		txn_put_inode(t, rec);
		txn_put_orphan(t, rec->ino);
	} else {
		/* Not in use, so it is sealed: no unsealed record to delete. */
		drop_version(e, t, rec->version);
		txn_del_inode(t, rec);
	}
}
