/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both databases are closed and opened again under their users' feet, as
 * after ENOSPC: nobody notices, but for views whose state is gone.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "metadata/internal.h"
#include "tests/unit/metadata_fixture.h"

static struct world w;
static _Atomic bool stop;

static void reopen(struct store *s)
{
	CHECK_EQ(store_reopen(s, s->generation), 0);
}

static void views(void)
{
	struct view *now, *old;
	struct inode_rec rec;
	uint64_t seq;

	make_dir(w.m, META_ROOT_INO, "one");
	advance_all(w.m);
	CHECK_EQ(meta_durable_view(w.m, &old), 0);
	make_dir(w.m, META_ROOT_INO, "two");
	advance_all(w.m);
	CHECK_EQ(meta_durable_view(w.m, &now), 0);
	reopen(&w.m->durable);
	CHECK_EQ(view_inode(now, META_ROOT_INO, &rec), 0);
	CHECK_EQ(rec.nlink, 4);
	CHECK_EQ(view_inode(old, META_ROOT_INO, &rec), -ESTALE);
	view_free(now);
	view_free(old);

	seq = meta_accepted_seq(w.m);
	reopen(&w.m->accepted);
	make_dir(w.m, META_ROOT_INO, "three");
	CHECK_EQ(meta_accepted_seq(w.m), seq + 1);
}

static void *follower(void *arg)
{
	(void)arg;
	while (!stop)
		advance_all(w.m);
	return NULL;
}

static int count(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	(void)d;
	++*(int *)arg;
	return 0;
}

static void *reader(void *arg)
{
	(void)arg;
	while (!stop) {
		struct view *v;
		int n = 0, err;

		CHECK_EQ(meta_durable_view(w.m, &v), 0);
		err = view_readdir(v, META_ROOT_INO, 0, count, &n);
		CHECK(!err || err == -ESTALE);
		view_free(v);
		n = 0;
		CHECK_EQ(view_readdir(meta_accepted(w.m), META_ROOT_INO, 0,
				      count, &n),
			 0);
		CHECK(n >= 3);
	}
	return NULL;
}

/* Takes nothing but views: a reopening meets them half taken. */
static void *viewer(void *arg)
{
	(void)arg;
	while (!stop) {
		struct view *v;

		CHECK_EQ(meta_durable_view(w.m, &v), 0);
		view_free(v);
	}
	return NULL;
}

static void *writer(void *arg)
{
	char name[32];

	(void)arg;
	for (int i = 0; !stop; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		make_file(w.m, META_ROOT_INO, name);
	}
	return NULL;
}

int main(void)
{
	void *(*const fns[])(void *) = { follower, reader, viewer, writer };
	pthread_t threads[4];
	char *all, *got;
	uint64_t n;

	world_init(&w);
	views();
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, fns[i], NULL));
	for (int i = 0; i < 8; i++) {
		reopen(&w.m->durable);
		reopen(&w.m->accepted);
	}
	stop = true;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	advance_all(w.m);
	CHECK_EQ(meta_fsck(w.m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);
	all = dump_state(meta_accepted(w.m));
	world_power_cut(&w);
	free(all);
	all = dump_state(meta_accepted(w.m));
	got = dump_durable(w.m);
	check_same(all, got);
	free(all);
	free(got);
	world_close(&w);
	return 0;
}
