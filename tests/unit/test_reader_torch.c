/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Torch files made by hand: what no framework would write, and what would take
 * too long to write. Files of the real one: tests/framework.
 */
#include "providers/reader_catalog.h"
#include "providers/reader_table.h"

#include "zip_fixture.h"

/* A pickle is put together here, then put into a zip. */
static struct image pickle;

static void op(const char *bytes, size_t len)
{
	image_put(&pickle, bytes, len);
}

#define OP(s) op(s, sizeof(s) - 1)

/* An int of 8 bytes, which may be negative. */
static void integer(int64_t v)
{
	OP("\x8a\x08");
	image_number(&pickle, (uint64_t)v, 8);
}

static void string(const char *s)
{
	OP("X");
	image_number(&pickle, strlen(s), 4);
	op(s, strlen(s));
}

static void dims(const int64_t *d, int n)
{
	OP("(");
	for (int i = 0; i < n; i++)
		integer(d[i]);
	OP("t");
}

/* What is 0 or NULL: of "0", which has 16 floats. */
struct view {
	const char *key;
	const char *class;
	int64_t numel;
	int64_t offset;
	int n;
	int64_t shape[40];
	int64_t stride[40];
};

static void tensor(const struct view *v)
{
	const char *class = v->class ? v->class : "FloatStorage";

	OP("ctorch._utils\n_rebuild_tensor_v2\n((");
	string("storage");
	OP("ctorch\n");
	op(class, strlen(class));
	OP("\n");
	string(v->key ? v->key : "0");
	string("cpu");
	integer(v->numel ? v->numel : 16);
	OP("tQ");
	integer(v->offset);
	dims(v->shape, v->n);
	dims(v->stride, v->n);
	OP("\x89NtR");
}

static void begin(void)
{
	pickle.len = 0;
	OP("\x80\x02");
}

/* The file: the pickle made, and a storage of 64 bytes, "0". */
static void make(struct image *img, struct zip_writer *w)
{
	static const uint8_t storage[64];

	OP(".");
	img->len = 0;
	img->hole_len = 0;
	memset(w, 0, sizeof(*w));
	w->img = img;
	zip_add(w, "x/data.pkl", pickle.at, pickle.len);
	zip_add(w, "x/byteorder", "little", 6);
	zip_add(w, "x/data/0", storage, sizeof(storage));
}

static int scan(struct image *img, struct tensor_table **out)
{
	struct reader_source s = image_source(img);

	return tensor_table_scan(&s, "x.pt", out);
}

/* Finish the file; scan it; how many tensors, or the error. */
static int made(void)
{
	struct tensor_table *t = NULL;
	struct zip_writer w;
	struct image img;
	int rc;

	image_new(&img);
	make(&img, &w);
	zip_finish(&w);
	rc = scan(&img, &t);
	if (!rc)
		rc = (int)tensor_table_count(t);
	tensor_table_free(t);
	free(img.at);
	return rc;
}

static int one(struct view v)
{
	begin();
	tensor(&v);
	return made();
}

#define VIEW(...) ((struct view){ __VA_ARGS__ })

