/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening RocksDB, with every number that bounds it, and opening it again
 * after it has given up.
 *
 * Bounds. The accepted database lies in DRAM twice over (memtables, and the
 * files on tmpfs), so both are small and follow the size of its filesystem.
 * Files are not compressed: the accepted ones are short-lived, and records
 * are short numbers that compress badly.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "metadata/log_message.h"
#include "metadata/store.h"

#define MIB (UINT64_C(1) << 20)
/* Opening writes what the log holds to files; the log is at most this. */
#define LOG_NOTHING 5 /* InfoLogLevel::HEADER_LEVEL */
#define REOPEN_ROOM (48 * MIB)

static const char *const cf_names[CF_MAX] = {
	[CF_INODE] = "inode",     [CF_DENTRY] = "dentry",
	[CF_COOKIE] = "cookie",   [CF_NAME] = "name",
	[CF_VERSION] = "version", [CF_XATTR] = "xattr",
	[CF_SYMLINK] = "symlink", [CF_ORPHAN] = "orphan",
	[CF_STATE] = "default",   [CF_UNSEALED] = "unsealed",
	[CF_LOG] = "log",         [CF_COPY] = "copy",
	[CF_SMALL] = "small",     [CF_EVENT] = "event",
	[CF_NOTE] = "note",       [CF_TENSOR] = "tensor",
};

static bool has_cf(const struct store *s, int cf)
{
	if (cf <= CF_STATE)
		return true;
	return s->durable == (cf >= CF_COPY && cf <= CF_NOTE);
}

int store_error(struct store *s, const char *what, char *err)
{
	int code = -EIO;

	if (!err)
		return 0;
	if (strstr(err, "No space left") || strstr(err, "NoSpace") ||
	    strstr(err, "Disk quota"))
		code = -ENOSPC;
	else if (strstr(err, "does not exist (create_if_missing"))
		code = -ENOENT;
	else if (strstr(err, "olumn families not opened"))
		code = -EOPNOTSUPP;
	else if (strstr(err, "checksum mismatch"))
		code = -EBADMSG;
	else if (!strncmp(err, "Corruption", 10))
		code = -EUCLEAN;
	else if (strstr(err, "Too many open files"))
		code = -EMFILE;
	else if (strstr(err, "lock ") || strstr(err, "LOCK:"))
		code = -EBUSY;
	/* Once it is down, each further try would say the same. */
	if (code != -ENOENT && !s->down)
		message_error("%s: cannot %s: %s", s->path, what, err);
	rocksdb_free(err);
	return code;
}

