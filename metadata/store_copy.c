/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying the namespace of one database into another, empty one: after a
 * power cut the accepted state is made from the durable one. The keys come
 * in order already, so they are written as finished table files that the
 * other database takes over; that skips its log, memtables and compactions.
 */
#include <errno.h>
#include <stdio.h>

#include "metadata/store.h"

#define FILE_BYTES (UINT64_C(32) << 20)

int cursor_open(struct cursor *c, struct store *s, enum cf cf)
{
	rocksdb_readoptions_t *ro = rocksdb_readoptions_create();

	rocksdb_readoptions_set_fill_cache(ro, 0);
	rocksdb_readoptions_set_readahead_size(ro, (size_t)2 << 20);
	c->s = s;
	c->it = rocksdb_create_iterator_cf(s->db, ro, s->cfs[cf]);
	rocksdb_readoptions_destroy(ro);
	rocksdb_iter_seek_to_first(c->it);
	return 0;
}

bool cursor_valid(const struct cursor *c)
{
	return rocksdb_iter_valid(c->it);
}

void cursor_next(struct cursor *c)
{
	rocksdb_iter_next(c->it);
}

struct slice cursor_key(const struct cursor *c)
{
	size_t len;
	const char *p = rocksdb_iter_key(c->it, &len);

	return (struct slice){ p, len };
}

struct slice cursor_val(const struct cursor *c)
{
	size_t len;
	const char *p = rocksdb_iter_value(c->it, &len);

	return (struct slice){ p, len };
}

int cursor_error(const struct cursor *c)
{
	char *msg = NULL;

	rocksdb_iter_get_error(c->it, &msg);
	return store_error(c->s, "scan", msg);
}

void cursor_close(struct cursor *c)
{
	if (c->it)
		rocksdb_iter_destroy(c->it);
	c->it = NULL;
}

/* Fills the file at path from the cursor, up to FILE_BYTES. */
static int write_file(struct store *to, enum cf cf, struct cursor *c,
		      const char *path)
{
	rocksdb_envoptions_t *env = rocksdb_envoptions_create();
	rocksdb_sstfilewriter_t *w =
		rocksdb_sstfilewriter_create(env, to->cf_options[cf]);
	uint64_t len = 0;
	char *msg = NULL;

	rocksdb_sstfilewriter_open(w, path, &msg);
	while (!msg && len < FILE_BYTES && cursor_valid(c)) {
		struct slice k = cursor_key(c), v = cursor_val(c);

		rocksdb_sstfilewriter_put(w, k.p, k.len, v.p, v.len, &msg);
		len += k.len + v.len;
		cursor_next(c);
	}
	if (!msg)
		rocksdb_sstfilewriter_finish(w, &msg);
	rocksdb_sstfilewriter_destroy(w);
	rocksdb_envoptions_destroy(env);
	return store_error(to, "write a table", msg);
}

static int take_over(struct store *to, enum cf cf, const char *path)
{
	rocksdb_ingestexternalfileoptions_t *o =
		rocksdb_ingestexternalfileoptions_create();
	char *msg = NULL;

	rocksdb_ingestexternalfileoptions_set_move_files(o, 1);
	rocksdb_ingest_external_file_cf(to->db, to->cfs[cf], &path, 1, o, &msg);
	rocksdb_ingestexternalfileoptions_destroy(o);
	return store_error(to, "take over a table", msg);
}

static int copy_cf(struct store *from, struct store *to, enum cf cf)
{
	CLEANUP(cursor_close) struct cursor c = { 0 };
	CLEANUP(free_p) char *path = NULL;
	int err = cursor_open(&c, from, cf);

	if (err)
		return err;
	if (asprintf(&path, "%s/table", to->dir) < 0)
		return -ENOMEM;
	while (!err && cursor_valid(&c)) {
		err = write_file(to, cf, &c, path);
		if (!err)
			err = take_over(to, cf, path);
		unlink(path);
	}
	return err ? err : cursor_error(&c);
}

int store_copy_shared(struct store *from, struct store *to)
{
	int err = 0;

	for (int cf = 0; !err && cf < CF_N_SHARED; cf++)
		err = copy_cf(from, to, (enum cf)cf);
	return err;
}
