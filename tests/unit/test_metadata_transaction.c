/* SPDX-License-Identifier: Apache-2.0 */
/* A transaction is seen whole after its commit and not at all before. */
#include "tests/unit/metadata_fixture.h"

static void commits(struct world *w)
{
	const struct view *v = meta_accepted(w->m);
	uint64_t before = meta_accepted_seq(w->m), seq;
	struct inode_rec rec = { .ino = meta_new_ino(w->m),
				 .mode = S_IFREG | 0640,
				 .uid = 3,
				 .gid = 4,
				 .nlink = 1,
				 .rdev = 5,
				 .size = 6,
				 .blocks = 7,
				 .atime_ns = -8,
				 .mtime_ns = 9,
				 .ctime_ns = 10,
				 .version = 11,
				 .parent = 12 },
			 got;
	struct dentry_rec d;
	struct txn *t = txn_begin(w->m);

	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, "f", rec.ino, rec.mode);
	CHECK_EQ(view_inode(v, rec.ino, &got), -ENOENT);
	seq = txn_seq(t);
	CHECK_EQ(commit_ok(t), seq);
	CHECK_EQ(seq, before + 1);
	CHECK_EQ(meta_accepted_seq(w->m), seq);
	CHECK_EQ(view_inode(v, rec.ino, &got), 0);
	rec.seq = seq;
	CHECK(!memcmp(&rec, &got, sizeof(rec)));
	CHECK_EQ(view_lookup(v, META_ROOT_INO, "f", &d), 0);
	CHECK_EQ(d.ino, rec.ino);
	CHECK_EQ(d.type, S_IFREG);
	CHECK(d.cookie > 2 && d.cookie <= INT64_MAX);
	CHECK_EQ(view_lookup(v, META_ROOT_INO, "g", &d), -ENOENT);
}

static void aborts(struct world *w)
{
	uint64_t before = meta_accepted_seq(w->m), ino = meta_new_ino(w->m);
	struct inode_rec rec = { .ino = ino, .mode = S_IFREG, .nlink = 1 };
	struct txn *t = txn_begin(w->m);

	txn_put_inode(t, &rec);
	txn_abort(t);
	CHECK_EQ(view_inode(meta_accepted(w->m), ino, &rec), -ENOENT);
	CHECK_EQ(meta_accepted_seq(w->m), before);
}

static void empty_takes_no_number(struct world *w)
{
	uint64_t before = meta_accepted_seq(w->m);
	struct unsealed_rec u = { .ino = 77, .backing = 5 };

	CHECK_EQ(commit_ok(txn_begin(w->m)), before);
	struct txn *t = txn_begin(w->m);
	txn_put_unsealed(t, &u);
	CHECK_EQ(commit_ok(t), before);
	CHECK_EQ(meta_accepted_seq(w->m), before);
}

static void bad_names_fail(struct world *w)
{
	char name[META_NAME_MAX + 2];
	uint64_t before = meta_accepted_seq(w->m);
	struct dentry_rec d;
	struct txn *t = txn_begin(w->m);

	memset(name, 'x', sizeof(name));
	name[META_NAME_MAX + 1] = '\0';
	txn_put_dentry(t, META_ROOT_INO, name, 99, S_IFREG);
	CHECK_EQ(txn_commit(t, NULL), -ENAMETOOLONG);
	CHECK_EQ(view_lookup(meta_accepted(w->m), META_ROOT_INO, name, &d),
		 -ENAMETOOLONG);
	CHECK_EQ(meta_accepted_seq(w->m), before);
	name[META_NAME_MAX] = '\0';
	t = txn_begin(w->m);
	txn_put_dentry(t, META_ROOT_INO, name, 99, S_IFREG);
	CHECK_EQ(commit_ok(t), before + 1);
	CHECK_EQ(view_lookup(meta_accepted(w->m), META_ROOT_INO, name, &d), 0);
}

static int count_xattr(void *arg, const char *name, const void *value,
		       size_t len)
{
	(void)name;
	(void)value;
	(void)len;
	++*(int *)arg;
	return 0;
}

static void xattrs_and_symlinks(struct world *w)
{
	const struct view *v = meta_accepted(w->m);
	struct inode_rec rec = { .ino = meta_new_ino(w->m),
				 .mode = S_IFLNK | 0777,
				 .nlink = 1 };
	char buf[META_PATH_MAX];
	size_t len = sizeof(buf);
	int n = 0;
	struct txn *t = txn_begin(w->m);

	txn_put_inode(t, &rec);
	txn_put_symlink(t, rec.ino, "a/b");
	txn_put_xattr(t, rec.ino, "user.a", "12345", 5);
	txn_put_xattr(t, rec.ino, "user.b", "", 0);
	commit_ok(t);
	CHECK_EQ(view_symlink(v, rec.ino, buf), 0);
	CHECK_STR(buf, "a/b");
	CHECK_EQ(view_xattr(v, rec.ino, "user.a", buf, &len), 0);
	CHECK(len == 5 && !memcmp(buf, "12345", 5));
	len = 3;
	CHECK_EQ(view_xattr(v, rec.ino, "user.a", buf, &len), -ERANGE);
	CHECK_EQ(len, 5);
	len = 0;
	CHECK_EQ(view_xattr(v, rec.ino, "user.a", NULL, &len), 0);
	CHECK_EQ(len, 5);
	len = sizeof(buf);
	CHECK_EQ(view_xattr(v, rec.ino, "user.b", buf, &len), 0);
	CHECK_EQ(len, 0);
	CHECK_EQ(view_xattr(v, rec.ino, "user.c", buf, &len), -ENODATA);
	CHECK_EQ(view_xattrs(v, rec.ino, count_xattr, &n), 0);
	CHECK_EQ(n, 2);

	t = txn_begin(w->m);
	txn_del_inode(t, &rec);
	commit_ok(t);
	n = 0;
	CHECK_EQ(view_xattrs(v, rec.ino, count_xattr, &n), 0);
	CHECK_EQ(n, 0);
	CHECK_EQ(view_symlink(v, rec.ino, buf), -ENOENT);
}

