/* SPDX-License-Identifier: Apache-2.0 */
/* Paths are right before and after directories move, cached or not. */
#include "tests/unit/metadata_fixture.h"

static void is(const struct view *v, uint64_t ino, const char *want)
{
	char got[META_PATH_MAX];

	for (int i = 0; i < 2; i++) {
		CHECK_EQ(view_path(v, ino, got), 0);
		CHECK_STR(got, want);
	}
}

static void child_is(const struct view *v, uint64_t dir, const char *name,
		     const char *want)
{
	char got[META_PATH_MAX];

	for (int i = 0; i < 2; i++) {
		CHECK_EQ(view_child_path(v, dir, name, got), 0);
		CHECK_STR(got, want);
	}
}

static void move(struct meta *m, uint64_t from, const char *a, uint64_t to,
		 const char *b)
{
	struct dentry_rec d;
	struct txn *t = txn_begin(m);

	CHECK_EQ(view_lookup(meta_accepted(m), from, a, &d), 0);
	txn_del_dentry(t, from, a, &d);
	txn_put_dentry(t, to, b, d.ino, d.type);
	commit_ok(t);
}

/* The number at which its path came to be; no lookup, no record of its own. */
static uint64_t came(const struct view *v, uint64_t ino)
{
	uint64_t seq;

	CHECK_EQ(view_path_seq(v, ino, &seq), 0);
	return seq;
}

static int all_names(void *arg, uint64_t parent, const char *name)
{
	(void)parent;
	CHECK(name[0]);
	++*(int *)arg;
	return 0;
}

static void deep(struct meta *m)
{
	char name[META_NAME_MAX + 1], path[META_PATH_MAX];
	uint64_t dir = META_ROOT_INO;
	int err = 0, n = 0;

	memset(name, 'n', META_NAME_MAX);
	name[META_NAME_MAX] = '\0';
	for (; !err && n < 20; n++) {
		dir = make_dir(m, dir, name);
		err = view_path(meta_accepted(m), dir, path);
		if (!err)
			CHECK_EQ(strlen(path),
				 (n + 1) * (META_NAME_MAX + 1) - 1);
	}
	CHECK_EQ(err, -ENAMETOOLONG);
	CHECK_EQ(n, 17); /* 16 * 256 - 1 + NUL just fits */
}

int main(void)
{
	struct world w;
	const struct view *v;
	struct view *dv;
	uint64_t a, b, c, f;
	char path[META_PATH_MAX];
	int n = 0;

	world_init(&w);
	v = meta_accepted(w.m);
	a = make_dir(w.m, META_ROOT_INO, "a");
	b = make_dir(w.m, a, "b");
	c = make_dir(w.m, b, "c");
	f = make_file(w.m, c, "f");
	is(v, META_ROOT_INO, "");
	is(v, a, "a");
	is(v, c, "a/b/c");
	is(v, f, "a/b/c/f");
	child_is(v, META_ROOT_INO, "x", "x");
	child_is(v, c, "x", "a/b/c/x");
	advance_all(w.m);
	CHECK_EQ(meta_durable_view(w.m, &dv), 0);

	CHECK_EQ(came(v, META_ROOT_INO), 0);
	CHECK_EQ(came(v, 12345), 0);
	CHECK(came(v, a) < came(v, b) && came(v, b) < came(v, f));
	move(w.m, a, "b", META_ROOT_INO, "bb");
	CHECK_EQ(came(v, b), meta_accepted_seq(w.m));
	CHECK_EQ(came(v, f), meta_accepted_seq(w.m));
	CHECK_EQ(came(v, c), meta_accepted_seq(w.m));
	CHECK(came(v, a) < meta_accepted_seq(w.m));
	CHECK(came(dv, f) < came(v, f));
	make_file(w.m, b, "beside");
	CHECK(came(v, f) < meta_accepted_seq(w.m));
	is(v, c, "bb/c");
	is(v, f, "bb/c/f");
	is(dv, f, "a/b/c/f");
	child_is(dv, c, "x", "a/b/c/x");
	move(w.m, META_ROOT_INO, "bb", a, "b");
	is(v, f, "a/b/c/f");

	/* two names */
	struct txn *t = txn_begin(w.m);
	txn_put_dentry(t, META_ROOT_INO, "link", f, S_IFREG);
	commit_ok(t);
	CHECK_EQ(view_names(v, f, all_names, &n), 0);
	CHECK_EQ(n, 2);
	move(w.m, a, "b", META_ROOT_INO, "bb");
	CHECK_EQ(came(v, f), meta_accepted_seq(w.m));
	move(w.m, META_ROOT_INO, "bb", a, "b");
	CHECK_EQ(view_path(v, 12345, path), -ENOENT);
	view_free(dv);
	deep(w.m);
	world_close(&w);
	return 0;
}
