/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors through the engine, without FUSE: records that are made in the
 * background and again where they are missing, opaque files, and sources that
 * go on showing one version while its file changes.
 */
#include "engine/engine.h"
#include "engine/tensors.h"
#include "tests/unit/check.h"

#define DATA_LEN (3u << 20)
#define FILE_LEN (8 + 128 + DATA_LEN)

static char nvme[PATH_MAX];
static struct engine *e;

static void start(void)
{
	struct engine_config c = {
		.nvme_dir = nvme,
		.mountpoint = "/test",
		.dram = 64u << 20,
		.fsync = LEVEL_NVME,
	};
	char why[300];
	int r = engine_start(&c, why, sizeof(why), &e);

	if (r < 0)
		fprintf(stderr, "%s\n", why);
	CHECK(r == 0);
}

static uint8_t *content(int seed)
{
	uint8_t *p = malloc(FILE_LEN);

	CHECK(p);
	memset(p, ' ', FILE_LEN);
	memset(p, 0, 8);
	p[0] = 128;
	memset(p + 8 + 128, seed, DATA_LEN);
	snprintf((char *)p + 8, 128,
		 "{\"w\":{\"dtype\":\"U8\",\"shape\":[%u],"
		 "\"data_offsets\":[0,%u]}}",
		 DATA_LEN, DATA_LEN);
	p[8 + strlen((char *)p + 8)] = ' ';
	return p;
}

static void put(uint64_t ino, const void *buf, size_t len)
{
	int fd;

	CHECK(file_borrow_write(e, ino, &fd) == 0);
	CHECK(pwrite(fd, buf, len, 0) == (ssize_t)len);
	file_return_fd(e, ino, true, fd);
}

static void close_file(uint64_t ino, uint64_t fh)
{
	CHECK(file_flush(e, ino, fh) == 0);
	file_release(e, ino, fh);
}

static uint64_t make(const char *name, const void *buf, size_t len)
{
	struct meta *m = engine_meta(e);
	struct inode_rec rec = { .ino = meta_new_ino(m),
				 .mode = S_IFREG | 0644,
				 .nlink = 1 };
	struct open_reply reply = { 0 };
	struct txn *t;
	uint64_t seq;

	CHECK(file_create(e, rec.ino, O_WRONLY, 0, &reply) == 0);
	t = engine_txn_begin(e);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, name, rec.ino, S_IFREG);
	file_log_create(e, t, rec.ino);
	CHECK(engine_txn_commit(e, t, &seq) == 0);
	put(rec.ino, buf, len);
	close_file(rec.ino, reply.fh);
	return rec.ino;
}

static uint64_t make_tensors(const char *name, int seed)
{
	uint8_t *p = content(seed);
	uint64_t ino = make(name, p, FILE_LEN);

	free(p);
	return ino;
}

static void remove_file(const char *name)
{
	const struct view *v = meta_accepted(engine_meta(e));
	struct txn *t = engine_txn_begin(e);
	struct dentry_rec d;
	struct inode_rec rec;
	uint64_t seq;

	CHECK(view_lookup(v, META_ROOT_INO, name, &d) == 0);
	CHECK(view_inode(v, d.ino, &rec) == 0);
	txn_del_dentry(t, META_ROOT_INO, name, &d);
	engine_drop_link(e, t, &rec, 1);
	CHECK(engine_txn_commit(e, t, &seq) == 0);
}

static bool has_record(uint64_t version)
{
	void *p;
	size_t len;
	int r = meta_tensors(engine_meta(e), version, &p, &len);

	if (!r)
		free(p);
	return !r;
}

/* The image's bytes are all seed. */
static int check_image(struct source_set *set, const struct tensor *t, int seed)
{
	uint8_t buf[4096];

	for (uint64_t off = 0; off < DATA_LEN; off += DATA_LEN / 8) {
		int r = tensor_gather(t, source_set_open, set, buf, sizeof(buf),
				      off);

		if (r < 0)
			return r;
		for (size_t i = 0; i < sizeof(buf); i++)
			CHECK_EQ(buf[i], seed);
	}
	return 0;
}