static uint64_t clamp(uint64_t v, uint64_t lo, uint64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

static uint64_t filesystem_len(const char *dir)
{
	struct statvfs st;

	if (statvfs(dir, &st))
		return 0;
	return (uint64_t)st.f_blocks * st.f_frsize;
}

uint64_t store_filesystem_len(const struct store *s)
{
	return filesystem_len(s->dir);
}

/* As much as opening it again may need, and no large part of its room. */
static uint64_t accepted_reserve(const char *dir)
{
	return clamp(filesystem_len(dir) / 16, 4 * MIB, 32 * MIB);
}

/* What has no setter of its own in the C API. */
static int options_from_string(struct store *s, rocksdb_options_t **o)
{
	rocksdb_options_t *parsed = rocksdb_options_create();
	char *err = NULL;

	/* On tmpfs preallocated pages are memory; and after a daemon's death
	 * memtables are refilled from the log without writing files. */
	rocksdb_get_options_from_string(
		*o,
		s->durable ? "enforce_single_del_contracts=false"
			   : "allow_fallocate=false;"
			     "avoid_flush_during_recovery=true",
		parsed, &err);
	rocksdb_options_destroy(*o);
	*o = parsed;
	return store_error(s, "set options", err);
}

/*
 * Opening again writes what memtables held to files, into the room of the
 * reserve; half of it, so that something is left for others.
 */
static uint64_t memory_of(const struct store *s, uint64_t disk)
{
	if (!s->durable)
		return clamp(disk / 16, 4 * MIB, 32 * MIB);
	if (!s->reserve_len)
		return 16 * MIB;
	return clamp(s->reserve_len / 2, 4 * MIB, 16 * MIB);
}

static int make_options(struct store *s)
{
	uint64_t disk = filesystem_len(s->dir);
	uint64_t memory = memory_of(s, disk);
	rocksdb_options_t *o = rocksdb_options_create();
	int err;

	s->memory = memory;
	rocksdb_options_set_create_missing_column_families(o, 1);
	rocksdb_options_set_db_write_buffer_size(o, memory);
	rocksdb_options_set_write_buffer_size(o, memory / 2);
	rocksdb_options_set_arena_block_size(o, 256 * 1024);
	rocksdb_options_set_max_total_wal_size(o, 2 * memory);
	rocksdb_options_set_max_background_jobs(o, 2);
	rocksdb_options_set_max_open_files(o, 256);
	rocksdb_options_set_max_file_opening_threads(o, 2);
	rocksdb_options_set_table_cache_numshardbits(o, 2);
	/* RocksDB's own text log must stay empty: built with assertions, as
	 * Debian's is, it aborts when it cannot append to it (disk full). A
	 * plain one (size 0) honours the level also for its headers. */
	rocksdb_options_set_info_log_level(o, LOG_NOTHING);
	rocksdb_options_set_keep_log_file_num(o, 1);
	rocksdb_options_set_max_log_file_size(o, 0);
	rocksdb_options_set_max_manifest_file_size(o, 4 * MIB);
	rocksdb_options_set_manifest_preallocation_size(o, 64 * 1024);
	rocksdb_options_set_stats_dump_period_sec(o, 0);
	rocksdb_options_set_stats_persist_period_sec(o, 0);
	rocksdb_options_set_compression(o, rocksdb_no_compression);
	rocksdb_options_set_compaction_style(o, rocksdb_level_compaction);
	/* Small tables: a compaction needs as much room again as it reads. */
	rocksdb_options_set_target_file_size_base(o, clamp(disk / 64, MIB,
							   16 * MIB));
	rocksdb_options_set_max_bytes_for_level_base(o, 2 * memory);
	rocksdb_options_set_is_fd_close_on_exec(o, 1);
	/* A tail torn by a power cut ends what is replayed; all that was
	 * synced stands before it. */
	rocksdb_options_set_wal_recovery_mode(o,
					      rocksdb_point_in_time_recovery);
	/* There is one writer at a time; its inserts need no atomics. */
	rocksdb_options_set_allow_concurrent_memtable_write(o, s->durable);
	err = options_from_string(s, &o);
	s->options = o;
	return err;
}

static rocksdb_options_t *make_cf_options(struct store *s, enum cf cf)
{
	rocksdb_block_based_table_options_t *t =
		rocksdb_block_based_options_create();
	rocksdb_options_t *o = rocksdb_options_create_copy(s->options);

	rocksdb_block_based_options_set_block_cache(t, s->cache);
	rocksdb_block_based_options_set_format_version(t, 5);
	if (cf == CF_INODE || cf == CF_DENTRY || cf == CF_VERSION ||
	    cf == CF_COPY || cf == CF_SMALL)
		rocksdb_block_based_options_set_filter_policy(
			t, rocksdb_filterpolicy_create_bloom_full(10));
	/* Index and filter blocks count as cache: nothing grows unbounded. */
	rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
	rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
		t, 1);
	rocksdb_options_set_block_based_table_factory(o, t);
	rocksdb_block_based_options_destroy(t);
	if (cf == CF_DENTRY) {
		/* A create first asks for a name that is not there. */
		rocksdb_options_set_memtable_prefix_bloom_size_ratio(o, 0.05);
		rocksdb_options_set_memtable_whole_key_filtering(o, 1);
	}
	if (cf == CF_LOG)
		/* Its files do not overlap: this only moves them below the
		 * first level, from where store_reclaim() can drop them. */
		rocksdb_options_set_level0_file_num_compaction_trigger(o, 1);
	if (cf == CF_SMALL) {
		/* Contents are inserted once and never rewritten. */
		rocksdb_options_set_enable_blob_files(o, 1);
		rocksdb_options_set_min_blob_size(o, 1024);
		rocksdb_options_set_blob_file_size(o, 32 * MIB);
		rocksdb_options_set_enable_blob_gc(o, 1);
		rocksdb_options_set_blob_gc_age_cutoff(o, 0.5);
	}
	return o;
}

static int open_db(struct store *s, bool create)
{
	const char *names[CF_MAX];
	const rocksdb_options_t *options[CF_MAX];
	rocksdb_column_family_handle_t *handles[CF_MAX];
	char *err = NULL;
	int n = 0;

	for (int cf = 0; cf < CF_MAX; cf++) {
		if (!has_cf(s, cf))
			continue;
		names[n] = cf_names[cf];
		options[n++] = s->cf_options[cf];
	}
	rocksdb_options_set_create_if_missing(s->options, create);
	s->db = rocksdb_open_column_families(s->options, s->path, n, names,
					     options, handles, &err);
	if (err) {
		s->db = NULL;
		return store_error(s, "open", err);
	}
	n = 0;
	for (int cf = 0; cf < CF_MAX; cf++)
		s->cfs[cf] = has_cf(s, cf) ? handles[n++] : NULL;
	return 0;
}

static void close_db(struct store *s)
{
	if (!s->db)
		return;
	for (int cf = 0; cf < CF_MAX; cf++) {
		if (s->cfs[cf])
			rocksdb_column_family_handle_destroy(s->cfs[cf]);
		s->cfs[cf] = NULL;
	}
	rocksdb_close(s->db);
	s->db = NULL;
}

static int sync_dir(const char *dir)
{
	CLEANUP(close_p) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) ? -errno : 0;
}

static bool db_exists(const struct store *s)
{
	CLEANUP(free_p) char *current = NULL;

	return asprintf(&current, "%s/CURRENT", s->path) > 0 &&
	       !access(current, F_OK);
}

