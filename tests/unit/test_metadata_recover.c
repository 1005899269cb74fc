/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a power cut leaves of files that were never sealed, of links to them,
 * and of unlinked files that somebody held open.
 */
#include "tests/unit/metadata_fixture.h"

static int count_version(void *arg, const struct version_rec *v)
{
	(void)v;
	++*(int *)arg;
	return 0;
}

static int count_ino(void *arg, uint64_t ino)
{
	(void)ino;
	++*(int *)arg;
	return 0;
}

static void check_gone(const struct view *v, uint64_t ino)
{
	struct inode_rec rec;
	size_t len = 0;

	CHECK_EQ(view_inode(v, ino, &rec), -ENOENT);
	CHECK_EQ(view_xattr(v, ino, "user.x", NULL, &len), -ENODATA);
}

static void check_state(const struct view *v, uint64_t dir, uint64_t sealed,
			uint64_t never, uint64_t orphan)
{
	struct inode_rec rec;
	struct dentry_rec d;
	int n = 0;

	CHECK_EQ(view_lookup(v, dir, "never", &d), -ENOENT);
	CHECK_EQ(view_lookup(v, dir, "never-link", &d), -ENOENT);
	check_gone(v, never);
	check_gone(v, orphan);
	CHECK_EQ(view_lookup(v, dir, "sealed", &d), 0);
	CHECK_EQ(d.ino, sealed);
	CHECK_EQ(view_inode(v, sealed, &rec), 0);
	CHECK_EQ(rec.nlink, 2);
	CHECK_EQ(view_inode(v, dir, &rec), 0);
	CHECK_EQ(rec.nlink, 3);
	CHECK_EQ(view_versions(v, count_version, &n), 0);
	CHECK_EQ(n, 1);
}

int main(void)
{
	uint64_t dir, sealed, never, orphan, node;
	struct inode_rec rec;
	struct dentry_rec d;
	struct copy_rec c;
	struct world w;
	struct view *v;
	struct txn *t;
	uint64_t n, seq;
	int n_orphans = 0;

	world_init(&w);
	dir = make_dir(w.m, META_ROOT_INO, "dir");
	make_dir(w.m, dir, "sub");
	sealed = make_file(w.m, dir, "sealed");
	c = file_copy(seal_file(w.m, sealed, 1000), 1000);

	never = make_file(w.m, dir, "never");
	t = txn_begin(w.m);
	txn_put_dentry(t, META_ROOT_INO, "never-link", never, S_IFREG);
	txn_put_dentry(t, META_ROOT_INO, "sealed-link", sealed, S_IFREG);
	CHECK_EQ(view_inode(meta_accepted(w.m), sealed, &rec), 0);
	rec.nlink = 2;
	txn_put_inode(t, &rec);
	txn_put_xattr(t, never, "user.x", "1", 1);
	commit_ok(t);

	/* unlinked while open */
	orphan = make_file(w.m, dir, "orphan");
	seal_file(w.m, orphan, 5);
	t = txn_begin(w.m);
	CHECK_EQ(view_lookup(meta_accepted(w.m), dir, "orphan", &d), 0);
	txn_del_dentry(t, dir, "orphan", &d);
	CHECK_EQ(view_inode(meta_accepted(w.m), orphan, &rec), 0);
	rec.nlink = 0;
	txn_put_inode(t, &rec);
	txn_put_orphan(t, orphan);
	txn_put_xattr(t, orphan, "user.x", "1", 1);
	commit_ok(t);

	/* a pipe has no version and stays */
	node = meta_new_ino(w.m);
	t = txn_begin(w.m);
	rec = (struct inode_rec){ .ino = node, .mode = S_IFIFO, .nlink = 1 };
	txn_put_inode(t, &rec);
	txn_put_dentry(t, dir, "pipe", node, S_IFIFO);
	commit_ok(t);
	CHECK_EQ(meta_advance(w.m, meta_accepted_seq(w.m), &c, 1, NULL, 0), 0);
	seq = meta_nvme_seq(w.m);

	/* The daemon's death loses none of it. */
	world_restart(&w);
	CHECK_EQ(view_inode(meta_accepted(w.m), never, &rec), 0);
	CHECK_EQ(view_inode(meta_accepted(w.m), orphan, &rec), 0);

	world_power_cut(&w);
	CHECK_EQ(w.opened.n_dropped, 2);
	CHECK_EQ(meta_nvme_seq(w.m), seq);
	check_state(meta_accepted(w.m), dir, sealed, never, orphan);
	CHECK_EQ(view_inode(meta_accepted(w.m), node, &rec), 0);
	CHECK_EQ(meta_orphans(w.m, count_ino, &n_orphans), 0);
	CHECK_EQ(n_orphans, 0);
	CHECK_EQ(meta_durable_view(w.m, &v), 0);
	check_state(v, dir, sealed, never, orphan);
	view_free(v);
	CHECK_EQ(meta_fsck(w.m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);

	/* Dropped once. */
	world_power_cut(&w);
	CHECK_EQ(w.opened.n_dropped, 0);
	world_close(&w);
	return 0;
}
