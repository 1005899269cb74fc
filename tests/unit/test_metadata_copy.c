/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, small contents and notes: stored, found, deleted, never rolled
 * back. */
#include "tests/unit/metadata_fixture.h"

static void same(const struct copy_rec *a, const struct copy_rec *b)
{
	CHECK_EQ(a->version, b->version);
	CHECK_EQ(a->tier, b->tier);
	CHECK_EQ(a->kind, b->kind);
	CHECK_EQ(a->file, b->file);
	CHECK_STR(a->object, b->object);
	CHECK_EQ(a->size, b->size);
	CHECK_EQ(a->chunk_len, b->chunk_len);
	CHECK_EQ(a->verified, b->verified);
	CHECK_EQ(a->n_chunks, b->n_chunks);
	CHECK(!a->n_chunks || !memcmp(a->crcs, b->crcs, 4 * a->n_chunks));
}

static void has(struct meta *m, const struct copy_rec *want)
{
	struct copy_rec c;

	CHECK_EQ(meta_copy(m, want->version, want->tier, &c), 0);
	same(&c, want);
	copy_rec_fini(&c);
}

static void has_small(struct meta *m, uint64_t version, const char *want,
		      size_t want_len)
{
	void *p;
	size_t len;

	CHECK_EQ(meta_small(m, version, &p, &len), 0);
	CHECK_EQ(len, want_len);
	CHECK(!memcmp(p, want, len));
	free(p);
}

static int count(void *arg, const struct copy_rec *c)
{
	(void)c;
	++*(int *)arg;
	return 0;
}

static int n_copies(struct meta *m)
{
	int n = 0;

	CHECK_EQ(meta_copies(m, count, &n), 0);
	return n;
}

/* With a target: thousands of small contents, more than one batch. */
static void in_a_target(struct world *w)
{
	enum { N = 300 };
	static struct copy_rec copies[N];
	static struct small_content smalls[N];
	static char content[META_SMALL_MAX];
	char name[32];

	for (int i = 0; i < N; i++) {
		size_t len = i % 2 ? META_SMALL_MAX : (size_t)i;
		uint64_t v;

		snprintf(name, sizeof(name), "s%d", i);
		v = seal_file(w->m, make_file(w->m, META_ROOT_INO, name), len);
		copies[i] = file_copy(v, len);
		copies[i].kind = COPY_SMALL;
		smalls[i] = (struct small_content){ v, content, len };
	}
	for (size_t i = 0; i < sizeof(content); i++)
		content[i] = (char)(i * 7);
	CHECK_EQ(meta_advance(w->m, meta_accepted_seq(w->m), copies, N, smalls,
			      N),
		 0);
	for (int round = 0; round < 2; round++) {
		CHECK_EQ(n_copies(w->m), N);
		for (int i = 0; i < N; i++) {
			has(w->m, &copies[i]);
			has_small(w->m, smalls[i].version, content,
				  smalls[i].len);
		}
		world_power_cut(w);
	}
	uint64_t n;
	CHECK_EQ(meta_fsck(w->m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);
	uint64_t ids[N];

	for (int i = 0; i < N; i++)
		ids[i] = smalls[i].version;
	CHECK_EQ(meta_del_copies(w->m, ids, N), 0);
	CHECK_EQ(n_copies(w->m), 0);
	void *p;
	size_t len;
	CHECK_EQ(meta_small(w->m, smalls[7].version, &p, &len), -ENOENT);
}

static void outside(struct world *w)
{
	uint32_t crcs[3] = { 1, 0xffffffff, 0x80000000 };
	struct copy_rec nvme = { .version = 1000,
				 .tier = COPY_NVME,
				 .kind = COPY_FILE,
				 .file = 77,
				 .size = (8 << 20) + 1,
				 .chunk_len = 4 << 20,
				 .n_chunks = 3,
				 .crcs = crcs,
				 .verified = true };
	struct copy_rec remote = { .version = 1000,
				   .tier = COPY_REMOTE,
				   .kind = COPY_OBJECT,
				   .size = 5 };
	struct copy_rec c;

	memset(remote.object, 'o', sizeof(remote.object) - 1);
	CHECK_EQ(meta_put_copy(w->m, &nvme, true), 0);
	CHECK_EQ(meta_put_copy(w->m, &remote, false), 0);
	has(w->m, &nvme);
	has(w->m, &remote);
	CHECK_EQ(n_copies(w->m), 2);
	nvme.n_chunks = 2; /* not one for each chunk: damaged */
	CHECK_EQ(meta_put_copy(w->m, &nvme, true), 0);
	CHECK_EQ(meta_copy(w->m, 1000, COPY_NVME, &c), -EUCLEAN);
	nvme.n_chunks = 3;
	CHECK_EQ(meta_put_copy(w->m, &nvme, true), 0);
	CHECK_EQ(meta_del_copy(w->m, 1000, COPY_NVME), 0);
	CHECK_EQ(meta_copy(w->m, 1000, COPY_NVME, &c), -ENOENT);
	has(w->m, &remote);
	CHECK_EQ(meta_del_copies(w->m, &nvme.version, 1), 0);
	CHECK_EQ(meta_del_copies(w->m, &nvme.version, 1),
		 0); /* nothing there is fine */
	CHECK_EQ(n_copies(w->m), 0);
}

static void notes(struct world *w)
{
	char buf[16];
	size_t len = sizeof(buf);

	CHECK_EQ(meta_note(w->m, "a", buf, &len), -ENOENT);
	CHECK_EQ(meta_set_note(w->m, "a", "hello", 5), 0);
	CHECK_EQ(meta_set_note(w->m, "b", "", 0), 0);
	world_power_cut(w);
	len = sizeof(buf);
	CHECK_EQ(meta_note(w->m, "a", buf, &len), 0);
	CHECK(len == 5 && !memcmp(buf, "hello", 5));
	len = 2;
	CHECK_EQ(meta_note(w->m, "a", buf, &len), -ERANGE);
	CHECK_EQ(len, 5);
	CHECK_EQ(meta_note(w->m, "b", buf, &len), 0);
	CHECK_EQ(len, 0);
}

int main(void)
{
	struct world w;

	world_init(&w);
	in_a_target(&w);
	outside(&w);
	notes(&w);
	world_close(&w);
	return 0;
}