static void places(void)
{
	CHECK_EQ(one(VIEW(.n = 1, .shape = { 16 }, .stride = { 1 })), 1);
	CHECK_EQ(one(VIEW(.n = 1, .shape = { 17 }, .stride = { 1 })), -ENOMSG);
	CHECK_EQ(one(VIEW(.offset = 15)), 1);
	CHECK_EQ(one(VIEW(.offset = 16)), -ENOMSG);
	CHECK_EQ(one(VIEW(.offset = -1)), -ENOMSG);
	CHECK_EQ(one(VIEW(.offset = INT64_MAX)), -ENOMSG);
	CHECK_EQ(one(VIEW(.n = 1, .shape = { 0 }, .stride = { 1 })), 1);
	CHECK_EQ(one(VIEW(.n = 2, .shape = { 4, 4 }, .stride = { 1, 4 })), 1);
	CHECK_EQ(one(VIEW(.n = 2, .shape = { 4, 4 }, .stride = { 1, 5 })),
		 -ENOMSG);
	CHECK_EQ(one(VIEW(.n = 1, .shape = { 2 }, .stride = { -1 })), -ENOMSG);
	CHECK_EQ(one(VIEW(.n = 1, .shape = { -2 }, .stride = { 1 })), -ENOMSG);
	CHECK_EQ(one(VIEW(.n = 2, .shape = { INT64_MAX, 3 },
			  .stride = { INT64_MAX, 1 })),
		 -ENOMSG);
	/* One element, shown more often than there are bytes. */
	CHECK_EQ(one(VIEW(.n = 1, .shape = { INT64_MAX }, .stride = { 0 })),
		 -ENOMSG);
	CHECK_EQ(one(VIEW(.n = 1, .shape = { 1 << 30 }, .stride = { 0 })), 1);
	/* The storage says more, or less, than its member has. */
	CHECK_EQ(one(VIEW(.numel = 17)), -ENOMSG);
	CHECK_EQ(one(VIEW(.numel = INT64_MAX)), -ENOMSG);
	CHECK_EQ(one(VIEW(.numel = 1, .offset = 1)), -ENOMSG);
	CHECK_EQ(one(VIEW(.key = "1")), -ENOMSG);
	CHECK_EQ(one(VIEW(.key = "../data/0")), -ENOMSG);
	/* Not for us, but no reason to doubt the file. */
	CHECK_EQ(one(VIEW(.class = "QInt8Storage")), 0);
	CHECK_EQ(one(VIEW(.n = 40)), 0);
}

static void broken_files(void)
{
	const struct view v = VIEW(.n = 1, .shape = { 16 }, .stride = { 1 });
	struct tensor_table *t = NULL;
	struct zip_writer w;
	struct image img;

	image_new(&img);
	begin();
	tensor(&v);
	make(&img, &w);
	zip_finish(&w);
	for (size_t len = img.len - 1; len; len--) {
		img.len = len;
		CHECK_EQ(scan(&img, &t), -ENOMSG);
	}
	/* A folder of another name, and a storage that is compressed. */
	make(&img, &w);
	w.e[2].name[0] = img.at[w.e[2].header + 30] = 'y';
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), -ENOMSG);
	make(&img, &w);
	w.n = 2;
	zip_add_deflated(&w, "x/data/0", pickle.at, pickle.len);
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), -ENOMSG);
	make(&img, &w);
	memcpy(img.at + w.e[2].header - 6, "middle", 6);
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), -ENOMSG);
	free(img.at);
}

static void big_endian(void)
{
	const struct view v = VIEW(.n = 1, .shape = { 16 }, .stride = { 1 });
	struct tensor_table *t = NULL;
	struct zip_writer w;
	struct image img;

	image_new(&img);
	begin();
	tensor(&v);
	make(&img, &w);
	w.n = 1;
	zip_add(&w, "x/byteorder", "big", 3);
	zip_add(&w, "x/data/0", pickle.at, 64);
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), 0);
	CHECK(tensor_table_at(t, 0)->pieces->swapped);
	tensor_table_free(t);
	free(img.at);
}

/* A storage of 5 GiB, and the tensor at its end. */
static void big(void)
{
	uint64_t len = UINT64_C(5) << 30, numel = len / 4;
	const struct view v = VIEW(.numel = (int64_t)numel,
				   .offset = (int64_t)numel - 2, .n = 1,
				   .shape = { 2 }, .stride = { 1 });
	struct tensor_table *t = NULL;
	struct zip_writer w = { .zip64 = true };
	struct image img;
	uint64_t begins;

	image_new(&img);
	w.img = &img;
	begin();
	tensor(&v);
	OP(".");
	zip_add(&w, "x/version", "3\n", 2);
	zip_begin(&w, "x/data/0", ZIP_STORED);
	begins = image_end(&img);
	img.hole_at = img.len;
	img.hole_len = len;
	w.e[1].size = w.e[1].packed = len;
	zip_add(&w, "x/data.pkl", pickle.at, pickle.len);
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), 0);
	CHECK_EQ(tensor_table_at(t, 0)->pieces->off, begins + len - 8);
	CHECK_EQ(tensor_table_at(t, 0)->pieces->len, 8);
	tensor_table_free(t);
	free(img.at);
}

