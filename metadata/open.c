/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: which of the two databases are there, do they belong together,
 * and with what does the mount go on?
 *
 *   durable   accepted               goes on with
 *   -------   --------------------   -----------------------------------
 *   none      (any: kept aside)      a root directory           FRESH
 *   there     same UUID, epoch and   both                       CARRIED_ON
 *             boot id
 *   there     anything else          the durable state as of D  POWER_CUT
 *
 * Steps, and why a death between any two of them is harmless:
 *
 *   1. durable: epoch + 1, raised_from = the accepted one's epoch; synced.
 *      The accepted database agrees by either of the two epochs.
 *   2. not carried on: correct the durable state, copy it. A copy without an
 *      identity is unfinished and is thrown away.
 *   3. accepted: identity with the new epoch.
 *   4. durable: raised_from = 0. From now on the old epoch agrees no more.
 *
 * No number of the new epoch is given out before step 4.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "metadata/aside.h"
#include "metadata/fault.h"
#include "metadata/internal.h"
#include "metadata/keys.h"
#include "metadata/log_message.h"
#include "metadata/record.h"

/* What meta_open() has found so far. */
struct opening {
	struct meta *m;
	const struct meta_config *config;
	struct meta_opened *opened;
	char boot_id[BOOT_ID_LEN];
	bool agrees;          /* the accepted database is open and ours */
	uint64_t raised_from; /* its epoch */
};

static void reason(struct opening *o, const char *text)
{
	snprintf(o->opened->reason, sizeof(o->opened->reason), "%s", text);
}

static int write_state(struct store *s, const struct bytes *ops, bool sync)
{
	struct slice run = bytes_slice(ops);
	int err = FAULT("open.state", -EIO);

	if (ops->failed)
		return -ENOMEM;
	return err ? err : store_write(s, &run, 1, sync);
}

/* ---- the durable database --------------------------------------------- */

static int make_root(struct store *s)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	uint64_t first = UINT64_C(1) << EPOCH_BITS;
	struct inode_rec root = {
		.ino = META_ROOT_INO,
		.mode = S_IFDIR | 0755,
		.uid = getuid(),
		.gid = getgid(),
		.nlink = 2,
		.parent = META_ROOT_INO,
		.seq = first,
	};
	struct timespec now;
	struct key key;
	uint8_t *p;

	clock_gettime(CLOCK_REALTIME, &now);
	root.mtime_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	root.atime_ns = root.ctime_ns = root.mtime_ns;
	key_number(&key, root.ino);
	p = op_put_room(&ops, CF_INODE, key_slice(&key), INODE_LEN);
	if (p)
		inode_encode(p, &root);
	state_put_number(&ops, STATE_NVME, first);
	state_put_number(&ops, STATE_REMOTE, first);
	return write_state(s, &ops, true);
}

static int open_durable(struct opening *o)
{
	const struct store_config config = {
		.dir = o->config->durable_dir,
		.durable = true,
		.reserve_len = o->config->reserve_len,
	};
	struct meta *m = o->m;
	int err = store_open(&m->durable, &config, true);

	if (err)
		return err;
	m->durable.state_seq = state_nvme_held;
	err = state_identity(&m->durable, &m->id);
	if (err != -ENOENT)
		return err;
	o->opened->start = META_FRESH;
	err = identity_new(&m->id);
	return err ? err : make_root(&m->durable);
}

static int read_optional(struct store *s, const char *key, uint64_t *out)
{
	int err = state_number(s, NULL, key, out);

	if (err == -ENOENT)
		*out = 0;
	return err == -ENOENT ? 0 : err;
}

static int read_watermarks(struct opening *o)
{
	struct meta *m = o->m;
	uint64_t d, r;
	int err = state_number(&m->durable, NULL, STATE_NVME, &d);

	if (!err)
		err = state_number(&m->durable, NULL, STATE_REMOTE, &r);
	if (!err)
		err = read_optional(&m->durable, STATE_GAP, &m->gap);
	if (err)
		return err == -ENOENT ? -EUCLEAN : err;
	if (r > d)
		return -EUCLEAN;
	m->nvme_seq = m->accepted_seq = m->durable.least_seq = d;
	m->remote_seq = r;
	o->opened->events_lost = m->keep_events && m->gap > r;
	return 0;
}

/* ---- the accepted database -------------------------------------------- */

static int open_accepted(struct opening *o, bool create)
{
	const struct store_config config = { .dir = o->config->accepted_dir };

	return store_open(&o->m->accepted, &config, create);
}