static int note_unsealed(void *arg, const struct unsealed_rec *u)
{
	*(struct unsealed_rec *)arg = *u;
	return 1;
}

static int note_ino(void *arg, uint64_t ino)
{
	*(uint64_t *)arg = ino;
	return 1;
}

static void unsealed_and_orphans(struct world *w)
{
	struct unsealed_rec u = { .ino = 77,
				  .backing = 5,
				  .where = BACKING_NVME,
				  .base = 9 },
			    got;
	uint64_t ino = 0;
	struct txn *t = txn_begin(w->m);

	txn_put_unsealed(t, &u);
	txn_put_orphan(t, 78);
	commit_ok(t);
	CHECK_EQ(meta_unsealed(w->m, note_unsealed, &got), 1);
	CHECK(got.ino == u.ino && got.backing == u.backing &&
	      got.where == u.where && got.base == u.base);
	CHECK_EQ(meta_orphans(w->m, note_ino, &ino), 1);
	CHECK_EQ(ino, 78);
	t = txn_begin(w->m);
	txn_del_unsealed(t, 77);
	txn_del_orphan(t, 78);
	commit_ok(t);
	CHECK_EQ(meta_unsealed(w->m, note_unsealed, &got), 0);
	CHECK_EQ(meta_orphans(w->m, note_ino, &ino), 0);
}

static uint64_t put_dir(struct txn *t, struct meta *m, const char *name)
{
	struct inode_rec rec = { .ino = meta_new_ino(m),
				 .mode = S_IFDIR | 0755,
				 .nlink = 2,
				 .parent = META_ROOT_INO };

	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, name, rec.ino, rec.mode);
	return rec.ino;
}

static uint64_t seq_of(struct meta *m, uint64_t ino)
{
	struct inode_rec rec;
	int err = view_inode(meta_accepted(m), ino, &rec);

	return err ? 0 : rec.seq;
}

/* One commit, a number and a log entry each; one of them fails, and goes. */
static void several_numbers(struct world *w)
{
	uint64_t before = meta_accepted_seq(w->m), first, bad, second, gone;
	struct unsealed_rec u = { .ino = 55, .backing = 5 }, got;
	char name[META_NAME_MAX + 2];
	struct txn *t = txn_begin(w->m);

	memset(name, 'x', sizeof(name));
	name[META_NAME_MAX + 1] = '\0';
	first = put_dir(t, w->m, "first");
	CHECK_EQ(txn_next(t), 0);
	bad = put_dir(t, w->m, name);
	txn_put_unsealed(t, &u);
	CHECK_EQ(txn_next(t), -ENAMETOOLONG);
	CHECK_EQ(txn_seq(t), before + 2);
	second = put_dir(t, w->m, "second");
	CHECK_EQ(txn_next(t), 0);
	gone = put_dir(t, w->m, "gone");
	txn_put_unsealed(t, &u);
	txn_undo(t);
	CHECK_EQ(commit_ok(t), before + 2);
	CHECK_EQ(meta_accepted_seq(w->m), before + 2);
	CHECK_EQ(seq_of(w->m, first), before + 1);
	CHECK_EQ(seq_of(w->m, second), before + 2);
	CHECK_EQ(seq_of(w->m, bad), 0);
	CHECK_EQ(seq_of(w->m, gone), 0);
	CHECK_EQ(meta_unsealed(w->m, note_unsealed, &got), 0);
	/* The log says the same: to the durable state, number by number. */
	CHECK_EQ(meta_advance(w->m, before + 1, NULL, 0, NULL, 0), 0);
	world_power_cut(w);
	CHECK(seq_of(w->m, first) != 0);
	CHECK_EQ(seq_of(w->m, second), 0);
}

int main(void)
{
	struct world w;

	world_init(&w);
	CHECK_EQ(w.opened.start, META_FRESH);
	commits(&w);
	aborts(&w);
	empty_takes_no_number(&w);
	bad_names_fail(&w);
	xattrs_and_symlinks(&w);
	unsealed_and_orphans(&w);
	several_numbers(&w);
	world_close(&w);
	return 0;
}
