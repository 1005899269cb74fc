/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cookies: a listing that goes on after others changed the directory shows
 * each entry that was there all the time exactly once, and no cookie is ever
 * given again, not even for two entries of one transaction. An entry put at
 * the place of another has that one's.
 */
#include "tests/unit/metadata_fixture.h"

#define N 500

struct page {
	uint64_t last;
	int n, room;
	int seen[N];
};

static int take(void *arg, const char *name, const struct dentry_rec *d)
{
	struct page *p = arg;

	CHECK(d->cookie > p->last);
	if (!p->room)
		return 5;
	p->room--;
	p->last = d->cookie;
	p->n++;
	if (name[0] == 'f')
		p->seen[strtol(name + 1, NULL, 10)]++;
	return 0;
}

static void changes_meanwhile(struct meta *m)
{
	const struct view *v = meta_accepted(m);
	uint64_t dir = make_dir(m, META_ROOT_INO, "d");
	struct page p = { 0 };
	char name[32];
	bool empty;
	int err;

	CHECK_EQ(view_dir_is_empty(v, dir, &empty), 0);
	CHECK(empty);
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		make_file(m, dir, name);
	}
	CHECK_EQ(view_dir_is_empty(v, dir, &empty), 0);
	CHECK(!empty);
	for (int i = 0;; i++) {
		p.room = 7;
		err = view_readdir(v, dir, p.last, take, &p);
		if (!err)
			break;
		CHECK_EQ(err, 5);
		snprintf(name, sizeof(name), "new%d", i);
		make_file(m, dir, name);
		/* goes again at once: it was not there all the time */
		unlink_file(m, dir, name);
		/* already shown: its going moves nothing */
		snprintf(name, sizeof(name), "f%d", i);
		unlink_file(m, dir, name);
	}
	for (int i = 0; i < N; i++)
		CHECK_EQ(p.seen[i], 1);
	/* A directory whose number follows is not mixed in. */
	make_dir(m, dir, "sub");
	p = (struct page){ .room = 10 * N };
	CHECK_EQ(view_readdir(v, META_ROOT_INO, 0, take, &p), 0);
	CHECK_EQ(p.n, 1);
}

/* exchange: two entries put by one transaction into one directory */
static void exchange(struct meta *m)
{
	const struct view *v = meta_accepted(m);
	uint64_t dir = make_dir(m, META_ROOT_INO, "x");
	uint64_t a = make_file(m, dir, "a"), b = make_file(m, dir, "b");
	struct page p = { .room = 100 };
	struct dentry_rec da, db;
	struct txn *t = txn_begin(m);

	CHECK_EQ(view_lookup(v, dir, "a", &da), 0);
	CHECK_EQ(view_lookup(v, dir, "b", &db), 0);
	txn_del_dentry(t, dir, "a", &da);
	txn_del_dentry(t, dir, "b", &db);
	txn_put_dentry(t, dir, "a", b, S_IFREG);
	txn_put_dentry(t, dir, "b", a, S_IFREG);
	commit_ok(t);
	CHECK_EQ(view_lookup(v, dir, "a", &da), 0);
	CHECK_EQ(view_lookup(v, dir, "b", &db), 0);
	CHECK_EQ(da.ino, b);
	CHECK_EQ(db.ino, a);
	CHECK(da.cookie != db.cookie);
	CHECK_EQ(view_readdir(v, dir, 0, take, &p), 0);
	CHECK_EQ(p.n, 2);
}

static int count(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	(void)d;
	++*(int *)arg;
	return 0;
}

static int count_entries(const struct view *v, uint64_t dir)
{
	int n = 0;

	CHECK_EQ(view_readdir(v, dir, 0, count, &n), 0);
	return n;
}

static void replaced_in_place(struct meta *m)
{
	const struct view *v = meta_accepted(m);
	uint64_t dir = make_dir(m, META_ROOT_INO, "r"), last;
	struct dentry_rec old, d, now;
	struct txn *t;

	make_file(m, dir, "latest");
	last = meta_last_cookie(m);
	make_file(m, dir, "tmp");
	CHECK_EQ(view_lookup(v, dir, "latest", &old), 0);
	CHECK_EQ(view_lookup(v, dir, "tmp", &d), 0);
	CHECK(old.cookie <= last);
	CHECK(d.cookie > last);
	t = txn_begin(m);
	txn_del_dentry(t, dir, "latest", &old);
	txn_del_dentry(t, dir, "tmp", &d);
	d.cookie = old.cookie;
	txn_put_dentry_at(t, dir, "latest", &d);
	commit_ok(t);
	CHECK_EQ(view_lookup(v, dir, "latest", &now), 0);
	CHECK_EQ(now.cookie, old.cookie);
	CHECK_EQ(now.ino, d.ino);
	CHECK_EQ(count_entries(v, dir), 1);
}

static void too_many(struct meta *m)
{
	struct txn *t = txn_begin(m);
	char name[32];

	for (int i = 0; i < 9; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		txn_put_dentry(t, META_ROOT_INO, name, 77, S_IFREG);
	}
	CHECK_EQ(txn_commit(t, NULL), -E2BIG);
}

int main(void)
{
	struct world w;

	world_init(&w);
	changes_meanwhile(w.m);
	exchange(w.m);
	replaced_in_place(w.m);
	too_many(w.m);
	world_close(&w);
	return 0;
}
