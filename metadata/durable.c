/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The follower's side: bringing the durable database up to a target, and the
 * remote watermark.
 *
 *      accepted log (D, target] --+
 *      their events              +-> one synced batch, with D = target
 *      copies, small contents  --+
 *
 * Invariants: 1. D and the namespace as of D change in one batch, or not at
 * all. 2. The batch is synced before D moves in memory, and D moves before
 * the log is cut off. 3. Copies and small contents may be written ahead of
 * their batch (they are many bytes): they are never rolled back, and one
 * that no version names is swept at start-up. The copy goes first: it is
 * what the sweep finds.
 */
#include <errno.h>

#include "metadata/fault.h"
#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/log_message.h"
#include "metadata/record.h"

#define AHEAD_BYTES ((size_t)4 << 20)
#define KEEP_BYTES (2 * AHEAD_BYTES)
/* Bytes of the log cut off before their room is claimed; if it is short. */
#define CLAIM (UINT64_C(32) << 20)
#define CLAIM_LOW (UINT64_C(1) << 20)

struct gather {
	struct bytes *ops;
	uint64_t last; /* number of the entry before */
	uint64_t log_len, gap;
	bool keep_events;
};

/* Only operations on shared families may come out of the log. */
static int check_ops(struct slice ops)
{
	struct reader r = reader_of(ops.p, ops.len);

	while (r.p != r.end) {
		struct op op;
		int err = op_next(&r, &op);

		if (err)
			return err;
		if (op.cf >= CF_N_SHARED)
			return -EUCLEAN;
	}
	return 0;
}

/* Without a gap; but each epoch has its own numbers. */
static bool goes_on(uint64_t last, uint64_t next)
{
	return next == last + 1 || next >> EPOCH_BITS > last >> EPOCH_BITS;
}

static int gather_entry(void *arg, struct slice key, struct slice val)
{
	struct gather *g = arg;
	struct log_entry e;
	int err = key.len == 8 && goes_on(g->last, get_be64(key.p))
			  ? log_entry_decode(val, &e)
			  : -EUCLEAN;

	if (!err)
		err = check_ops(e.ops);
	if (err)
		return err;
	g->last = get_be64(key.p);
	bytes_append(g->ops, e.ops.p, e.ops.len);
	if (e.event.len && g->keep_events)
		op_put(g->ops, CF_EVENT, key, e.event.p, e.event.len);
	if (!e.events || !g->keep_events)
		g->gap = get_be64(key.p);
	g->log_len += val.len;
	return g->ops->failed ? -ENOMEM : 0;
}

static int gather_log(struct meta *m, uint64_t target, struct gather *g)
{
	struct key from, to;

	key_number(&from, m->nvme_seq + 1);
	key_number(&to, target + 1);
	return store_scan(&m->accepted, NULL, CF_LOG, key_slice(&from),
			  key_slice(&to), gather_entry, g);
}

/* Written unsynced once they are many; what remains goes with D. */
static int flush_ahead(struct meta *m, struct bytes *ops)
{
	struct slice run = bytes_slice(ops);
	int err;

	if (ops->failed)
		return -ENOMEM;
	if (ops->len < AHEAD_BYTES)
		return 0;
	err = store_write(&m->durable, &run, 1, false);
	bytes_clear(ops, SIZE_MAX);
	return err;
}

static int put_copy(struct bytes *ops, const struct copy_rec *c)
{
	CLEANUP(bytes_fini) struct bytes val = { 0 };
	struct key key;

	key_copy(&key, c->version, c->tier);
	copy_encode(&val, c);
	if (val.failed)
		return -ENOMEM;
	op_put(ops, CF_COPY, key_slice(&key), val.p, val.len);
	return 0;
}

static int put_small(struct bytes *ops, const struct small_content *s)
{
	struct key key;
	uint8_t *p;

	key_number(&key, s->version);
	p = op_put_room(ops, CF_SMALL, key_slice(&key), 1 + s->len);
	if (!p)
		return -ENOMEM;
	p[0] = RECORD_VERSION;
	if (s->len)
		memcpy(p + 1, s->data, s->len);
	return 0;
}

static int put_contents(struct meta *m, const struct copy_rec *copies,
			size_t n_copies, const struct small_content *smalls,
			size_t n_smalls, struct bytes *ops)
{
	int err = 0;

	for (size_t i = 0; !err && i < n_copies; i++) {
		err = put_copy(ops, &copies[i]);
		if (!err)
			err = flush_ahead(m, ops);
	}
	for (size_t i = 0; !err && i < n_smalls; i++) {
		err = put_small(ops, &smalls[i]);
		if (!err)
			err = flush_ahead(m, ops);
	}
	return err;
}

bool meta_reserve_held(const struct meta *m)
{
	return reserve_is_held(&m->durable);
}

bool meta_reserve_hold(struct meta *m)
{
	reserve_make(&m->durable);
	return reserve_is_held(&m->durable);
}

/* The final batch; also notes a gap in the events. */
static int write_target(struct meta *m, uint64_t target, struct gather *g)
{
	struct slice runs[2];

	state_put_number(g->ops, STATE_NVME, target);
	if (g->gap)
		state_put_number(g->ops, STATE_GAP, g->gap);
	if (g->ops->failed)
		return -ENOMEM;
	runs[0] = bytes_slice(&m->target_contents);
	runs[1] = bytes_slice(g->ops);
	return store_write(&m->durable, runs, 2, true);
}