/*
 * RocksDB writes a random name into IDENTITY when it makes a database: the
 * accepted one's lives exactly as long as what was accepted.
 */
static uint32_t read_lineage(const char *dir)
{
	CLEANUP(free_p) char *path = NULL;
	CLEANUP(close_p) int fd = -1;
	char text[128];
	uint32_t sum = 2166136261u; /* FNV-1a */
	ssize_t n;

	if (asprintf(&path, "%s/db/IDENTITY", dir) < 0) {
		path = NULL;
		return 1;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text));
	for (ssize_t i = 0; i < n; i++)
		sum = (sum ^ (uint8_t)text[i]) * 16777619u;
	return sum ? sum : 1;
}

uint32_t meta_lineage(const struct meta *m)
{
	return m->lineage;
}

/* Says why not, or NULL: they belong together. */
static const char *disagreement(const struct opening *o,
				const struct identity *a)
{
	const struct identity *d = &o->m->id;

	if (o->opened->start == META_FRESH)
		return "the accepted state belongs to no durable one";
	if (memcmp(a->uuid, d->uuid, UUID_LEN) != 0)
		return "the accepted state is of another mount (UUID)";
	if (memcmp(a->boot_id, o->boot_id, BOOT_ID_LEN) != 0 ||
	    memcmp(d->boot_id, o->boot_id, BOOT_ID_LEN) != 0)
		return "the host was started anew (boot id)";
	if (a->epoch != d->epoch &&
	    (!d->raised_from || a->epoch != d->raised_from))
		return "the accepted state is of another epoch";
	return NULL;
}

/* The log must go on from D: same epoch numbers, nothing older missing. */
static int check_log(struct opening *o, const char **why)
{
	struct meta *m = o->m;
	uint64_t last, len, cut;
	int err = log_measure(m, m->nvme_seq, &last, &len);

	*why = NULL;
	if (!err)
		err = read_optional(&m->accepted, STATE_CUT, &cut);
	if (!err && cut > m->nvme_seq) {
		message_error("%s: the durable state has gone back to %016lx, "
			      "which the log, cut off at %016lx, no longer "
			      "goes on from",
			      m->durable.path, (unsigned long)m->nvme_seq,
			      (unsigned long)cut);
		return -ESTALE;
	}
	if (err)
		return err;
	if (last >> EPOCH_BITS > m->id.epoch) {
		*why = "the accepted log is of a later epoch";
		return 0;
	}
	if (last > m->nvme_seq)
		m->accepted_seq = last;
	m->log_len = len;
	return log_trim(m, 0, m->nvme_seq);
}

/* Damaged rather than out of reach for the moment. */
static bool is_damage(int err)
{
	return err == -EUCLEAN || err == -EBADMSG;
}

/* Opens what a daemon before us left, if it agrees. */
static int judge_accepted(struct opening *o, bool *aside)
{
	const char *why = "nothing was left in DRAM";
	struct identity a;
	int err = open_accepted(o, false);

	*aside = false;
	if (!err)
		err = state_identity(&o->m->accepted, &a);
	if (!err) {
		*aside = true;
		why = disagreement(o, &a);
		if (!why)
			err = check_log(o, &why);
	} else if (is_damage(err)) {
		*aside = true;
	}
	if (is_damage(err))
		why = "the accepted state is damaged";
	else if (err && err != -ENOENT)
		return err;
	if (!err && !why) {
		o->agrees = true;
		o->raised_from = a.epoch;
		return 0;
	}
	if (o->opened->start != META_FRESH)
		reason(o, why);
	return 0;
}

/* Closes it, and clears the place for a new one. */
static int clear_accepted(struct opening *o, bool aside)
{
	int err = 0;

	store_close(&o->m->accepted);
	if (aside) {
		err = aside_keep(o->config->accepted_dir);
		if (!err)
			message_warning("%s: %s: kept aside",
					o->config->accepted_dir,
					o->opened->reason[0]
						? o->opened->reason
						: "not of this mount");
	}
	return err ? err : aside_delete(o->config->accepted_dir);
}

/* ---- together --------------------------------------------------------- */

static int raise_epoch(struct opening *o)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	struct identity *id = &o->m->id;

	if (id->epoch + 1 >= EPOCH_MAX)
		return -EOVERFLOW;
	id->epoch++;
	id->raised_from = o->raised_from;
	memcpy(id->boot_id, o->boot_id, BOOT_ID_LEN);
	state_put_identity(&ops, id);
	return write_state(&o->m->durable, &ops, true);
}

