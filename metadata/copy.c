/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a version's copies, small contents, notes: single records
 * of the durable database, outside of the two states.
 */
#include <errno.h>

#include "metadata/fault.h"
#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

static struct store *durable(const struct meta *m)
{
	return (struct store *)&m->durable;
}

static int write_ops(struct meta *m, const struct bytes *ops, bool sync)
{
	struct slice run = bytes_slice(ops);
	int err = FAULT("copy.record", -EIO);

	if (ops->failed)
		return -ENOMEM;
	return err ? err : store_write(&m->durable, &run, 1, sync);
}

static int got_copy(void *arg, const void *val, size_t len)
{
	struct copy_rec *c = arg;

	return copy_decode(val, len, c->version, c->tier, c);
}

int meta_copy(const struct meta *m, uint64_t version, enum copy_tier tier,
	      struct copy_rec *out)
{
	struct copy_rec c = { .version = version, .tier = tier };
	struct key key;
	int err;

	key_copy(&key, version, tier);
	err = store_get(durable(m), NULL, CF_COPY, key_slice(&key), got_copy,
			&c);
	if (!err)
		*out = c;
	return err;
}

struct each_copy {
	copy_fn *fn;
	void *arg;
};

static int each_copy(void *arg, struct slice key, struct slice val)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	const struct each_copy *e = arg;
	const uint8_t *k = key.p;
	int err = key.len == 9 ? copy_decode(val.p, val.len, get_be64(k),
					     (enum copy_tier)k[8], &c)
			       : -EUCLEAN;

	return err ? err : e->fn(e->arg, &c);
}

int meta_copies(const struct meta *m, copy_fn *fn, void *arg)
{
	struct each_copy e = { fn, arg };

	return store_scan(durable(m), NULL, CF_COPY, (struct slice){ 0 },
			  (struct slice){ 0 }, each_copy, &e);
}

static int got_plain(void *arg, const void *val, size_t len)
{
	struct slice *out = arg;
	struct slice s;
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

int meta_small(const struct meta *m, uint64_t version, void **out, size_t *len)
{
	struct slice s;
	struct key key;
	int err;

	key_number(&key, version);
	err = store_get(durable(m), NULL, CF_SMALL, key_slice(&key), got_plain,
			&s);
	if (err)
		return err;
	*out = (void *)s.p;
	*len = s.len;
	return 0;
}

int meta_put_copy(struct meta *m, const struct copy_rec *c, bool sync)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 }, val = { 0 };
	struct key key;

	key_copy(&key, c->version, c->tier);
	copy_encode(&val, c);
	if (val.failed)
		return -ENOMEM;
	op_put(&ops, CF_COPY, key_slice(&key), val.p, val.len);
	return write_ops(m, &ops, sync);
}

static int copy_kind(struct meta *m, uint64_t version, enum copy_kind *kind)
{
	CLEANUP(copy_rec_fini) struct copy_rec c = { 0 };
	int err = meta_copy(m, version, COPY_NVME, &c);

	*kind = c.kind;
	return err;
}

static int del_copy(struct meta *m, struct bytes *ops, uint64_t version,
		    enum copy_tier tier)
{
	enum copy_kind kind;
	struct key key;
	int err;

	key_copy(&key, version, tier);
	if (tier == COPY_NVME)
		err = copy_kind(m, version, &kind);
	else
		err = store_has(&m->durable, NULL, CF_COPY, key_slice(&key));
	if (err)
		return err == -ENOENT ? 0 : err;
	op_del(ops, CF_COPY, key_slice(&key));
	key_number(&key, version);
	if (tier == COPY_NVME && kind == COPY_SMALL)
		op_del(ops, CF_SMALL, key_slice(&key));
	return 0;
}

int meta_del_copy(struct meta *m, uint64_t version, enum copy_tier tier)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	int err = del_copy(m, &ops, version, tier);

	return err || !ops.len ? err : write_ops(m, &ops, false);
}

int meta_del_copies(struct meta *m, const uint64_t *versions, size_t n)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	int err = 0;

	for (size_t i = 0; i < n && !err; i++) {
		err = del_copy(m, &ops, versions[i], COPY_NVME);
		if (!err)
			err = del_copy(m, &ops, versions[i], COPY_REMOTE);
	}
	return err || !ops.len ? err : write_ops(m, &ops, false);
}

int meta_set_note(struct meta *m, const char *name, const void *val, size_t len)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	struct slice key = { name, strlen(name) };
	uint8_t *p = op_put_room(&ops, CF_NOTE, key, 1 + len);

	if (p) {
		p[0] = RECORD_VERSION;
		if (len)
			memcpy(p + 1, val, len);
	}
	return write_ops(m, &ops, true);
}

struct room {
	void *buf;
	size_t len;
};

static int got_note(void *arg, const void *val, size_t len)
{
	struct room *r = arg;
	size_t room = r->len;
	struct slice s;
	int err = plain_decode(val, len, &s);

	if (err)
		return err;
	r->len = s.len;
	if (r->buf && s.len > room)
		return -ERANGE;
	if (r->buf)
		memcpy(r->buf, s.p, s.len);
	return 0;
}

int meta_note(const struct meta *m, const char *name, void *val, size_t *len)
{
	struct slice key = { name, strlen(name) };
	struct room r = { val, *len };
	int err = store_get(durable(m), NULL, CF_NOTE, key, got_note, &r);

	if (!err || err == -ERANGE)
		*len = r.len;
	return err;
}