/* Whoever clears the gap before does not overwrite this one in between. */
static int write_gap(struct meta *m, uint64_t target, struct gather *g)
{
	int err;

	mutex_lock(&m->remote_lock);
	err = write_target(m, target, g);
	if (!err)
		m->gap = g->gap;
	mutex_unlock(&m->remote_lock);
	return err;
}

/*
 * What was cut off is still in memtables and files. Not given back each
 * time: a flush makes a file.
 */
static void give_back(struct meta *m, uint64_t target, uint64_t len)
{
	struct key to;

	m->unclaimed += len;
	if (m->unclaimed < (m->no_room ? CLAIM_LOW : CLAIM))
		return;
	m->unclaimed = 0;
	key_number(&to, target);
	store_reclaim(&m->accepted, CF_LOG, key_slice(&to));
}

static void cut_log(struct meta *m, uint64_t target, uint64_t len)
{
	int err = log_trim(m, m->trimmed, target);

	/* Not cut off now is cut off next time: entries up to D are never
	 * read again. */
	if (err)
		message_warning("cannot trim the log: %s", strerror(-err));
	else
		m->trimmed = target;
	m->log_len -= len;
	give_back(m, target, len);
}

int meta_advance(struct meta *m, uint64_t target, const struct copy_rec *copies,
		 size_t n_copies, const struct small_content *smalls,
		 size_t n_smalls)
{
	struct gather g = { .ops = &m->target_ops,
			    .last = m->nvme_seq,
			    .keep_events = m->keep_events };
	int err;

	if (target <= m->nvme_seq || target > m->accepted_seq)
		return -EINVAL;
	bytes_clear(&m->target_ops, KEEP_BYTES);
	bytes_clear(&m->target_contents, KEEP_BYTES);
	reserve_make(&m->durable);
	err = gather_log(m, target, &g);
	if (!err)
		err = put_contents(m, copies, n_copies, smalls, n_smalls,
				   &m->target_contents);
	if (!err)
		err = FAULT("advance.write", -EIO);
	if (!err)
		err = g.gap ? write_gap(m, target, &g)
			    : write_target(m, target, &g);
	if (err)
		return err;
	(void)!FAULT("advance.written", 0);
	m->nvme_seq = target;
	m->durable.least_seq = target;
	reserve_make(&m->durable);
	cut_log(m, target, g.log_len);
	return 0;
}

void meta_rest(struct meta *m)
{
	bytes_fini(&m->target_ops);
	bytes_fini(&m->target_contents);
	store_rest(&m->durable);
}

/* ---- the remote watermark --------------------------------------------- */

struct replay {
	event_fn *fn;
	void *arg;
};

static int replay_event(void *arg, struct slice key, struct slice val)
{
	CLEANUP(free_p) const char **paths = NULL;
	const struct replay *r = arg;
	struct event ev;
	int err = key.len == 8 ? event_decode(val, get_be64(key.p), &ev, &paths)
			       : -EUCLEAN;

	return err ? err : r->fn(r->arg, &ev);
}

int meta_events(const struct meta *m, uint64_t after, event_fn *fn, void *arg)
{
	struct replay r = { fn, arg };
	uint64_t remote = m->remote_seq;
	struct key from, to;

	/* Below R lie only deleted events, slow to walk over. */
	key_number(&from, (after > remote ? after : remote) + 1);
	key_number(&to, m->nvme_seq + 1);
	if (memcmp(from.b, to.b, 8) >= 0)
		return 0;
	return store_scan((struct store *)&m->durable, NULL, CF_EVENT,
			  key_slice(&from), key_slice(&to), replay_event, &r);
}

static int set_remote_locked(struct meta *m, uint64_t seq, bool sync)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	bool clear_gap = m->gap && seq >= m->gap;
	struct key first, end;
	struct slice run;
	int err;

	if (seq < m->remote_seq || seq > m->nvme_seq)
		return -EINVAL;
	key_number(&first, m->remote_seq + 1);
	key_number(&end, seq + 1);
	state_put_number(&ops, STATE_REMOTE, seq);
	if (seq > m->remote_seq)
		op_del_range(&ops, CF_EVENT, key_slice(&first),
			     key_slice(&end));
	if (clear_gap)
		state_put_number(&ops, STATE_GAP, 0);
	if (ops.failed)
		return -ENOMEM;
	run = bytes_slice(&ops);
	err = FAULT("publish.mark", -EIO);
	if (!err)
		err = store_write(&m->durable, &run, 1, sync);
	if (err)
		return err;
	m->remote_seq = seq;
	if (clear_gap)
		m->gap = 0;
	return 0;
}

bool meta_events_lost(struct meta *m)
{
	bool lost;

	mutex_lock(&m->remote_lock);
	lost = m->keep_events && m->gap > m->remote_seq;
	mutex_unlock(&m->remote_lock);
	return lost;
}

int meta_set_remote_seq(struct meta *m, uint64_t seq, bool sync)
{
	int err;

	/* Held over the write: two of these must not pass each other. */
	mutex_lock(&m->remote_lock);
	err = set_remote_locked(m, seq, sync);
	mutex_unlock(&m->remote_lock);
	return err;
}
