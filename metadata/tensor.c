/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tensors a version has, as whoever scanned it wrote it down. A cache
 * beside the accepted namespace: written past the door and the log, so that it
 * holds up no transaction; a version's deletion takes it along.
 *
 * Put and deletion cross: a deletion that was built before the first record
 * ever was put takes none along (any_tensor). So the first put passes the
 * door, and each one looks again whether the version is still there.
 */
#include <errno.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

#define ROOM_AMPLE (UINT64_C(512) << 20)

static struct store *accepted(const struct meta *m)
{
	return (struct store *)&m->accepted;
}

static int write_ops(struct meta *m, const struct bytes *ops)
{
	struct slice run = bytes_slice(ops);

	return ops->failed ? -ENOMEM
			   : store_write(&m->accepted, &run, 1, false);
}

static bool has_version(const struct meta *m, uint64_t version)
{
	struct version_rec rec;

	return !view_version(meta_accepted(m), version, &rec);
}

/* No transaction that begins from now on forgets the records. */
static void announce(struct meta *m)
{
	struct txn *t;

	if (m->any_tensor)
		return;
	t = txn_begin(m);
	m->any_tensor = true; /* nobody else goes ahead before we are in */
	txn_abort(t);
}

/* There is plenty for what cannot be made again. */
static bool has_room(const struct meta *m)
{
	uint64_t want = store_filesystem_len(&m->accepted) / 2;

	if (want > ROOM_AMPLE)
		want = ROOM_AMPLE;
	return !m->no_room && reserve_free_room(&m->accepted) >= want;
}

static int forget(struct meta *m, const struct key *key)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };

	op_del(&ops, CF_TENSOR, key_slice(key));
	return write_ops(m, &ops);
}

int meta_put_tensors(struct meta *m, uint64_t version, const void *record,
		     size_t len)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	struct key key;
	uint8_t *p;
	int err;

	if (len > META_TENSORS_MAX)
		return -EFBIG;
	if (!has_room(m))
		return -ENOSPC;
	if (!has_version(m, version))
		return -ENOENT;
	announce(m);
	key_number(&key, version);
	p = op_put_room(&ops, CF_TENSOR, key_slice(&key), 1 + len);
	if (p) {
		p[0] = RECORD_VERSION;
		memcpy(p + 1, record, len);
	}
	err = write_ops(m, &ops);
	if (err || has_version(m, version))
		return err;
	err = forget(m, &key);
	return err ? err : -ENOENT;
}

static int got_record(void *arg, const void *val, size_t len)
{
	struct slice *out = arg, s;
	void *p;
	int err = plain_decode(val, len, &s);

	if (err)
		return err;
	p = malloc(s.len ? s.len : 1);
	if (!p)
		return -ENOMEM;
	memcpy(p, s.p, s.len);
	*out = (struct slice){ p, s.len };
	return 0;
}

int meta_tensors(const struct meta *m, uint64_t version, void **out,
		 size_t *len)
{
	struct slice s;
	struct key key;
	int err;

	if (!m->any_tensor)
		return -ENOENT;
	key_number(&key, version);
	if (!out)
		return store_has(accepted(m), NULL, CF_TENSOR, key_slice(&key));
	err = store_get(accepted(m), NULL, CF_TENSOR, key_slice(&key),
			got_record, &s);
	if (err)
		return err;
	*out = (void *)s.p;
	*len = s.len;
	return 0;
}
