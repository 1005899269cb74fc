/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers, readers, the follower and the publisher at once: numbers are
 * consecutive, a durable view does not move, events come in order.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/metadata_fixture.h"

#define N_WRITERS 3
#define N_EACH 2000

static struct world w;
static _Atomic int n_writing = N_WRITERS;
static _Atomic uint64_t replayed;

static uint64_t create(int who, int i)
{
	struct inode_rec rec = { .ino = meta_new_ino(w.m),
				 .mode = S_IFREG | 0644,
				 .nlink = 1 };
	char name[32], path[META_PATH_MAX];
	const char *paths[] = { path };
	struct event ev = {
		.kind = EVENT_SEAL, .rec = rec, .paths = paths, .n_paths = 1
	};
	struct txn *t = txn_begin(w.m);

	snprintf(name, sizeof(name), "w%d-%d", who, i);
	CHECK_EQ(view_child_path(meta_accepted(w.m), META_ROOT_INO, name, path),
		 0);
	put_parent(t, w.m, META_ROOT_INO, 0);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, name, rec.ino, rec.mode);
	txn_event(t, &ev);
	return commit_ok(t);
}

static void *writer(void *arg)
{
	int who = (int)(intptr_t)arg;
	uint64_t last = 0;

	for (int i = 0; i < N_EACH; i++) {
		uint64_t seq = create(who, i);

		CHECK(seq > last);
		last = seq;
		if (i % 100 == 50) {
			char name[32];

			snprintf(name, sizeof(name), "w%d-%d", who, i);
			unlink_file(w.m, META_ROOT_INO, name);
		}
	}
	n_writing--;
	return NULL;
}

static void *follower(void *arg)
{
	(void)arg;
	while (n_writing || meta_nvme_seq(w.m) < meta_accepted_seq(w.m)) {
		uint64_t n;

		CHECK_EQ(meta_log_bound(w.m, UINT64_MAX, 100000, &n), 0);
		if (n > meta_nvme_seq(w.m))
			CHECK_EQ(meta_advance(w.m, n, NULL, 0, NULL, 0), 0);
	}
	return NULL;
}

static int replay(void *arg, const struct event *ev)
{
	uint64_t *last = arg;

	CHECK(ev->seq > *last);
	CHECK_EQ(ev->n_paths, 1);
	*last = ev->seq;
	replayed++;
	return 0;
}

static void *publisher(void *arg)
{
	uint64_t last = meta_remote_seq(w.m);
	bool end = false;

	(void)arg;
	while (!end) {
		uint64_t d = meta_nvme_seq(w.m);

		end = !n_writing && d == meta_accepted_seq(w.m);
		CHECK_EQ(meta_events(w.m, last, replay, &last), 0);
		if (last < d)
			last = d;
		CHECK_EQ(meta_set_remote_seq(w.m, last, false), 0);
	}
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
	while (n_writing) {
		struct inode_rec before, after;
		struct view *v;
		int a = 0, b = 0;

		CHECK_EQ(meta_durable_view(w.m, &v), 0);
		CHECK_EQ(view_inode(v, META_ROOT_INO, &before), 0);
		CHECK(before.seq <= view_seq(v));
		CHECK_EQ(view_readdir(v, META_ROOT_INO, 0, count, &a), 0);
		CHECK_EQ(view_readdir(meta_accepted(w.m), META_ROOT_INO, 0,
				      count, &b),
			 0);
		b = 0;
		CHECK_EQ(view_readdir(v, META_ROOT_INO, 0, count, &b), 0);
		CHECK_EQ(a, b);
		CHECK_EQ(view_inode(v, META_ROOT_INO, &after), 0);
		CHECK_EQ(before.seq, after.seq);
		view_free(v);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[N_WRITERS + 3];
	uint64_t first, n;
	int i;

	world_init(&w);
	first = meta_accepted_seq(w.m);
	for (i = 0; i < N_WRITERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, writer,
				      (void *)(intptr_t)i));
	CHECK(!pthread_create(&threads[i++], NULL, follower, NULL));
	CHECK(!pthread_create(&threads[i++], NULL, publisher, NULL));
	CHECK(!pthread_create(&threads[i++], NULL, reader, NULL));
	while (i--)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_EQ(meta_accepted_seq(w.m) - first,
		 N_WRITERS * (N_EACH + N_EACH / 100));
	CHECK_EQ(replayed, N_WRITERS * N_EACH);
	CHECK_EQ(meta_fsck(w.m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);
	world_close(&w);
	return 0;
}
