/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: the entries above D in the accepted database, by number. Those at
 * or below D are cut off by range deletions; nobody ever seeks below D, so
 * no iterator walks over them.
 */
#include <errno.h>

#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/record.h"

uint64_t meta_accepted_seq(const struct meta *m)
{
	return m->accepted_seq;
}

uint64_t meta_nvme_seq(const struct meta *m)
{
	return m->nvme_seq;
}

uint64_t meta_remote_seq(const struct meta *m)
{
	return m->keep_events ? m->remote_seq : m->nvme_seq;
}

int log_entry_decode(struct slice val, struct log_entry *out)
{
	struct reader r = reader_of(val.p, val.len);
	uint64_t flags;
	size_t len;

	if (read_le(&r, 1) > RECORD_VERSION)
		return -EOPNOTSUPP;
	flags = read_le(&r, 1);
	len = read_le(&r, 4);
	out->event = (struct slice){ read_bytes(&r, len), len };
	if (r.bad)
		return -EUCLEAN;
	out->events = flags & LOG_EVENTS;
	out->ops = (struct slice){ r.p, (size_t)(r.end - r.p) };
	return 0;
}

struct measure {
	uint64_t last, len;
};

static int measure_entry(void *arg, struct slice key, struct slice val)
{
	struct measure *me = arg;

	if (key.len != 8)
		return -EUCLEAN;
	me->last = get_be64(key.p);
	me->len += val.len;
	return 0;
}

int log_measure(struct meta *m, uint64_t after, uint64_t *last, uint64_t *len)
{
	struct measure me = { 0 };
	struct key from;
	int err;

	key_number(&from, after + 1);
	err = store_scan(&m->accepted, NULL, CF_LOG, key_slice(&from),
			 (struct slice){ 0 }, measure_entry, &me);
	if (err)
		return err;
	*last = me.last;
	*len = me.len;
	return 0;
}

struct bound {
	uint64_t n;
	size_t len, max;
	bool any;
};

static int bound_entry(void *arg, struct slice key, struct slice val)
{
	struct bound *b = arg;

	if (key.len != 8)
		return -EUCLEAN;
	if (b->any && b->len + val.len > b->max)
		return 1;
	b->n = get_be64(key.p);
	b->len += val.len;
	b->any = true;
	return 0;
}

int meta_log_bound(struct meta *m, uint64_t want, size_t max_bytes, uint64_t *n)
{
	uint64_t d = m->nvme_seq, a = m->accepted_seq;
	struct bound b = { .n = d, .max = max_bytes };
	struct key from, to;
	int err;

	if (want > a)
		want = a;
	if (want <= d || m->log_len <= max_bytes) {
		*n = want > d ? want : d;
		return 0;
	}
	key_number(&from, d + 1);
	key_number(&to, want + 1);
	err = store_scan(&m->accepted, NULL, CF_LOG, key_slice(&from),
			 key_slice(&to), bound_entry, &b);
	if (err < 0)
		return err;
	*n = err ? b.n : want;
	return 0;
}

int log_trim(struct meta *m, uint64_t from, uint64_t to)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	struct key first, end;
	struct slice run;

	key_number(&first, from + 1);
	key_number(&end, to + 1);
	op_del_range(&ops, CF_LOG, key_slice(&first), key_slice(&end));
	state_put_number(&ops, STATE_CUT, to);
	if (ops.failed)
		return -ENOMEM;
	run = bytes_slice(&ops);
	return store_write(&m->accepted, &run, 1, false);
}