static int confirm_epoch(struct opening *o)
{
	CLEANUP(bytes_fini) struct bytes ops = { 0 };
	struct identity *id = &o->m->id;
	int err;

	id->raised_from = 0;
	state_put_identity(&ops, id);
	err = write_state(&o->m->accepted, &ops, false);
	if (!err)
		err = write_state(&o->m->durable, &ops, false);
	return err;
}

static int rebuild_accepted(struct opening *o)
{
	struct meta *m = o->m;
	int err = 0;

	if (o->opened->start != META_FRESH) {
		o->opened->start = META_POWER_CUT;
		err = recover_durable(&m->durable, &o->opened->n_dropped);
	}
	if (!err)
		err = FAULT("open.copy", -ENOSPC);
	if (!err)
		err = open_accepted(o, true);
	if (!err)
		err = store_copy_shared(&m->durable, &m->accepted);
	return err;
}

static int stop(void *arg, struct slice key, struct slice val)
{
	(void)arg;
	(void)key;
	(void)val;
	return 1;
}

/* Has it any key? -errno */
static int any_key(struct meta *m, enum cf cf)
{
	return store_scan(&m->accepted, NULL, cf, (struct slice){ 0 },
			  (struct slice){ 0 }, stop, NULL);
}

static int start_numbers(struct opening *o)
{
	struct meta *m = o->m;
	int xattr = any_key(m, CF_XATTR), tensor = any_key(m, CF_TENSOR);

	if (xattr < 0 || tensor < 0)
		return xattr < 0 ? xattr : tensor;
	m->any_xattr = xattr == 1;
	m->any_tensor = tensor == 1;
	m->trimmed = m->nvme_seq;
	m->next_ino = m->next_version = (m->id.epoch << EPOCH_BITS) + 1;
	m->accepted_generation = m->accepted.generation;
	return 0;
}

static int open_both(struct opening *o)
{
	bool aside;
	int err = boot_id_read(o->boot_id);

	o->opened->start = META_CARRIED_ON;
	if (!err)
		err = open_durable(o);
	if (!err)
		err = read_watermarks(o);
	if (!err)
		err = judge_accepted(o, &aside);
	if (!err && !o->agrees)
		err = clear_accepted(o, aside);
	if (!err)
		err = raise_epoch(o);
	if (!err && !o->agrees)
		err = rebuild_accepted(o);
	if (!err)
		err = confirm_epoch(o);
	return err ? err : start_numbers(o);
}

static void meta_close_p(struct meta **m)
{
	meta_close(*m);
}

int meta_open(const struct meta_config *config, struct meta_opened *opened,
	      struct meta **out)
{
	CLEANUP(meta_close_p) struct meta *m = calloc(1, sizeof(*m));
	struct meta_opened found = { 0 };
	struct opening o = { .m = m, .config = config, .opened = &found };
	int err;

	if (!m)
		return -ENOMEM;
	mutex_init(&m->door);
	mutex_init(&m->remote_lock);
	path_cache_init(&m->paths);
	m->keep_events = config->keep_events;
	m->accepted_view = (struct view){ .m = m, .store = &m->accepted };
	err = open_both(&o);
	if (err)
		return err;
	m->lineage = read_lineage(config->accepted_dir);
	*opened = found;
	*out = MOVE(m);
	return 0;
}

void meta_close(struct meta *m)
{
	if (!m)
		return;
	store_close(&m->accepted);
	store_close(&m->durable);
	bytes_fini(&m->txn.shared);
	bytes_fini(&m->txn.local);
	bytes_fini(&m->txn.event);
	bytes_fini(&m->target_ops);
	bytes_fini(&m->target_contents);
	path_cache_fini(&m->paths);
	mutex_fini(&m->door);
	mutex_fini(&m->remote_lock);
	free(m);
}

const uint8_t *meta_uuid(const struct meta *m)
{
	return m->id.uuid;
}

uint64_t meta_epoch(const struct meta *m)
{
	return m->id.epoch;
}

uint64_t meta_new_ino(struct meta *m)
{
	return atomic_fetch_add(&m->next_ino, 1);
}

uint64_t meta_new_version(struct meta *m)
{
	return atomic_fetch_add(&m->next_version, 1);
}

void meta_usage(const struct meta *m, struct meta_usage *out)
{
	struct store *a = m->accepted_view.store;
	struct store *d = (struct store *)&m->durable;

	*out = (struct meta_usage){
		.memory = store_memory(a) + store_memory(d),
		.accepted = aside_usage(a->dir),
		.durable = aside_usage(d->dir),
		/* Each inode has a name, nearly all have one. */
		.n_inodes = 1 + store_estimate_keys(a, CF_NAME),
	};
}
