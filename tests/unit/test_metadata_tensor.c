/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor records: kept beside the accepted state, gone with their version, and
 * with DRAM; an older database gets the family when it is opened. */
#include <pthread.h>
#include <rocksdb/c.h>

#include "tests/unit/metadata_fixture.h"

static struct world w;

static int get(uint64_t version, const char *want)
{
	void *p;
	size_t len;
	int err = meta_tensors(w.m, version, &p, &len);

	CHECK_EQ(meta_tensors(w.m, version, NULL, NULL), err);
	if (err)
		return err;
	CHECK(len == strlen(want) && !memcmp(p, want, len));
	free(p);
	return 0;
}

static void put(uint64_t version, const char *text)
{
	CHECK_EQ(meta_put_tensors(w.m, version, text, strlen(text)), 0);
	CHECK_EQ(get(version, text), 0);
}

static void comes_and_goes(void)
{
	uint64_t ino = make_file(w.m, META_ROOT_INO, "a");
	uint64_t v1 = seal_file(w.m, ino, 100), v2;

	CHECK_EQ(get(v1, ""), -ENOENT);
	put(v1, "first");
	put(v1, "again");
	v2 = seal_file(w.m, ino, 200); /* replaces it */
	CHECK_EQ(get(v1, ""), -ENOENT);
	put(v2, "second");
	unlink_file(w.m, META_ROOT_INO, "a");
	CHECK_EQ(get(v2, ""), -ENOENT);
	CHECK_EQ(meta_put_tensors(w.m, v2, "late", 4), -ENOENT);
	CHECK_EQ(get(v2, ""), -ENOENT);
}

static void is_no_event(void)
{
	uint64_t v = seal_file(w.m, make_file(w.m, META_ROOT_INO, "b"), 9);
	uint64_t seq = meta_accepted_seq(w.m);

	put(v, "x");
	CHECK_EQ(meta_accepted_seq(w.m), seq);
	advance_all(w.m);
}

static void is_bounded(void)
{
	uint64_t v = seal_file(w.m, make_file(w.m, META_ROOT_INO, "c"), 9);
	size_t len = META_TENSORS_MAX + 1;
	char *big = calloc(1, len);
	void *back;

	CHECK(big);
	CHECK_EQ(meta_put_tensors(w.m, v, big, len), -EFBIG);
	CHECK_EQ(meta_put_tensors(w.m, v, big, len - 1), 0);
	CHECK_EQ(meta_tensors(w.m, v, &back, &len), 0);
	CHECK_EQ(len, META_TENSORS_MAX);
	free(back);
	free(big);
}

static void outlives_the_daemon_only(void)
{
	uint64_t v = seal_file(w.m, make_file(w.m, META_ROOT_INO, "d"), 9);

	put(v, "kept");
	advance_all(w.m);
	world_restart(&w);
	CHECK_EQ(get(v, "kept"), 0);
	world_power_cut(&w);
	CHECK_EQ(get(v, ""), -ENOENT);
	put(v, "made again");
}

/* As an older ckptfs left it. */
static void drop_family(void)
{
	rocksdb_options_t *o = rocksdb_options_create();
	const rocksdb_options_t *options[32];
	rocksdb_column_family_handle_t *handles[32];
	char path[PATH_MAX + 32], **names, *err = NULL;
	rocksdb_t *db;
	size_t n;

	snprintf(path, sizeof(path), "%s/db", w.accepted);
	names = rocksdb_list_column_families(o, path, &n, &err);
	CHECK(!err && n <= 32);
	for (size_t i = 0; i < n; i++)
		options[i] = o;
	db = rocksdb_open_column_families(o, path, (int)n,
					  (const char *const *)names, options,
					  handles, &err);
	CHECK(!err);
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(names[i], "tensor"))
			rocksdb_drop_column_family(db, handles[i], &err);
		CHECK(!err);
		rocksdb_column_family_handle_destroy(handles[i]);
	}
	rocksdb_close(db);
	rocksdb_list_column_families_destroy(names, n);
	rocksdb_options_destroy(o);
}

static void is_made_in_an_older_database(void)
{
	uint64_t v = seal_file(w.m, make_file(w.m, META_ROOT_INO, "e"), 9);

	put(v, "x");
	world_close(&w);
	drop_family();
	world_open(&w);
	CHECK_EQ(w.opened.start, META_CARRIED_ON);
	CHECK_EQ(get(v, ""), -ENOENT);
	put(v, "made again");
	world_restart(&w);
	CHECK_EQ(get(v, "made again"), 0);
}

static void *put_other(void *arg)
{
	put(*(const uint64_t *)arg, "x");
	return NULL;
}

static void *put_late(void *arg)
{
	int err = meta_put_tensors(w.m, *(const uint64_t *)arg, "y", 1);

	CHECK(!err || err == -ENOENT);
	return NULL;
}

/* The first two records ever, while a deletion is being built that cannot know
 * of them. */
static void crosses_a_deletion(void)
{
	const struct timespec a_while = { 0, 100000000 };
	uint64_t ino = make_file(w.m, META_ROOT_INO, "crossing"), seq;
	uint64_t version = seal_file(w.m, ino, 10);
	uint64_t other = seal_file(
		w.m, make_file(w.m, META_ROOT_INO, "crossing too"), 10);
	pthread_t threads[2];
	struct inode_rec rec;
	struct txn *t;
	void *got;
	size_t len;

	advance_all(w.m);
	world_power_cut(&w); /* none is known */
	CHECK_EQ(view_inode(meta_accepted(w.m), ino, &rec), 0);
	t = txn_begin(w.m);
	txn_del_version(t, version);
	CHECK(!pthread_create(&threads[0], NULL, put_other, &other));
	nanosleep(&a_while, NULL);
	CHECK(!pthread_create(&threads[1], NULL, put_late, &version));
	nanosleep(&a_while, NULL);
	rec.version = 0;
	txn_put_inode(t, &rec);
	CHECK_EQ(txn_commit(t, &seq), 0);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_EQ(meta_tensors(w.m, version, &got, &len), -ENOENT);
}

int main(void)
{
	world_init(&w);
	comes_and_goes();
	is_no_event();
	is_bounded();
	outlives_the_daemon_only();
	is_made_in_an_older_database();
	crosses_a_deletion();
	world_close(&w);
	return 0;
}