/* Compactions have time; flushes have not (a full memtable holds writers). */
static void lower_compactions(void)
{
	rocksdb_env_t *env = rocksdb_create_default_env();

	rocksdb_env_lower_thread_pool_cpu_priority(env);
	rocksdb_env_destroy(env);
}

/* Nobody takes it twice, so a reopening need not wait for a gap. */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;

	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(
		&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

int store_open(struct store *s, const struct store_config *config, bool create)
{
	int err;

	*s = (struct store){ .durable = config->durable,
			     .reserve_len =
				     config->durable
					     ? config->reserve_len
					     : accepted_reserve(config->dir) };
	init_lock(&s->lock);
	mutex_init(&s->write_lock);
	mutex_init(&s->list_lock);
	mutex_init(&s->reserve_lock);
	s->dir = strdup(config->dir);
	if (!s->dir || asprintf(&s->path, "%s/db", config->dir) < 0)
		return -ENOMEM;
	if (!create && !db_exists(s))
		return -ENOENT;
	err = make_options(s);
	if (err)
		return err;
	s->cache = rocksdb_cache_create_lru(s->durable ? 16 * MIB : 32 * MIB);
	for (int cf = 0; cf < CF_MAX; cf++)
		s->cf_options[cf] = make_cf_options(s, (enum cf)cf);
	s->read = rocksdb_readoptions_create();
	s->write = rocksdb_writeoptions_create();
	s->write_sync = rocksdb_writeoptions_create();
	rocksdb_writeoptions_set_sync(s->write_sync, 1);
	s->batch = rocksdb_writebatch_create();
	lower_compactions();

	err = open_db(s, create);
	if (err == -ENOSPC && s->reserve_len) {
		reserve_release(s);
		err = open_db(s, create);
	}
	if (err)
		return err;
	reserve_make(s);
	return s->durable ? sync_dir(s->dir) : 0;
}

void store_close(struct store *s)
{
	if (!s->dir)
		return;
	close_db(s);
	if (s->batch)
		rocksdb_writebatch_destroy(s->batch);
	if (s->read)
		rocksdb_readoptions_destroy(s->read);
	if (s->write)
		rocksdb_writeoptions_destroy(s->write);
	if (s->write_sync)
		rocksdb_writeoptions_destroy(s->write_sync);
	for (int cf = 0; cf < CF_MAX; cf++)
		if (s->cf_options[cf])
			rocksdb_options_destroy(s->cf_options[cf]);
	if (s->options)
		rocksdb_options_destroy(s->options);
	if (s->cache)
		rocksdb_cache_destroy(s->cache);
	pthread_rwlock_destroy(&s->lock);
	mutex_fini(&s->write_lock);
	mutex_fini(&s->list_lock);
	mutex_fini(&s->reserve_lock);
	free(s->dir);
	free(s->path);
	*s = (struct store){ 0 };
}

/*
 * A snapshot dies with the database it was taken of. Its state may still be
 * the newest one (D moves only by a batch that succeeded), then it is taken
 * anew; else its readers get -ESTALE.
 */
static void retake_snapshots(struct store *s)
{
	uint64_t seq = s->db && s->state_seq ? s->state_seq(s, NULL) : 0;

	mutex_lock(&s->list_lock);
	for (struct snapshot *n = s->snapshots; n; n = n->next)
		n->rocks = s->db && seq && n->seq == seq
				   ? rocksdb_create_snapshot(s->db)
				   : NULL;
	mutex_unlock(&s->list_lock);
}

/* Its owner goes on from the state that it knows. */
static int check_state(struct store *s)
{
	uint64_t seq = s->state_seq ? s->state_seq(s, NULL) : 0;

	if (!s->state_seq || seq >= s->least_seq)
		return 0;
	message_error("%s: what had been synced is gone: it was at %016lx, "
		      "and is at %016lx",
		      s->path, (unsigned long)s->least_seq, (unsigned long)seq);
	close_db(s);
	return -EUCLEAN;
}

static void drop_snapshots(struct store *s)
{
	mutex_lock(&s->list_lock);
	for (struct snapshot *n = s->snapshots; n; n = n->next) {
		if (n->rocks && s->db)
			rocksdb_release_snapshot(s->db, n->rocks);
		n->rocks = NULL;
	}
	mutex_unlock(&s->list_lock);
}

int store_reopen(struct store *s, uint64_t generation)
{
	int err = 0;

	pthread_rwlock_wrlock(&s->lock);
	if (s->generation == generation) {
		drop_snapshots(s);
		close_db(s);
		if (reserve_free_room(s) < REOPEN_ROOM)
			reserve_release(s);
		err = open_db(s, false);
		if (!err)
			err = check_state(s);
		s->generation++;
		retake_snapshots(s);
		s->down = err;
		if (!err)
			message_warning("%s: reopened", s->path);
	} else if (!s->db) {
		err = -EIO;
	}
	pthread_rwlock_unlock(&s->lock);
	return err;
}
