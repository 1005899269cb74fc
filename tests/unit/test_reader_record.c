/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table and its record: what goes in comes out, what is impossible is
 * refused on either way, and no cut or changed byte of a record does harm.
 */
#include "providers/reader.h"
#include "reader_fixture.h"

#define NAME "a.index.json"

static const struct reader_ops *some_format(void)
{
	const struct reader_ops *ops =
		reader_find((const uint8_t *)"{", 1, NAME);

	CHECK(ops);
	return ops;
}

/* One of everything. */
static struct tensor_table *everything(void)
{
	uint64_t shape[] = { 4, 6 }, half[] = { 4, 3 }, start[] = { 0, 3 };
	uint64_t transposed[] = { 1, 4 }, wide[] = { UINT64_C(1) << 40, 0 };
	struct tensor_piece pieces[] = {
		{ .off = 10, .len = 12, .shape = half, .stride = transposed },
		{ .file = "sub/b",
		  .coding = TENSOR_NESTED,
		  .off = 5,
		  .len = 99,
		  .start = start,
		  .shape = half },
	};
	struct tensor_piece deflated = { .coding = TENSOR_DEFLATE, .len = 7 };
	struct tensor_piece packed = { .file = "sub/b", .len = 77 };
	struct tensor_piece swapped = { .len = 4, .swapped = true };
	struct tensor_piece named = { .file = "c", .coding = TENSOR_BY_NAME };
	struct tensor all[] = {
		{ .name = "pieces",
		  .type = TENSOR_U8,
		  .n_dims = 2,
		  .shape = shape,
		  .pieces = pieces,
		  .n_pieces = 2 },
		{ .name = "deflated",
		  .type = TENSOR_C128,
		  .n_dims = 2,
		  .shape = shape,
		  .pieces = &deflated,
		  .n_pieces = 1 },
		{ .name = "packed",
		  .type = TENSOR_PACKED,
		  .type_name = "Q4_K",
		  .n_dims = 2,
		  .shape = shape,
		  .pieces = &packed,
		  .n_pieces = 1,
		  .shared = true },
		{ .name = "scalar",
		  .type = TENSOR_F32,
		  .pieces = &swapped,
		  .n_pieces = 1 },
		{ .name = "named",
		  .type = TENSOR_UNKNOWN,
		  .pieces = &named,
		  .n_pieces = 1 },
		{ .name = "empty",
		  .type = TENSOR_F64,
		  .n_dims = 2,
		  .shape = wide,
		  .pieces = &swapped,
		  .n_pieces = 1 },
	};
	struct tensor_table *t = NULL;

	CHECK_EQ(tensor_table_new(some_format(), 1000, &t), 0);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		CHECK_EQ(tensor_table_add(t, &all[i]), 0);
	CHECK_EQ(tensor_table_finish(t), 0);
	CHECK_EQ(tensor_table_find(t, "empty")->n_pieces, 0);
	CHECK_EQ(tensor_table_find(t, "scalar")->n_pieces, 1);
	return t;
}

static void comes_back(void)
{
	struct tensor_table *a = everything(), *b = NULL, *none = NULL;
	uint8_t *record, *again;
	size_t len, again_len;

	CHECK_EQ(tensor_table_encode(a, &record, &len), 0);
	CHECK_EQ(tensor_table_decode(record, len, &b), 0);
	check_same_table(a, b);
	CHECK_EQ(tensor_table_encode(b, &again, &again_len), 0);
	CHECK(len == again_len && !memcmp(record, again, len));
	record[0] = TENSOR_RECORD_VERSION + 1;
	CHECK_EQ(tensor_table_decode(record, len, &none), -EOPNOTSUPP);
	record[0] = 0;
	CHECK_EQ(tensor_table_decode(record, len, &none), -EBADMSG);
	CHECK(!none);
	free(record);
	free(again);
	tensor_table_free(a);
	tensor_table_free(b);
}

static void try_record(const uint8_t *p, size_t len, bool cut)
{
	uint8_t *copy = malloc(len + 1);
	struct tensor_table *t = NULL;
	int rc;

	CHECK(copy);
	memcpy(copy, p, len);
	rc = tensor_table_decode(copy, len, &t);
	free(copy);
	CHECK(rc == -EBADMSG || rc == -EOPNOTSUPP || (!cut && !rc));
	tensor_table_free(t);
}

static void is_damaged(void)
{
	struct tensor_table *a = everything();
	uint8_t *record;
	size_t len;

	CHECK_EQ(tensor_table_encode(a, &record, &len), 0);
	for (size_t i = 0; i < len; i++)
		try_record(record, i, true);
	for (size_t i = 0; i < len; i++) {
		uint8_t was = record[i];

		for (unsigned v = 0; v < 256; v++) {
			record[i] = (uint8_t)v;
			try_record(record, len, false);
		}
		record[i] = was;
	}
	for (size_t i = 0; i + 4 <= len; i++) { /* huge numbers */
		uint8_t was[8];
		size_t n = len - i < 8 ? 4 : 8;

		memcpy(was, record + i, n);
		memset(record + i, 0xff, n);
		try_record(record, len, false);
		memset(record + i, 0x7f, n);
		try_record(record, len, false);
		memcpy(record + i, was, n);
	}
	free(record);
	tensor_table_free(a);
}