struct reading {
	struct tensors *t;
	struct source_set *set;
	const struct tensor *w;
};

static void open_reading(uint64_t ino, struct reading *r)
{
	CHECK_EQ(tensors_open(e, ino, 0, &r->t), 0);
	r->w = tensor_table_find(tensors_table(r->t), "w");
	CHECK(r->w);
	CHECK_EQ(tensors_sources(r->t, &r->set), 0);
}

static void close_reading(struct reading *r)
{
	source_set_free(r->set);
	tensors_put(r->t);
}

static void records_come_by_themselves(void)
{
	uint64_t ino = make_tensors("a", 1), version;

	CHECK_EQ(tensors_current(e, ino, &version), 0);
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	CHECK_SOON(has_record(version));
	remove_file("a");
	CHECK(!has_record(version));
}

static void opaque_files_leave_nothing(void)
{
	uint64_t text = make("text", nvme, sizeof(nvme)), version;
	uint8_t *p = content(1);
	struct tensors *t;
	uint64_t cut;
	bool any;

	cut = make("cut", p, FILE_LEN - 1);
	CHECK_EQ(tensors_open(e, text, 0, &t), -ENOMSG);
	CHECK_EQ(tensors_any(e, cut, &any), 0);
	CHECK(!any);
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	CHECK_EQ(tensors_current(e, cut, &version), 0);
	CHECK(!has_record(version));
	CHECK_EQ(tensors_open(e, 12345, 0, &t), -ESTALE);
	CHECK_EQ(tensors_open(e, cut, 12345, &t), -ESTALE);
	free(p);
}

static void open_ones_outlive_their_file(void)
{
	struct reading r;
	uint64_t ino = make_tensors("b", 3);

	open_reading(ino, &r);
	CHECK_EQ(check_image(r.set, r.w, 3), 0);
	remove_file("b");
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	CHECK_EQ(check_image(r.set, r.w, 3), 0);
	close_reading(&r);
}

/* Overwritten in its backing file: never the new bytes under the old name. */
static void turns_are_seen(bool flushed)
{
	uint64_t ino = make_tensors("c", 4);
	uint8_t *p = content(5);
	struct open_reply o;
	struct reading r, now;
	int err;

	if (flushed)
		CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	open_reading(ino, &r);
	CHECK_EQ(check_image(r.set, r.w, 4), 0);
	CHECK_EQ(file_open(e, ino, O_RDWR, true, &o), 0);
	put(ino, p, FILE_LEN);
	CHECK_EQ(check_image(r.set, r.w, 4), 0); /* still its version */
	close_file(ino, o.fh);
	open_reading(ino, &now);
	CHECK_EQ(check_image(now.set, now.w, 5), 0);
	CHECK(tensors_version(now.t) != tensors_version(r.t));
	close_reading(&now);
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	err = check_image(r.set, r.w, 4);
	CHECK(!err || err == -ESTALE);
	close_reading(&r);
	remove_file("c");
	free(p);
}

static void are_found_after_a_restart(void)
{
	struct reading r;
	uint64_t ino = make_tensors("d", 6), version;

	CHECK_EQ(tensors_current(e, ino, &version), 0);
	engine_stop(e, -1); /* all is on NVMe: DRAM is freed, records go */
	start();
	CHECK(!has_record(version));
	open_reading(ino, &r);
	CHECK_EQ(check_image(r.set, r.w, 6), 0);
	CHECK(has_record(version));
	close_reading(&r);
}

int main(void)
{
	CHECK(snprintf(nvme, sizeof(nvme), "%s/nvme", check_tmpdir()) <
	      (int)sizeof(nvme));
	start();
	records_come_by_themselves();
	opaque_files_leave_nothing();
	open_ones_outlive_their_file();
	turns_are_seen(false);
	turns_are_seen(true);
	are_found_after_a_restart();
	engine_stop(e, -1);
	return 0;
}