static void expect_names(const char *const *want, size_t n)
{
	struct tensor_table *t = NULL;
	struct zip_writer w;
	struct image img;

	image_new(&img);
	make(&img, &w);
	zip_finish(&w);
	CHECK_EQ(scan(&img, &t), 0);
	CHECK_EQ(tensor_table_count(t), n);
	for (size_t i = 0; i < n; i++) {
		CHECK_STR(tensor_table_at(t, i)->name, want[i]);
		CHECK_EQ(tensor_table_at(t, i)->shared, i > 0);
	}
	tensor_table_free(t);
	free(img.at);
}

/* {"a": {"b": t, "b#2": t, 7: t, None: t, (): t}, "a.b": t, "a.b": t, "": t} */
static void names(void)
{
	static const char *const want[] = {
		"a.b",   "a.b#2", "a.7",   "a.None",
		"a.[4]", "a.b#3", "a.b#4", "tensor"
	};
	const struct view v = VIEW(.n = 0);

	begin();
	OP("}(");
	string("a");
	OP("}(");
	string("b");
	tensor(&v);
	OP("q\1");
	string("b#2");
	OP("h\1K\7h\1Nh\1)h\1u");
	string("a.b");
	OP("h\1");
	string("a.b");
	OP("h\1");
	string("");
	OP("h\1");
	/* Left out: no UTF-8, and a NUL. */
	string("\xff");
	OP("h\1X\1\0\0\0\0h\1u");
	expect_names(want, 8);
}

/* Tuples of which each holds the one before twice. */
static int bomb(const struct view *v, int levels)
{
	begin();
	if (v)
		tensor(v);
	else
		OP("]");
	for (int i = 0; i < levels; i++)
		OP("q\1h\1\x86");
	return made();
}

static void bombs(void)
{
	const struct view v = VIEW(.n = 0);

	CHECK_EQ(bomb(NULL, 150), 0);
	CHECK_EQ(bomb(&v, 3), 8);
	CHECK_EQ(bomb(&v, 60), -E2BIG);
	CHECK_EQ(bomb(NULL, 1000), -E2BIG);
	/* A list in itself, with a tensor. */
	begin();
	OP("]q\1(h\1");
	tensor(&v);
	OP("h\1e");
	CHECK_EQ(made(), 1);
}

/* Wide and barren, but for one tensor; then that again and again. */
static void wide(void)
{
	const struct view v = VIEW(.n = 0);

	begin();
	OP("](");
	for (int i = 0; i < 20000; i++)
		OP("]");
	tensor(&v);
	OP("eq\1](");
	for (int i = 0; i < 20000; i++)
		OP("h\1");
	OP("e\x86\x85");
	CHECK_EQ(made(), -E2BIG);
}

/* ---- who shares, against what counting every byte says ---- */

struct shares {
	uint8_t bytes[256];
	size_t n;
	const struct catalog_item *items;
};

static int check_shared(void *arg, const struct tensor *t)
{
	struct shares *s = arg;
	const struct catalog_item *item = &s->items[s->n++];
	bool shared = false;

	for (uint64_t i = item->off; i < item->off + item->len; i++) {
		shared |= s->bytes[i];
		s->bytes[i] = 1;
	}
	CHECK_EQ(t->shared, shared);
	return 0;
}

static void sharing(void)
{
	uint32_t seed = 1;

	for (int round = 0; round < 200; round++) {
		struct catalog_item items[40] = { 0 };
		struct shares s = { .items = items };
		struct catalog *c = NULL;

		CHECK_EQ(catalog_new(1 << 20, &c), 0);
		for (int i = 0; i < 40; i++) {
			seed = seed * 1664525 + 1013904223;
			items[i].type = TENSOR_U8;
			items[i].off = seed >> 25;
			items[i].len = (seed >> 16) % (round % 30 + 1);
			CHECK_EQ(catalog_add(c, "t", 1, &items[i]), 0);
		}
		CHECK_EQ(catalog_report(c, check_shared, &s), 0);
		CHECK_EQ(s.n, 40);
		catalog_free(c);
	}
}

int main(void)
{
	image_new(&pickle);
	places();
	broken_files();
	big_endian();
	big();
	names();
	bombs();
	wide();
	sharing();
	free(pickle.at);
	return 0;
}