static int add(const struct tensor *t, uint64_t size)
{
	struct tensor_table *table = NULL;
	int rc;

	CHECK_EQ(tensor_table_new(some_format(), size, &table), 0);
	rc = tensor_table_add(table, t);
	tensor_table_free(table);
	return rc;
}

/* A tensor that is right, in a file of 16 bytes. */
struct right {
	struct tensor t;
	struct tensor_piece p;
	uint64_t shape[2], box[2], start[2], stride[2];
};

static struct right *reset(struct right *r)
{
	*r = (struct right){
		.shape = { 2, 3 },
		.box = { 2, 3 },
		.stride = { 3, 1 },
	};
	r->p = (struct tensor_piece){ .off = 4,
				      .len = 12,
				      .start = r->start,
				      .shape = r->box,
				      .stride = r->stride };
	r->t = (struct tensor){ .name = "a",
				.type = TENSOR_I16,
				.n_dims = 2,
				.shape = r->shape,
				.pieces = &r->p,
				.n_pieces = 1 };
	return r;
}

static void refused(const struct tensor *t, uint64_t size, int line)
{
	if (add(t, size) == -ENOMSG)
		return;
	fprintf(stderr, "line %d: it was accepted\n", line);
	exit(1);
}

#define REFUSED(what, size) \
	(reset(r), (void)(what), refused(&r->t, size, __LINE__))

/* One wrong thing at a time. */
static void refuses(void)
{
	uint64_t big[] = { 1ULL << 32, 1ULL << 31 };
	uint64_t huge[] = { 1ULL << 40, 1ULL << 40, 0 };
	char name[TENSOR_NAME_MAX + 2];
	struct right it, *r = reset(&it);

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	CHECK_EQ(add(&r->t, 16), 0);
	REFUSED(r->t.name = "", 16);
	REFUSED(r->t.name = name, 16);
	REFUSED(r->t.name = "\xff", 16);
	REFUSED(r->t.type_name = "\xed\xa0\x80", 16);
	REFUSED(r->t.type = TENSOR_TYPES, 16);
	REFUSED(r->t.type = TENSOR_UNKNOWN, 16);
	REFUSED(r->t.n_dims = TENSOR_DIMS_MAX + 1, 16);
	REFUSED(r->t.n_pieces = 0, 16);
	REFUSED(0, 15);
	REFUSED(r->p.off = UINT64_MAX - 11, UINT64_MAX);
	REFUSED(r->p.off = INT64_MAX, UINT64_MAX);
	REFUSED(r->p.len = 11, 16);
	REFUSED(r->p.len = 14, 18);
	REFUSED(r->box[1] = 4, 18);
	REFUSED(r->box[1] = 2, 16);
	REFUSED(r->start[0] = 1, 16);
	REFUSED(r->start[0] = UINT64_MAX, 16);
	REFUSED(r->stride[0] = UINT64_MAX, 16);
	REFUSED(r->stride[0] = 4, 18);
	REFUSED((r->t.shape = r->p.shape = big, r->p.stride = NULL),
		UINT64_MAX);
	REFUSED((r->t.shape = huge, r->t.n_dims = 3, r->t.n_pieces = 0), 16);
	REFUSED(r->p.coding = TENSOR_BY_NAME, 16);
	REFUSED(r->p.coding = (enum tensor_coding)9, 16);
	REFUSED((r->p.coding = TENSOR_NESTED, r->p.len = 0), 16);
	REFUSED(r->p.file = "", 16);
	REFUSED(r->p.file = "/etc/passwd", 16);
	REFUSED(r->p.file = "..", 16);
	REFUSED(r->p.file = "a/..", 16);
	REFUSED(r->p.file = "a/../b", 16);
	REFUSED(r->p.file = "../b", 16);
	REFUSED(r->p.file = "a//..", 16);
	reset(r)->p.file = "..a/b../...";
	CHECK_EQ(add(&r->t, 0), 0);
}

static void has_one_name_twice(void)
{
	struct tensor_piece p = { .len = 1 };
	struct tensor t = { .type = TENSOR_U8, .pieces = &p, .n_pieces = 1 };
	struct tensor_table *table = NULL;
	const char *const names[] = { "b", "a", "c", "a" };

	CHECK_EQ(tensor_table_new(some_format(), 1, &table), 0);
	for (int i = 0; i < 4; i++) {
		t.name = names[i];
		CHECK_EQ(tensor_table_add(table, &t), 0);
	}
	CHECK_EQ(tensor_table_finish(table), -ENOMSG);
	tensor_table_free(table);
}

/* Memory is bounded whatever is added. */
static void is_too_large(void)
{
	static uint64_t dims[TENSOR_DIMS_MAX], zero[TENSOR_DIMS_MAX];
	static struct tensor_piece pieces[1000];
	struct tensor t = { .type = TENSOR_U8,
			    .n_dims = TENSOR_DIMS_MAX,
			    .shape = dims,
			    .pieces = pieces };
	struct tensor_table *table = NULL;
	char name[16];
	int rc = 0, n;

	for (unsigned i = 0; i < TENSOR_DIMS_MAX; i++)
		dims[i] = 1;
	dims[0] = t.n_pieces = 1000;
	for (unsigned i = 0; i < 1000; i++) {
		static uint64_t start[1000][TENSOR_DIMS_MAX];
		static uint64_t one[TENSOR_DIMS_MAX];

		memcpy(one, dims, sizeof(one));
		one[0] = 1;
		start[i][0] = i;
		pieces[i] = (struct tensor_piece){ .len = 1,
						   .shape = one,
						   .start = start[i],
						   .stride = zero };
	}
	CHECK_EQ(tensor_table_new(some_format(), 1, &table), 0);
	for (n = 0; !rc; n++) {
		snprintf(name, sizeof(name), "%d", n);
		t.name = name;
		rc = tensor_table_add(table, &t);
	}
	CHECK_EQ(rc, -E2BIG);
	CHECK(n > 100 && n < 300);
	tensor_table_free(table);
}

/* An index of two shards, of which one knows all that it should. */
static int open_shard(void *arg, const char *file, struct reader_source *out)
{
	struct bytes_file *files = arg;

	if (!strcmp(file, "s0"))
		*out = bytes_source(&files[0]);
	else if (!strcmp(file, "d/s1"))
		*out = bytes_source(&files[1]);
	else
		return -ENOENT;
	return 0;
}

static size_t shard(char *out, const char *header, size_t n_data)
{
	size_t len = strlen(header);

	put_le((uint8_t *)out, len, 8);
	memcpy(out + 8, header, len);
	memset(out + 8 + len, 'x', n_data);
	return 8 + len + n_data;
}

static void resolves(void)
{
	static const char index[] =
		"{\"metadata\":{\"total_size\":3},\"weight_map\":{"
		"\"a\":\"s0\",\"b\":\"d/s1\",\"c\":\"s0\",\"d\":\"none\","
		"\"e\":\"d/s1\"}}";
	char s0[256], s1[256], got[2];
	struct bytes_file files[2] = { { .p = (void *)s0 },
				       { .p = (void *)s1 } };
	struct tensor_table *t = NULL, *whole = NULL;
	const struct tensor *c;

	files[0].len = shard(s0,
			     "{\"c\":{\"dtype\":\"U8\",\"shape\":[2],"
			     "\"data_offsets\":[1,3]},\"a\":{\"dtype\":\"I8\","
			     "\"shape\":[],\"data_offsets\":[0,1]}}",
			     3);
	files[1].len = shard(s1,
			     "{\"b\":{\"dtype\":\"F16\",\"shape\":[1],"
			     "\"data_offsets\":[0,2]}}",
			     2);
	CHECK_EQ(scan_bytes(index, sizeof(index) - 1, "m" NAME, &t), 0);
	CHECK_STR(tensor_table_format(t), "index");
	CHECK_EQ(tensor_table_count(t), 5);
	CHECK_EQ(tensor_len(tensor_table_at(t, 0)), 0);
	CHECK_EQ(tensor_table_resolve(t, open_shard, files, &whole), 0);
	CHECK_EQ(tensor_table_count(whole), 5);
	CHECK_STR(tensor_table_at(whole, 1)->name, "b");
	CHECK_EQ(tensor_table_at(whole, 1)->type, TENSOR_F16);
	CHECK_STR(tensor_table_at(whole, 1)->pieces->file, "d/s1");
	CHECK_EQ(tensor_table_find(whole, "d")->type, TENSOR_UNKNOWN);
	CHECK_EQ(tensor_table_find(whole, "e")->type, TENSOR_UNKNOWN);
	CHECK(files[0].n_reads < 8); /* once, not for each tensor */
	c = tensor_table_find(whole, "c");
	CHECK_EQ(tensor_len(c), 2);
	CHECK_EQ(tensor_gather(c, open_shard, files, got, 2, 0), 0);
	CHECK(!memcmp(got, "xx", 2));
	files[1].error = -EIO;
	tensor_table_free(whole);
	whole = NULL;
	CHECK_EQ(tensor_table_resolve(t, open_shard, files, &whole), -EIO);
	tensor_table_free(t);
}

int main(void)
{
	comes_back();
	is_damaged();
	refuses();
	has_one_name_twice();
	is_too_large();
	resolves();
	return 0;
}
